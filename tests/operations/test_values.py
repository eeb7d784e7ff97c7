"""``--values``: what is no finite number, and what is absurd, in every dtype and every layout."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.checks import VALUE_CHECKS
from ckptctl.checks.values import HUGE
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.items.values import FORMATS, Scanner, scanner_of, values_of, view_of
from ckptctl.formats.pickles.tensors import parse_tensor
from ckptctl.model.checkpoint import BoxIndex, Checkpoint, Item, TensorEntry
from ckptctl.model.dtypes import FLOATING, ITEM_SIZE
from ckptctl.model.finding import Coverage, Finding, Gap, GapKind, Severity, Stage
from ckptctl.model.geometry import Box, Boxes
from ckptctl.model.observation import ItemSeen, Payload, ValuesSeen
from ckptctl.model.tensor_values import TensorValues
from ckptctl.operations.find import find
from ckptctl.operations.publish.promote import promote
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, Verification, verify
from ckptctl.storage import open_store
from ckptctl.storage.posix import PosixStore
from conftest import FIXTURES
from support import damage as damage
from support.cli import run_process
from support.publish import Watched, ckptctl, done, place_of, planted, refused
from support.samples import FIXTURE_CASES, HEALTHY, INDISTINGUISHABLE
from support.stores import record_of, torch_zip
from support.values import fill, put, rewrite_item, saved, spoil

torch = pytest.importorskip("torch")

Copy = Callable[..., Path]
NAN = struct.pack("<f", nan)
NAMES = sorted(FORMATS)
VALUE_IDS = [check.id for check in VALUE_CHECKS]
STEP = "optimizer.state.embed.weight.step"
EMBED = "model.embed.weight"


def looked(path: Path, **options: Any) -> Verification:
    """Verify one checkpoint with its values."""
    store = open_store(path)
    (place,) = find(store)
    return verify(store, place, options=Options(workers=1, values=True, **options))


def found(result: Verification, check: str) -> list[Finding]:
    return [finding for finding in result.report.findings if finding.check == check]


def spoken(result: Verification) -> set[str]:
    """Which of the checks of values have something to say."""
    return {finding.check for finding in result.report.findings} & set(VALUE_IDS)


def row(result: Verification, stage: Stage) -> Coverage:
    (only,) = (one for one in result.report.coverage if one.stage is stage)
    return only


def errors(result: Verification) -> set[str]:
    return {f.check for f in result.report.findings if f.severity is Severity.ERROR}


def saved_state(path: Path, state: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    damage.save_with_torch(path, state)
    return path


# ---------------------------------------------------------------------------------- the scanner


def as_numbers(tensor: Any) -> Any:
    """The components of a tensor as float64; complex numbers get one more dimension of two."""
    if tensor.is_complex():
        wide = (
            tensor.to(torch.complex128)
            if tensor.dtype != torch.complex32
            else tensor.to(torch.complex64).to(torch.complex128)
        )
        return torch.view_as_real(wide.resolve_conj())
    return tensor.to(torch.float64)


def oracle(tensor: Any) -> ValuesSeen:
    """What torch itself says of a tensor."""
    numbers = as_numbers(tensor)
    parts = numbers.reshape(*tensor.shape, -1)
    is_nan, is_inf = parts.isnan().any(-1), parts.isinf().any(-1)
    negative = (parts == -inf).any(-1)
    bad = (is_nan | is_inf).nonzero()
    finite = numbers[numbers.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    info = torch.finfo(tensor.dtype)
    normal = 0.0 if tensor.dtype == torch.float8_e8m0fnu else info.tiny
    return ValuesSeen(
        count=tensor.numel(),
        nan=int(is_nan.sum()),
        infinite=int(is_inf.sum()),
        negative=int(negative.sum()),
        first=tuple(bad[0].tolist()) if len(bad) else None,
        largest=largest,
        extreme=largest == info.max,
        subnormal=0 < largest < normal,
    )


def scanned(tensor: Any, cuts: list[int], *, big: bool = False) -> ValuesSeen:
    """What our scanner says, fed with what torch saves of it, in pieces."""
    item = saved(tensor)
    payload = parse_tensor(record_of(item, "data.pkl"))
    data = record_of(item, f"data/{payload.storage_key}")
    if big:
        width = FORMATS[payload.dtype].width
        data = b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))
    scanner = scanner_of(payload, f"data/{payload.storage_key}", big=big)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        assert scanner is not None
        scanner.feed(memoryview(b"x" + data)[1 + start : 1 + stop])
    seen = values_of(payload, scanner, big=big)
    assert seen is not None
    return seen


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda t: t,
    "transposed": lambda t: t.permute(tuple(reversed(range(t.dim())))),
    "swapped": lambda t: t.transpose(0, -1) if t.dim() else t,
    "part": lambda t: t[1:] if t.dim() and t.shape[0] > 1 else t,
    "expanded": lambda t: t.unsqueeze(0).expand(3, *t.shape),
    "expanded inside": lambda t: t.unsqueeze(-1).expand(*t.shape, 2),
}


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Tensors of any float dtype and layout, of random bits, with many special ones."""
    name = draw(st.sampled_from(NAMES))
    form = FORMATS[name]
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    count = torch.Size(shape).numel() * form.parts
    bits, top = 8 * form.width, form.beyond - 1
    specials = [
        0,
        1,
        top,
        form.beyond % (1 << bits),
        (1 << bits) - 1,
        1 << bits - 1,
        1 << form.mantissa,
    ]
    pattern = st.one_of(st.sampled_from(specials), st.integers(0, (1 << bits) - 1))
    if draw(st.booleans()):
        pattern = st.integers(0, min(top, draw(st.sampled_from(specials))))
    numbers = draw(st.lists(pattern, min_size=count, max_size=count))
    raw = b"".join(number.to_bytes(form.width, "little") for number in numbers)
    tensor = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(getattr(torch, name))
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    return layout(tensor.reshape(shape))


@settings(max_examples=600)
@given(tensors(), st.lists(st.integers(0, 1 << 16), max_size=5), st.booleans())
def test_the_scanner_says_what_torch_says(tensor: Any, cuts: list[int], big: bool) -> None:
    assert scanned(tensor, cuts, big=big) == oracle(tensor)


@pytest.mark.parametrize("name", [n for n in NAMES if FORMATS[n].width == 1])
def test_every_pattern_of_eight_bits(name: str) -> None:
    for pattern in range(256):
        tensor = torch.tensor([pattern], dtype=torch.uint8).view(getattr(torch, name))
        assert scanned(tensor, []) == oracle(tensor), pattern


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_pattern_of_sixteen_bits(name: str) -> None:
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(getattr(torch, name))
    assert scanned(numbers, [3, 77777]) == oracle(numbers)
    for pattern in (0x7C00, 0x7F80, 0x8000, 0xFFFF, 0xFF80, 0xFC00, 1, 0x80, 0x400):
        one = numbers[pattern : pattern + 1].clone()
        assert scanned(one, [1]) == oracle(one), pattern


def test_every_float_dtype_has_a_format() -> None:
    assert set(FORMATS) == FLOATING
    for name, form in FORMATS.items():
        assert form.width * form.parts == ITEM_SIZE[name]
        info = torch.finfo(getattr(torch, name))
        assert form.value(form.beyond - 1) == info.max
        if form.signed:
            assert form.value(1 << form.mantissa) == info.tiny


def test_long_pieces_are_taken_in_blocks() -> None:
    numbers = torch.full((700_001,), 2.0)
    numbers[699_999] = nan
    numbers[5] = -3.0
    assert scanned(numbers, [1, 5]) == oracle(numbers)
    assert scanned(numbers, [1, 5], big=True) == oracle(numbers)


def test_scattered_elements_are_a_gap() -> None:
    assert view_of(Payload("plain", "float32", (2, 2), (4, 1))) is None
    assert view_of(Payload("plain", "float32", (2, 2), (1, 1))) is None
    payload = parse_tensor(record_of(saved(torch.zeros(4, 4)[:, 1:3]), "data.pkl"))
    assert scanner_of(payload, "data/0", big=False) is None
    assert values_of(payload, None, big=False) == ValuesSeen(
        gap=Gap(GapKind.NOT_INTERPRETED, "scattered in a larger storage")
    )


def test_a_storage_of_nothing_but_extent_is_no_work() -> None:
    huge = Payload("plain", "float32", (1 << 61, 4), (0, 1))
    assert view_of(huge) is None
    assert values_of(huge, None, big=False) == ValuesSeen(
        gap=Gap(GapKind.NOT_INTERPRETED, "scattered in a larger storage")
    )


def test_a_record_that_ends_early_is_a_gap() -> None:
    payload = Payload("plain", "float32", (4,), (1,), 0, "0", 16)
    scanner = scanner_of(payload, "data/0", big=False)
    assert isinstance(scanner, Scanner)
    scanner.feed(bytes(15))
    seen = values_of(payload, scanner, big=False)
    assert seen is not None
    assert seen.gap


# ---------------------------------------------------------------------------------- one item


def item_seen(path: Path, data: bytes) -> ItemSeen:
    path.write_bytes(data)
    item = Item("x", (0,), path.name, 0, len(data))
    with PosixStore(path.parent).open(path.name) as reader:
        (seen,) = scan_items(
            reader,
            [item],
            content=True,
            is_tensor=lambda _: True,
            expected_bytes=lambda _: None,
            values=True,
        )
    assert not seen.faults
    return seen


def records_of(tensor: Any) -> dict[str, bytes]:
    item = saved(tensor)
    return {name: record_of(item, name) for name in ("data.pkl", "byteorder", "data/0", "version")}


def test_big_endian_items_are_read_as_such(tmp_path: Path) -> None:
    tensor = torch.tensor([1.0, nan, -inf, 2.0])
    swapped = tensor.view(torch.uint8).reshape(-1, 4).flip(1).numpy().tobytes()
    records = {**records_of(tensor), "byteorder": b"big", "data/0": swapped}
    assert item_seen(tmp_path / "big", torch_zip(records)).values == oracle(tensor)


@pytest.mark.parametrize("order", ["data first", "byte order last"])
def test_values_before_their_description_are_a_gap(tmp_path: Path, order: str) -> None:
    records = records_of(torch.tensor([1.0, nan]))
    first = records.pop("data/0" if order == "data first" else "data.pkl")
    if order == "data first":
        records = {"data/0": first, **records}
    else:
        late = records.pop("byteorder").replace(b"little", b"big")
        records = {
            "data.pkl": first,
            "data/0": records["data/0"],
            "byteorder": late,
            "version": b"3\n",
        }
    seen = item_seen(tmp_path / "odd", torch_zip(records))
    assert seen.values == ValuesSeen(
        gap=Gap(GapKind.NOT_INTERPRETED, "their bytes come before what describes them")
    )


def test_an_item_of_several_blocks_and_odd_ends(tmp_path: Path) -> None:
    tensor = torch.ones(3 << 20, dtype=torch.bfloat16)
    tensor[-1] = inf
    tensor[1234567] = nan
    assert item_seen(tmp_path / "long", saved(tensor)).values == oracle(tensor)
    doubles = torch.ones(1 << 18, dtype=torch.complex128)  # its tail begins within an element
    doubles[-3] = complex(0, -inf)
    assert item_seen(tmp_path / "wide", saved(doubles)).values == oracle(doubles)


def test_integers_have_no_values_to_look_at(tmp_path: Path) -> None:
    assert item_seen(tmp_path / "int", saved(torch.full((4,), -1))).values is None


# ---------------------------------------------------------------------------------- whole checkpoints


def test_nan_saved_by_torch_with_a_good_crc(copy: Copy, tmp_path: Path) -> None:
    state = damage.load_with_torch(copy("fsdp2/step-12"))
    (key,) = (k for k in state if k.endswith("embed.weight.exp_avg_sq"))
    state[key][5, 3] = nan
    path = saved_state(tmp_path / "bad" / "step-12", state)
    assert ckptctl("verify", path).code == 0
    ended = ckptctl("verify", path, "--values")
    assert ended.code == 10
    assert f"error nan-value: __0_0.distcp (rank 0) {key} [0:" in ended.stdout
    numel = state[key].numel()
    assert f"1 NaN among {numel} values, first at [5, 3]" in " ".join(ended.stdout.split())
    assert "values    all 17 float tensors" in ended.stdout
    assert errors(looked(path)) == {"nan-value"}


PLACES = {
    "fsdp2/step-12": ("model.embed.weight", (3, 0), ".metadata"),
    "hsdp/step-12": ("model.embed.weight", None, ".metadata"),
    "tp_fsdp/step-12": ("model.embed.weight", None, ".metadata"),
    "zstd/step-12": (None, None, ".metadata"),
    "file_per_item/step-12": (None, None, ".metadata"),
    "thread_count_3/step-12": (None, None, ".metadata"),
    "async_save/step-12": ("model.embed.weight", None, ".metadata"),
    "no_crc/step-1": (None, None, ".metadata"),
    "rank_local/step-12": ("model.embed.weight", None, "__1.metadata"),
}


@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("commit", [False, True], ids=["plain", "committed"])
def test_one_nan_in_any_layout(copy: Copy, case: str, commit: bool) -> None:
    fqn, origin, name = PLACES[case]
    path = copy(case)
    described = damage.metadata_of(path, name)
    sizes = {
        (key.fqn, tuple(key.offset)): tuple(chunk.sizes)
        for key in described.storage_data
        if key.offset is not None
        for chunk in described.state_dict_metadata[key.fqn].chunks
        if tuple(chunk.offsets) == tuple(key.offset)
        and described.state_dict_metadata[key.fqn].properties.dtype == torch.float32
    }
    # the last piece of the largest tensor, so that its place in the whole is not its own
    key, place = max(
        (one for one in sizes if fqn in (None, one[0]) and origin in (None, one[1])),
        key=lambda one: (len(one[1]), 0 not in sizes[one], one[1]),
    )
    spoil(path, put(NAN, -4), fqn=key, origin=place, metadata=name)
    if commit:
        done("commit", path)
    assert ckptctl("verify", path).code == 0
    result = looked(path)
    (finding,) = found(result, "nan-value")
    assert errors(result) == {"nan-value"}
    last = [o + s - 1 for o, s in zip(place, sizes[key, place], strict=True)]
    assert "1 NaN among" in finding.message
    assert f"first at {last}" in finding.message
    assert finding.where.fqn == key
    assert finding.where.box is not None
    assert finding.where.box.offsets == place
    assert row(result, Stage.VALUES).complete
    if case.startswith("rank_local"):
        assert finding.message.endswith("in the copies of rank 1")


@pytest.mark.parametrize(("ranks", "says"), [((0, 1), "ranks 0, 1"), ((1,), "rank 1")])
def test_equal_boxes_of_several_ranks_count_once(
    copy: Copy, ranks: tuple[int, ...], says: str
) -> None:
    path = copy("rank_local/step-12")
    for rank in ranks:
        spoil(path, put(NAN), fqn=STEP, origin=(), metadata=f"__{rank}.metadata")
    (finding,) = found(looked(path), "nan-value")
    assert finding.message == f"1 NaN; in the copies of {says}"
    assert finding.where.rank == min(ranks)


def test_the_worst_copy_of_a_box_counts() -> None:
    entry = TensorEntry("w", "float32", (4,), Boxes.of(1, [Box((0,), (4,))]))
    checkpoint = Checkpoint("dcp", {}, entries={"w": entry}, replicated=True)
    copies = [(0, 1, (2,)), (1, 3, (1,)), (2, 3, (1,)), (3, 0, None)]
    for order in permutations(copies):
        values = TensorValues(entry, len(copies))
        for rank, count, first in order:
            item = Item("w", (0,), f"__{rank}_0.distcp", 0, 10)
            seen = ValuesSeen(count=4, nan=count, first=first, largest=1.0 + (rank == 3))
            values.add(item, BoxIndex(checkpoint), seen)
        (bad,) = values.bad.values()
        assert values.totals() == (3, 0, 0)
        assert (bad.item.rank, bad.first, bad.ranks) == (1, (1,), {0, 1, 2})
        assert values.largest_in is not None
        assert (values.whole, values.largest, values.largest_in.rank) == (True, 2.0, 3)


def test_pieces_of_one_tensor_are_one_finding(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    origins = sorted(
        tuple(key.offset) for key in damage.metadata_of(path).storage_data if key.fqn == EMBED
    )
    assert len(origins) > 2
    spoil(path, fill(NAN), fqn=EMBED, origin=origins[1])
    spoil(path, put(struct.pack("<f", -inf), 4), fqn=EMBED, origin=origins[2])
    (finding,) = found(looked(path), "nan-value")
    assert " NaN and 1 Inf among " in finding.message
    assert finding.message.endswith(
        f"first at {list(origins[1])}; in 2 of its {len(origins)} pieces"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_in_a_checkpoint(tmp_path: Path, name: str) -> None:
    form, dtype = FORMATS[name], getattr(torch, name)
    zero = bytearray(6 * form.width * form.parts)
    fine = torch.frombuffer(zero, dtype=torch.uint8).view(dtype).view(3, 2)
    bad_pattern = 0x80 if form.zero_is_nan else form.beyond + (1 if form.infinite else 0)
    bad = bytearray(zero)
    at = len(bad) - 2 * form.width * form.parts  # element 4: index [2, 0]
    bad[at : at + form.width] = bad_pattern.to_bytes(form.width, "little")
    broken = torch.frombuffer(bad, dtype=torch.uint8).view(dtype).view(3, 2)
    top = bytearray((form.beyond - 1).to_bytes(form.width, "little") * 6 * form.parts)
    most = torch.frombuffer(top, dtype=torch.uint8).view(dtype).view(3, 2)
    tiny = bytearray(b"".join(b"\x01" + bytes(form.width - 1) for _ in range(6 * form.parts)))
    least = torch.frombuffer(tiny, dtype=torch.uint8).view(dtype).view(3, 2)
    state = {"fine": fine, "broken": broken, "most": most, "least": least}
    result = looked(saved_state(tmp_path / "run" / "step-1", state))
    (finding,) = found(result, "nan-value")
    assert finding.where.fqn == "broken"
    assert finding.message == "1 NaN among 6 values, first at [2, 0]"
    assert spoken(result) == {"nan-value"}
    assert row(result, Stage.VALUES) == Coverage(Stage.VALUES, "float tensors", 4, 4)


def test_odd_layouts_are_looked_at(tmp_path: Path) -> None:
    numbers = torch.arange(24, dtype=torch.float32)
    bad = numbers.clone()
    bad[7] = nan
    state = {
        "transposed": bad.view(4, 6).t(),
        "expanded": torch.tensor([nan]).expand(3),
        "scalar": torch.tensor(nan),
        "empty": torch.empty(0, 3),
        "negative zero": -torch.zeros(8),
        "parameter": torch.nn.Parameter(bad.view(2, 3, 4)),
    }
    result = looked(saved_state(tmp_path / "run" / "step-1", state))
    messages = {f.where.fqn: f.message for f in found(result, "nan-value")}
    assert messages == {
        "transposed": "1 NaN among 24 values, first at [1, 1]",
        "expanded": "3 NaN among 3 values, first at [0]",
        "scalar": "1 NaN",
        "parameter": "1 NaN among 24 values, first at [0, 1, 3]",
    }


# ---------------------------------------------------------------------------------- legal states


@pytest.mark.parametrize("case", FIXTURE_CASES)
@pytest.mark.parametrize("commit", [False, True], ids=["plain", "committed"])
def test_fixtures_are_good(copy: Copy, case: str, commit: bool) -> None:
    path = copy(case)
    if commit:
        done("commit", path)
    result = looked(path)
    assert result.verdict is Verdict.OK if commit else result.good
    assert [f for f in result.report.findings if f.severity > Severity.NOTE] == []
    assert spoken(result) == set()
    values = row(result, Stage.VALUES)
    assert values.complete
    assert values.total > 0


@pytest.mark.parametrize("case", [*HEALTHY, *INDISTINGUISHABLE])
def test_samples_are_good(samples: Path, case: str) -> None:
    result = looked(samples / case, select=frozenset(VALUE_IDS))
    assert [f for f in result.report.findings if f.severity > Severity.NOTE] == []
    assert {f.check for f in result.report.findings} <= {"tolerated-value", "zero-tensor"}
    assert row(result, Stage.VALUES).complete


@dataclass
class State:
    """One tensor of a state dict, and what must be said of it."""

    key: str
    value: Any
    says: str = ""


def triangle(fill_with: float) -> Any:
    return torch.full((40, 40), fill_with).triu(1)


def with_one(tensor: Any, value: float) -> Any:
    new = tensor.clone()
    new.view(-1)[tensor.numel() // 2] = value
    return new


NORMAL = torch.linspace(-2, 2, 64 * 64).view(64, 64)
STATES = {
    "causal mask": State("model.attn.bias", triangle(-inf), "tolerated-value"),
    "named mask": State("model.attn.causal_mask", with_one(NORMAL, inf), "tolerated-value"),
    "nan in a mask": State("model.attn.causal_mask", with_one(NORMAL, nan), "nan-value"),
    "mask of lowest numbers": State("model.attn.bias", triangle(torch.finfo(torch.float32).min)),
    "trained mask token": State("model.mask_token", with_one(NORMAL, inf), "nan-value"),
    "all of it -inf": State("model.w", torch.full((40, 40), -inf), "nan-value"),
    "zeros with +inf": State("model.w", with_one(torch.zeros(40), inf), "nan-value"),
    "-inf in a moment": State(
        "optimizer.state.w.exp_avg", with_one(torch.zeros(40, 40), -inf), "nan-value"
    ),
    "observer range": State("model.act.min_val", torch.tensor(inf), "tolerated-value"),
    "best so far": State("trainer.best_loss", torch.tensor(inf), "tolerated-value"),
    "best is NaN": State("trainer.best_loss", torch.tensor(nan), "nan-value"),
    "buffered sample": State("dataloader.buffer", with_one(NORMAL, nan), "tolerated-value"),
    "loss scale": State("scaler.scale", torch.tensor(2.0**120)),
    "loss scale gone": State("scaler.scale", torch.tensor(inf), "nan-value"),
    "adam steps": State("optimizer.state.w.step", torch.tensor(1e7)),
    "tokens seen": State("model.tokens", torch.full((64,), 1.5e13)),
    "token count": State("train_state.ntokens", torch.tensor(1.5e13)),
    "tiny second moment": State("optimizer.state.w.exp_avg_sq", torch.full((32,), 1e-40)),
    "weights": State("model.w", NORMAL),
    "flipped exponent": State("model.w", with_one(NORMAL, 0.01 * 2.0**127), "huge-value"),
    "huge moment": State("optimizer.state.w.exp_avg_sq", with_one(NORMAL, 1e30), "huge-value"),
    "lowest number in a moment": State(
        "optimizer.state.w.exp_avg", with_one(NORMAL, torch.finfo(torch.float32).min), "huge-value"
    ),
    "just below": State("model.w", with_one(NORMAL, HUGE * 0.999)),
    "half precision at its end": State("model.w", with_one(NORMAL.half(), 65504)),
    "fresh bias": State("model.bias", torch.zeros(128)),
    "zero matrix": State("model.lora_b", torch.zeros(64, 64), "zero-tensor"),
    "negative zeros": State("model.lora_b", -torch.zeros(64, 64), "zero-tensor"),
    "almost zero": State("model.w", with_one(torch.zeros(64, 64), 1e-3)),
    "underflowed": State("model.w", with_one(torch.zeros(64, 64), 1e-41), "subnormal-tensor"),
    "integers": State("model.ids", torch.full((64, 64), -1)),
}


@pytest.mark.parametrize("name", STATES)
def test_what_is_said_of_states(tmp_path: Path, name: str) -> None:
    state = STATES[name]
    path = saved_state(tmp_path / "run" / "step-1", {state.key: state.value, "model.x": NORMAL})
    result = looked(path)
    assert spoken(result) == ({state.says} if state.says else set())
    judged = [f for f in result.report.findings if f.check in VALUE_IDS]
    assert all(f.where.fqn == state.key and f.remedy for f in judged)
    error = state.says == "nan-value"
    assert result.verdict is Verdict.FINDINGS if error else result.good
    severities = {f.severity for f in found(result, "huge-value")}
    assert severities <= {Severity.WARNING}


def test_many_zero_tensors_are_one_note(tmp_path: Path) -> None:
    state = {f"model.layers.{i}.w": torch.zeros(64, 64) for i in range(12)}
    result = looked(saved_state(tmp_path / "run" / "step-1", state))
    (finding,) = found(result, "zero-tensor")
    assert finding.message.startswith("all values of 12 float tensors are zero: model.layers.0.w, ")
    assert finding.message.endswith(" and 4 more")


def test_a_tensor_of_which_one_shard_is_zero_is_not_zero(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    spoil(path, fill(bytes(4)), fqn=EMBED, origin=(3, 0))
    result = looked(path)
    assert spoken(result) == set()
    assert row(result, Stage.VALUES).complete


BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(a, b).bucket_idx_0.param"


@pytest.mark.parametrize(("start", "harmless"), [(8, True), (0, False)])
def test_padding_of_a_megatron_bucket(
    samples: Path, tmp_path: Path, start: int, harmless: bool
) -> None:
    path = tmp_path / "iter_0000002"
    shutil.copytree(samples / "megatron/v0.19_torch_dist_dp2_distopt/iter_0000002", path)
    described = damage.metadata_of(path)
    (fqn,) = (k for k in described.state_dict_metadata if k.endswith("bucket_idx_0.exp_avg"))
    origin = min(
        tuple(key.offset)
        for key in described.storage_data
        if key.fqn == fqn and key.offset[0] % 64 == start
    )
    spoil(path, put(NAN), fqn=fqn, origin=origin)
    result = looked(path)
    assert found(result, "nan-value" if not harmless else "tolerated-value")
    assert errors(result) == (set() if harmless else {"nan-value"})


# ---------------------------------------------------------------------------------- damage and gaps


def test_damaged_bytes_are_not_judged(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    where = {"fqn": EMBED, "origin": (3, 0)}
    damage.write_field(path, data=NAN, **where)
    result = looked(path)
    assert errors(result) == {"checksum"}
    values = row(result, Stage.VALUES)
    assert (values.examined, values.gaps) == (
        values.total - 1,
        (Gap(GapKind.DAMAGED, "their bytes are damaged"),),
    )


def test_bytes_that_are_not_there_are_a_gap(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    damage.remove(path, file="__1_0.distcp")
    values = row(looked(path), Stage.VALUES)
    assert 0 < values.examined < values.total
    assert [gap.reason for gap in values.gaps] == ["their bytes are not there or could not be read"]


def test_other_tensor_classes_are_a_gap(tmp_path: Path) -> None:
    path = saved_state(tmp_path / "run" / "step-1", {"w": torch.ones(4)})
    rewrite_item(path, lambda _: saved(torch.ones(4).to_sparse()), fqn="w", origin=(0,))
    values = row(looked(path), Stage.VALUES)
    assert (values.examined, values.total) == (0, 1)
    assert "is not interpreted" in values.gaps[0].reason


def test_a_sample_says_what_it_left_out(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    values = row(looked(path, part=(1, 8)), Stage.VALUES)
    assert values.examined < values.total
    assert values.gaps == (
        Gap(GapKind.LEFT_OUT, "outside the part", values.total - values.examined),
    )


def test_without_the_option_nothing_is_said(copy: Copy) -> None:
    result = damage.run(copy("fsdp2/step-12"))
    assert all(one.stage is not Stage.VALUES for one in result.report.coverage)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--values", "--quick"), "--quick leaves out"),
        (("--select", "nan-value"), "--select nan-value needs --values"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], says: str) -> None:
    ended = ckptctl("verify", FIXTURES / "fsdp2/step-12", *options)
    assert (ended.code, ended.stdout) == (2, "")
    assert says in ended.stderr


def test_an_unstable_read_is_not_a_nan(copy: Copy) -> None:
    path = copy("no_crc/step-1")
    described = damage.metadata_of(path)
    key = next(k for k in described.storage_data if k.fqn == "model.weight" or k.offset is not None)
    file, span = damage.span_of(path, fqn=key.fqn, origin=tuple(key.offset))

    def disturb(name: str, number: int, data: bytes) -> bytes:
        if name.endswith(file.name) and number == 0 and len(data) > span.start:
            return data[: span.start] + NAN + data[span.start + 4 :]
        return data

    store, place = place_of(path, lambda root: Watched(root, disturb))
    result = verify(store, place, options=Options(workers=1, values=True))
    assert errors(result) == {"unstable-read"}
    assert row(result, Stage.VALUES).gaps == (Gap(GapKind.UNSTABLE, "two reads of them differ"),)


# ---------------------------------------------------------------------------------- committed


def watched(path: Path, options: Options) -> tuple[Verification, dict[str, int]]:
    store, place = place_of(path, Watched)
    assert isinstance(store, Watched)
    result = verify(store, place, options=options)
    return result, store.read


@pytest.mark.parametrize("case", ["fsdp2/step-12", "zstd/step-12", "no_crc/step-1"])
def test_a_committed_checkpoint_is_read_once(copy: Copy, case: str) -> None:
    path = copy(case)
    done("commit", path)
    result, read = watched(path, Options(workers=2, values=True, require_manifest=True))
    assert result.verdict is Verdict.OK
    shards = [file for file in path.iterdir() if file.suffix == ".distcp"]
    for file in shards:
        assert read[f"{path.name}/{file.name}"] == file.stat().st_size
    content = row(result, Stage.CONTENT)
    assert content.unit == "files"
    assert content.complete
    plain, _ = watched(path, Options(workers=2))
    assert content == row(plain, Stage.CONTENT)


def test_an_uncommitted_checkpoint_is_read_once(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    _, read = watched(path, Options(workers=1, values=True))
    for file in path.glob("*.distcp"):
        assert read[f"{path.name}/{file.name}"] == file.stat().st_size


def test_an_altered_committed_file_is_told_as_without_values(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path)
    damage.flip_field(path, fqn=EMBED, origin=(3, 0), at=1)
    with_values, without = looked(path), damage.run(path)
    assert errors(without) == {"altered-file", "checksum"}
    assert with_values.report.findings == without.report.findings
    assert row(with_values, Stage.VALUES).gaps == (Gap(GapKind.DAMAGED, "their bytes are damaged"),)


def test_numbers_replaced_after_the_commit_are_told_both_ways(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path)
    spoil(path, put(NAN), fqn=EMBED, origin=(3, 0))
    result = looked(path)
    assert errors(result) == {"altered-file", "nan-value"}
    assert row(result, Stage.VALUES).complete


def test_a_file_that_reads_differently_twice_is_unstable(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path)
    file, span = damage.span_of(path, fqn=EMBED, origin=(3, 0))

    def disturb(name: str, number: int, data: bytes) -> bytes:
        if name.endswith(file.name) and number == 0:
            return data[: span.start] + NAN + data[span.start + 4 :]
        return data

    store, place = place_of(path, lambda root: Watched(root, disturb))
    result = verify(store, place, options=Options(workers=1, values=True))
    assert errors(result) == {"unstable-file"}
    values = row(result, Stage.VALUES)
    assert [gap.reason for gap in values.gaps] == ["two reads of their file differ"]


def test_a_committed_file_whose_metadata_was_changed(copy: Copy) -> None:
    """Items that no longer lie one behind the other cannot be looked at while the file is hashed."""
    path = copy("fsdp2/step-12")
    done("commit", path)
    damage.drop_storage(path, fqn=EMBED, origin=(3, 0))
    result = looked(path)
    assert {"resized-file", "missing-entry", "unreferenced-bytes"} <= errors(result)
    values = row(result, Stage.VALUES)
    assert values.examined < values.total
    assert "the metadata does not place them one behind the other" in [
        gap.reason for gap in values.gaps
    ]


def test_values_that_cannot_be_read_leave_it_unfinished(copy: Copy) -> None:
    path = copy("zstd/step-12")
    done("commit", path)
    hide = "import sys; sys.modules['zstandard'] = None"
    assert run_process("verify", path, before=hide).code == 0
    ended = run_process("verify", path, "--values", before=hide)
    assert ended.code == 4
    assert "zstandard is not installed" in ended.stdout


def test_promote_refuses_nan(tmp_path: Path) -> None:
    root = planted(tmp_path / "run", [4])
    done("promote", root / "step-4", "--values")
    planted(root, [8], committed=False)
    spoil(root / "step-8", put(NAN), fqn=EMBED, origin=(3, 0))
    done("commit", root / "step-8")
    said = refused("promote", root / "step-8", "--values", code=10)
    assert "nan-value: __1_0.distcp: 1 NaN among " in said
    pointers = sorted((root / "ckptctl.pointers/latest_committed").glob("*.json"))
    assert len(pointers) == 1
    done("promote", root / "step-8")
    assert "nan-value" in refused("promote", root / "step-8", "--values", code=10)


def test_promote_reads_once_and_says_what_it_could_not_see(tmp_path: Path) -> None:
    path = planted(tmp_path / "run", [4], committed=False) / "step-4"
    sparse = saved(torch.ones(3, 8).to_sparse())
    rewrite_item(path, lambda _: sparse, fqn=EMBED, origin=(3, 0))
    done("commit", path)
    store, place = place_of(path, Watched)
    assert isinstance(store, Watched)
    result = promote(store, place, values=True, workers=1)
    assert result.moved
    assert [gap.count for gap in result.values_unseen] == [1]
    for file in path.glob("*.distcp"):
        assert store.read[f"step-4/{file.name}"] == file.stat().st_size
    ended = done("promote", path, "--values")
    assert "the values of 1 tensor were not looked at: layout of " in ended.stderr


def test_promote_does_not_mix_values_and_quick(tmp_path: Path) -> None:
    root = planted(tmp_path / "run", [4])
    assert "--quick leaves out" in refused(
        "promote", root / "step-4", "--values", "--quick", code=2
    )
