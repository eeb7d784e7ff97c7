"""Whose step, whose run: files of one save in the directory of another, and what only looks like it.

PyTorch loads all of these without a word. The table says for each fault what is known: *proven* (an
error), *suspected* (a warning), or *unverified*, where nothing tells. None may be called good, and
the checkpoint that a file was taken from is never accused of an error.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ckptctl import protocol
from ckptctl.checks import IDENTITY_CHECKS
from ckptctl.errors import Findings
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.finding import Severity, Stage
from ckptctl.model.manifest import FileRecord, Manifest, Receipt
from ckptctl.operations.catalog.resolve import ResolveOptions, resolve
from ckptctl.operations.find import locate
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.operations.verify.verify import Options, Verdict, verify
from ckptctl.provenance.evidence import Source
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.cli import run as run_cli
from support.damage import METADATA, drop_keys, load_with_torch, metadata_of, write_metadata
from support.mixing import (
    BETWEEN,
    LEGAL,
    LONG_AGO,
    RANKS,
    Seen,
    forget_times,
    look,
    plant,
    set_times,
)

torch = pytest.importorskip("torch")


def assert_not_good(seen: Seen) -> None:
    """Whatever is known of a mixed checkpoint, it must not be called good."""
    assert seen.result.verdict is not Verdict.OK
    assert seen.level != "unverified" or seen.result.verdict is Verdict.UNVERIFIED


def assert_quiet(seen: Seen) -> None:
    """Nothing worse than a note may be said of a checkpoint that is all of one save."""
    assert seen.level == "unverified", seen.findings
    assert seen.checks == set()


# ---------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Fault:
    """Files of one checkpoint put into another of the same layout.

    ``alone`` means that no other checkpoint lies beside it; with ``times`` every file keeps the time
    it was written, without all are equal. ``files`` are names, or else all of these ``ranks``.
    """

    level: str
    checks: str = ""
    run: str = "plain"
    step: int = 100
    of: str = ""
    at: int = 90
    ranks: tuple[int, ...] = (1,)
    files: tuple[str, ...] = ()
    alone: bool = False
    times: bool = False
    steps: tuple[int, ...] = (90, 100)
    innocent: str = "unverified"


BOTH, MIXED, FOREIGN = "foreign-shard mixed-step", "mixed-step", "foreign-shard"

FAULTS: dict[str, Fault] = {
    # ---- one rank of the save before, the other checkpoint beside it or not
    **{f"rank {r} beside its origin": Fault("proven", BOTH, ranks=(r,)) for r in (1, 2, 3)},
    "rank 0 beside its origin": Fault("proven", FOREIGN, ranks=(0,)),
    **{f"rank {r} alone": Fault("proven", MIXED, ranks=(r,), alone=True) for r in (1, 2, 3)},
    "rank 0 alone, which counts no steps": Fault("unverified", ranks=(0,), alone=True),
    "rank 0 alone with its times": Fault("unverified", ranks=(0,), alone=True, times=True),
    "rank 1 alone with its times": Fault("proven", MIXED, alone=True, times=True),
    # ---- a later save's file in an earlier one
    **{
        f"rank {r} of the save after": Fault(
            "proven", FOREIGN if r == 0 else BOTH, step=90, at=100, ranks=(r,)
        )
        for r in range(RANKS)
    },
    # ---- one step apart
    **{
        f"rank {r} torn by one step": Fault(
            "proven",
            FOREIGN if r == 0 else "foreign-shard torn-step",
            at=99,
            ranks=(r,),
            steps=(90, 99, 100),
        )
        for r in range(RANKS)
    },
    "rank 3 torn by one step, alone": Fault("proven", "torn-step", at=99, ranks=(3,), alone=True),
    "rank 0 torn by one step, alone": Fault("unverified", at=99, ranks=(0,), alone=True),
    # ---- several ranks
    "two of four ranks": Fault("proven", BOTH, ranks=(1, 2)),
    "two of four ranks, alone": Fault("proven", MIXED, ranks=(1, 2), alone=True),
    "three of four ranks": Fault(
        "suspected", "misnamed-checkpoint suspected-shard", ranks=(1, 2, 3)
    ),
    "three of four ranks, alone": Fault(
        "suspected", "misnamed-checkpoint", ranks=(1, 2, 3), alone=True
    ),
    # ---- no data loader, no scheduler, no counters of progress
    **{f"bare rank {r}": Fault("proven", FOREIGN, run="bare", ranks=(r,)) for r in (1, 2, 3)},
    "bare rank 0, which counts nothing": Fault(
        "suspected", "suspected-shard", run="bare", ranks=(0,), innocent="suspected"
    ),
    "bare rank 0 with its times": Fault("proven", FOREIGN, run="bare", ranks=(0,), times=True),
    "bare rank 1 alone": Fault("suspected", "suspected-shard", run="bare", alone=True),
    "bare rank 1 alone with its times": Fault("proven", MIXED, run="bare", alone=True, times=True),
    "bare rank 0 alone": Fault("unverified", run="bare", ranks=(0,), alone=True),
    # ---- weights only
    "weights": Fault("suspected", "suspected-shard", run="model", innocent="suspected"),
    "weights with their times": Fault("proven", FOREIGN, run="model", times=True),
    "weights alone": Fault("unverified", run="model", alone=True),
    # ---- replicated twice and sharded in two
    **{
        f"hsdp rank {r}": Fault("proven", FOREIGN if r in (0, 2) else BOTH, run="hsdp", ranks=(r,))
        for r in range(RANKS)
    },
    "hsdp rank 1 alone": Fault("proven", MIXED, run="hsdp", alone=True),
    "hsdp rank 2 alone": Fault("unverified", run="hsdp", ranks=(2,), alone=True),
    # ---- one file for each item, several for each rank
    "all items of rank 1": Fault("proven", BOTH, run="items"),
    "all items of rank 1, alone": Fault("proven", MIXED, run="items", alone=True),
    "the larger file of rank 1": Fault("proven", BOTH, run="threads", files=("__1_1.distcp",)),
    "the smaller file of rank 1": Fault("proven", MIXED, run="threads", files=("__1_0.distcp",)),
    # ---- each rank saved on its own
    **{
        f"rank {r} that saved on its own": Fault(
            "proven", MIXED, run="local", ranks=(r,), alone=True
        )
        for r in range(RANKS)
    },
    "rank 2 of another run, on its own": Fault(
        "proven", "mixed-run", run="local", of="local-other", at=100, ranks=(2,), alone=True
    ),
    # ---- another run
    **{
        f"rank {r} of another run's same step": Fault(
            "unverified", of="other", at=100, ranks=(r,), alone=r > 1
        )
        for r in range(RANKS)
    },
    "rank 1 of another run's other step": Fault("proven", MIXED, of="other"),
}


def mix(runs: Path, root: Path, fault: Fault) -> Path:
    """Build a fault under a root and return the mixed checkpoint."""
    plant(runs, root, fault.run, steps=(fault.step,) if fault.alone else fault.steps)
    source = runs / (fault.of or fault.run) / f"step-{fault.at}"
    target = root / f"step-{fault.step}"
    names = fault.files or [
        p.name for p in source.glob("*.distcp") if rank_of(p.name) in fault.ranks
    ]
    assert names
    for name in names:
        shutil.copy(source / name, target / name)
        os.utime(target / name, (LONG_AGO + BETWEEN * fault.at,) * 2)
    if not fault.times:
        forget_times(root)
    return target


@pytest.mark.parametrize("name", FAULTS)
def test_a_mixed_checkpoint(runs: Path, tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    target = mix(runs, tmp_path, fault)
    seen = look(target)
    assert (seen.level, seen.checks) == (fault.level, set(fault.checks.split())), seen.findings
    assert_not_good(seen)
    for finding in seen.findings:
        if finding.severity > Severity.NOTE and finding.check != "misnamed-checkpoint":
            assert finding.where.rank in fault.ranks
    if (target / METADATA).exists():
        load_with_torch(target)  # and says nothing
    if not fault.alone and not fault.of:
        beside = look(tmp_path / f"step-{fault.at}")
        assert beside.level == fault.innocent, beside.findings
        assert "foreign-shard" not in beside.checks


def test_the_table_is_long_enough() -> None:
    assert len(FAULTS) >= 25
    assert {fault.level for fault in FAULTS.values()} == {"proven", "suspected", "unverified"}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("rank", range(RANKS))
def test_s07_every_rank_of_the_reported_run(
    reported: Path, tmp_path: Path, rank: int, alone: bool
) -> None:
    steps = (1000,) if alone else (900, 1000)
    plant(reported, tmp_path, "base", steps=steps)
    forget_times(tmp_path)
    shutil.copy2(reported / f"base/step-900/__{rank}_0.distcp", tmp_path / "step-1000")
    os.utime(tmp_path / f"step-1000/__{rank}_0.distcp", (LONG_AGO, LONG_AGO))
    seen = look(tmp_path / "step-1000")
    assert_not_good(seen)
    errors = {f.check: f for f in seen.findings if f.severity is Severity.ERROR}
    assert ("foreign-shard" in errors) is not alone
    assert ("mixed-step" in errors) == (rank > 0)
    if rank:
        others = ", ".join(str(r) for r in range(RANKS) if r != rank)
        others = {"0, 1, 2": "0-2"}.get(others, others)
        assert f"rank {rank} votes 900" in errors["mixed-step"].message
        assert f"ranks {others} vote 1000" in errors["mixed-step"].message
    else:
        assert seen.result.identity.of(Source.AT_ODDS) == ("__0_0.distcp",)
        if alone:
            assert "__0_0.distcp says step 900 and the others 1000" in seen.result.why
    if not alone:
        assert_quiet(look(tmp_path / "step-900"))


def test_a_shard_of_another_run_at_the_same_step_is_not_called_good(
    reported: Path, tmp_path: Path
) -> None:
    for rank in range(RANKS):
        root = plant(reported, tmp_path / str(rank), "base", steps=(900, 1000))
        shutil.copy2(reported / f"other/step-1000/__{rank}_0.distcp", root / "step-1000")
        forget_times(root)
        seen = look(root / "step-1000")
        assert (seen.level, seen.checks) == ("unverified", set())
        assert_not_good(seen)


# ---------------------------------------------------------------------------------- metadata, names


@pytest.mark.parametrize("alone", [True, False])
def test_s12_metadata_of_another_step(reported: Path, tmp_path: Path, alone: bool) -> None:
    plant(reported, tmp_path, "base", steps=(1000,) if alone else (900, 1000))
    shutil.copy2(reported / "base/step-900" / METADATA, tmp_path / "step-1000")
    seen = look(tmp_path / "step-1000")
    assert_quiet(seen)  # it fits: one metadata may be used for every save
    assert_not_good(seen)
    (finding,) = (f for f in seen.findings if f.check == "stale-metadata")
    assert (finding.where.file, finding.where.rank) == (METADATA, None)
    assert "written for step 900" in finding.message
    assert "of which its files are" in finding.message
    if not alone:
        assert_quiet(look(tmp_path / "step-900"))


def test_metadata_without_a_path_is_told_by_the_save_it_shares(runs: Path, tmp_path: Path) -> None:
    """As where the trainer gave no path, or a temporary one that says nothing."""
    plant(runs, tmp_path, "plain")
    metadata = metadata_of(tmp_path / "step-90")
    metadata.storage_meta.checkpoint_id = "/tmp/saving"
    for step in (90, 100):
        write_metadata(tmp_path / f"step-{step}", metadata)
    for step in (90, 100):  # nothing tells which of the two it was written for, and it fits both
        seen = look(tmp_path / f"step-{step}")
        assert_quiet(seen)
        assert "stale-metadata" in {finding.check for finding in seen.findings}


def test_shards_of_another_step_under_the_right_metadata(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "plain")
    for path in (tmp_path / "step-90").glob("*.distcp"):
        shutil.copy2(path, tmp_path / "step-100")
    seen = look(tmp_path / "step-100")
    assert (seen.level, seen.checks) == ("suspected", {"duplicate-save", "misnamed-checkpoint"})
    assert_quiet(look(tmp_path / "step-90"))


def test_a_copy_under_another_steps_name(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "plain", steps=(90,))
    shutil.copytree(tmp_path / "step-90", tmp_path / "step-100")
    seen = look(tmp_path / "step-100")
    assert (seen.level, seen.checks) == ("suspected", {"duplicate-save", "misnamed-checkpoint"})
    assert_quiet(look(tmp_path / "step-90"))


def test_a_directory_renamed_to_another_step(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "plain", steps=(90,))
    (tmp_path / "step-90").rename(tmp_path / "step-7")
    seen = look(tmp_path / "step-7")
    assert (seen.level, seen.checks) == ("suspected", {"misnamed-checkpoint"})


def test_a_renamed_directory_that_counts_nothing(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "model", steps=(90,))
    (tmp_path / "step-90").rename(tmp_path / "step-7")
    assert look(tmp_path / "step-7").checks == {"stale-metadata"}


@pytest.mark.parametrize("name", ["best", "last", "final", "step-90.bak", "iter_0000090"])
def test_a_name_of_no_other_step_is_legal(runs: Path, tmp_path: Path, name: str) -> None:
    plant(runs, tmp_path, "plain")
    shutil.copytree(tmp_path / "step-90", tmp_path / name)
    for step in (90, 100):
        assert_quiet(look(tmp_path / f"step-{step}"))
    assert_quiet(look(tmp_path / name))


@pytest.mark.parametrize("saved_as", ["/old/place/run/step-90", "/x/12345/step-90", "/tmp/4711"])
def test_a_moved_run_is_legal(runs: Path, tmp_path: Path, saved_as: str) -> None:
    plant(runs, tmp_path, "plain", steps=(90,))
    metadata = metadata_of(tmp_path / "step-90")
    metadata.storage_meta.checkpoint_id = saved_as
    write_metadata(tmp_path / "step-90", metadata)
    set_times(tmp_path / "step-90", LONG_AGO)
    assert_quiet(look(tmp_path / "step-90"))


def test_slots_of_a_rotation_are_legal(runs: Path, tmp_path: Path) -> None:
    """Saved into ``slot_ckpt/ckpt_1`` and renamed afterwards: its number is no step."""
    plant(runs, tmp_path, "plain", steps=(90,))
    metadata = metadata_of(tmp_path / "step-90")
    metadata.storage_meta.checkpoint_id = "/scratch/ckpt_1"
    write_metadata(tmp_path / "step-90", metadata)
    assert_quiet(look(tmp_path / "step-90"))


# ---------------------------------------------------------------------------------- legal states


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_state_beside_its_neighbours(runs: Path, tmp_path: Path, name: str) -> None:
    plant(runs, tmp_path, name, steps=(90, 99, 100))
    for step in (90, 99, 100):
        seen = look(tmp_path / f"step-{step}")
        assert_quiet(seen)
        (row,) = (r for r in seen.result.report.coverage if r.unit == "neighbours")
        assert (row.examined, row.total, row.gaps) == (2, 2, ())


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_state_alone_and_without_times(runs: Path, tmp_path: Path, name: str) -> None:
    plant(runs, tmp_path, name, steps=(100,))
    for path in (tmp_path / "step-100").iterdir():
        path.touch()  # as a checkout leaves them: each at the time it was written out
    assert_quiet(look(tmp_path / "step-100"))
    assert_quiet(look(tmp_path / "step-100", quick=True))


def test_every_file_that_says_nothing_is_named(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "bare", steps=(100,))
    seen = look(tmp_path / "step-100")
    (row,) = (r for r in seen.result.report.coverage if r.stage is Stage.IDENTITY)
    assert (row.examined, row.total) == (3, 4)
    assert [(gap.reason, gap.count) for gap in row.gaps] == [
        ("nothing says which step __0_0.distcp is of", 1)
    ]
    ended = run_cli("verify", tmp_path / "step-100")
    assert ended.code == 0
    assert ended.stdout.splitlines()[-1] == (
        f"UNVERIFIED: {tmp_path}/step-100: whole, content checked by CRC; nothing says which step "
        "__0_0.distcp is of (no manifest)"
    )


def test_where_every_file_says_its_step_and_run(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "local", steps=(100,))
    ended = run_cli("verify", tmp_path / "step-100")
    assert ended.stdout.splitlines()[-1] == (
        f"OK: {tmp_path}/step-100: whole, content checked by CRC; every file says step 100 "
        "(inferred: no manifest)"
    )
    set_times(tmp_path / "step-100", LONG_AGO)
    os.utime(tmp_path / "step-100/__2_0.distcp", (LONG_AGO + 900, LONG_AGO + 900))
    ended = run_cli("verify", tmp_path / "step-100")
    assert ended.stdout.splitlines()[-1].startswith("UNVERIFIED: ")
    assert "their times do not fit one save" in ended.stdout


def test_ranks_that_each_name_a_run_of_their_own(runs: Path, tmp_path: Path) -> None:
    """Loggers may give every rank an id; nobody can tell that from files of several runs."""
    plant(runs, tmp_path, "local", steps=(100,))
    for rank in range(1, RANKS):
        path = tmp_path / f"step-100/__{rank}_0.distcp"
        metadata = metadata_of(tmp_path / "step-100", f"__{rank}.metadata")
        (place,) = (
            place for key, place in metadata.storage_data.items() if key.fqn == "train_state.run_id"
        )
        value = io.BytesIO()
        torch.save(f"run-{rank}", value)
        data = bytearray(path.read_bytes())
        assert len(value.getvalue()) == place.length
        data[place.offset : place.offset + place.length] = value.getvalue()
        path.write_bytes(data)
    set_times(tmp_path / "step-100", LONG_AGO)
    seen = look(tmp_path / "step-100")
    assert_quiet(seen)
    assert {f.check for f in seen.findings} == {"mixed-run"}
    assert seen.result.why.startswith("every file says step 100, but they name 4 runs")


def test_a_suspect_checkpoint_in_words_and_codes(runs: Path, tmp_path: Path) -> None:
    target = mix(runs, tmp_path, FAULTS["bare rank 1 alone"])
    ended = run_cli("verify", target)
    assert ended.code == 0
    assert ended.stdout.splitlines()[-1].startswith(f"SUSPECT: {target}: whole, ")
    assert run_cli("verify", target, "--fail-on", "warning").code == 10
    found = run_cli("verify", target, "--json").json()["checkpoints"][0]
    assert found["verdict"] == "suspect"
    assert {s["file"]: s["source"] for s in found["identity"]["files"]} == {
        "__0_0.distcp": "nothing says it",
        "__1_0.distcp": "at odds with the rest",
        "__2_0.distcp": "counted",
        "__3_0.distcp": "counted",
    }


# ---------------------------------------------------------------------------------- records


def seal_blindly(checkpoint: Path, *, step: int, run_id: str = "r") -> None:
    """Make a manifest of whatever is there, as a tool does that looks at nothing."""
    files = []
    for path in sorted(checkpoint.iterdir()):
        hasher = Hasher()
        hasher.update(path.read_bytes())
        rank = rank_of(path.name)
        files.append(FileRecord(path.name, path.stat().st_size, hasher.text(), rank, step))
    save_id = metadata_of(checkpoint).storage_meta.save_id
    manifest = Manifest(
        name=checkpoint.name,
        step=step,
        files=tuple(files),
        commit_id="c",
        run_id=run_id,
        save_id=save_id,
        time="2026-01-01T00:00:00+00:00",
    )
    protocol.seal(open_store(checkpoint.parent), checkpoint.name, manifest.sealed())


@pytest.mark.parametrize("sealed_origin", [True, False])
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_mixed_checkpoint_that_was_sealed_blindly(
    runs: Path, tmp_path: Path, rank: int, sealed_origin: bool
) -> None:
    target = mix(runs, tmp_path, replace(FAULTS["rank 1 beside its origin"], ranks=(rank,)))
    seal_blindly(target, step=100)
    if sealed_origin:
        seal_blindly(tmp_path / "step-90", step=90)
    seen = look(target)
    assert seen.level == "proven"
    assert seen.checks == ({"foreign-shard"} if rank == 0 else {"foreign-shard", "mixed-step"})
    beside = look(tmp_path / "step-90")
    assert beside.result.verdict is Verdict.OK if sealed_origin else beside.result.good


def test_healthy_sealed_ones_are_ok(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "plain")
    for step in (90, 100):
        seal_blindly(tmp_path / f"step-{step}", step=step)
    for step in (90, 100):
        seen = look(tmp_path / f"step-{step}")
        assert (seen.result.verdict, seen.findings) == (Verdict.OK, ())
        assert len(seen.result.identity.of(Source.RECORDED)) == RANKS
        (files,) = (
            r
            for r in seen.result.report.coverage
            if r.stage is Stage.IDENTITY and r.unit == "files"
        )
        assert files.complete


def test_a_file_replaced_after_the_commit(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "plain")
    seal_blindly(tmp_path / "step-100", step=100)
    shutil.copy2(tmp_path / "step-90/__1_0.distcp", tmp_path / "step-100")
    seen = look(tmp_path / "step-100")
    assert "altered-file" in {f.check for f in seen.result.report.findings}
    assert "mixed-step" in seen.checks


def test_commit_refuses_what_is_mixed(runs: Path, tmp_path: Path) -> None:
    target = mix(runs, tmp_path, FAULTS["rank 1 beside its origin"])
    store, (place,) = locate(str(target), open_store)
    with pytest.raises(Findings, match="not all of one save, so it was not committed: mixed-step"):
        commit_checkpoint(store, place, options=CommitOptions(workers=1))
    assert not (target / "ckptctl.manifest.json").exists()
    ended = run_cli("commit", target)
    assert (ended.code, ended.stdout) == (10, "")
    assert run_cli("commit", tmp_path / "step-90").code == 0


def test_resolve_passes_over_what_is_mixed_or_suspect(runs: Path, tmp_path: Path) -> None:
    mix(runs, tmp_path, FAULTS["rank 1 beside its origin"])
    options = ResolveOptions(allow_uncommitted=True, workers=1)
    found = resolve(open_store(tmp_path), options=options)
    assert found.name == "step-90"
    assert "foreign-shard" in found.skipped[0].reason
    mix(runs, tmp_path / "bare", FAULTS["bare rank 1 alone"])
    plant(runs, tmp_path / "bare", "bare", steps=(90,))
    # beside its origin it is proven; a suspicion alone is enough not to take it uncommitted
    shutil.rmtree(tmp_path / "bare/step-90")
    plant(runs, tmp_path / "bare", "other", steps=(90,))
    found = resolve(open_store(tmp_path / "bare"), options=options)
    assert found.name == "step-90"
    assert "suspect: suspected-shard: __1_0.distcp" in found.skipped[0].reason


def test_promote_refuses_what_is_suspect(runs: Path, tmp_path: Path) -> None:
    target = mix(runs, tmp_path, FAULTS["bare rank 1 alone"])
    seal_blindly(target, step=100)
    ended = run_cli("promote", target, "--require", "weights")
    assert ended.code == 10
    assert "suspect, so the pointer was not moved: suspected-shard" in ended.stderr


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"step": 90}, "mixed-step"),
        ({"run_id": "another"}, "mixed-run"),
        ({"save_id": "another"}, "mixed-run"),
        ({"world_size": 3}, "mixed-run"),
    ],
)
def test_receipts_that_contradict_each_other(
    runs: Path, tmp_path: Path, change: dict[str, object], check: str
) -> None:
    plant(runs, tmp_path, "plain", steps=(100,))
    folder = tmp_path / "step-100" / "ckptctl.receipts"
    folder.mkdir()
    for rank in range(RANKS):
        receipt = Receipt(rank=rank, world_size=RANKS, step=100, files=(), run_id="r", save_id="s")
        if rank == 2:
            receipt = replace(receipt, **change)  # type: ignore[arg-type]
        (tmp_path / "step-100" / receipt.path).write_bytes(receipt.sealed().encode())
    seen = look(tmp_path / "step-100")
    assert (seen.level, seen.checks) == ("proven", {check})


# ---------------------------------------------------------------------------------- bounds


class Counting:
    """A store that counts the bytes it gives out of each file."""

    def __init__(self, store: Any) -> None:
        self._store, self.read = store, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open(self, path: str) -> Any:
        return CountingReader(self, path, self._store.open(path))


class CountingReader:
    """One open file of such a store."""

    def __init__(self, store: Counting, path: str, reader: Any) -> None:
        self._store, self._path, self._reader = store, path, reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __enter__(self) -> CountingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def _count(self, number: int) -> None:
        self._store.read[self._path] = self._store.read.get(self._path, 0) + number

    def read(self, start: int, stop: int) -> bytes:
        self._count(stop - start)
        return self._reader.read(start, stop)

    def read_into(self, start: int, buffer: memoryview) -> None:
        self._count(len(buffer))
        self._reader.read_into(start, buffer)


@pytest.mark.parametrize("sealed", [False, True])
def test_nothing_of_a_neighbour_but_ends_of_items_is_read(
    runs: Path, tmp_path: Path, sealed: bool
) -> None:
    plant(runs, tmp_path, "plain")
    if sealed:
        seal_blindly(tmp_path / "step-100", step=100)
    store, (place,) = locate(str(tmp_path / "step-100"), open_store)
    counting = Counting(store)
    # numbers of a few items are read a second time, here and there, where files could be exchanged
    options = Options(workers=1, ignore=frozenset({"exchanged-shards"}))
    result = verify(counting, place, options=options)
    assert len(result.identity.of(Source.RECORDED if sealed else Source.COUNTED)) >= RANKS - 1
    shards = {path: count for path, count in counting.read.items() if path.endswith(".distcp")}
    own = {path: count for path, count in shards.items() if path.startswith("step-100/")}
    assert own == {
        f"step-100/{p.name}": p.stat().st_size for p in (tmp_path / "step-100").glob("*.distcp")
    }
    theirs = {path: count for path, count in shards.items() if path.startswith("step-90/")}
    assert len(theirs) == RANKS
    assert max(theirs.values()) <= 1024


def test_neighbours_are_left_alone_where_nobody_asks(runs: Path, tmp_path: Path) -> None:
    target = mix(runs, tmp_path, FAULTS["rank 0 beside its origin"])
    comparing = {
        "foreign-shard",
        "suspected-shard",
        "duplicate-save",
        "exchanged-shards",
        "shared-shard",
        "shrunken-checkpoint",
        "stale-metadata",
    }
    seen = look(target, ignore=frozenset(comparing))
    assert [r for r in seen.result.report.coverage if r.unit == "neighbours"] == []
    assert seen.checks == set()
    seen = look(target, select=frozenset({"missing-file"}))
    assert [r for r in seen.result.report.coverage if r.stage is Stage.IDENTITY] == []


@pytest.mark.parametrize("damage", ["cut", "garbage", "gone"])
def test_a_damaged_neighbour_is_a_gap_and_no_finding(
    runs: Path, tmp_path: Path, damage: str
) -> None:
    target = mix(runs, tmp_path, FAULTS["rank 0 beside its origin"])
    metadata = tmp_path / "step-90" / METADATA
    if damage == "cut":
        metadata.write_bytes(metadata.read_bytes()[:9000])
    elif damage == "garbage":
        metadata.write_bytes(b"garbage")
    else:
        for path in (tmp_path / "step-90").glob("*.distcp"):
            path.unlink()
    seen = look(target)
    (row,) = (r for r in seen.result.report.coverage if r.unit == "neighbours")
    assert row.examined == (1 if damage == "gone" else 0)
    assert_not_good(seen)
    assert seen.level == "unverified"


def test_damage_elsewhere_is_not_taken_for_mixing(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "plain")
    drop_keys(tmp_path / "step-100", prefix="optimizer.state.embed")
    (tmp_path / "step-100/__2_0.distcp").write_bytes(b"")
    seen = look(tmp_path / "step-100")
    told = {f.check for f in seen.findings if f.severity > Severity.NOTE}
    assert told == {"shrunken-checkpoint"}  # the other one has the keys


def test_files_of_different_torch_builds(runs: Path, tmp_path: Path) -> None:
    plant(runs, tmp_path, "plain", steps=(100,))
    path = tmp_path / "step-100/__2_0.distcp"
    path.write_bytes(path.read_bytes().replace(b".format_version", b"_format_version"))
    seen = look(tmp_path / "step-100")
    assert (seen.level, seen.checks) == ("suspected", {"mixed-torch"})
    (finding,) = (f for f in seen.findings if f.severity is Severity.WARNING)
    assert (finding.where.rank, "torch 2.1-2.6" in finding.message) == (2, True)


def test_every_check_of_identity_was_seen_at_work() -> None:
    proven = {name for fault in FAULTS.values() for name in fault.checks.split()}
    elsewhere = {
        "stale-metadata",
        "duplicate-save",
        "exchanged-shards",
        "mixed-torch",
        "odd-counter",
        "odd-time",
        "shared-shard",
        "shrunken-checkpoint",
    }
    assert {check.id for check in IDENTITY_CHECKS} == proven | elsewhere


def test_fixtures_of_one_run_are_quiet(copy: Callable[..., Path]) -> None:
    for step in (8, 12):
        copy(f"fsdp2/step-{step}")
    root = copy("fsdp2/step-12", "best").parent
    for name in ("step-8", "step-12", "best"):
        assert_quiet(look(root / name))
    assert sorted(FIXTURES.glob("fsdp2/step-*"))
