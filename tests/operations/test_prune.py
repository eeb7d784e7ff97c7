"""Retention: exactly what a policy dooms is deleted, records first, and never what is needed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckptctl import protocol
from ckptctl.errors import RootMissing
from ckptctl.model.manifest import LATEST, MANIFEST, PointerRevision
from ckptctl.operations.retention.execute import carry_out
from ckptctl.operations.retention.plan import plan
from ckptctl.operations.retention.policy import Policy
from ckptctl.storage.posix import PosixStore
from conftest import FIXTURES
from support import companions
from support import damage as damage
from support.cli import make_old, run, run_on_terminal
from support.publish import Died, Stopping, Watched, ckptctl, done, newest, planted, refused

SHARD = "__1_0.distcp"
STEPS = (100, 200, 300, 400, 1000)


@pytest.fixture(autouse=True)
def only_set_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let change times be those that a test has set: nobody can set the real ones back."""
    monkeypatch.setattr("ckptctl.storage.posix._changed_at", lambda status: status.st_mtime)
    monkeypatch.setattr("ckptctl.operations.retention.plan.moment", lambda _: None)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with committed checkpoints, all ten days old, and no pointer; not to be changed."""
    root = planted(tmp_path_factory.mktemp("old") / "run", STEPS)
    make_old(root, days=10)
    return root


@pytest.fixture
def root(old: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    shutil.copytree(old, tmp_path / "run")
    return tmp_path / "run"


def fates(root: Path, *options: str | Path) -> dict[str, tuple[bool, str]]:
    """Ask for a plan; return whether each checkpoint is doomed, and why."""
    document = done("prune", root, "--json", *options).json()
    return {one["name"]: (one["delete"], one["reason"]) for one in document["fates"]}


def doomed(root: Path, *options: str | Path) -> set[str]:
    """Return what a policy dooms, and insist that nothing was touched."""
    before = contents(root)
    names = {path for path, (delete, _) in fates(root, *options).items() if delete}
    assert contents(root) == before
    return names


def contents(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def remaining(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()} - {
        "ckptctl.pointers",
        "ckptctl.trash",
    }


def names(*steps: int) -> set[str]:
    return {f"step-{step}" for step in steps}


def add(root: Path, name: str, *, days: float = 10, remove: Iterable[str] = ()) -> Path:
    """Add an uncommitted checkpoint of some age, without some of its files."""
    path = root / name
    shutil.copytree(FIXTURES / "fsdp2/step-12", path)
    for file in remove:
        (path / file).unlink()
    make_old(path, days=days)
    return path


# ---------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--keep-last", "1"], names(100, 200, 300, 400)),
        (["--keep-last", "2"], names(100, 200, 300)),
        (["--keep-last", "5"], set()),
        (["--keep-last", "50"], set()),
        (["--keep-every", "200"], names(100, 300)),
        (["--keep-every", "7"], names(100, 200, 300, 400)),
        (["--keep-every", "100"], set()),
        (["--keep-every", "1000"], names(100, 200, 300, 400)),
        (["--keep-last", "2", "--keep-every", "200"], names(100, 300)),
        (["--older-than", "9d"], names(100, 200, 300, 400)),
        (["--older-than", "11d"], set()),
        (["--older-than", "2w"], set()),
        (["--older-than", "239h"], names(100, 200, 300, 400)),
        (["--keep-last", "3", "--older-than", "9d"], names(100, 200)),
        (["--keep-last", "1", "--older-than", "11d"], set()),
    ],
)
def test_exactly_what_the_policy_says(old: Path, options: list[str], expected: set[str]) -> None:
    assert doomed(old, *options) == expected


def test_order_is_by_number_and_not_by_text_or_time(root: Path) -> None:
    """By text step-1000 comes before step-200, by time it is the oldest."""
    now = time.time()
    for age, step in enumerate(sorted(STEPS)):
        for path in [root / f"step-{step}", *(root / f"step-{step}").rglob("*")]:
            os.utime(path, (now - (10 + age) * 86400,) * 2)
    assert doomed(root, "--keep-last", "2") == names(100, 200, 300)


def test_names_that_hold_their_number_in_other_ways(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for name in ("global_step9", "global_step10", "global_step100"):
        add(root, name)
        done("commit", root / name)
    make_old(root, days=10)
    assert doomed(root, "--keep-last", "1") == {"global_step9", "global_step10"}


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--keep-last", "0"],
        ["--keep-every", "0"],
        ["--older-than", "7"],
        ["--older-than", "-7d"],
        ["--older-than", "1y"],
    ],
)
def test_a_policy_that_makes_no_sense(old: Path, options: list[str]) -> None:
    assert ckptctl("prune", old, *options, "--yes").code == 2


def test_a_root_with_nothing_in_it(tmp_path: Path) -> None:
    refused("prune", tmp_path, "--keep-last", "1", "--yes", code=3)
    refused("prune", tmp_path / "nowhere", "--keep-last", "1", "--yes", code=4)


# ---------------------------------------------------------------------------------- what is kept


def test_what_the_pointer_names(root: Path) -> None:
    done("promote", root / "step-100")
    shutil.rmtree(root / "step-1000")
    assert doomed(root, "--keep-last", "1") == names(200, 300)
    assert "latest_committed" in fates(root, "--keep-last", "1")["step-100"][1]


def test_what_a_rollback_turned_to(root: Path) -> None:
    done("promote", root / "step-1000")
    done("promote", root / "step-200", "--rollback")
    assert doomed(root, "--keep-last", "1") == names(100, 300, 400)


@pytest.mark.parametrize("text", ["step-200", "200", "step-200\n"])
def test_what_the_file_of_a_framework_names(root: Path, text: str) -> None:
    (root / "latest").write_text(text)
    assert doomed(root, "--keep-last", "1") == names(100, 300, 400)
    assert "latest" in fates(root, "--keep-last", "1")["step-200"][1]


def test_what_a_link_names(root: Path) -> None:
    (root / "latest").symlink_to("step-200")
    assert doomed(root, "--keep-last", "1") == names(100, 300, 400)


def test_a_pointer_whose_newest_record_is_torn_stops_it(root: Path) -> None:
    """What it names is not known, so it cannot be protected."""
    done("promote", root / "step-100")
    done("promote", root / "step-200")
    record = root / "ckptctl.pointers" / LATEST / "00000002.json"
    record.write_bytes(record.read_bytes()[:30])
    before = contents(root)
    assert "00000002.json" in refused("prune", root, "--keep-last", "1", "--yes")
    assert contents(root) == before
    done("promote", root / "step-1000")
    assert doomed(root, "--keep-last", "1") == names(100, 200, 300, 400)


@pytest.mark.parametrize("size", [-100, 0])
def test_the_newest_that_verifies_when_newer_ones_are_cut(root: Path, size: int) -> None:
    for step in (1000, 400):
        damage.truncate(root / f"step-{step}", file=SHARD, size=size)
    make_old(root)
    assert "step-300" not in doomed(root, "--keep-last", "1")


def test_the_newest_that_verifies_when_newer_ones_are_altered(root: Path) -> None:
    for step in (1000, 400):
        damage.flip_byte(root / f"step-{step}", file=SHARD, at=20000)
    kept = set(remaining(root)) - doomed(root, "--keep-last", "1")
    assert "step-300" in kept
    done("prune", root, "--keep-last", "1", "--yes")
    assert newest(root, full=True)[0] == 300


def test_a_quarantined_one_is_not_the_last_good_one(root: Path) -> None:
    done("quarantine", root / "step-1000", "--reason", "loss spike")
    gone = doomed(root, "--keep-last", "1")
    assert "step-400" not in gone
    assert {"step-100", "step-200", "step-300"} <= gone


def test_a_pointer_to_a_quarantined_one_does_not_cost_the_good_one(root: Path) -> None:
    done("promote", root / "step-1000")
    done("quarantine", root / "step-1000", "--reason", "loss spike")
    assert "step-400" not in doomed(root, "--keep-last", "1")


def test_the_only_copy(tmp_path: Path) -> None:
    root = tmp_path / "run"
    add(root, "step-10")
    for options in (["--keep-every", "7"], ["--older-than", "1m"], ["--keep-last", "1"]):
        assert doomed(root, *options) == set()


def test_the_newest_whole_one_where_none_is_committed(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for name in ("step-9", "step-10", "step-100"):
        add(root, name)
    add(root, "step-200", remove=[SHARD])
    assert doomed(root, "--keep-every", "7") == {"step-9", "step-10", "step-200"}


def test_uncommitted_ones_beside_committed_ones(root: Path) -> None:
    """A newer whole one may be what the next start would take; it counts among the last."""
    add(root, "step-2000")
    assert doomed(root, "--keep-last", "2") == names(100, 200, 300, 400)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("step-2000.tmp", []),
        ("step-50.tmp", []),
        ("step-2000", [SHARD]),
        ("step-50", [".metadata"]),
        ("step-50", [".metadata", "__0_0.distcp", "__2_0.distcp", "__3_0.distcp"]),
    ],
)
@pytest.mark.parametrize(("days", "gone"), [(0.9, False), (1.1, True)])
def test_a_save_that_may_still_be_running(
    root: Path, name: str, files: list[str], days: float, gone: bool
) -> None:
    add(root, name, days=days, remove=files)
    assert (name in doomed(root, "--keep-last", "5")) is gone


def test_one_young_file_makes_a_save_young(root: Path) -> None:
    path = add(root, "step-2000", remove=[SHARD])
    os.utime(path / "__2_0.distcp")
    assert doomed(root, "--keep-last", "5") == set()


def test_an_empty_directory_may_be_a_save_that_has_just_begun(root: Path) -> None:
    (root / "step-2000").mkdir()
    assert doomed(root, "--keep-last", "5") == set()


def test_what_this_release_cannot_read(root: Path) -> None:
    other = root / "step-50"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"x")
    strange = root / "step-51"
    strange.mkdir()
    (strange / "something").write_bytes(b"x")
    add(root, "step-52")
    damage.garble(root / "step-52", file=".metadata")
    damage.truncate(root / "step-100", file=MANIFEST, size=50)
    make_old(root, days=10)
    assert doomed(root, "--keep-last", "1") == names(200, 300, 400)


def test_a_backup_beside_them_is_nobodys_business(root: Path) -> None:
    add(root, "step-88.bak")
    add(root, "best")
    assert doomed(root, "--keep-last", "1") == names(100, 200, 300, 400)


def test_checkpoints_that_are_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = add(tmp_path / "elsewhere", "step-50")
    (root / "step-50").symlink_to(elsewhere)
    done("prune", root, "--keep-last", "1", "--yes")
    assert (elsewhere / SHARD).is_file()


# ---------------------------------------------------------------------------------- deleting


def test_nothing_is_deleted_off_a_terminal_without_yes(root: Path) -> None:
    before = contents(root)
    ended = run("prune", root, "--keep-last", "1")
    assert ended.code == 0
    assert "would delete 4 checkpoints" in ended.stdout
    assert contents(root) == before


def test_yes_deletes(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    done("promote", root / "step-1000")
    ended = done("prune", root, "--keep-last", "2", "--yes")
    assert "deleted 3 checkpoints" in ended.stdout
    assert remaining(root) == names(400, 1000)
    assert (root / "notes.txt").exists()
    assert newest(root, full=True)[0] == 1000
    again = done("prune", root, "--keep-last", "2", "--yes", "--json").json()
    assert not any(one["delete"] for one in again["fates"])


def test_a_rehearsal_outweighs_yes(root: Path) -> None:
    before = contents(root)
    done("prune", root, "--keep-last", "1", "--yes", "--dry-run")
    assert contents(root) == before


def test_json_says_whether_it_was_done(root: Path) -> None:
    assert done("prune", root, "--keep-last", "4", "--json").json()["done"] is False
    document = done("prune", root, "--keep-last", "4", "--json", "--yes").json()
    assert document["done"] is True
    assert [one["name"] for one in document["fates"] if one["delete"]] == ["step-100"]


def test_on_a_terminal_it_asks_and_takes_silence_for_no(root: Path) -> None:
    program = (
        "import os, sys; os.close(0); os.open(os.devnull, os.O_RDONLY); "
        "sys.stdin.isatty = lambda: True; from ckptctl.cli.main import main; "
        f"sys.argv = ['ckptctl', 'prune', {str(root)!r}, '--keep-last', '1', "
        "'--min-age', '0m']; main()"
    )
    before = contents(root)
    ended = run_on_terminal(program=program)
    assert ended.code not in (0, 10), ended
    assert "delete 4 checkpoints?" in ended.stdout
    assert contents(root) == before


def test_subdirectories_go_too(root: Path) -> None:
    inner = root / "step-100" / "extras" / "deep"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    done("quarantine", root / "step-100", "--reason", "bad")
    make_old(root, days=10)
    done("prune", root, "--keep-last", "4", "--yes")
    assert (root / "step-100").exists()
    done("prune", root, "--keep-last", "4", "--include-quarantined", "--yes")
    assert not (root / "step-100").exists()


def test_deep_and_empty_directories_go_too(root: Path) -> None:
    (root / "step-100" / "a/b/c/d/e").mkdir(parents=True)
    (root / "step-100" / "a/b/c/d/e" / "file").write_text("x")
    (root / "step-200" / "empty").mkdir()
    make_old(root, days=10)
    done("prune", root, "--keep-last", "3", "--yes")
    assert remaining(root) == names(300, 400, 1000)


def test_what_the_pointer_has_come_to_name_is_left_alone(root: Path) -> None:
    store = PosixStore(root)
    chosen = plan(store, Policy(keep_last=2))
    done("promote", root / "step-200")
    gone = {fate.name: fate.delete for fate in carry_out(store, chosen)}
    assert gone == {"step-100": True, "step-200": False, "step-300": True}
    assert remaining(root) == names(200, 400, 1000)


def test_nothing_goes_once_what_was_to_be_kept_is_gone(root: Path) -> None:
    store = PosixStore(root)
    chosen = plan(store, Policy(keep_last=2))
    shutil.rmtree(root / "step-1000")
    found = list(carry_out(store, chosen))
    assert not any(fate.delete for fate in found)
    assert {fate.reason for fate in found} == {"step-1000 is not there any more"}
    assert remaining(root) == names(100, 200, 300, 400)


def test_a_root_that_vanished_while_it_waited_is_said(root: Path) -> None:
    store = PosixStore(root)
    chosen = plan(store, Policy(keep_last=2))
    shutil.rmtree(root)
    with pytest.raises(RootMissing):
        list(carry_out(store, chosen))


class Direct(Watched):
    """A store that cannot rename, as object stores cannot."""

    @property
    def renames(self) -> bool:
        return False


class DirectStopping(Stopping):
    """One that dies at its n-th delete."""

    @property
    def renames(self) -> bool:
        return False


def positions(deleted: list[str], name: str) -> tuple[int, int, list[int]]:
    """Return when the manifest, the metadata and the data of a checkpoint were deleted."""
    mine = [path.removeprefix(f"{name}/") for path in deleted if path.startswith(f"{name}/")]
    data = [n for n, path in enumerate(mine) if path.endswith(".distcp")]
    return mine.index(MANIFEST), mine.index(".metadata"), data


def test_records_go_first(root: Path) -> None:
    store = Direct(str(root))
    gone = [fate.name for fate in carry_out(store, plan(store, Policy(keep_last=2)))]
    assert gone == ["step-100", "step-200", "step-300"]
    for name in gone:
        manifest, metadata, data = positions(store.deleted, name)
        assert manifest == 0
        assert len(data) == 4
        assert manifest < metadata < min(data)


def test_a_mark_outlives_the_data_it_warns_of(root: Path) -> None:
    """A quarantined checkpoint that is half deleted must not look like one to take."""
    done("quarantine", root / "step-100", "--reason", "bad")
    make_old(root, days=10)
    store = Direct(str(root))
    list(carry_out(store, plan(store, Policy(keep_last=4, include_quarantined=True))))
    manifest, metadata, data = positions(store.deleted, "step-100")
    marks = [n for n, path in enumerate(store.deleted) if "ckptctl.quarantine" in path]
    assert min(marks) > max(manifest, metadata, *data)


def deaths(old: Path, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Let a deletion die after each of its steps; yield what is left."""
    for after in range(100):
        root = tmp_path / f"dies-{after}"
        shutil.copytree(old, root)
        store = DirectStopping(str(root), after=after)
        chosen = plan(store, Policy(keep_last=3))
        try:
            list(carry_out(store, chosen))
        except Died:
            yield after, root
            shutil.rmtree(root)
            continue
        return


def test_a_death_between_any_two_deletions(old: Path, tmp_path: Path) -> None:
    count = 0
    for after, root in deaths(old, tmp_path):
        count += 1
        step, _ = newest(root, full=True)
        assert step == 1000
        for name in ("step-300", "step-400", "step-1000"):
            assert (root / name / MANIFEST).is_file()
        for name in remaining(root):
            if (root / name / MANIFEST).exists():
                assert ckptctl("verify", root / name, "--require", "manifest").code == 0
        if after % 4 == 0:
            make_old(root, days=10)
            done("prune", root, "--keep-last", "3", "--yes")
            assert remaining(root) == names(300, 400, 1000)
    assert count >= 2 * 6


@dataclass
class Mover:
    """Moves the pointer to what is about to be deleted, after so many deletions."""

    root: Path
    done: bool = False

    def __call__(self, inner: Callable[..., Any], path: str, *more: Any) -> Any:
        if not self.done and path == "step-100":
            self.done = True
            digest = "sha256:" + "0" * 64
            revision = PointerRevision(
                name=LATEST, revision=1, target="step-200", step=200, manifest=digest
            )
            protocol.point(PosixStore(self.root), revision)
        return inner(path, *more)


def test_a_promotion_during_the_deletion_is_respected(root: Path) -> None:
    mover = Mover(root)

    class Moving(PosixStore):
        def rename_directory(self, old: str, new: str) -> None:
            mover(super().rename_directory, old, new)

    store = Moving(root)
    gone = {fate.name: fate.delete for fate in carry_out(store, plan(store, Policy(keep_last=2)))}
    assert gone == {"step-100": True, "step-200": False, "step-300": True}


def test_one_that_cannot_be_moved_is_an_error_and_leaves_no_record(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, source: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    before = contents(root)
    monkeypatch.setattr("ckptctl.storage.system.RealSystem.rename", fail)
    ended = ckptctl("prune", root, "--keep-last", "4", "--yes")
    assert ended.code == 4
    assert set(contents(root)) - set(before) <= {"ckptctl.trash"}
    assert newest(root)[0] == 1000


# ---------------------------------------------------------------------- checkpoints in parts


def add_trainer(root: Path, step: int, *, best: str = "") -> None:
    """Add a checkpoint as the HF Trainer writes it with FSDP: two DCP directories and more."""
    path = root / f"checkpoint-{step}"
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(FIXTURES / ("fsdp2/step-12" if step == 12 else "fsdp2/step-8"), path / part)
    companions.trainer(path, step, ranks=4)
    state = json.loads((path / "trainer_state.json").read_text())
    state["best_model_checkpoint"] = best or None
    (path / "trainer_state.json").write_text(json.dumps(state))
    make_old(path, days=10)


def test_a_checkpoint_in_parts_goes_or_stays_as_one(tmp_path: Path) -> None:
    for step in (8, 12):
        add_trainer(tmp_path / "run", step)
    kept = contents(tmp_path / "run" / "checkpoint-12")
    done("prune", tmp_path / "run", "--keep-last", "1", "--yes")
    assert remaining(tmp_path / "run") == {"checkpoint-12"}
    assert contents(tmp_path / "run" / "checkpoint-12") == kept


def test_the_best_that_a_trainer_records_is_kept(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        add_trainer(tmp_path / "run", step, best="/elsewhere/run/checkpoint-8")
    found = fates(tmp_path / "run", "--keep-last", "1")
    assert found["checkpoint-8"] == (False, "best_model_checkpoint names it")
    assert {path for path, (delete, _) in found.items() if delete} == {"checkpoint-4"}
