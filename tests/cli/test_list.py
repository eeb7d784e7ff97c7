"""``ckptctl list`` as a user sees it: order, states, pointers, and roots that hold nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from conftest import FIXTURES
from support.cli import (
    OWN_COLOURS,
    assert_golden_pair,
    make_old,
    plant,
    run,
    run_on_terminal,
    run_process,
)
from support.damage import remove, rewrite, truncate

SMALL = FIXTURES / "no_crc" / "step-1"
LARGE = 4 << 20
AS_NOBODY = """
import datetime, os, subprocess  # python's own files may be root's
import ckptctl.operations.target as command
real = command.open_store
def open_store(root):
    if os.geteuid() == 0:  # not earlier, for the same reason
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
    return real(root)
command.open_store = open_store
"""
DENIED = """
from ckptctl.errors import StorageError
from ckptctl.storage.posix import PosixStore
real = PosixStore.entries
def entries(self, path=""):
    if path.endswith("step-9"):
        raise StorageError("step-9: no answer from this disk")
    return real(self, path)
PosixStore.entries = entries
"""


def plant_all(root: Path, *names: str) -> Path:
    """Put a small checkpoint under each name."""
    for name in names:
        plant(SMALL, root / name)
    return root


def rows(*args: str | Path, **how: Any) -> list[dict[str, Any]]:
    """List as JSON and return the rows; the exit code must be 0 and stderr empty."""
    ended = (run_process if "before" in how else run)("list", "--json", *args, **how)
    assert (ended.code, ended.stderr) == (0, "")
    found = ended.json()
    return list(found["checkpoints"])


def names_and_states(*args: str | Path, **how: Any) -> dict[str, str]:
    return {row["name"]: row["state"] for row in rows(*args, **how)}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A root with one checkpoint in each state that a directory can show."""
    run_root = tmp_path / "run"
    plant(FIXTURES / "fsdp2" / "step-8", run_root / "step-8")
    plant(FIXTURES / "fsdp2" / "step-12", run_root / "step-12")
    plant_all(run_root, "step-16", "step-20", "step-24", "step-28", "step-32.tmp", "step-36.tmp")
    truncate(run_root / "step-16", file="__0_0.distcp", size=5000)
    remove(run_root / "step-20", file=".metadata")
    rewrite(run_root / "step-24", file=".metadata", data=b"not a pickle")
    (run_root / "step-28" / ".metadata").rename(run_root / "step-28" / ".metadata.tmp")
    remove(run_root / "step-36.tmp", file=".metadata")
    (run_root / "step-40").mkdir()
    plant(SMALL, run_root / "step-44")
    remove(run_root / "step-44", file=".metadata")
    (run_root / "step-44" / "__0_0.distcp").rename(run_root / "step-44" / "_CHECKPOINT_METADATA")
    (run_root / "logs").mkdir()
    (run_root / "logs" / "events.txt").write_text("hello")
    (run_root / "latest").write_text("step-12\n")
    (run_root / "latest_committed").write_text("step-11")
    make_old(run_root)
    return run_root


def test_a_listing_of_every_state(mixed: Path) -> None:
    assert_golden_pair("list/all", ["list", "run"], mixed.parent)


def test_a_listing_on_a_terminal(mixed: Path) -> None:
    piped, shown = (go("list", "run", cwd=mixed.parent) for go in (run, run_on_terminal))
    assert "\x1b[32mcomplete" in shown.stdout
    assert "\x1b[31munreadable" in shown.stdout
    plain = OWN_COLOURS.sub("", shown.stdout)
    assert "\x1b" not in plain + piped.stdout
    assert "".join(plain.split()) == "".join(piped.stdout.split())


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(mixed: Path, variables: dict[str, str]) -> None:
    shown = run_on_terminal("list", "run", cwd=mixed.parent, env=variables)
    assert shown.code == 0
    assert "step-12" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_steps_are_in_numeric_order_whatever_the_times_say(tmp_path: Path) -> None:
    names = ["checkpoint-10", "checkpoint-9", "checkpoint-100", "checkpoint-1"]
    for days, name in enumerate(names):
        plant(SMALL, tmp_path / name, days=10 - days)
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [1, 9, 10, 100]
    assert [row["name"] for row in found] == sorted(names, key=lambda n: int(n.split("-")[1]))
    lines = run("list", tmp_path).stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [row["name"] for row in found]


@pytest.mark.parametrize(
    "name", ["step-12.tmp", "step-12-unfinished", "step-12.partial", "step-12.tmp-1a2b", "tmp_12"]
)
def test_temporary_names_are_staging(tmp_path: Path, name: str) -> None:
    plant_all(tmp_path, "step-8", name)
    assert names_and_states(tmp_path) == {"step-8": "complete", name: "staging"}
    remove(tmp_path / name, file=".metadata")
    assert names_and_states(tmp_path) == {"step-8": "complete", name: "staging"}


class TestPointers:
    """What trainers leave to name the newest checkpoint."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return plant_all(tmp_path / "run", "iter_0000008", "iter_0000012")

    @staticmethod
    def of(root: Path) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
        """Return the pointers of each checkpoint, and those that name none."""
        found = run("list", root, "--json").json()
        named = {row["name"]: row["pointers"] for row in found["checkpoints"]}
        return named, [(pointer["name"], pointer["text"]) for pointer in found["dangling"]]

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("latest", "iter_0000012"),
            ("latest", "iter_0000012\n"),
            ("latest_checkpointed_iteration.txt", "12"),
            ("latest_committed", "iter_0000012"),
        ],
    )
    def test_a_text_file(self, root: Path, file: str, text: str) -> None:
        (root / file).write_text(text)
        assert self.of(root) == ({"iter_0000008": [], "iter_0000012": [file]}, [])

    @pytest.mark.parametrize("absolute", [False, True])
    def test_a_link(self, root: Path, absolute: bool) -> None:
        (root / "best").symlink_to(root / "iter_0000008" if absolute else "iter_0000008")
        assert self.of(root) == ({"iter_0000008": ["best"], "iter_0000012": []}, [])

    def test_several_pointers_to_one(self, root: Path) -> None:
        (root / "latest").write_text("iter_0000012")
        (root / "newest").symlink_to("iter_0000012")
        assert self.of(root)[0]["iter_0000012"] == ["latest", "newest"]
        assert run("list", root).stdout.splitlines()[-1].endswith("  latest, newest")

    def test_a_text_file_that_names_nothing(self, root: Path) -> None:
        (root / "latest_checkpointed_iteration.txt").write_text("16")
        dangling = [("latest_checkpointed_iteration.txt", "16")]
        assert self.of(root) == ({"iter_0000008": [], "iter_0000012": []}, dangling)
        said = "pointer latest_checkpointed_iteration.txt names 16, which is not here"
        assert run("list", root).stdout.splitlines()[-1] == said

    def test_an_empty_text_file(self, root: Path) -> None:
        (root / "latest").write_text("")
        assert self.of(root)[1] == [("latest", "")]
        assert "pointer latest names nothing, which is not here" in run("list", root).stdout

    def test_a_link_to_nowhere(self, root: Path) -> None:
        (root / "latest").symlink_to("iter_0000016")
        assert self.of(root)[1] == [("latest", "iter_0000016")]
        assert "pointer latest names iter_0000016" in run("list", root).stdout

    def test_a_link_into_another_run_is_a_checkpoint_under_its_own_name(self, root: Path) -> None:
        plant_all(root.parent / "other", "iter_0000012")
        (root / "latest").symlink_to(root.parent / "other" / "iter_0000012")
        (root / "best").symlink_to("../other/iter_0000012")
        assert self.of(root)[0] == {"iter_0000008": [], "iter_0000012": [], "best": ["latest"]}

    def test_a_link_to_something_else_that_exists_is_not_called_missing(self, root: Path) -> None:
        (root.parent / "data").mkdir()
        (root / "data").symlink_to("../data")
        assert "which is not here" not in run("list", root).stdout


class TestChoosing:
    """``--state``, ``--committed`` and ``--limit``."""

    def test_one_state(self, mixed: Path) -> None:
        assert set(names_and_states(mixed, "--state", "staging")) == {"step-32.tmp", "step-36.tmp"}

    def test_two_states(self, mixed: Path) -> None:
        found = names_and_states(mixed, "--state", "staging", "--state", "unreadable")
        assert set(found.values()) == {"staging", "unreadable"}
        assert len(found) == 3

    def test_none_is_committed(self, mixed: Path) -> None:
        ended = run("list", mixed, "--committed", "--json")
        assert (ended.code, ended.json()["checkpoints"]) == (0, [])

    def test_none_in_that_state(self, mixed: Path) -> None:
        assert names_and_states(mixed, "--state", "quarantined") == {}

    def test_the_last_so_many(self, mixed: Path) -> None:
        assert list(names_and_states(mixed, "--limit", "2")) == ["step-40", "step-44"]

    def test_the_last_so_many_of_a_state(self, mixed: Path) -> None:
        assert names_and_states(mixed, "--state", "staging", "--limit", "1") == {
            "step-36.tmp": "staging"
        }

    @pytest.mark.parametrize(
        "args", [("--limit", "0"), ("--limit", "x"), ("--state", "good"), ("--bogus",)]
    )
    def test_senseless_options(self, mixed: Path, args: tuple[str, ...]) -> None:
        ended = run("list", mixed, *args)
        assert (ended.code, ended.stdout) == (2, "")
        assert args[0] in ended.stderr


def test_one_that_cannot_be_read_is_a_row_with_its_reason(tmp_path: Path) -> None:
    plant_all(tmp_path, "step-8", "step-12")
    rewrite(tmp_path / "step-12", file=".metadata", data=b"\x80\x04garbage")
    found = {row["name"]: row for row in rows(tmp_path)}
    assert found["step-8"]["state"] == "complete"
    assert found["step-12"]["state"] == "unreadable"
    assert found["step-12"]["reason"].startswith(".metadata: ")


def test_a_directory_that_the_storage_does_not_list_is_a_row_with_its_reason(
    tmp_path: Path,
) -> None:
    plant_all(tmp_path, "step-8", "step-9")
    found = {row["name"]: row for row in rows(tmp_path, before=DENIED)}
    assert found["step-8"]["state"] == "complete"
    assert found["step-9"]["state"] == "unreadable"
    assert "no answer from this disk" in found["step-9"]["reason"]


class TestPermission:
    """What a user may not read, also where the tests run as root."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        plant_all(tmp_path / "run", "step-8", "step-12")
        tmp_path.chmod(0o755)
        return tmp_path

    def test_the_root(self, root: Path) -> None:
        (root / "run").chmod(0)
        ended = run_process("list", "run", cwd=root, before=AS_NOBODY)
        (root / "run").chmod(0o755)
        assert (ended.code, ended.stdout) == (4, "")
        assert ended.stderr == "ckptctl: run: Permission denied\n"

    def test_a_checkpoint(self, root: Path) -> None:
        (root / "run" / "step-12").chmod(0)
        found = {row["name"]: row for row in rows("run", cwd=root, before=AS_NOBODY)}
        (root / "run" / "step-12").chmod(0o755)
        assert found["step-8"]["state"] == "complete"
        assert found["step-12"]["state"] == "unreadable"
        assert "Permission denied" in found["step-12"]["reason"]

    def test_a_metadata_file(self, root: Path) -> None:
        (root / "run" / "step-12" / ".metadata").chmod(0)
        found = {row["name"]: row for row in rows("run", cwd=root, before=AS_NOBODY)}
        assert found["step-12"]["state"] == "unreadable"
        assert "Permission denied" in found["step-12"]["reason"]


def test_large_metadata_is_parsed_only_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from support.damage import edited

    plant_all(tmp_path, "step-8", "step-12")
    with edited(tmp_path / "step-12") as metadata:
        metadata.storage_meta.checkpoint_id = "x" * LARGE
    found = {row["name"]: row for row in rows(tmp_path)}
    assert found["step-8"]["state"] == "complete"
    assert found["step-12"]["state"] == "not examined"
    assert "`check`" in found["step-12"]["reason"]
    assert names_and_states(tmp_path, "--check") == {"step-8": "complete", "step-12": "complete"}
    truncate(tmp_path / "step-12", file="__0_0.distcp", size=5000)
    assert names_and_states(tmp_path, "--check")["step-12"] == "incomplete"


def test_the_root_may_be_a_checkpoint(tmp_path: Path) -> None:
    plant_all(tmp_path, "step-12")
    (row,) = rows("step-12", cwd=tmp_path)
    assert (row["name"], row["step"], row["state"]) == ("step-12", 12, "complete")
    (row,) = rows(".", cwd=tmp_path / "step-12")
    assert (row["name"], row["step"], row["state"]) == ("step-12", 12, "complete")


def test_checkpoints_are_found_deeper_down(tmp_path: Path) -> None:
    plant_all(tmp_path, "a/checkpoints/step-8", "b/checkpoints/step-12", "a/.hidden/step-4")
    found = [row["name"] for row in rows(tmp_path)]
    assert found[-2:] == ["a/checkpoints/step-8", "b/checkpoints/step-12"]


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    plant_all(tmp_path, "step-8")
    (tmp_path / "step-8" / "up").symlink_to("..")
    (tmp_path / "here").symlink_to(".")
    assert list(names_and_states(tmp_path)) == ["step-8"]


def test_an_empty_root(tmp_path: Path) -> None:
    ended = run("list", tmp_path)
    assert (ended.code, ended.stdout) == (3, "")
    assert (
        ended.stderr
        == f"ckptctl: {tmp_path}: no checkpoint here or below, nor what could be one; listed: nothing\n"
    )


@pytest.mark.parametrize("args", [(), ("--json",), ("--check",)])
def test_a_missing_path(tmp_path: Path, args: tuple[str, ...]) -> None:
    ended = run("list", tmp_path / "gone", *args)
    assert ended.code == 4
    assert ended.json() is None if "--json" in args else ended.stdout == ""
    assert ended.stderr == f"ckptctl: {tmp_path / 'gone'}: no such directory\n"


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ended = run("list", tmp_path / "file")
    assert (ended.code, ended.stdout) == (4, "")
    assert "is a file" in ended.stderr


def test_only_documented_variables_are_options(mixed: Path) -> None:
    names = {"CKPTCTL_LIST_LIMIT": "1", "CKPTCTL_VERSION": "1", "CKPTCTL_LIMIT": "1"}
    assert names_and_states(mixed, env=names) == names_and_states(mixed)
    named = run("list", env={"CKPTCTL_ROOT": str(mixed), "CKPTCTL_FORMAT": "json"})
    assert named.json() == run("list", mixed, "--json").json()
    assert run("list", mixed, "--format", "text", env={"CKPTCTL_FORMAT": "json"}).stdout[0] == "N"


def test_listing_reads_no_payload_and_changes_nothing(mixed: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        paths = sorted(mixed.rglob("*"))
        return [(str(p), os.stat(p).st_mtime_ns, os.stat(p).st_size) for p in paths]

    before = state()
    spy = """
from ckptctl.storage.posix import PosixStore
real = PosixStore.open
def watched(self, path):
    assert not path.endswith(".distcp"), path
    return real(self, path)
PosixStore.open = watched
"""
    assert len(rows(mixed, before=spy)) == 10
    assert state() == before
