"""What may go and what must stay, how far keepers are verified, ages, and the trash.

``cases/deleting.py`` is the table of states in which something good was deleted once.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import ckptctl as package
from ckptctl.errors import Refused
from ckptctl.storage.system import RealSystem
from conftest import FIXTURES
from support import damage as damage
from support.cli import make_old
from support.publish import ckptctl, done, flip_payload, newest, planted, refused

STEPS = (100, 200, 300, 1000)
OLDER = {"step-100", "step-200", "step-300"}
SHARD = "__1_0.distcp"


@pytest.fixture
def only_set_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let change times be those that a test has set: nobody can set the real ones back."""
    monkeypatch.setattr("ckptctl.storage.posix._changed_at", lambda status: status.st_mtime)
    monkeypatch.setattr("ckptctl.operations.retention.plan.moment", lambda _: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that is not to be changed."""
    return planted(tmp_path_factory.mktemp("made") / "run", STEPS)


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    shutil.copytree(made, tmp_path / "exp" / "run", symlinks=True)
    return tmp_path / "exp" / "run"


def copy(root: Path, name: str) -> Path:
    """Add a checkpoint that is not committed."""
    shutil.copytree(FIXTURES / "fsdp2/step-12", root / name)
    return root / name


def tree(root: Path) -> list[tuple[str, bytes]]:
    """Return all files and what is in them."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted((path.relative_to(root).as_posix(), path.read_bytes()) for path in files)


@pytest.mark.usefixtures("only_set_times")
def test_pointers_of_a_root_inside_another(root: Path) -> None:
    done("promote", root / "step-1000")
    done("promote", root / "step-200", "--rollback")
    make_old(root.parent, days=10)
    found = done("prune", root.parent, "--keep-last", "1", "--json").json()["fates"]
    assert {one["name"] for one in found if one["delete"]} == {"run/step-100", "run/step-300"}


@pytest.mark.usefixtures("only_set_times")
def test_each_directory_of_checkpoints_keeps_its_own(root: Path) -> None:
    shutil.copytree(root, root.parent / "other")
    make_old(root.parent, days=10)
    found = done("prune", root.parent, "--keep-last", "1", "--json").json()["fates"]
    kept = {one["name"] for one in found if not one["delete"]}
    assert kept == {"run/step-1000", "other/step-1000"}


@pytest.mark.usefixtures("only_set_times")
def test_a_stray_shard_above_a_root(root: Path) -> None:
    (root.parent / "__0_0.distcp").write_bytes(b"x")
    make_old(root.parent, days=10)
    before = tree(root)
    for options in ([], ["--yes"]):
        ckptctl("prune", root.parent, "--keep-last", "5", *options)
    ckptctl("prune", root.parent.parent, "--keep-last", "5", "--yes")
    assert tree(root) == before


@pytest.mark.usefixtures("only_set_times")
@pytest.mark.parametrize(
    ("verify", "kept"),
    [("quick", {"step-1000", "step-300"}), ("full", {"step-1000", "step-300", "step-200"})],
)
def test_how_far_keepers_are_verified(
    root: Path, verify: str, kept: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptctl.operations.verify.units.SMALL_FILE", 4096)
    flip_payload(root / "step-300")
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "2", "--verify", verify, "--json").json()["fates"]
    assert {one["name"] for one in found if not one["delete"]} == kept
    levels = {one["name"]: one["verified"] for one in found if one["verified"]}
    assert set(levels.values()) == {verify}


@pytest.mark.usefixtures("only_set_times")
def test_by_default_the_newest_is_read_in_full_and_others_quickly(root: Path) -> None:
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "2", "--json").json()["fates"]
    levels = {one["name"]: one["verified"] for one in found if one["verified"]}
    assert levels == {"step-1000": "full", "step-300": "quick"}


# ---------------------------------------------------------------------------------- age


def test_what_changed_today_stays_whatever_its_times_say(root: Path) -> None:
    """A restore that keeps times makes files that look old; the file system knows better."""
    (root / "step-300" / SHARD).unlink()
    (root / "step-300" / "ckptctl.manifest.json").unlink()
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "1", "--json", "--yes").json()["fates"]
    assert not any(one["delete"] for one in found)
    assert all("younger than a day" in one["reason"] for one in found if one["step"] != 1000)


def test_min_age_is_for_whole_ones_alone(root: Path) -> None:
    (copy(root, "step-50") / SHARD).unlink()
    done("quarantine", root / "step-200", "--reason", "odd loss")
    options = ("--keep-last", "1", "--min-age", "0m", "--include-quarantined", "--json")
    found = done("prune", root, *options).json()["fates"]
    assert {one["name"] for one in found if one["delete"]} == {"step-100", "step-300"}
    assert ckptctl("prune", root, "--keep-last", "1", "--min-age", "soon").code == 2


def test_what_our_records_say_counts_as_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptctl.storage.posix._changed_at", lambda status: status.st_mtime)
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "1", "--json").json()["fates"]
    assert not any(one["delete"] for one in found)


@pytest.mark.usefixtures("only_set_times")
def test_an_answer_of_no_changes_nothing(root: Path) -> None:
    make_old(root, days=10)
    before = tree(root)
    with pytest.raises(Refused, match="not confirmed"):
        package.prune(root, keep_last=1, confirm=lambda _: False)
    assert tree(root) == before


# ---------------------------------------------------------------------------------- the trash


@pytest.fixture
def pruned(only_set_times: None, root: Path) -> Path:
    """A root of which two are in the trash."""
    done("promote", root / "step-1000")
    make_old(root, days=10)
    done("prune", root, "--keep-last", "2", "--yes")
    return root


def trashed(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "ckptctl.trash").glob("*/*") if p.is_dir())


def test_a_mistake_is_undone(pruned: Path, made: Path) -> None:
    assert trashed(pruned) == ["step-100", "step-200"]
    shown = done("list", pruned, "--json").json()["checkpoints"]
    assert [one["name"] for one in shown] == ["step-300", "step-1000"]
    rehearsed = done("undelete", pruned, "step-200", "--dry-run")
    assert "would be brought back" in rehearsed.stdout
    assert trashed(pruned) == ["step-100", "step-200"]
    told = done("undelete", pruned, "step-200", "--json").json()
    assert (told["name"], told["step"]) == ("step-200", 200)
    assert told["path"] == str(pruned / "step-200")
    assert tree(pruned / "step-200") == tree(made / "step-200")
    assert done("verify", pruned / "step-200", "--require", "manifest").code == 0
    assert f"{pruned}/step-100 is back" in done("undelete", pruned).stdout
    assert trashed(pruned) == []
    assert not any((pruned / "ckptctl.trash").iterdir())


@pytest.mark.parametrize("names", [(), ("step-7",), ("step-1000",)])
def test_what_is_not_in_the_trash_does_not_come_back(pruned: Path, names: tuple[str, ...]) -> None:
    before = tree(pruned)
    assert ckptctl("undelete", pruned, *names).code == (4 if names else 2)
    assert tree(pruned) == before


def test_nowhere_to_bring_it_back_from(tmp_path: Path) -> None:
    refused("undelete", tmp_path, code=4)
    refused("undelete", tmp_path / "nowhere", code=4)


def test_a_place_that_is_taken(pruned: Path) -> None:
    copy(pruned, "step-200")
    before = tree(pruned)
    assert "there already" in refused("undelete", pruned, "step-200")
    assert tree(pruned) == before


def test_of_two_of_one_name_the_last_comes_back(pruned: Path) -> None:
    again = copy(pruned, "step-200")
    (again / "mine").write_text("second")
    done("commit", again)
    make_old(again, days=10)
    done("prune", pruned, "--keep-last", "2", "--yes")
    assert trashed(pruned) == ["step-100", "step-200", "step-200"]
    done("undelete", pruned, "step-200")
    assert (pruned / "step-200" / "mine").read_text() == "second"


def test_emptying_deletes_what_was_moved_and_nothing_else(pruned: Path) -> None:
    (pruned / "ckptctl.trash" / "notes").write_text("mine")
    (pruned / "ckptctl.trash/00000002/step-200/mine").write_text("put there later")
    assert "would delete 1 checkpoint in the trash" in done("prune", pruned, "--empty-trash").stdout
    ended = done("prune", pruned, "--empty-trash", "--yes")
    assert "deleted 1 checkpoint in the trash for good" in ended.stdout
    assert "stays in the trash: step-200: step-200/mine was not there" in ended.stdout
    assert trashed(pruned) == ["step-200"]
    assert (pruned / "ckptctl.trash" / "notes").read_text() == "mine"
    assert newest(pruned, full=True)[0] == 1000


def test_the_trash_is_emptied_by_age(pruned: Path) -> None:
    assert done("prune", pruned, "--trash-days", "1", "--yes", "--json").json()["emptied"] == []
    assert trashed(pruned) == ["step-100", "step-200"]
    told = done("prune", pruned, "--trash-days", "0", "--yes", "--json").json()
    assert [one["name"] for one in told["emptied"]] == ["step-100", "step-200"]
    assert not any((pruned / "ckptctl.trash").iterdir())
    assert ckptctl("prune", pruned, "--trash-days", "1", "--empty-trash").code == 2


def test_what_goes_now_can_still_come_back(pruned: Path) -> None:
    done("prune", pruned, "--keep-last", "1", "--empty-trash", "--yes")
    assert trashed(pruned) == ["step-300"]


def test_what_was_being_emptied_does_not_come_back(pruned: Path) -> None:
    (pruned / "ckptctl.trash/00000002/step-200" / SHARD).unlink()
    before = tree(pruned)
    assert "is missing" in refused("undelete", pruned, "step-200")
    assert tree(pruned) == before


def test_a_record_that_is_torn_is_said_and_nothing_of_it_deleted(pruned: Path) -> None:
    record = pruned / "ckptctl.trash/00000001/ckptctl.trashed.json"
    record.write_bytes(record.read_bytes()[:40])
    told = done("prune", pruned, "--empty-trash", "--yes", "--json").json()["emptied"]
    assert ["torn" in one["problem"] for one in told] == [True, False]
    assert trashed(pruned) == ["step-100"]
    assert "no JSON" in refused("undelete", pruned, "step-100", code=4)


def kill_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine die after so many changes to names."""
    left = [calls]

    class Died(BaseException):
        """Nothing catches this."""

    def mortal(name: str) -> None:
        inner: Any = getattr(RealSystem, name)

        def call(self: object, *args: Any) -> None:
            if not left[0]:
                raise Died
            left[0] -= 1
            inner(self, *args)

        monkeypatch.setattr(RealSystem, name, call)

    for name in ("write", "link", "rename", "unlink", "remove_directory"):
        mortal(name)


@pytest.mark.parametrize("how", ["prune", "undelete"])
@pytest.mark.parametrize("calls", range(6))
def test_a_death_at_any_call_leaves_it_here_or_there(
    how: str, calls: int, pruned: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_after(calls, patch)
        try:
            if how == "undelete":
                package.undelete(pruned, "step-200")
            else:
                package.prune(pruned, keep_last=1)
        except BaseException as error:
            assert type(error).__name__ == "Died"
    name = "step-200" if how == "undelete" else "step-300"
    here = (pruned / name).exists()
    assert here != (name in trashed(pruned))
    if not here:
        done("undelete", pruned, name)
    assert tree(pruned / name) == tree(made / name)
    assert newest(pruned, full=True)[0] == 1000
