"""``.metadata`` that ckptctl writes, read by torch and by both of our own readers."""

from __future__ import annotations

import io
import pickle
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.errors import MalformedData
from ckptctl.formats.dcp.columns import parse_columns
from ckptctl.formats.dcp.metadata import Parsed, parse
from ckptctl.formats.dcp.metadata_writer import encode_metadata
from ckptctl.formats.dcp.summary import summarise
from ckptctl.model.checkpoint import Entry, Items, ObjectEntry, TensorEntry
from ckptctl.model.dtypes import ALIASES, NAMES
from ckptctl.model.geometry import Box, Boxes
from conftest import FIXTURES, SHARED
from support.effort import calls

torch = pytest.importorskip("torch")
torch_metadata = pytest.importorskip("torch.distributed.checkpoint.metadata")

FILES = sorted(
    path
    for root in (FIXTURES, SHARED / "samples")
    if root.is_dir()
    for path in root.rglob("*.metadata")
)


def written(entries: dict[str, Entry], items: Items, paths: Any, save_id: str = "save-1") -> bytes:
    pieces = encode_metadata(entries, items, paths, save_id=save_id, checkpoint_id="/run/step-2")
    return b"".join(pieces)


def rows(parsed: Parsed) -> list[Any]:
    return [
        [
            (e.fqn, list(e.boxes), e.dtype, e.shape, e.requires_grad)
            if isinstance(e, TensorEntry)
            else e
            for e in parsed.entries.values()
        ],
        list(parsed.items),
        dict(parsed.paths_in_state),
    ]


def read_fast(data: bytes, folder: Path) -> Parsed:
    """Read by columns; where that lane gives up, the test fails instead of falling back."""
    del folder
    return parse_columns(io.BytesIO(data), len(data), ".metadata")


@pytest.mark.parametrize(
    "path", FILES, ids=lambda p: f"{p.parent.parent.name}-{p.parent.name}-{p.name}"
)
def test_what_was_read_is_written_and_read_again(path: Path, tmp_path: Path) -> None:
    before = parse(path.read_bytes(), path.name)
    if before.faults or not before.readable:
        pytest.skip("this sample is damaged on purpose")
    data = written(before.entries, before.items, before.paths_in_state)
    for after in (parse(data, ".metadata"), read_fast(data, tmp_path)):
        assert not after.faults and not after.opaque_classes
        assert rows(after) == rows(before)
        assert after.identity.save_id == "save-1"
        assert after.identity.checkpoint_id == "/run/step-2"
        assert after.identity.torch_versions == "2.9 or later"
    found = pickle.loads(data)
    assert type(found) is torch_metadata.Metadata and found.version == "1.0.0"
    assert found.storage_meta == torch_metadata.StorageMeta("/run/step-2", "save-1", None, [])
    try:
        original = pickle.loads(path.read_bytes())
    except (ImportError, AttributeError):
        return  # classes of Megatron, or of torch releases that are not installed
    assert found.storage_data == original.storage_data
    assert [(i.fqn, i.offset) for i in found.storage_data] == [
        (i.fqn, i.offset) for i in original.storage_data
    ]
    if type(original) is torch_metadata.Metadata:
        assert list(found.state_dict_metadata) == list(original.state_dict_metadata)
        for fqn, entry in found.state_dict_metadata.items():
            theirs = original.state_dict_metadata[fqn]
            if type(getattr(theirs, "properties", None)).__module__ == torch_metadata.__name__:
                assert entry == theirs
    planned = original.planner_data or None
    assert found.planner_data == planned or not isinstance(planned, dict)


def test_the_hints_are_the_numbers_of_the_boxes() -> None:
    boxes = Boxes.of(1, [Box((4,), (2,)), Box((0,), (4,)), Box((6,), (0,))])
    entries: dict[str, Entry] = {
        "a": TensorEntry("a", "bfloat16", (6,), boxes, requires_grad=True),
        "b": ObjectEntry("b"),
    }
    items = Items(
        ["a", "b", "a", "a"],
        [(0,), None, (6,), (4,)],
        ["x", "y", "x", "z"],
        array("q", [0, 5, 1 << 40, 3]),
        array("q", [1, 2, 3, 1 << 33]),
        {1: ("stream.zstd/1", "other/2")},
    )
    found = pickle.loads(written(entries, items, {"a": ("m", -3, 300, 1 << 40), "b": ()}))
    assert [index.index for index in found.storage_data] == [1, None, 2, 0]
    assert found.planner_data == {"a": ("m", -3, 300, 1 << 40), "b": ()}
    infos = list(found.storage_data.values())
    assert infos[1].transform_descriptors == ["stream.zstd/1", "other/2"]
    assert infos[0].transform_descriptors is None
    assert (infos[2].offset, infos[3].length) == (1 << 40, 1 << 33)
    assert found.state_dict_metadata["a"].properties.requires_grad is True
    assert type(found.state_dict_metadata["a"].size) is torch.Size


@pytest.mark.parametrize("dtype", sorted(NAMES - set(ALIASES)))
def test_every_dtype_survives(dtype: str) -> None:
    entry = TensorEntry("t", dtype, (), Boxes.of(0, [Box((), ())]))
    data = written({"t": entry}, Items(), {})
    assert not parse(data, "m").faults
    if hasattr(torch, dtype):
        found = pickle.loads(data).state_dict_metadata["t"]
        assert found.properties == torch_metadata.TensorProperties(dtype=getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["?", "load", "float", "hub\nx"])
def test_what_is_no_dtype_is_refused(dtype: str) -> None:
    entry = TensorEntry("t", dtype, (), Boxes.of(0, [Box((), ())]))
    with pytest.raises(MalformedData, match="no dtype"):
        written({"t": entry}, Items(), {})


def one(fqn: str, origin: tuple[int, ...] | None) -> Items:
    return Items([fqn], [origin], ["f"], array("q", [0]), array("q", [1]))


@pytest.mark.parametrize(
    "items", [one("t", (1,)), one("t", None), one("o", (0,)), one("unknown", None)]
)
def test_an_item_of_nothing_described_is_refused(items: Items) -> None:
    entries: dict[str, Entry] = {
        "t": TensorEntry("t", "int8", (2,), Boxes.of(1, [Box((0,), (2,))])),
        "o": ObjectEntry("o"),
    }
    with pytest.raises(MalformedData):
        written(entries, items, {})


NAME = st.text(st.characters(codec=None), min_size=0, max_size=12)


@settings(max_examples=60)
@given(
    st.dictionaries(
        NAME,
        st.one_of(
            st.none(),
            st.tuples(
                st.sampled_from(sorted(NAMES - set(ALIASES))),
                st.lists(st.integers(0, 1 << 62), max_size=4),
                st.integers(0, 3),
            ),
        ),
        max_size=8,
    ),
    st.dictionaries(
        NAME, st.lists(NAME | st.integers(-(1 << 62), 1 << 62), max_size=4), max_size=5
    ),
)
def test_any_names_and_numbers(drawn: dict[str, Any], paths: dict[str, list[str | int]]) -> None:
    entries: dict[str, Entry] = {}
    items = Items()
    for fqn, what in drawn.items():
        if what is None:
            entries[fqn] = ObjectEntry(fqn)
            items.origins.append(None)
        else:
            dtype, shape, count = what
            box = Box((0,) * len(shape), tuple(shape))
            entries[fqn] = TensorEntry(
                fqn, dtype, tuple(shape), Boxes.of(len(shape), [box] * count)
            )
            if not count:
                continue
            items.origins.append(box.offsets)
        items.fqns.append(fqn)
        items.paths.append(fqn)
        items.offsets.append(len(fqn) << 40)
        items.lengths.append(7)
    keyed = {fqn: tuple(path) for fqn, path in paths.items()}
    after = parse(written(entries, items, keyed), "m")
    assert not after.faults
    assert rows(after) == rows(Parsed("m", entries, items, paths_in_state=keyed))


def huge(tensors: int, ranks: int) -> tuple[dict[str, Entry], Items, dict[str, Any]]:
    entries: dict[str, Entry] = {}
    items = Items()
    for number in range(tensors):
        fqn = f"model.layers.{number}.feed_forward.w1.weight"
        boxes = Boxes.of(2, [Box((r * 128, 0), (128, 4096)) for r in range(ranks)])
        entries[fqn] = TensorEntry(fqn, "float32", (128 * ranks, 4096), boxes)
        for rank, box in enumerate(boxes):
            items.fqns.append(fqn)
            items.origins.append(box.offsets)
            items.paths.append(f"__{rank}_0.distcp")
            items.offsets.append(number * 2_100_000)
            items.lengths.append(2_100_000)
    return entries, items, {fqn: ("model", fqn[6:]) for fqn in entries}


def test_large_metadata_takes_the_fast_lane_and_stays_small(tmp_path: Path) -> None:
    entries, items, paths = huge(100, 500)
    made, data = calls(lambda: written(entries, items, paths))
    assert len(data) < 100 * len(items)  # torch's own needs about 190 bytes for each
    assert made < 120 * len(items)  # calls
    after = read_fast(data, tmp_path)
    assert rows(after) == rows(Parsed("m", entries, items, paths_in_state=paths))


def test_two_saves_of_one_layout_are_recognised_as_such() -> None:
    entries, items, paths = huge(3, 2)
    known: dict[object, Any] = {}
    first = summarise(written(entries, items, paths, "0a-1"), "m", known)
    second = summarise(written(entries, items, paths, "0b-2"), "m", known)
    assert first is second and len(known) == 1


def test_torch_reads_the_pieces_as_they_come(tmp_path: Path) -> None:
    """Frames are whole opcodes, as a reader that trusts them needs."""
    import pickletools

    entries, items, paths = huge(20, 100)
    pieces = list(encode_metadata(entries, items, paths, save_id="s", checkpoint_id="c"))
    assert len(pieces) > 2 and max(map(len, pieces)) < 80_000
    ops = list(pickletools.genops(b"".join(pieces)))
    begins = {position for _, _, position in ops}
    position = len(pieces[0])
    for piece in pieces[1:]:
        assert position in begins and piece[:1] == b"\x95"
        position += len(piece)
