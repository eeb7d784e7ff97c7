"""Checkpoints that real frameworks wrote: the good ones are called good, the bad ones bad.

Every directory is named here, so that none is left out in silence.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from ckptctl.formats.dcp.metadata import parse
from ckptctl.model.checkpoint import Entry, ObjectEntry, TensorEntry
from ckptctl.model.commit_state import State
from ckptctl.model.finding import GapKind, Severity, Stage
from ckptctl.model.geometry import Box, Boxes
from ckptctl.operations.catalog.list import list_checkpoints
from ckptctl.operations.find import find, locate
from ckptctl.operations.verify.verify import Verdict, Verification, verify
from ckptctl.provenance.evidence import Source
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.samples import (
    BROKEN,
    BROKEN_FILES,
    FIXTURE_CASES,
    FOR_SOME_RANKS,
    HALF_DELETED,
    HEALTHY,
    INDISTINGUISHABLE,
    MIXED,
    MIXED_FROM,
    OF_FILES,
)


def verify_at(root: Path) -> Verification:
    """Verify a checkpoint where it lies, beside the others of its run."""
    store, (place,) = locate(str(root), open_store)
    return verify(store, place)


def checkpoints_below(root: Path) -> set[str]:
    """Every checkpoint whose layout is read whole."""
    return {place.path for place in find(open_store(root)) if place.readable}


def test_no_sample_is_left_out(samples: Path) -> None:
    of_dcp = [*HEALTHY, *INDISTINGUISHABLE, MIXED, *BROKEN, *HALF_DELETED]
    named = [*of_dcp, *OF_FILES, *BROKEN_FILES]
    assert len(set(named)) == len(named)
    assert checkpoints_below(samples) == set(named)


def beside_its_run(samples: Path, case: str) -> Verification:
    """Verify a checkpoint of files, or of a directory, in the directory that it lies in."""
    folder, _, name = case.rpartition("/")
    store = open_store(samples / folder)
    (place,) = [one for one in find(store) if one.path == name]
    return verify(store, place)


@pytest.mark.parametrize("case", OF_FILES)
def test_whole_samples_of_files_are_not_accused(samples: Path, case: str) -> None:
    verification = beside_its_run(samples, case)
    assert verification.good
    worst = verification.report.worst()
    assert worst is None or worst is Severity.NOTE, verification.report.findings


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_broken_samples_of_files_are_told(samples: Path, case: str) -> None:
    verification = beside_its_run(samples, case)
    assert verification.verdict is Verdict.FINDINGS
    assert {finding.check for finding in verification.report.findings} == BROKEN_FILES[case]


def test_no_fixture_is_left_out() -> None:
    assert checkpoints_below(FIXTURES) == set(FIXTURE_CASES)


@pytest.mark.parametrize("case", FIXTURE_CASES)
def test_fixtures(case: str) -> None:
    verification = verify_at(FIXTURES / case)
    assert verification.good
    assert verification.problem == ""
    # a checkout does not keep modification times
    assert {f.check for f in verification.report.findings} <= {"newer-than-metadata"}
    assert verification.step == int(case.rpartition("-")[2])


@pytest.mark.parametrize("case", [*HEALTHY, *INDISTINGUISHABLE])
def test_whole_samples(samples: Path, case: str) -> None:
    verification = verify_at(samples / case)
    assert verification.good
    assert verification.problem == ""
    worst = verification.report.worst()
    assert worst is None or worst is Severity.NOTE, verification.report.findings
    assert verification.items > 0
    for row in verification.report.coverage:
        if row.unit == "texts":  # there is no CRC of them, and each is named
            assert not row.examined
            assert all(gap.kind is GapKind.FORM_ONLY for gap in row.gaps), row
        elif row.stage < Stage.IDENTITY:
            assert row.examined == row.total, row


@pytest.mark.parametrize("case", HEALTHY)
def test_whole_samples_give_no_findings_but_those_of_times(samples: Path, case: str) -> None:
    found = {finding.check for finding in verify_at(samples / case).report.findings}
    notes = {"partial-component"} if case in FOR_SOME_RANKS else set()
    notes |= {"shared-shard"} if case in MIXED_FROM else set()
    # the paths in it were rewritten after it was made, with new CRCs and without new digests
    notes |= {"rewritten-file"} if "verify_integrity" in case else set()
    notes |= {"shrunken-checkpoint"} if "model_only_last" in case else set()
    assert found <= {"newer-than-metadata", "unknown-class", "oversized-storage", *notes}


def test_a_mixed_sample_is_told_by_the_one_beside_it(samples: Path) -> None:
    verification = verify_at(samples / MIXED)
    assert verification.verdict is Verdict.FINDINGS
    errors = [f for f in verification.report.findings if f.severity is Severity.ERROR]
    assert [(f.check, f.where.file, f.where.rank) for f in errors] == [
        ("foreign-shard", "__1_0.distcp", 1)
    ]
    assert "fsdp2_step3" in errors[0].message


@pytest.mark.parametrize("case", MIXED_FROM)
def test_the_samples_it_was_mixed_from_are_told_so(samples: Path, case: str) -> None:
    found = [f for f in verify_at(samples / case).report.findings if f.check == "shared-shard"]
    assert found
    assert all("fsdp2_mixed_rank1_from_step3" in finding.message for finding in found)
    assert all("it is that one that is mixed" in finding.message for finding in found)


def test_a_mixed_sample_without_its_neighbours_is_not_called_good(
    samples: Path, tmp_path: Path
) -> None:
    shutil.copytree(samples / MIXED, tmp_path / "alone" / "step-5")
    verification = verify_at(tmp_path / "alone" / "step-5")
    assert verification.verdict is Verdict.UNVERIFIED
    assert verification.identity.of(Source.NONE) == ("__0_0.distcp", "__1_0.distcp")


@pytest.mark.parametrize("case", BROKEN)
def test_broken_samples(samples: Path, case: str) -> None:
    verification = verify_at(samples / case)
    assert verification.verdict is Verdict.FINDINGS
    errors = [f for f in verification.report.findings if f.severity is Severity.ERROR]
    assert {finding.check for finding in errors} == BROKEN[case]
    assert all(finding.remedy for finding in errors)


def test_a_rank_that_died_leaves_a_step_that_is_incomplete(samples: Path) -> None:
    listing = list_checkpoints(open_store(samples / "torch/dcp_async_w2_rank1_died"))
    assert [(row.step, row.state) for row in listing.checkpoints] == [
        (2, State.COMPLETE),
        (4, State.COMPLETE),
        (6, State.INCOMPLETE),
    ]


def test_a_half_deleted_step_is_incomplete(samples: Path) -> None:
    """Only ``metadata.json`` is left, which is what Megatron takes as the mark of a checkpoint."""
    store = open_store(samples / "megatron/v0.19_retain4_HALF_DELETED_iter6")
    places = find(store)
    assert [place.path for place in places] == ["iter_0000004", "iter_0000006", "iter_0000008"]
    verifications = [verify(store, place) for place in places]
    assert [v.verdict for v in verifications] == [
        Verdict.UNVERIFIED,
        Verdict.FINDINGS,
        Verdict.UNVERIFIED,
    ]
    (finding,) = verifications[1].report.findings
    assert finding.check == "missing-metadata"
    states = [row.state for row in list_checkpoints(store).checkpoints]
    assert states == [State.COMPLETE, State.INCOMPLETE, State.COMPLETE]


@pytest.mark.parametrize(
    "root",
    [
        "megatron/v0.19_torch_legacy_tp2dp2_distopt",
        "deepspeed/zero1_dp2_bf16",
    ],
)
def test_what_other_writers_left_whole_is_not_accused(samples: Path, root: str) -> None:
    store = open_store(samples / root)
    places = find(store)
    assert places
    for place in places:
        verification = verify(store, place)
        assert verification.verdict is Verdict.NOT_EXAMINED, place.path
        assert verification.report.worst() is None
        assert verification.why


# --- metadata alone, of every release of torch -------------------------------------------------

OLD, BEFORE_2_4, SINCE_2_4, SINCE_2_7, SINCE_2_9 = (
    "2.0-2.2",
    "2.3 or earlier",
    "2.4-2.6",
    "2.7-2.8",
    "2.9 or later",
)


@dataclass(frozen=True)
class Expected:
    """What one generator put into its metadata, whatever the release of torch."""

    entries: dict[str, Entry]
    items: list[tuple[str, tuple[int, ...] | None, str, int, int]]
    paths: dict[str, tuple[str | int, ...]]
    checkpoint_id: str


def tensor(fqn: str, dtype: str, shape: tuple[int, ...], *boxes: Box) -> TensorEntry:
    return TensorEntry(fqn, dtype, shape, Boxes.of(len(shape), boxes))


def check(path: Path, expected: Expected, versions: str) -> None:
    parsed = parse(path.read_bytes(), path.name)
    assert parsed.readable
    assert parsed.faults == []
    assert parsed.opaque_classes == ()
    assert parsed.entries == expected.entries
    assert list(parsed.entries) == list(expected.entries)
    seen = [(i.fqn, i.offsets, i.path, i.offset, i.length) for i in parsed.items]
    assert sorted(seen, key=repr) == sorted(expected.items, key=repr)
    assert all(item.transforms == () for item in parsed.items)
    assert parsed.paths_in_state == expected.paths
    assert parsed.identity.torch_versions == versions
    named = versions not in (OLD, BEFORE_2_4)
    assert parsed.identity.checkpoint_id == (expected.checkpoint_id if named else None)
    assert bool(parsed.identity.save_id) == named


FIXTURE_METADATA = Expected(
    entries={
        "train_state.step": ObjectEntry("train_state.step"),
        "model.up.weight": tensor(
            "model.up.weight", "float32", (5, 4), Box((0, 0), (3, 4)), Box((3, 0), (2, 4))
        ),
        "model.up.bias": tensor(
            "model.up.bias", "bfloat16", (5,), Box((0,), (3,)), Box((3,), (2,))
        ),
        "optimizer.state.up.weight.step": tensor(
            "optimizer.state.up.weight.step", "float32", (), Box((), ())
        ),
    },
    items=[
        ("train_state.step", None, "__0_0.distcp", 0, 1261),
        ("model.up.weight", (0, 0), "__0_0.distcp", 1261, 1577),
        ("model.up.bias", (0,), "__0_0.distcp", 2838, 1577),
        ("optimizer.state.up.weight.step", (), "__0_0.distcp", 4415, 1577),
        ("model.up.weight", (3, 0), "__1_0.distcp", 0, 1577),
        ("model.up.bias", (3,), "__1_0.distcp", 1577, 1577),
    ],
    paths={
        "train_state.step": ("train_state", "step"),
        "model.up.weight": ("model", "up.weight"),
        "model.up.bias": ("model", "up.bias"),
        "optimizer.state.up.weight.step": ("optimizer", "state", "up.weight", "step"),
    },
    checkpoint_id="old_metadata/step-1",
)

FIXTURE_VERSIONS = {
    "2.0.1": OLD,
    "2.2.2": OLD,
    "2.3.1": BEFORE_2_4,
    "2.4.1": SINCE_2_4,
    "2.6.0": SINCE_2_4,
    "2.7.1": SINCE_2_7,
    "2.9.1": SINCE_2_9,
    "2.13.0": SINCE_2_9,
}

SAMPLE_METADATA = Expected(
    entries={
        "model.w": tensor("model.w", "float32", (4, 2), Box((0, 0), (2, 2)), Box((2, 0), (2, 2))),
        "model.b": tensor("model.b", "bfloat16", (4,), Box((0,), (4,))),
        "step": ObjectEntry("step"),
    },
    items=[
        ("model.w", (0, 0), "__0_0.distcp", 0, 100),
        ("model.w", (2, 0), "__1_0.distcp", 0, 100),
        ("model.b", (0,), "__0_0.distcp", 100, 90),
        ("step", None, "__0_0.distcp", 190, 50),
    ],
    paths={"model.w": ("model", "w"), "model.b": ("model", "b"), "step": ("step",)},
    checkpoint_id="/x/step-1",
)

SAMPLE_VERSIONS = {
    "2.0.1": OLD,
    "2.1.2": OLD,
    "2.2.2": OLD,
    "2.3.1": BEFORE_2_4,
    "2.4.1": SINCE_2_4,
    "2.5.1": SINCE_2_4,
    "2.6.0": SINCE_2_4,
    "2.7.1": SINCE_2_7,
    "2.8.0": SINCE_2_7,
    "2.9.1": SINCE_2_9,
    "2.10.0": SINCE_2_9,
    "2.11.0": SINCE_2_9,
    "2.12.0": SINCE_2_9,
    "2.13.0": SINCE_2_9,
}


@pytest.mark.parametrize("version", FIXTURE_VERSIONS)
def test_metadata_of_old_releases(version: str) -> None:
    path = FIXTURES / "old_metadata" / f"{version}.metadata"
    check(path, FIXTURE_METADATA, FIXTURE_VERSIONS[version])


@pytest.mark.parametrize("version", SAMPLE_VERSIONS)
def test_metadata_of_old_releases_among_the_samples(samples: Path, version: str) -> None:
    path = samples / "dcp/legacy_metadata" / f"{version}.metadata"
    check(path, SAMPLE_METADATA, SAMPLE_VERSIONS[version])


def test_every_old_release_is_named(samples: Path) -> None:
    for folder, versions in (
        (FIXTURES / "old_metadata", FIXTURE_VERSIONS),
        (samples / "dcp/legacy_metadata", SAMPLE_VERSIONS),
    ):
        assert {path.name for path in folder.glob("*.metadata")} == {
            f"{version}.metadata" for version in versions
        }


def test_metadata_of_megatron_0_15(samples: Path) -> None:
    """Its root is a class of Megatron's, derived from torch's."""
    path = samples / "dcp/megatron_like_synthetic/variant_mcore015.metadata"
    parsed = parse(path.read_bytes(), path.name)
    assert parsed.readable
    assert parsed.faults == []
    plain = parse(path.with_name(".metadata").read_bytes(), ".metadata")
    assert parsed.entries.keys() == plain.entries.keys()
    assert any("MCoreMetadata" in name for name in parsed.opaque_classes)
