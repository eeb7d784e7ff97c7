"""Whenever the power fails, what is resumed from is the last commit that was acknowledged, whole.

Jobs save, commit, promote, mark and prune through a recorder; ``slow.crash`` makes every disk
that a crash after each of their calls may leave, and ``resolve`` is asked on each. Mutants of the
protocol, each without one of its steps, prove that the enumeration sees what it should.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from ckptctl import protocol
from ckptctl.completeness.audit import Wanted
from ckptctl.errors import NotFound, NothingThere, Refused, RootMissing
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.manifest import MANIFEST, FileRecord, Receipt
from ckptctl.operations.catalog.resolve import NoneUsable, ResolveOptions, resolve
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.publish.amend import amend_checkpoint
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.operations.publish.promote import promote
from ckptctl.operations.publish.quarantine import set_mark
from ckptctl.operations.retention.execute import carry_out
from ckptctl.operations.retention.plan import plan
from ckptctl.operations.retention.policy import Policy
from ckptctl.operations.retention.prune import prune
from ckptctl.operations.retention.trash import undelete
from ckptctl.storage.posix import PosixStore
from conftest import FIXTURES
from slow.crash import (
    Answers,
    Census,
    Disk,
    Killed,
    Moment,
    Op,
    Recorder,
    Seen,
    Tree,
    materialise,
    remember_all,
    survey,
)

BIG = random.Random(7).randbytes((1 << 20) + 1)
"""More than a quick look hashes."""

SMALL_ONE, SMALL_TWO = "no_crc/step-1", "dedup_lowest_rank/step-12"
WEIGHTS = Wanted("weights")
"""All that these hold."""
MANY_FILES = "thread_count_3/step-12"

Files = Mapping[str, bytes]


def files_of(case: str, **extra: bytes) -> Files:
    """Read a fixture; ``extra`` adds files that DCP does not know."""
    found = {path.name: path.read_bytes() for path in sorted((FIXTURES / case).iterdir())}
    return {**found, **{f"{name}.bin": data for name, data in extra.items()}}


# ---------------------------------------------------------------------------------- jobs


class Job:
    """A training run and its operator; every call they make to the file system is recorded."""

    def __init__(self, scratch: Path, *, base: str = "", remember: Any = remember_all) -> None:
        scratch.mkdir()
        self.recorder, self.base = Recorder(scratch, remember=remember), base
        self.root = scratch / base
        self.truth: dict[str, Files] = {}
        self.store = PosixStore(self.root, system=self.recorder)

    @property
    def allowed(self) -> Answers:
        return self.recorder.moments[-1].allowed

    def careful(self, name: str, files: Files) -> None:
        """Save as this project advises: every file and every name is made durable."""
        system, place = self.recorder, self.root / name
        system.make_directory(place)
        system.sync_directory(self.root)
        for path, data in files.items():
            system.write(place / path, data)
            system.sync_file(place / path)
        system.sync_directory(place)
        self._saved(name, files)

    def as_torch_does(self, name: str, files: Files) -> None:
        """Save as ``FileSystemWriter`` does: files are synced, names are not."""
        system, place = self.recorder, self.root / name
        system.make_directory(place)
        for path, data in files.items():
            written = place / f"{path}.tmp" if path == ".metadata" else place / path
            system.write(written, data)
            system.sync_file(written)
            if written.name != path:
                system.rename(written, place / path)
        self._saved(name, files)

    def carelessly(self, name: str, files: Files) -> None:
        """Save without making anything durable."""
        self.recorder.make_directory(self.root / name)
        for path, data in files.items():
            self.recorder.write(self.root / name / path, data)
        self._saved(name, files)

    def _saved(self, name: str, files: Files) -> None:
        self.truth[name.removesuffix(".tmp")] = files

    def stage(self, name: str, *, ranks: int, step: int) -> None:
        """Leave the receipts of all ranks."""
        files = self.truth[name]
        for rank in range(ranks):
            mine = [path for path in files if (rank_of(path) or 0) == rank]
            records = tuple(FileRecord(p, len(files[p]), _digest(files[p]), rank) for p in mine)
            receipt = Receipt(rank=rank, world_size=ranks, step=step, files=records)
            protocol.stage(self.store, name, receipt)

    def commit(self, name: str, publish_as: str | None = None) -> None:
        final = publish_as or name
        self.recorder.expect(self.allowed | {final}, f"commit of {final}")
        options = CommitOptions(publish_as=publish_as, workers=1)
        done = commit_checkpoint(self.store, self.place(name), options=options)
        assert done.name == final
        self.recorder.expect(frozenset([final]), f"{final} is committed")

    def amend(self, name: str, run_id: str) -> None:
        self.recorder.expect(self.allowed, f"amendment of {name}: {run_id}")
        options = CommitOptions(run_id=run_id, workers=1)
        assert amend_checkpoint(self.store, self.place(name), options=options).changed
        self.recorder.expect(self.allowed, f"{name} is amended: {run_id}")

    def promote(self, name: str) -> None:
        self.recorder.expect(self.allowed, f"promotion of {name}")
        assert promote(self.store, self.place(name), workers=1, wanted=WEIGHTS).moved
        self.recorder.expect(self.allowed, f"{name} is promoted")

    def roll_back(self, name: str) -> None:
        self.recorder.expect(self.allowed | {name}, f"rollback to {name}")
        promote(self.store, self.place(name), rollback=True, workers=1, wanted=WEIGHTS)
        self.recorder.expect(frozenset([name]), f"rolled back to {name}")

    def mark(self, name: str, *, quarantined: bool, then: str) -> None:
        self.recorder.expect(self.allowed | {then}, f"marking of {name}: {quarantined}")
        set_mark(self.store, self.place(name), quarantined=quarantined, reason="loss spike")
        self.recorder.expect(frozenset([then]), f"{name} is marked: {quarantined}")

    def prune(self, policy: Policy) -> None:
        self.recorder.expect(self.allowed, "prune")
        assert [fate.name for fate in carry_out(self.store, plan(self.store, policy))]
        self.recorder.expect(self.allowed, "pruned")

    def place(self, name: str) -> Place:
        return _place(self.store, name)

    def survey(self, moments: list[Moment] | None = None) -> Census:
        """Crash at every moment there was."""
        recorder = self.recorder
        chosen = recorder.moments if moments is None else moments
        return survey(recorder.ops, chosen, self.truth, base=self.base)


def _digest(data: bytes) -> str:
    hasher = Hasher()
    hasher.update(data)
    return hasher.text()


def three_saves(job: Job) -> None:
    """Three trainers of growing carelessness, each committed and promoted; the old ones pruned."""
    job.careful("step-1", files_of(SMALL_ONE))
    job.stage("step-1", ranks=1, step=1)
    job.commit("step-1")
    job.promote("step-1")
    job.as_torch_does("step-2", files_of(MANY_FILES))
    job.stage("step-2", ranks=2, step=2)
    job.commit("step-2")
    job.promote("step-2")
    job.carelessly("step-3", files_of(SMALL_TWO, loader=BIG))
    job.commit("step-3")
    job.promote("step-3")
    job.prune(Policy(keep_last=1, min_age=0))


class _Direct(PosixStore):
    """A store that cannot rename, so that prune deletes."""

    @property
    def renames(self) -> bool:
        return False


def three_saves_without_trash(job: Job) -> None:
    """The same where what goes is deleted at once."""
    job.store = _Direct(job.root, system=job.recorder)
    three_saves(job)


def marks_and_rollback(job: Job) -> None:
    """The newest is quarantined, rolled back from, released, and followed by the next."""
    job.as_torch_does("step-1", files_of(SMALL_ONE))
    job.commit("step-1")
    job.carelessly("step-2", files_of(SMALL_TWO))
    job.commit("step-2")
    job.promote("step-2")
    job.mark("step-2", quarantined=True, then="step-1")
    job.roll_back("step-1")
    job.mark("step-2", quarantined=False, then="step-1")
    job.careful("step-3", files_of(SMALL_TWO, loader=b"small"))
    job.commit("step-3")
    job.amend("step-3", "run-1")
    job.mark("step-3", quarantined=True, then="step-1")
    job.mark("step-3", quarantined=False, then="step-3")


def temporary_names(job: Job) -> None:
    """Trainers that save under a temporary name; the commit publishes under the final one."""
    job.careful("step-1.tmp", files_of(SMALL_ONE))
    job.commit("step-1.tmp", publish_as="step-1")
    job.promote("step-1")
    job.as_torch_does("step-2.tmp", files_of(SMALL_TWO))
    job.commit("step-2.tmp", publish_as="step-2")
    job.carelessly("step-3.tmp", files_of(SMALL_ONE, loader=BIG))
    job.commit("step-3.tmp", publish_as="step-3")
    job.promote("step-3")


SCENARIOS: dict[str, Callable[[Job], None]] = {
    "three saves": three_saves,
    "three saves without trash": three_saves_without_trash,
    "marks and rollback": marks_and_rollback,
    "temporary names": temporary_names,
}


def report(name: str, census: Census, last: int = 5) -> None:
    print(f"\n{name}: {census}")
    for violation in census.violations[-last:]:
        print(f"  {violation}")


# ---------------------------------------------------------------------------------- the promise


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_crash_takes_an_acknowledged_commit(name: str, tmp_path: Path) -> None:
    job = Job(tmp_path / "disk")
    SCENARIOS[name](job)
    census = job.survey()
    report(name, census)
    assert census.visited > 2000
    assert census.distinct > 500
    assert not census.violations, census.violations[0]
    for tree, seen in islice(census.trees, 0, None, max(1, len(census.trees) // 30)):
        _go_on(tree, seen, census.disk, tmp_path / "real")


def _go_on(tree: Tree, seen: Seen, disk: Disk, target: Path) -> None:
    """A real directory gives the same answers, and what a crash has left there stops nobody."""
    materialise(tree, disk, target)
    store = PosixStore(target, system=Recorder(target))
    assert (_answer(store, full=False), _answer(store, full=True)) == (seen.quick, seen.full)
    shutil.copytree(FIXTURES / SMALL_TWO, target / "step-9")
    commit_checkpoint(store, _place(store, "step-9"), options=CommitOptions(workers=1))
    assert promote(store, _place(store, "step-9"), workers=1, wanted=WEIGHTS).moved
    assert _answer(store, full=True) == "step-9"
    list(carry_out(store, plan(store, Policy(keep_last=1, min_age=0))))
    assert _answer(store, full=True) == "step-9"
    shutil.rmtree(target)


def _answer(store: PosixStore, *, full: bool) -> str | None:
    try:
        return resolve(store, options=ResolveOptions(full=full, workers=1)).name
    except (NothingThere, NoneUsable, RootMissing):
        return None


@pytest.mark.quick
def test_what_is_moved_is_here_or_in_the_trash_and_whole(tmp_path: Path) -> None:
    job = Job(tmp_path / "disk")
    for name in ("step-1", "step-2"):
        job.careful(name, files_of(SMALL_ONE))
        job.commit(name)
    job.promote("step-2")
    begun = len(job.recorder.moments)
    job.prune(Policy(keep_last=1, min_age=0))
    undelete(job.store, "step-1")
    job.prune(Policy(keep_last=1, min_age=0))
    census = job.survey(job.recorder.moments[begun - 1 :])
    report("trash", census)
    assert not census.violations, census.violations[0]
    wanted = set(job.truth["step-1"]) | {MANIFEST}
    places = {_whole_at(tree, wanted) for tree, _ in census.trees}
    assert len(census.trees) > 10
    assert places == {("step-1",), ("ckptctl.trash/00000001/step-1",)}


@pytest.mark.quick
def test_an_acknowledged_amendment_is_never_taken_back(tmp_path: Path) -> None:
    job = Job(tmp_path / "disk")
    job.careful("step-1", files_of(SMALL_ONE))
    job.commit("step-1")
    job.promote("step-1")
    job.amend("step-1", "run-1")
    begun = len(job.recorder.moments)
    job.amend("step-1", "run-2")
    during = job.survey(job.recorder.moments[begun - 1 :])
    after = job.survey(job.recorder.moments[-1:])
    report("amendments", during)
    assert not during.violations, during.violations[0]
    assert _runs(during, tmp_path / "real") == {"run-1", "run-2"}
    assert _runs(after, tmp_path / "real") == {"run-2"}


def _runs(census: Census, target: Path) -> set[str | None]:
    """Return what each disk says of the run of its one checkpoint."""
    found = set()
    for tree, _ in census.trees:
        materialise(tree, census.disk, target)
        manifest = protocol.read_manifest(PosixStore(target), "step-1")
        assert manifest is not None
        found.add(manifest.run_id)
        shutil.rmtree(target)
    return found


def _whole_at(tree: Tree, wanted: set[str]) -> tuple[str, ...]:
    """Return each directory named step-1 that holds all that is wanted, and any that holds less."""
    found: dict[str, set[str]] = {}
    for path in tree.files:
        folder, sign, name = path.rpartition("step-1/")
        if sign:
            found.setdefault(f"{folder}step-1", set()).add(name)
    return tuple(f if wanted <= names else f"part of {f}" for f, names in sorted(found.items()))


def test_a_root_that_the_job_has_made_itself_is_there_after_a_commit(tmp_path: Path) -> None:
    job = Job(tmp_path / "disk", base="run")
    job.recorder.make_directory(job.root)
    job.as_torch_does("step-1", files_of(SMALL_ONE))
    job.commit("step-1")
    census = job.survey()
    report("new root", census)
    assert not census.violations, census.violations[0]


def _place(store: PosixStore, name: str) -> Place:
    (found,) = [place for place in find(store) if place.path == name]
    return found


# ---------------------------------------------------------------------------------- two accidents


def _commit_again(job: Job) -> None:
    """Whoever comes later finds either nothing, or that the checkpoint is committed."""
    try:
        job.commit("step-2")
    except Refused as error:
        assert "committed already" in str(error)


def _promote_again(job: Job) -> None:
    promote(job.store, job.place("step-2"), workers=1, wanted=WEIGHTS)


def _commit_and_promote_again(job: Job) -> None:
    _commit_again(job)
    _promote_again(job)


def _roll_back_again(job: Job) -> None:
    promote(job.store, job.place("step-1"), rollback=True, workers=1, wanted=WEIGHTS)


def _mark_again(job: Job) -> None:
    set_mark(job.store, job.place("step-2"), quarantined=True, reason="loss spike")


@dataclass(frozen=True)
class Accident:
    """An action whose process is killed, what is done instead, and what is promised then."""

    prepare: Callable[[Job], None]
    action: Callable[[Job], None]
    again: Callable[[Job], None]
    then: str


def _saved(job: Job) -> None:
    job.careful("step-1", files_of(SMALL_ONE))
    job.commit("step-1")
    job.carelessly("step-2", files_of(SMALL_TWO))


def _committed(job: Job) -> None:
    _saved(job)
    job.commit("step-2")


def _promoted(job: Job) -> None:
    _committed(job)
    job.promote("step-2")


def _prune(job: Job) -> None:
    prune(job.store, Policy(keep_last=1, min_age=0))


def _pruned(job: Job) -> None:
    _promoted(job)
    _prune(job)


def _undelete_again(job: Job) -> None:
    try:
        undelete(job.store, "step-1")
    except NotFound:  # it is back already
        assert job.place("step-1").committed


def _empty(job: Job) -> None:
    prune(job.store, Policy(trash_older_than=0.0))


def _amend_again(job: Job) -> None:
    options = CommitOptions(run_id="a", workers=1)
    amend_checkpoint(job.store, job.place("step-2"), options=options)


ACCIDENTS = {
    "commit": Accident(
        _saved, lambda job: job.commit("step-2"), _commit_and_promote_again, "step-2"
    ),
    "promote": Accident(_committed, lambda job: job.promote("step-2"), _promote_again, "step-2"),
    "rollback": Accident(
        _promoted, lambda job: job.roll_back("step-1"), _roll_back_again, "step-1"
    ),
    "quarantine": Accident(
        _promoted,
        lambda job: job.mark("step-2", quarantined=True, then="step-1"),
        _mark_again,
        "step-1",
    ),
    "prune": Accident(_promoted, _prune, _prune, "step-2"),
    "undelete": Accident(
        _pruned, lambda job: undelete(job.store, "step-1"), _undelete_again, "step-2"
    ),
    "empty trash": Accident(_pruned, _empty, _empty, "step-2"),
    "amend": Accident(_promoted, lambda job: job.amend("step-2", "a"), _amend_again, "step-2"),
}


def _kills(accident: Accident, scratch: Path) -> Iterator[tuple[int, Census]]:
    """Kill the action after each of its calls, let somebody finish it, then fail the power."""
    for lives in count():
        job = Job(scratch)
        accident.prepare(job)
        job.recorder.lives = lives
        try:
            accident.action(job)
            killed = False
        except Killed:
            killed = True
        job.recorder.lives = None
        if killed:
            accident.again(job)
            done = Moment(len(job.recorder.ops), frozenset([accident.then]), "done by another")
            yield lives, job.survey([done])
        shutil.rmtree(scratch)
        if not killed:
            return


@pytest.mark.quick
@pytest.mark.parametrize("name", ACCIDENTS)
def test_what_a_second_process_acknowledges_outlives_a_crash(name: str, tmp_path: Path) -> None:
    """One process is killed, a second finds what it left and says so, then the power fails."""
    found = dict(_kills(ACCIDENTS[name], tmp_path / "disk"))
    bad = {f"killed after {n} calls": c.violations[0] for n, c in found.items() if c.violations}
    print(f"\n{name}: {len(found)} kills, {sum(c.visited for c in found.values())} disks")
    for when, violation in bad.items():
        print(f"  {when}: {violation}")
    assert len(found) > 5
    assert not bad


# ---------------------------------------------------------------------------------- mutants


def caught(scratch: Path, scenario: Callable[[Job], None], what: str, remember: Any) -> bool:
    """Tell whether some disk breaks a promise in a way that is described so."""
    job = Job(scratch, remember=remember)
    scenario(job)
    census = survey(
        job.recorder.ops,
        job.recorder.moments,
        job.truth,
        enough=lambda violation: what in violation.what,
    )
    report(f"mutant until {what!r}", census, last=1)
    return any(what in violation.what for violation in census.violations)


def _is_aside(path: str) -> bool:
    return path.rpartition("/")[2].startswith(".ckptctl-")


class _Forgetful:
    """Forgets what follows an operation on a record of that name."""

    def __init__(self, record: str, kind: str) -> None:
        self._record, self._kind, self._armed = record, kind, False

    def __call__(self, op: Op) -> bool:
        if op.kind == "link":
            self._armed = self._record in op.other
        if op.kind == self._kind and self._armed:
            self._armed = False
            return False
        return True


def _never_syncs(folder: str) -> Callable[[Op], bool]:
    """Forget every syncing of a folder of records: that after the copy counts for the record too."""
    return lambda op: op.kind != "sync_directory" or folder not in str(op.path)


@dataclass(frozen=True)
class Mutant:
    """A step that is left out, in which job that shows, and how."""

    remember: Callable[[], Callable[[Op], bool]]
    scenario: Callable[[Job], None]
    shows: str


def _short(job: Job) -> None:
    job.careful("step-1", files_of(SMALL_ONE))
    job.commit("step-1")
    job.carelessly("step-2", files_of(SMALL_ONE, loader=BIG))
    job.commit("step-2")
    job.promote("step-2")
    job.prune(Policy(keep_last=1, min_age=0))


def _short_without_trash(job: Job) -> None:
    job.store = _Direct(job.root, system=job.recorder)
    _short(job)


MUTANTS = {
    "records are not synced before they are linked": Mutant(
        lambda: lambda op: op.kind != "sync_file" or not _is_aside(op.path),
        _short,
        "says None, and step-1 was promised",
    ),
    "the manifest's name is not synced": Mutant(
        lambda: _Forgetful(MANIFEST, "sync_directory"), _short, "says step-1, and step-2"
    ),
    "the mark's name is not synced": Mutant(
        lambda: _never_syncs("ckptctl.quarantine"),
        marks_and_rollback,
        "says step-2, and step-1 was promised",
    ),
    "the pointer's name is not synced": Mutant(
        lambda: _never_syncs("ckptctl.pointers"),
        marks_and_rollback,
        "says None, and step-1 was promised",  # the plain text names what no revision names
    ),
    "no directory is ever synced": Mutant(
        lambda: lambda op: op.kind != "sync_directory", _short, "says None, and step-1"
    ),
    "no file is ever synced": Mutant(
        lambda: lambda op: op.kind != "sync_file", _short, "step-1 has a manifest and is not whole"
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_store_that_leaves_out_a_step_is_caught(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    assert caught(tmp_path / "disk", mutant.scenario, mutant.shows, mutant.remember())


def test_the_short_job_breaks_no_promise_by_itself(tmp_path: Path) -> None:
    assert not caught(tmp_path / "disk", _short, "", remember_all)


LIES = "step-2 has a manifest and is not whole"
WRONG = "resolve chose step-2, which is not what was committed"


@pytest.mark.parametrize("shows", [LIES, WRONG])
def test_a_commit_that_makes_nothing_durable_is_caught(
    shows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStore, "make_durable", lambda self, paths: None)
    assert caught(tmp_path / "disk", _short, shows, remember_all)


@pytest.mark.parametrize("shows", [LIES, WRONG])
def test_a_manifest_before_the_data_is_caught(
    shows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick look does not read large files, so the order must not allow such a manifest."""
    waiting: list[tuple[PosixStore, list[str]]] = []
    seal, make_durable = protocol.seal, PosixStore.make_durable
    monkeypatch.setattr(
        PosixStore, "make_durable", lambda self, paths: waiting.append((self, list(paths)))
    )

    def seal_first(*args: Any) -> Any:
        done = seal(*args)
        make_durable(*waiting.pop(0))
        return done

    monkeypatch.setattr(protocol, "seal", seal_first)
    assert caught(tmp_path / "disk", _short, shows, remember_all)


def test_a_prune_that_is_not_durable_step_by_step_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = PosixStore.delete

    def lazily(self: PosixStore, path: str, *, durable: bool = False) -> None:
        delete(self, path)

    monkeypatch.setattr(PosixStore, "delete", lazily)
    shows = "step-1 has a manifest and is not whole"
    assert caught(tmp_path / "disk", _short_without_trash, shows, remember_all)


# ---------------------------------------------------------------------------------- the model


def _trees(*ops: Op) -> set[tuple[tuple[str, str], ...]]:
    disk = Disk()
    for op in ops:
        disk.apply(op)
    return {_shape(tree) for tree in disk.crashes(random.Random(0))}


def _shape(tree: Tree) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((path, variant) for path, (_, variant) in tree.files.items()))


@pytest.mark.quick
def test_the_model_loses_what_was_not_synced() -> None:
    write = Op("write", "a", data=b"data")
    lost = [(), (("a", "empty"),), (("a", "torn"),), (("a", "whole"),), (("a", "zeros"),)]
    assert _trees(write) == set(lost)
    synced = (write, Op("sync_file", "a"))
    assert _trees(*synced) == {(), (("a", "whole"),)}
    assert _trees(*synced, Op("sync_directory", "")) == {(("a", "whole"),)}
    assert _trees(write, Op("sync_directory", "")) == set(lost[1:])


@pytest.mark.quick
def test_the_model_keeps_changes_of_one_name_in_order() -> None:
    made = (Op("write", "a", data=b"1"), Op("sync_file", "a"), Op("link", "a", "b"))
    a, b = ("a", "whole"), ("b", "whole")
    assert _trees(*made) == {(), (a,), (b,), (a, b)}
    assert _trees(*made, Op("unlink", "a")) == {(), (a,), (b,), (a, b)}
    durable = (*made, Op("sync_directory", ""))
    assert _trees(*durable, Op("unlink", "a"), Op("unlink", "b")) == {(), (a,), (b,), (a, b)}
    assert _trees(*durable, Op("rename", "a", "c")) == {(a, b), (b, ("c", "whole"))}


@pytest.mark.quick
def test_the_model_loses_a_directory_with_all_that_is_in_it() -> None:
    made = (
        Op("mkdir", "d"),
        Op("write", "d/a", data=b"1"),
        Op("sync_file", "d/a"),
        Op("sync_directory", "d"),
    )
    assert _trees(*made) == {(), (("d/a", "whole"),)}
    assert _trees(*made, Op("sync_directory", "")) == {(("d/a", "whole"),)}
    renamed = (*made, Op("sync_directory", ""), Op("rename", "d", "e"))
    assert _trees(*renamed) == {(("d/a", "whole"),), (("e/a", "whole"),)}
