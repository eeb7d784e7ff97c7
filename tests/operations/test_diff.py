"""``ckptctl diff``: what tells two checkpoints apart, and what is the same whatever its form."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ckptctl.comparison.difference import Diff, Statistics, Verdict
from ckptctl.comparison.renaming import match_renamed
from ckptctl.operations.diff.diff import DiffOptions, diff
from ckptctl.operations.diff.values import numbers
from conftest import FIXTURES
from support import damage as damage
from support.cli import Ended, run, run_on_terminal

State = dict[str, Any]
SHAPES = {"layers.0.w": (64, 32), "layers.0.b": (64,), "layers.1.w": (32, 64), "layers.1.b": (32,)}
NAN_AT = "optimizer.state.layers.0.w.exp_avg_sq"


def state(step: int = 1000) -> State:
    generator = torch.Generator().manual_seed(step)
    made: State = {"train_state.step": step}
    for name, shape in SHAPES.items():
        made[f"model.{name}"] = torch.randn(shape, generator=generator)
        made[f"optimizer.state.{name}.exp_avg_sq"] = torch.rand(shape, generator=generator)
    return made


def save(target: Path, content: State) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(content, checkpoint_id=target, no_dist=True)
    return target


def load(path: Path) -> State:
    """Load a whole checkpoint with torch into one process."""
    metadata = FileSystemReader(path).read_metadata()
    content: State = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else {}
        for key, entry in metadata.state_dict_metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(content, checkpoint_id=path, no_dist=True)
    return content


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save(tmp_path / "a" / "step-1000", state())


@pytest.fixture
def other(tmp_path: Path) -> Callable[[State], Path]:
    """Return a function that saves a state as the other checkpoint of the same step."""
    return lambda content: save(tmp_path / "b" / "step-1000", content)


def compare(a: Path, b: Path, **options: Any) -> Diff:
    return diff(str(a), str(b), options=DiffOptions(**options))


def line_of(ended: Ended, word: str) -> str:
    return next(line for line in ended.stdout.splitlines() if line.strip().startswith(word))


def names(rows: Any) -> list[str]:
    return sorted(row.fqn for row in rows)


# ---------------------------------------------------------------------------------- the same


@pytest.mark.parametrize("case", ["fsdp2/step-12", "tp_fsdp/step-12", "dtype_zoo/step-1",
                                  "rank_local/step-12", "zstd/step-12", "no_crc/step-1"])  # fmt: skip
@pytest.mark.parametrize("how", [(), ("--values",), ("--quick",)])
def test_a_checkpoint_and_its_copy_are_the_same(
    copy: Callable[..., Path], case: str, how: tuple[str, ...]
) -> None:
    ended = run("diff", FIXTURES / case, copy(case), *how)
    assert (ended.code, ended.stderr) == (0, "")


def test_the_same_state_saved_twice_in_other_files_is_the_same() -> None:
    """One was saved asynchronously, the other by each rank on its own, with copies of values."""
    ended = run("diff", FIXTURES / "async_save/step-12", FIXTURES / "rank_local/step-12")
    assert ended.code == 0
    assert "18 of 18 tensors equal" in ended.stdout
    assert "27 of 27 values equal" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "the same"


@pytest.mark.parametrize("case", ["fsdp2/step-12", "tp_fsdp/step-12", "hsdp/step-12"])
@pytest.mark.parametrize("values", [False, True])
def test_another_sharding_of_one_state_has_the_same_content(
    other: Callable[[State], Path], case: str, values: bool
) -> None:
    whole = other(load(FIXTURES / case))
    found = compare(FIXTURES / case, whole, values=values)
    assert found.content.tensors == sum(found.content.equal.values()) > 10
    assert list(found.content.equal) == ["all bytes" if values else "content digest"]
    assert found.content.equal_objects == found.content.objects > 10
    sharded = {row.fqn: (row.a, row.b) for row in found.structure.changed}
    assert {row.what for row in found.structure.changed} == {"sharding"}
    expected = {"fsdp2/step-12": "4 x 1", "tp_fsdp/step-12": "2 x 2", "hsdp/step-12": "2 x 1"}
    assert sharded["model.embed.weight"] == (expected[case], "whole")
    where = [FIXTURES / case, whole]
    assert run("diff", *where).code == 10
    assert run("diff", *where, "--fail-on", "changes-numerics").code == 0


def test_quick_says_what_only_reading_would_tell(other: Callable[[State], Path]) -> None:
    whole = other(load(FIXTURES / "fsdp2/step-12"))
    ended = run("diff", FIXTURES / "fsdp2/step-12", whole, "--quick", "--only", "model.*")
    assert "1 of 6 tensors equal (1 by CRC-32), 5 not compared" in ended.stdout
    assert ended.stdout.splitlines()[-1] == (
        "different, but only in what is harmless; 5 keys not compared"
    )


def test_the_same_tensors_in_another_format(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {f"model.{name}": torch.randn(shape) for name, shape in SHAPES.items()}
    stored = save(tmp_path / "dcp" / "step-3", tensors)
    (tmp_path / "hf").mkdir()
    save_file(
        {key.removeprefix("model."): value for key, value in tensors.items()},
        tmp_path / "hf" / "model.safetensors",
    )
    torch.save({"model": {k.removeprefix("model."): v for k, v in tensors.items()}},
               tmp_path / "all.pt")  # fmt: skip
    found = compare(stored, tmp_path / "hf")
    assert [(g.old, g.new, len(g.pairs)) for g in found.structure.renamed] == [("model", "", 4)]
    assert found.content.equal == {"content digest": 4}
    assert not found.structure.removed
    assert run("diff", stored, tmp_path / "all.pt").code == 0
    tensors["model.layers.1.b"][3] += 1
    torch.save({"model": {k.removeprefix("model."): v for k, v in tensors.items()}},
               tmp_path / "all.pt")  # fmt: skip
    found = compare(stored, tmp_path / "all.pt", values=True)
    (row,) = found.content.rows
    assert (row.fqn, row.statistics and row.statistics.first) == ("model.layers.1.b", (3,))


def test_values_of_a_torch_file_compare_with_those_of_items(tmp_path: Path) -> None:
    content = {"w": torch.ones(3), "step": 5, "note": "x", "betas": (0.9, 0.99)}
    stored = save(tmp_path / "dcp", content)
    torch.save(content, tmp_path / "all.pt")
    assert run("diff", stored, tmp_path / "all.pt").code == 0
    torch.save({**content, "note": "y"}, tmp_path / "all.pt")
    (row,) = compare(stored, tmp_path / "all.pt").content.rows
    assert (row.fqn, row.a, row.b) == ("note", "x", "y")


# ---------------------------------------------------------------------------------- reported cases


def test_a_nan_that_a_valid_crc_covers(base: Path, other: Callable[[State], Path]) -> None:
    """Case S18: one element of a moment became NaN before the save."""
    content = state()
    content[NAN_AT][5, 3] = float("nan")
    found = compare(base, other(content), values=True)
    (row,) = found.content.rows
    statistics = row.statistics
    assert statistics is not None
    assert (row.fqn, row.verdict) == (NAN_AT, Verdict.DIFFERS)
    assert (statistics.nan, statistics.differing, statistics.first) == ((0, 1), 1, (5, 3))
    assert statistics.largest == 0.0
    ended = run("diff", base, base.parents[1] / "b" / "step-1000", "--values")
    assert ended.code == 10
    assert line_of(ended, NAN_AT).split() == [
        NAN_AT, "1", "0.00e+00", "0.00e+00", "0.00e+00", "0", "1", "[5,", "3]"
    ]  # fmt: skip


def test_a_prefix_and_another_dtype(base: Path, other: Callable[[State], Path]) -> None:
    """Case S19: a compiled model saved its weights in bfloat16."""
    content = {
        (f"_orig_mod.{key}" if key.startswith("model.") else key): (
            value.bfloat16() if key.startswith("model.") else value
        )
        for key, value in state().items()
    }
    ended = run("diff", base, other(content))
    assert ended.code == 10
    assert line_of(ended, "STRUCTURE") == (
        "STRUCTURE  4 keys renamed by prefix, 4 dtype float32 -> bfloat16, 0 really missing"
    )
    assert "4 of 8 tensors equal (4 by content digest), 4 of another dtype" in ended.stdout
    found = compare(base, base.parents[1] / "b" / "step-1000", values=True)
    (group,) = found.structure.renamed
    assert (group.old, group.new) == ("", "_orig_mod")
    assert dict(group.pairs) == {f"model.{n}": f"_orig_mod.model.{n}" for n in SHAPES}
    for row in found.content.of(Verdict.CONVERTED, tensor=True):
        assert row.statistics is not None
        assert 0 < row.statistics.relative <= 2**-8  # half a unit of the last of 8 bits


def test_two_steps_of_one_run() -> None:
    a, b = FIXTURES / "fsdp2/step-8", FIXTURES / "fsdp2/step-12"
    found = compare(a, b)
    assert not (found.structure.changed or found.structure.removed or found.structure.added)
    counters = {row.name: row.apart for row in found.progress}
    assert counters == {"step": 4, "epoch": 1, "samples": 64, "optimizer_step": 4,
                        "scheduler_step": 4}  # fmt: skip
    assert names(found.content.rows).count("model.scale") == 0  # it is frozen
    assert "model.embed.weight" in names(found.content.of(Verdict.DIFFERS, tensor=True))
    lr = next(row for row in found.content.rows if row.fqn == "optimizer.param_groups.0.lr")
    assert (lr.a, lr.b) == (pytest.approx(0.05 * 0.98**8), pytest.approx(0.05 * 0.98**12))
    ended = run("diff", a, b)
    assert ended.code == 10
    assert "PROGRESS  4 steps, 64 samples, 1 epoch apart" in ended.stdout


# ---------------------------------------------------------------------------------- structure


def test_keys_shapes_and_kinds(base: Path, other: Callable[[State], Path]) -> None:
    content = state()
    del content["model.layers.0.b"]
    content["model.layers.0.bias2"] = torch.zeros(5)
    content["model.layers.1.w"] = torch.zeros(33, 64)
    content["model.layers.1.b"] = "gone"
    found = compare(base, other(content))
    assert names(found.structure.removed) == ["model.layers.0.b"]
    assert names(found.structure.added) == ["model.layers.0.bias2"]
    changes = {(row.fqn, row.what, row.a, row.b) for row in found.structure.changed}
    assert changes == {
        ("model.layers.1.w", "shape", "[32, 64]", "[33, 64]"),
        ("model.layers.1.b", "kind", "tensor", "object"),
    }
    assert found.structure.renamed == ()
    ended = run("diff", base, base.parents[1] / "b" / "step-1000", "--fail-on", "breaks-load")
    assert ended.code == 10
    assert "1 really missing, 1 new" in " ".join(ended.stdout.split())


NAMES = ["model.a.w", "model.a.b", "model.c.w", "optimizer.state.a.w.exp_avg"]


@pytest.mark.parametrize(
    ("change", "group"),
    [
        (lambda n: n.replace("model.", "model.module."), ("", "module", 3)),
        (lambda n: n.replace("a.", "a._checkpoint_wrapped_module."), ("", "_checkpoint_wrapped_module", 3)),
        (lambda n: f"_orig_mod.module.{n}", ("", "_orig_mod.module", 4)),
        (lambda n: n.removeprefix("model."), ("model", "", 3)),
        (lambda n: n.replace("model.", "state_dict."), ("model", "state_dict", 3)),
        (lambda n: f"app.{n}", ("", "app", 4)),
        (lambda n: f"teacher.{n}", ("", "teacher", 4)),
        (lambda n: f"x.y.{n}", ("", "x.y", 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_what_a_prefix_tells_apart_is_renamed(
    change: Callable[[str], str], group: tuple[str, str, int], turned: bool
) -> None:
    old = [name for name in NAMES if change(name) != name]
    new = [change(name) for name in old]
    if turned:
        old, new, group = new, old, (group[1], group[0], group[2])
    found = match_renamed(old, new, lambda one, other: True)
    assert max((g.old, g.new, len(g.pairs)) for g in found if len(g.pairs) > 1) == group
    assert sum(len(g.pairs) for g in found) == len(old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["layers.0.w", "layers.0.b"], ["layers.4.w", "layers.4.b"]),
        (["encoder.w", "encoder.b"], ["decoder.w", "decoder.b"]),
        (["model.w"], ["optimizer.state.w.exp_avg"]),
        # two keys that either could be meant
        (["model.w"], ["module.w", "state_dict.w"]),
        (["a.w"], ["a.w.exp_avg"]),
    ],
)
def test_what_is_another_key_is_not_renamed(old: list[str], new: list[str]) -> None:
    found = match_renamed(old, new, lambda one, other: True)
    assert [pair for group in found for pair in group.pairs if pair[0] != "model.w"] == []
    if len(new) == 1:
        assert found == []


def test_an_unknown_prefix_before_other_shapes_is_no_renaming(
    base: Path, other: Callable[[State], Path]
) -> None:
    content = {f"teacher.{key}": torch.zeros(1) for key in state() if key.startswith("model.")}
    assert compare(base, other(content)).structure.renamed == ()


# ---------------------------------------------------------------------------------- proofs


def committed(path: Path) -> Path:
    ended = run("commit", path)
    assert ended.code == 0, ended.stderr
    return path


def test_two_manifests_are_believed_only_where_nothing_is_to_be_read(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    """A copy brings its manifest along, whatever became of its bytes."""
    a = committed(copy("fsdp2/step-12"))
    b = tmp_path / "other" / "step-12"
    shutil.copytree(a, b)
    damage.flip_byte(b, file="__0_0.distcp", at=5000)
    found = compare(a, b, quick=True)
    assert found.content.equal == {"file digest": 22}
    assert (found.content.bytes_read, found.content.rows) == (0, ())
    assert found.a.committed
    quick = run("diff", a, b, "--quick")
    assert quick.code == 0 and "nothing was read" in quick.stdout.splitlines()[-1]
    read = run("diff", a, b)
    assert read.code == 4 and "not compared" in read.stdout and "CRC-32" in read.stdout


def test_a_file_that_grew_after_its_commit_is_not_trusted(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    a = committed(copy("fsdp2/step-12"))
    b = tmp_path / "other" / "step-12"
    shutil.copytree(a, b)
    with (b / "__0_0.distcp").open("ab") as file:
        file.write(b"x")
    assert set(compare(a, b, quick=True).content.equal) == {"file digest", "CRC-32"}
    assert set(compare(a, b).content.equal) == {"content digest"}


def payload_position(path: Path, tensor: torch.Tensor) -> int:
    return (path / "__0_0.distcp").read_bytes().index(tensor.numpy().tobytes())


def test_the_crc_alone_is_no_proof_of_equality(base: Path, other: Callable[[State], Path]) -> None:
    b = other(state())
    damage.flip_byte(b, file="__0_0.distcp", at=payload_position(b, state()["model.layers.0.w"]))
    quick = run("diff", base, b, "--quick")
    assert quick.code == 0
    assert "8 of 8 tensors equal (8 by CRC-32)" in quick.stdout
    assert "which proves it not" in quick.stdout
    full = run("diff", base, b)
    assert full.code == 4
    assert "not compared: model.layers.0.w" in full.stdout
    assert "CRC-32" in full.stdout
    (row,) = compare(base, b).content.rows
    assert (row.verdict, bool(row.problem)) == (Verdict.UNKNOWN, True)


def test_a_difference_of_crcs_is_proof(base: Path, other: Callable[[State], Path]) -> None:
    content = state()
    content["model.layers.0.w"][1, 1] += 1
    b = other(content)
    found = compare(base, b, quick=True)
    (row,) = found.content.rows
    assert (row.fqn, row.verdict, row.how) == ("model.layers.0.w", Verdict.DIFFERS, "CRC-32")
    assert found.content.bytes_read == 0


def test_without_recorded_crcs_content_is_read(copy: Callable[..., Path]) -> None:
    found = compare(FIXTURES / "no_crc/step-1", copy("no_crc/step-1"))
    assert list(found.content.equal) == ["content digest"]
    quick = compare(FIXTURES / "no_crc/step-1", copy("no_crc/step-1", "again"), quick=True)
    assert len(quick.content.of(Verdict.UNKNOWN, tensor=True)) == quick.content.tensors


def test_an_equal_value_that_was_pickled_otherwise_is_equal(tmp_path: Path) -> None:
    shared = "a text that is long enough to be memoized"
    copied = "".join(list(shared))
    a = save(tmp_path / "a", {"w": torch.ones(1), "value": [(shared, shared)]})
    b = save(tmp_path / "b", {"w": torch.ones(1), "value": [(shared, copied)]})
    assert (a / "__0_0.distcp").read_bytes() != (b / "__0_0.distcp").read_bytes()
    assert run("diff", a, b).code == 0


# ---------------------------------------------------------------------------------- numbers

BYTE_FLOATS = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
               "float8_e8m0fnu"]  # fmt: skip


@pytest.mark.parametrize("dtype", [*BYTE_FLOATS, "float16", "bfloat16", "float32", "float64",
                                   "int8", "uint8", "int64", "bool"])  # fmt: skip
def test_numbers_are_those_that_torch_reads(dtype: str) -> None:
    kind = getattr(torch, dtype)
    raw = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint8 if kind.itemsize == 1 else
                                                      torch.int16)  # fmt: skip
    if kind.itemsize > 2:
        raw = torch.randint(0, 256, (1 << 12,), dtype=torch.uint8)
    if dtype == "bool":
        raw = raw % 2
    tensor = raw.contiguous().view(kind)
    ours = numbers(memoryview(tensor.view(torch.uint8).numpy().tobytes()), dtype)
    assert np.array_equal(ours, tensor.to(torch.float64).numpy(), equal_nan=True)


def test_complex_numbers() -> None:
    tensor = torch.randn(64, dtype=torch.complex64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its support experimental
        half = tensor.to(torch.complex32)
    assert np.array_equal(
        numbers(memoryview(tensor.numpy().tobytes()), "complex64"), tensor.numpy()
    )
    raw = torch.view_as_real(half).numpy().tobytes()
    assert np.array_equal(
        numbers(memoryview(raw), "complex32"), half.to(torch.complex64).numpy().astype("c16")
    )


@pytest.mark.parametrize("pair", [("float32", "float32"), ("float32", "bfloat16"),
                                  ("float64", "float16"), ("float8_e5m2", "float32")])  # fmt: skip
def test_statistics_are_those_that_torch_computes(tmp_path: Path, pair: tuple[str, str]) -> None:
    generator = torch.Generator().manual_seed(3)
    one = torch.randn(700, 1100, generator=generator).to(getattr(torch, pair[0]))
    two = torch.randn(700, 1100, generator=generator)
    two[::2] = one[::2].to(torch.float32)
    two = two.to(getattr(torch, pair[1]))
    a, b = save(tmp_path / "a", {"w": one}), save(tmp_path / "b", {"w": two})
    (row,) = compare(a, b, values=True).content.rows
    x, y = one.to(torch.float64), two.to(torch.float64)
    apart, larger = (x - y).abs(), torch.maximum(x.abs(), y.abs())
    found = row.statistics
    assert isinstance(found, Statistics)
    assert found.elements == 770_000
    assert found.differing == int((x != y).sum())
    assert found.largest == float(apart.max())
    assert found.relative == float((apart / larger)[larger > 0].max())
    assert found.norm_a == pytest.approx(float(x.norm()), rel=1e-12)
    assert found.norm_b == pytest.approx(float(y.norm()), rel=1e-12)
    assert found.norm == pytest.approx(float(apart.norm()), rel=1e-12)
    assert found.relative_norm == pytest.approx(float(apart.norm() / x.norm()), rel=1e-12)
    assert found.first == tuple((x != y).nonzero()[0].tolist())


def test_infinities_and_nan_are_counted_and_leave_the_rest_alone(tmp_path: Path) -> None:
    one = torch.tensor([1.0, float("inf"), float("nan"), 4.0, float("-inf"), 0.0])
    two = torch.tensor([1.0, float("inf"), float("nan"), 5.0, float("inf"), -0.0])
    a, b = save(tmp_path / "a", {"w": one}), save(tmp_path / "b", {"w": two})
    (row,) = compare(a, b, values=True).content.rows
    found = row.statistics
    assert found is not None
    assert (found.nan, found.infinite) == ((1, 1), (2, 2))
    assert (found.differing, found.first) == (2, (3,))
    assert (found.largest, found.relative) == (1.0, 0.2)


def test_a_norm_of_nothing(tmp_path: Path) -> None:
    a = save(tmp_path / "a", {"w": torch.zeros(3)})
    b = save(tmp_path / "b", {"w": torch.ones(3)})
    (row,) = compare(a, b, values=True).content.rows
    assert row.statistics is not None
    assert math.isinf(row.statistics.relative_norm)
    document = run("diff", a, b, "--values", "--json").json()
    assert document["content"]["rows"][0]["statistics"]["relative_norm"] == "inf"


# ---------------------------------------------------------------------------------- the command


def test_only_what_is_asked_for_counts(base: Path, other: Callable[[State], Path]) -> None:
    content = state()
    content["model.layers.0.w"] += 1
    b = other({f"_orig_mod.{key}": value for key, value in content.items()})
    first = compare(base, b, only=("model.layers.0.*",))
    assert len(first.structure.renamed[0].pairs) == first.content.tensors == 2
    b = other(content)
    assert run("diff", base, b, "--only", "model.layers.0.*").code == 10
    ended = run("diff", base, b, "--only", "model.layers.1.*", "--only", "optimizer.*")
    assert ended.code == 0
    assert "6 of 6 tensors equal" in ended.stdout


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [("breaks-load", 0), ("changes-data-order", 0), ("changes-numerics", 10), ("any", 10)],
)
def test_the_threshold(base: Path, other: Callable[[State], Path], fail_on: str, code: int) -> None:
    content = state()
    content["model.layers.0.w"] += 1
    assert run("diff", base, other(content), "--fail-on", fail_on).code == code


def test_json(base: Path, other: Callable[[State], Path]) -> None:
    content = state(step=1001)
    ended = run("diff", base, other(content), "--json")
    assert (ended.code, ended.stderr) == (10, "")
    assert ended.document()["verdict"] == "findings"
    found = ended.json()
    assert found["fail_on"] == "any"
    assert found["progress"] == [{"name": "step", "a": 1000, "b": 1001, "apart": 1}]
    assert {row["verdict"] for row in found["content"]["rows"]} == {"differs"}
    assert len(found["content"]["rows"]) == 9
    step = next(row for row in found["content"]["rows"] if row["fqn"] == "train_state.step")
    assert (step["a"], step["b"], step["consequence"]) == (1000, 1001, "changes data order")


def test_quiet(base: Path, other: Callable[[State], Path]) -> None:
    b = other(state())
    assert run("diff", base, b, "--quiet") == Ended(0, "")


def test_long_lists_are_cut(tmp_path: Path) -> None:
    a = save(tmp_path / "a", {f"model.l{i}.w": torch.ones(1) for i in range(50)})
    b = save(tmp_path / "b", {f"model.m{i}.w": torch.ones(1) for i in range(50)})
    ended = run("diff", a, b)
    assert ended.stdout.count("... and 30 more") == 2
    assert len(ended.stdout.splitlines()) < 64


def test_names_are_escaped_and_lines_fit_a_terminal(tmp_path: Path) -> None:
    evil = "model.\x1b[31mred\u202e" + "x" * 90
    a = save(tmp_path / "a", {evil: torch.ones(3), "k": "\x1b]0;a\x07"})
    b = save(tmp_path / "b", {evil: torch.zeros(3), "k": "\x1b]0;b\x07"})
    piped = run("diff", a, b)
    assert "\x1b" not in piped.stdout
    assert "\\x1b[31mred\\u202e" in piped.stdout
    shown = run_on_terminal("diff", "a", "b", "--values", cwd=tmp_path)
    plain = shown.stdout
    assert "\u202e" not in plain
    assert "\x07" not in plain


def test_lines_fit_eighty_columns() -> None:
    a, b = "step-8", "step-12"
    shown = run_on_terminal("diff", a, b, cwd=FIXTURES / "fsdp2", env={"NO_COLOR": "1"})
    lines = shown.stdout.replace("\r", "\n").splitlines()
    assert any("CONTENT" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("turned", [False, True])
def test_what_cannot_be_opened(base: Path, tmp_path: Path, turned: bool) -> None:
    def code(other: Path) -> int:
        pair = (other, base) if turned else (base, other)
        return run("diff", *pair).code

    assert code(tmp_path / "nowhere") == 4
    (tmp_path / "empty").mkdir()
    assert code(tmp_path / "empty") == 3
    broken = tmp_path / "broken"
    shutil.copytree(base, broken)
    damage.flip_byte(broken, file=".metadata", at=40)
    assert code(broken) in (3, 10)


def test_a_missing_shard_leaves_its_tensors_uncompared(
    copy: Callable[..., Path],
) -> None:
    b = copy("fsdp2/step-12")
    (b / "__1_0.distcp").unlink()
    ended = run("diff", FIXTURES / "fsdp2/step-12", b)
    assert ended.code == 4
    assert "not compared" in ended.stdout


def test_usage(base: Path) -> None:
    assert run("diff", base, base, "--quick", "--values").code == 2
    assert run("diff", base).code == 2
    assert run("diff", base, base, "--fail-on", "nothing").code == 2


def test_a_damaged_manifest_is_named_and_not_used(copy: Callable[..., Path]) -> None:
    b = committed(copy("fsdp2/step-12"))
    manifest = b / "ckptctl.manifest.json"
    body = json.loads(manifest.read_text())
    body["world_size"] = 77
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(body))
    ended = run("diff", FIXTURES / "fsdp2/step-12", b)
    assert ended.code == 0
    assert "it counts as not committed" in ended.stdout
