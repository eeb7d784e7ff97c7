"""The four commands that this tool was asked for work as they are typed, wherever one stands."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl.operations.place import name_of_root
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.cli import Ended, environment, run
from support.publish import done

Copy = Callable[..., Path]
PLACES = ("root", "checkpoint", "inside", "elsewhere")


@pytest.fixture
def root(copy: Copy) -> Path:
    """A copy of a run in which step 12 is committed."""
    copy("fsdp2/step-8")
    checkpoint = copy("fsdp2/step-12")
    done("commit", checkpoint)
    return checkpoint.parent


@pytest.fixture(params=PLACES)
def typed(request: pytest.FixtureRequest, root: Path) -> Callable[..., Ended]:
    """Run a command as it is typed in one of the places."""
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    cwd, env = {
        "root": (root, {}),
        "checkpoint": (root / "step-12", {}),
        "inside": (root / "step-12" / "logs", {}),
        "elsewhere": (elsewhere, {"CKPTCTL_ROOT": str(root)}),
    }[request.param]
    if request.param == "inside":
        cwd.mkdir()
    return lambda *args: run(*args, cwd=cwd, env=env)


def test_verify(typed: Callable[..., Ended]) -> None:
    ended = typed("verify")
    assert (ended.code, ended.stderr) == (0, "")
    assert "committed as step 12" in ended.stdout


def test_list(typed: Callable[..., Ended]) -> None:
    ended = typed("list", "--committed")
    assert (ended.code, ended.stderr) == (0, "")
    assert [line.split()[:3] for line in ended.stdout.splitlines()[1:]] == [
        ["step-12", "12", "committed"]
    ]


def test_resolve(typed: Callable[..., Ended], root: Path) -> None:
    ended = typed("resolve", "--json")
    assert ended.code == 0
    assert ended.json()["path"] == str(root / "step-12")
    assert typed("resolve").code == 0


def test_reshard(typed: Callable[..., Ended], root: Path, tmp_path: Path) -> None:
    ended = typed("reshard", "--world-size", "8")
    assert (ended.code, ended.stdout) == (5, "")
    *_, command = ended.stderr.strip().splitlines()
    words = shlex.split(command)
    assert words[:2] == ["ckptctl", "reshard"]
    pasted = subprocess.run(
        [sys.executable, "-m", "ckptctl", *words[1:]],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert pasted.returncode == 0, pasted.stderr
    target = root.parent / f"{root.name}-w8"
    assert done("resolve", target).stdout == f"{target}/step-12\n"


def test_a_rehearsal_prints_the_command_as_well(root: Path) -> None:
    ended = run("reshard", "--world-size", "8", "--dry-run", cwd=root)
    assert ended.code == 5
    assert "cannot be done" in ended.stdout
    assert "--dry-run" in ended.stderr.splitlines()[-1]


class TestTargets:
    """One resolver: the same words mean the same everywhere, and so do the same mistakes."""

    @pytest.mark.parametrize(
        "named",
        ["step-12", "step-12/", "step-12/.metadata", "step-12/ckptctl.manifest.json", ".@12",
         "latest", "link", ".@latest", ".@latest_committed", "@12"],
    )  # fmt: skip
    def test_what_names_one_checkpoint(self, root: Path, named: str) -> None:
        done("promote", root / "step-12")
        (root / "latest").write_text("step-12\n")
        (root / "link").symlink_to("step-12")
        for command in ("show", "digest", "verify"):
            ended = run(command, named, "--json", cwd=root)
            assert ended.code == 0, ended.stderr
            found = ended.json()
            if command == "verify":
                (found,) = found["checkpoints"]
            assert found["checkpoint"] == str(root / "step-12")

    @pytest.mark.parametrize(
        ("named", "code", "said"),
        [
            ("", 2, "the path is empty"),
            ("nowhere", 4, "nowhere: no such directory"),
            (".", 2, "holds 2 checkpoints (step-8, step-12): name one of them"),
            (".@7", 4, "holds no checkpoint of step 7; its steps are 8, 12"),
            (".@best", 4, "has no pointer best"),
            ("notes.txt", 4, "notes.txt is a file; it is no checkpoint, and not in one"),
            ("stale", 4, "names step-99, which is not here"),
            ("empty", 3, "empty: no checkpoint here or below"),
        ],
    )
    @pytest.mark.parametrize(
        "command",
        [
            ("show",),
            ("digest",),
            ("commit",),
            ("promote",),
            ("quarantine", "--reason", "x"),
            ("convert", "--to", "torch", "--out", "x.pt"),
        ],
        ids=lambda words: words[0],
    )
    def test_a_mistake_has_one_code_and_the_same_words(
        self, root: Path, command: tuple[str, ...], named: str, code: int, said: str
    ) -> None:
        (root / "notes.txt").write_text("x")
        (root / "latest").write_text("step-99")
        (root / "empty").mkdir()
        named = "latest" if named == "stale" else named
        ended = run(command[0], named, *command[1:], cwd=root)
        assert (ended.code, ended.stdout) == (code, "")
        assert said in ended.stderr

    def test_a_path_that_holds_an_at_sign_means_itself(self, copy: Copy, tmp_path: Path) -> None:
        copy("fsdp2/step-12").parent.rename(tmp_path / "run@12")
        assert done("list", tmp_path / "run@12", "--json").json()["checkpoints"][0]["step"] == 12

    def test_an_empty_variable_is_said(self, root: Path) -> None:
        ended = run("list", cwd=root, env={"CKPTCTL_ROOT": ""})
        assert ended.code == 2
        assert "CKPTCTL_ROOT is empty" in ended.stderr

    def test_a_root_is_what_is_pruned(self, root: Path) -> None:
        ended = run("prune", "--keep-last", "1", "--yes", cwd=root / "step-12")
        assert ended.code == 2
        assert "name the root that holds it" in ended.stderr
        assert (root / "step-8").is_dir()


def test_a_framework_can_be_forced() -> None:
    path = FIXTURES / "fsdp2"
    assert run("list", path, "--framework", "dcp").code == 0
    assert "composer" not in run("list", path, "--framework", "composer").stdout
    assert run("show", path / "step-12", "--framework", "composer").code == 5
    assert run("list", path, "--framework", "nonsense").code == 2


def test_the_top_of_the_file_system_is_not_named_like_where_one_stands(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a walk up from a checkpoint would take the whole file system for one."""
    monkeypatch.chdir(root / "step-12")
    assert not name_of_root(open_store("/")).recognised
    assert name_of_root(open_store(".")).step == 12
