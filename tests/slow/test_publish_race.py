"""Eight who publish at the same moment: one wins each revision, and the others learn who."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from ckptctl import protocol
from ckptctl.model.manifest import PointerRevision
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.cli import Ended
from support.publish import Bucket, bucket, done, planted, race, s3_environment, s3_server

RACERS = 8
FIRST = 10
STEPS = range(FIRST, FIRST + RACERS)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with s3_server() as address:
        yield address


@dataclass
class Arena:
    """A root with a committed checkpoint for each racer, and where an uncommitted one may go."""

    url: str
    env: dict[str, str]
    directory: Path
    bucket: Bucket | None = None

    def add(self, name: str) -> str:
        """Add an uncommitted checkpoint; return its address."""
        source = FIXTURES / "fsdp2/step-12"
        if self.bucket is None:
            shutil.copytree(source, self.directory / name)
        else:
            self.bucket.upload(source, f"run/{name}")
        return f"{self.url}/{name}"

    def targets(self) -> list[str]:
        return [f"{self.url}/step-{step}" for step in STEPS]

    def race(self, *commands: list[str]) -> list[Ended]:
        return race(commands, self.env)


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a committed checkpoint for each racer, to be copied."""
    return planted(tmp_path_factory.mktemp("committed") / "run", STEPS)


@pytest.fixture(params=["posix", "s3"])
def arena(
    request: pytest.FixtureRequest,
    committed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Arena]:
    if request.param == "posix":
        root = tmp_path / "run"
        shutil.copytree(committed, root)
        yield Arena(str(root), {}, root)
        return
    endpoint = request.getfixturevalue("endpoint")
    env = s3_environment(endpoint)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with bucket(endpoint, f"race-{uuid4()}") as made:
        yield Arena(made.upload(committed, "run"), env, tmp_path, made)


def moves(arena: Arena) -> list[PointerRevision]:
    """Return the pointer's revisions, all of which must be good and without a gap."""
    found = list(protocol.revisions(open_store(arena.url)))
    whole = [one for one in found if isinstance(one, PointerRevision)]
    assert len(whole) == len(found)
    assert [one.revision for one in whole] == list(range(1, len(whole) + 1))
    assert protocol.read_pointer(open_store(arena.url)).revision == (whole[-1] if whole else None)
    return whole


def winners(ends: list[Ended]) -> list[int]:
    """Return who ended well; everybody else must have been refused, and no other ending exists."""
    assert {ended.code for ended in ends} <= {0, 5}, ends
    return [number for number, ended in enumerate(ends) if ended.code == 0]


def names(message: str, winning: list[str]) -> bool:
    """Tell whether a message names one of the winners, and not only a longer name."""
    return any(re.search(rf"{re.escape(one)}(?!\d)", message) for one in winning)


def test_of_promotions_that_expect_one_revision_one_wins(arena: Arena) -> None:
    ends = arena.race(*(["promote", one, "--expect", "0", "--quick"] for one in arena.targets()))
    (winner,) = winners(ends)
    (revision,) = moves(arena)
    assert (revision.target, revision.actor) == (f"step-{FIRST + winner}", f"racer-{winner}")
    for number, ended in enumerate(ends):
        if number != winner:
            assert names(ended.stderr, [revision.target, revision.actor]), ended.stderr
            assert "nothing was changed" in ended.stderr


def test_promotions_take_turns_and_never_move_the_pointer_back(arena: Arena) -> None:
    ends = arena.race(*(["promote", one, "--quick"] for one in arena.targets()))
    winning = winners(ends)
    made = moves(arena)
    assert sorted(one.target for one in made) == sorted(f"step-{FIRST + n}" for n in winning)
    assert [one.actor for one in made] == [
        f"racer-{int(one.target.removeprefix('step-')) - FIRST}" for one in made
    ]
    assert [one.step for one in made] == sorted(one.step or 0 for one in made)
    known = [name for one in made for name in (one.target, one.actor)]
    for number, ended in enumerate(ends):
        if number not in winning:
            assert names(ended.stderr, known), ended.stderr


def test_of_rollbacks_each_makes_a_revision_or_is_told(arena: Arena) -> None:
    done("promote", arena.targets()[-1], "--quick", env=arena.env)
    ends = arena.race(
        *(["promote", one, "--quick", "--rollback", "--yes"] for one in arena.targets()[:-1])
    )
    winning = winners(ends)
    made = moves(arena)[1:]
    assert sorted(one.target for one in made) == sorted(f"step-{FIRST + n}" for n in winning)
    known = [name for one in made for name in (one.target, one.actor)]
    for number, ended in enumerate(ends):
        if number not in winning:
            assert names(ended.stderr, known), ended.stderr


def test_of_commits_of_one_checkpoint_one_seals_it_and_the_others_are_told(arena: Arena) -> None:
    url = arena.add("step-99")
    ends = arena.race(*(["commit", url] for _ in range(RACERS)))
    assert [ended.code for ended in ends] == [0] * RACERS
    (winner,) = (n for n, ended in enumerate(ends) if "committed already" not in ended.stdout)
    manifest = protocol.read_manifest(open_store(arena.url), "step-99")
    assert manifest is not None
    assert manifest.actor == f"racer-{winner}"
    for number, ended in enumerate(ends):
        assert manifest.digest in ended.stdout
        if number != winner:
            assert names(ended.stdout, [manifest.actor]), ended.stdout
    assert done("verify", url, "--require", "manifest", env=arena.env)


def test_of_amendments_at_one_moment_each_is_a_revision_or_is_told(arena: Arena) -> None:
    url = arena.targets()[0]
    ends = arena.race(*(["commit", url, "--amend", "--run-id", f"r{n}"] for n in range(RACERS)))
    winning = winners(ends)
    store, name = open_store(arena.url), f"step-{FIRST}"
    made = [one for one in protocol.amendments(store, name) if not isinstance(one, str)]
    assert sorted(one.run_id for one in made) == sorted(f"r{n}" for n in winning)
    assert [one.revision for one in made] == list(range(1, len(made) + 1))
    manifest = protocol.read_manifest(store, name)
    assert manifest is not None
    assert manifest.run_id == made[-1].run_id


@pytest.mark.quick
def test_of_publications_under_one_name_one_wins(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for number in range(RACERS):
        shutil.copytree(FIXTURES / "fsdp2/step-12", root / f"step-12.tmp-{number}")
    ends = race(
        ["commit", str(root / f"step-12.tmp-{n}"), "--as", "step-12"] for n in range(RACERS)
    )
    (winner,) = winners(ends)
    manifest = protocol.read_manifest(open_store(root), "step-12")
    assert manifest is not None
    assert manifest.actor == f"racer-{winner}"
    assert done("verify", root / "step-12", "--require", "manifest")
    left = {path.name for path in root.iterdir() if path.name.startswith("step")}
    assert left == {"step-12", *(f"step-12.tmp-{n}" for n in range(RACERS) if n != winner)}


def test_of_quarantines_of_one_checkpoint_one_is_recorded(arena: Arena) -> None:
    url = arena.targets()[0]
    ends = arena.race(*(["quarantine", url, "--reason", f"reason {n}"] for n in range(RACERS)))
    winners(ends)
    records = list(protocol.quarantines(open_store(arena.url), f"step-{FIRST}"))
    (record,) = records
    assert not isinstance(record, str)
    number = int(record.actor.removeprefix("racer-"))
    assert ends[number].code == 0
    assert record.reason == f"reason {number}"
