"""What users report about damaged checkpoints, rebuilt on a small run of four processes.

The run has a model of four tensors, Adam's state for each, a scheduler, progress counters, and a
data loader position and random generators for each rank: 33 keys in 69 items. It is saved by gloo
processes when the tests start, so that the bytes are those of the installed torch.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ckptctl.model.finding import Finding, Severity, Stage
from ckptctl.operations.verify.verify import Verdict, Verification
from support.damage import (
    METADATA,
    Damage,
    accusations,
    accused,
    change_chunk,
    drop_chunk,
    drop_keys,
    edited,
    fill_field,
    fill_half,
    fingerprint,
    flip_field,
    load_with_torch,
    metadata_of,
    move_storage,
    remove,
    rename,
    run,
    save_with_torch,
    swap,
    truncate,
    write_field,
    write_metadata,
)
from support.reported import RANKS

torch = pytest.importorskip("torch")

EMBED = "model.embed.weight"
LAYER = {"fqn": "model.layers.0.w", "origin": (4, 0)}
NORM = "model.norm.weight"


@pytest.fixture
def case(reported: Path, tmp_path: Path) -> Path:
    """A copy of step 1000 to damage."""
    return _copy(reported / "base/step-1000", tmp_path)


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target / source.name)
    return target / source.name


def _only(result: Verification, check: str) -> list[Finding]:
    """Return the findings, all of which must come from one check."""
    assert accused(result) == {check}
    assert result.verdict == Verdict.FINDINGS
    return accusations(result)


def _places(findings: list[Finding]) -> list[tuple[str | None, int | None]]:
    return [(finding.where.file, finding.where.rank) for finding in findings]


def _said(finding: Finding) -> str:
    return f"{finding.message} | {finding.loss}"


def _assert_whole(checkpoint: Path, notes: tuple[str, ...] = ()) -> Verification:
    result = run(checkpoint)
    assert accusations(result) == []
    assert tuple(sorted(finding.check for finding in result.report.findings)) == notes
    assert result.good
    assert (result.keys, result.items) == (33, 69)
    assert all(row.complete for row in result.report.coverage if row.stage < Stage.IDENTITY)
    return result


def _wrong_keys(checkpoint: Path, healthy: Path) -> set[str]:
    """Return the keys that torch loads with other values, without a word."""
    right = fingerprint(load_with_torch(healthy))
    return {
        key
        for key, value in fingerprint(load_with_torch(checkpoint)).items()
        if right[key] != value
    }


# ---------------------------------------------------------------------------------- whole


@pytest.mark.parametrize("name", ["base/step-900", "base/step-1000", "other/step-1000"])
def test_s01_m12_an_undamaged_save_is_whole(reported: Path, name: str) -> None:
    result = _assert_whole(reported / name)
    assert result.step == int(name.rpartition("-")[2])
    assert result.ranks == (0, 1, 2, 3)
    bias = metadata_of(reported / name).state_dict_metadata["model.layers.0.b"].chunks
    assert ((6,), (0,)) in [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in bias]


def test_s01_every_item_and_record_is_examined(case: Path) -> None:
    rows = {row.unit: row for row in run(case).report.coverage if row.stage < Stage.IDENTITY}
    assert (rows["files"].examined, rows["items"].examined) == (5, 69)
    assert rows["records"].examined == rows["records"].total > 69 * 5
    assert rows["records"].bytes_read == sum(p.stat().st_size for p in case.glob("*.distcp"))


# ---------------------------------------------------------------------------------- files


def test_s02_a_shard_cut_in_half(case: Path) -> None:
    size = (case / "__1_0.distcp").stat().st_size
    places = [
        p for p in metadata_of(case).storage_data.values() if p.relative_path == "__1_0.distcp"
    ]
    lost = sum(place.offset + place.length > size // 2 for place in places)
    truncate(case, file="__1_0.distcp", size=size // 2)
    (finding,) = _only(run(case), "truncated-file")
    assert _places([finding]) == [("__1_0.distcp", 1)]
    assert f"{size // 2} of {size} bytes" in finding.message
    assert f"{lost} of {len(places)} items" in finding.message
    assert 0 < lost < len(places) == 17
    assert "elements 2-3 of model.norm.weight" in finding.loss


def test_s03_an_empty_shard(case: Path) -> None:
    truncate(case, file="__1_0.distcp", size=0)
    (finding,) = _only(run(case), "empty-file")
    assert _places([finding]) == [("__1_0.distcp", 1)]
    assert "17 items" in finding.message
    assert "rows 3-5 of model.embed.weight and its two Adam moments" in finding.loss


def test_s04_a_shard_that_is_gone(case: Path) -> None:
    remove(case, file="__3_0.distcp")
    (finding,) = _only(run(case), "missing-file")
    assert _places([finding]) == [("__3_0.distcp", 3)]
    for name in ("row 9 of model.embed.weight", "train_state.ntokens", "lr_scheduler.base_lrs"):
        assert name in finding.loss


def test_s05_the_last_rename_did_not_happen(case: Path) -> None:
    rename(case, file=METADATA, to=".metadata.tmp")
    result = run(case)
    (finding,) = _only(result, "uncommitted-metadata")
    assert finding.where.file == ".metadata.tmp"
    assert "mv .metadata.tmp .metadata" in finding.remedy
    assert (result.keys, result.items) == (33, 69)
    assert all(row.complete for row in result.report.coverage)


@pytest.mark.parametrize("size", [9000, 0, 1])
def test_s06_metadata_cut(case: Path, size: int) -> None:
    truncate(case, file=METADATA, size=size)
    (finding,) = _only(run(case), "unreadable-metadata")
    assert _places([finding]) == [(METADATA, None)]


# ---------------------------------------------------------------------------------- content

SILENT_DAMAGE: dict[str, Damage] = {
    "S08: one bit": partial(flip_field, **LAYER, at=13, bit=6),
    "S09: 64 zero bytes": partial(fill_field, **LAYER, count=64),
    "M2: a NaN": partial(write_field, **LAYER, data=b"\x00\x00\xc0\x7f"),
}


@pytest.mark.parametrize("name", SILENT_DAMAGE)
def test_s08_s09_m2_damage_that_torch_loads_without_a_word(
    case: Path, reported: Path, name: str
) -> None:
    SILENT_DAMAGE[name](case)
    (finding,) = _only(run(case), "checksum")
    assert _places([finding]) == [("__1_0.distcp", 1)]
    assert finding.where.fqn == "model.layers.0.w"
    assert finding.where.box is not None
    assert (finding.where.box.offsets, finding.where.box.sizes) == ((4, 0), (4, 8))
    assert finding.loss == "rows 4-7 of model.layers.0.w"
    assert _wrong_keys(case, reported / "base/step-1000") == {"model.layers.0.w"}


def test_s09_a_second_half_of_zeros_has_the_right_size(case: Path) -> None:
    size = (case / "__1_0.distcp").stat().st_size
    fill_half(case, file="__1_0.distcp")
    assert (case / "__1_0.distcp").stat().st_size == size
    findings = _only(run(case), "item-structure")
    assert set(_places(findings)) == {("__1_0.distcp", 1)}
    assert NORM in {finding.where.fqn for finding in findings}
    assert any("elements 2-3 of model.norm.weight" in finding.loss for finding in findings)


# ---------------------------------------------------------------------------------- metadata


def test_s10_m5_a_chunk_that_is_gone(case: Path, reported: Path) -> None:
    drop_chunk(case, fqn=EMBED, origin=(3, 0))
    result = run(case)
    assert accused(result) == {"hole", "unknown-entry"}
    hole, stray = sorted(accusations(result), key=lambda finding: finding.check)
    assert (hole.where.file, hole.where.fqn) == (METADATA, EMBED)
    assert hole.loss == "rows 3-5 of model.embed.weight"
    assert (stray.where.file, stray.where.rank, stray.where.fqn) == ("__1_0.distcp", 1, EMBED)
    assert "[3, 0]" in stray.message
    assert _wrong_keys(case, reported / "base/step-1000") == {EMBED}


def test_s11_offsets_far_past_the_end(case: Path) -> None:
    for origin in ((0,), (2,), (4,), (6,)):
        move_storage(case, fqn=NORM, origin=origin, offset=10**6)
    result = run(case)
    assert accused(result) == {"item-outside-file", "unreferenced-bytes"}
    outside = [f for f in accusations(result) if f.check == "item-outside-file"]
    assert _places(outside) == [(f"__{rank}_0.distcp", rank) for rank in range(RANKS)]
    assert [f.loss for f in outside] == [
        f"elements {low}-{low + 1} of model.norm.weight" for low in (0, 2, 4, 6)
    ]


# ---------------------------------------------------------------------------------- parts


def test_s13_the_node_with_the_metadata(case: Path) -> None:
    for rank in (2, 3):
        remove(case, file=f"__{rank}_0.distcp")
    findings = _only(run(case), "missing-file")
    assert _places(findings) == [("__2_0.distcp", 2), ("__3_0.distcp", 3)]
    assert "rows 6-8 of model.embed.weight" in findings[0].loss
    assert "row 9 of model.embed.weight" in findings[1].loss


def test_s13_the_node_without_the_metadata(case: Path) -> None:
    for file in (METADATA, "__0_0.distcp", "__1_0.distcp"):
        remove(case, file=file)
    (finding,) = _only(run(case), "missing-metadata")
    assert finding.where.file == METADATA
    assert "2 shard files" in finding.message
    assert "one node's part" in finding.message


def test_s13_both_halves_together(reported: Path, tmp_path: Path) -> None:
    union = tmp_path / "step-1000"
    union.mkdir()
    for file in (METADATA, *(f"__{rank}_0.distcp" for rank in range(RANKS))):
        shutil.copy2(reported / "base/step-1000" / file, union)
    _assert_whole(union)


@pytest.mark.parametrize(
    ("prefix", "example", "ranks"),
    [
        ("optimizer", "optimizer.state.norm.weight.exp_avg", {0, 1, 2, 3}),
        ("lr_scheduler", "lr_scheduler.last_epoch", None),
        ("dataloader.dp_rank_2", "dataloader.dp_rank_2.pos", {2}),
    ],
)
def test_s17_keys_edited_out_of_the_metadata(
    case: Path, prefix: str, example: str, ranks: set[int] | None
) -> None:
    drop_keys(case, prefix=prefix)
    result = run(case)
    hole = {"partial-component"} if "rank" in prefix else set()
    assert accused(result) == {"path-mismatch", "unreferenced-bytes", *hole}
    gone = {f.where.fqn for f in accusations(result) if f.check == "path-mismatch"}
    assert example in gone
    assert all(name and name.startswith(prefix) for name in gone)
    if ranks is not None:
        stray = [f for f in accusations(result) if f.check == "unreferenced-bytes"]
        assert {finding.where.rank for finding in stray} == ranks


def test_s17_weights_saved_on_their_own_are_whole(reported: Path, tmp_path: Path) -> None:
    state = load_with_torch(reported / "base/step-1000")
    checkpoint = tmp_path / "step-1000"
    save_with_torch(checkpoint, {k: v for k, v in state.items() if k.startswith("model.")})
    result = run(checkpoint)
    assert result.report.findings == ()
    assert (result.keys, result.good) == (4, True)


# ---------------------------------------------------------------------------------- other saves


def test_s07_m1_a_shard_of_another_step_is_told_by_what_it_counts(
    case: Path, reported: Path
) -> None:
    for file in case.glob("*.distcp"):
        assert file.stat().st_size == (reported / "base/step-900" / file.name).stat().st_size
    shutil.copy2(reported / "base/step-900/__1_0.distcp", case)
    (finding,) = _only(run(case), "mixed-step")
    assert _places([finding]) == [("__1_0.distcp", 1)]
    assert "rank 1 votes 900" in finding.message
    assert "ranks 0, 2, 3 vote 1000" in finding.message
    assert EMBED in _wrong_keys(case, reported / "base/step-1000")


def test_m1_a_shard_of_another_run_proves_nothing(case: Path, reported: Path) -> None:
    for file in case.glob("*.distcp"):
        assert file.stat().st_size == (reported / "other/step-1000" / file.name).stat().st_size
    shutil.copy2(reported / "other/step-1000/__1_0.distcp", case)
    result = _assert_whole(case)
    assert result.verdict != Verdict.OK
    assert EMBED in _wrong_keys(case, reported / "base/step-1000")


def _assert_stale(result: Verification) -> None:
    """It fits the files, as where one metadata is used for every save; no more is said than that."""
    assert accusations(result) == []
    (finding,) = (f for f in result.report.findings if f.check == "stale-metadata")
    assert finding.severity is Severity.NOTE
    assert finding.where.file == METADATA
    assert "written for step 900" in finding.message
    assert "this is step 1000, of which its files are" in finding.message
    assert result.verdict is Verdict.UNVERIFIED


def test_s12_m3_old_metadata_over_new_shards(case: Path, reported: Path) -> None:
    shutil.copy2(reported / "base/step-900" / METADATA, case)
    written = (case / METADATA).stat().st_mtime
    for path in case.glob("*.distcp"):
        os.utime(path, (written + 600, written + 600))
    result = run(case)
    _assert_stale(result)
    (newer,) = (f for f in result.report.findings if f.check == "newer-than-metadata")
    assert "4 of 4 shards" in newer.message
    assert _wrong_keys(case, reported / "base/step-1000") == set()


def test_m4_two_ranks_saved_over_four(reported: Path) -> None:
    result = run(reported / "shrunk/step-1000")
    assert accusations(result) == []
    assert {(f.check, f.where.file, f.where.rank) for f in result.report.findings} == {
        ("unreferenced-file", "__2_0.distcp", 2),
        ("unreferenced-file", "__3_0.distcp", 3),
    }
    assert result.ranks == (0, 1)
    loaded = load_with_torch(reported / "shrunk/step-1000")
    assert torch.equal(loaded[EMBED], load_with_torch(reported / "base/step-1000")[EMBED])


def test_m8_a_neighbours_metadata_opens_the_shards(case: Path, reported: Path) -> None:
    remove(case, file=METADATA)
    shutil.copy2(reported / "base/step-900" / METADATA, case)
    result = run(case)
    _assert_stale(result)
    assert (result.keys, result.items) == (33, 69)
    assert _wrong_keys(case, reported / "base/step-1000") == set()


def test_m9_a_neighbours_metadata_of_another_layout_does_not(case: Path, reported: Path) -> None:
    remove(case, file=METADATA)
    shutil.copy2(reported / "renamed/step-900" / METADATA, case)
    result = run(case)
    assert accused(result) == {"truncated-file", "item-structure", "stale-metadata"}
    files = {finding.where.file for finding in accusations(result)} - {METADATA}
    (place,) = (
        place
        for key, place in metadata_of(case).storage_data.items()
        if key.fqn == "train_state.run_id"
    )
    assert files == {place.relative_path}


# ---------------------------------------------------------------------------------- classes and views


@pytest.fixture
def company() -> Iterator[Callable[[], object]]:
    """Give out objects of a class in a module that is gone when the test looks again."""
    module = type(sys)("company_trainer")
    module.Plan = type("Plan", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module.Plan
    sys.modules.pop(module.__name__, None)


def test_m10_a_class_of_a_module_that_is_gone(case: Path, company: Callable[[], object]) -> None:
    with edited(case) as metadata:
        metadata.planner_data["company.plan"] = company()
    del sys.modules["company_trainer"]
    with pytest.raises(ModuleNotFoundError):
        metadata_of(case)
    result = _assert_whole(case, ("unknown-class",))
    assert "company_trainer.Plan" in result.report.findings[0].message


class Touch:
    """Pickles as a call that leaves a file behind where it is made."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self._path}'",)


def test_m10_a_command_in_the_metadata_is_not_run(case: Path, tmp_path: Path) -> None:
    trace = tmp_path / "it-ran"
    metadata = metadata_of(case)
    metadata.planner_data["run me"] = Touch(trace)
    write_metadata(case, metadata)
    (finding,) = _only(run(case), "unsafe-metadata")
    assert finding.where.file == METADATA
    assert not trace.exists()
    pickle.loads((case / METADATA).read_bytes())
    assert trace.exists(), "the trap of this test does not work"


def test_m11_a_view_is_saved_without_what_it_views(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-1"
    save_with_torch(checkpoint, {"model": {"weight": torch.ones(1024, 1024)[:1]}})
    assert (checkpoint / "__0_0.distcp").stat().st_size < 8192
    assert run(checkpoint).report.findings == ()


# ---------------------------------------------------------------------------------- loud damage

LOUD: dict[str, tuple[Damage, set[str], str, int | None]] = {
    "a shard cut": (
        partial(truncate, file="__2_0.distcp", size=-5000),
        {"truncated-file"},
        "__2_0.distcp",
        2,
    ),
    "a shard emptied": (
        partial(truncate, file="__2_0.distcp", size=0),
        {"empty-file"},
        "__2_0.distcp",
        2,
    ),
    "a shard gone": (partial(remove, file="__2_0.distcp"), {"missing-file"}, "__2_0.distcp", 2),
    "metadata gone": (partial(remove, file=METADATA), {"missing-metadata"}, METADATA, None),
    "metadata emptied": (
        partial(truncate, file=METADATA, size=0),
        {"unreadable-metadata"},
        METADATA,
        None,
    ),
    "a tail of zeros": (
        partial(fill_half, file="__2_0.distcp"),
        {"item-structure"},
        "__2_0.distcp",
        2,
    ),
    "two ranks exchanged": (
        partial(swap, file="__1_0.distcp", other="__2_0.distcp"),
        {"truncated-file", "unreferenced-bytes", "item-structure"},
        "__1_0.distcp",
        1,
    ),
    "an offset past the end": (
        partial(move_storage, fqn=NORM, origin=(4,), offset=10**6),
        {"item-outside-file", "unreferenced-bytes"},
        "__2_0.distcp",
        2,
    ),
    "a chunk moved over another": (
        partial(change_chunk, fqn=EMBED, origin=(3, 0), offsets=(1, 0)),
        {"hole", "overlap", "missing-entry", "unknown-entry"},
        "__1_0.distcp",
        1,
    ),
}


@pytest.mark.parametrize("name", LOUD)
def test_m13_what_torch_refuses_is_named(case: Path, name: str) -> None:
    damage, checks, file, rank = LOUD[name]
    damage(case)
    result = run(case)
    assert accused(result) == checks
    assert result.verdict == Verdict.FINDINGS
    assert (file, rank) in _places(accusations(result))
    with pytest.raises(BaseException):  # noqa: B017 - torch's wrapper is no Exception
        load_with_torch(case)
