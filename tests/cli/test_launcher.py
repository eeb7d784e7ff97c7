"""The launcher of the docs: it starts, resumes or stops, and never starts afresh over damage."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ckptctl.model.manifest import MANIFEST
from conftest import ROOT
from support import damage as damage
from support.cli import environment
from support.effort import PATIENCE
from support.publish import done

Copy = Callable[..., Path]
MARK = "<!-- launcher -->"
AFTER, OTHER = "<!-- after a save -->", "<!-- other ranks -->"
PYTHON = "<!-- python -->"
SLURM, KUBERNETES, ACTIONS = "<!-- slurm -->", "<!-- kubernetes -->", "<!-- actions -->"
_FENCED = (
    r"[ \t]*\n\s*^(?P<fence>`{3,})(?:bash|sh|yaml|python)[^\n]*\n(?P<code>.*?)^(?P=fence)[ \t]*$"
)


def snippet(text: str, mark: str = MARK) -> str | None:
    """Return the fenced bash code that follows the mark, or None."""
    match = re.search(f"^{re.escape(mark)}{_FENCED}", text, re.MULTILINE | re.DOTALL)
    return match["code"] if match else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"a\n\n{MARK}\n```bash\nx=1\necho\n```\nb\n```bash\nno\n```\n", "x=1\necho\n"),
        (f"{MARK}\n\n```sh\nx\n```\n", "x\n"),
        (f"{MARK}\n````bash\n```\n````\n", "```\n"),
        (f"{MARK}\ntext\n```bash\nx\n```\n", None),
        (f"{MARK}\n```text\nx\n```\n", None),
        ("```bash\nx\n```\n", None),
        (f"see {MARK}\n```bash\nx\n```\n", None),
    ],
)
def test_how_the_snippet_is_found(text: str, expected: str | None) -> None:
    assert snippet(text) == expected


def shown(mark: str) -> str:
    """Return the snippet of the page on launchers that follows a mark."""
    found = snippet((ROOT / "docs" / "launcher.md").read_text(encoding="utf-8"), mark)
    assert found is not None, mark
    return found


@pytest.fixture(scope="module")
def launcher() -> str:
    return shown(MARK)


class Launch:
    """Runs the snippet with commands of its own beside ckptctl: each says how it was called."""

    def __init__(self, code: str, directory: Path) -> None:
        self.code, self.bin = code, directory / "bin"
        self.bin.mkdir()
        self.calls = directory / "calls"
        self.script("ckptctl", f'exec {sys.executable} -m ckptctl "$@"')
        for name in ("torchrun", "python", "python3", "srun", "train", "train.sh"):
            self.script(name, f'printf "%s\\n" "{name} $*" >> "{self.calls}"')

    def script(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def __call__(self, root: Path, **variables: str) -> tuple[int, str, str]:
        """Return the exit code, what was started, and all that was said."""
        self.calls.unlink(missing_ok=True)
        bash = shutil.which("bash")
        if bash is None:
            pytest.skip("there is no bash here")
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            [bash, "-c", self.code],
            cwd=self.bin.parent,
            env=environment({"PATH": path, "ROOT": str(root), **variables}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        started = self.calls.read_text() if self.calls.exists() else ""
        return ended.returncode, started, ended.stdout + ended.stderr


@pytest.fixture
def launch(launcher: str, tmp_path: Path) -> Launch:
    return Launch(launcher, tmp_path)


def test_it_asks_ckptctl_and_looks_at_the_exit_code(launcher: str) -> None:
    assert "ckptctl resolve" in launcher
    assert "|| status=$?" in launcher
    assert launcher.startswith("set -euo pipefail\n")


def test_an_empty_root_is_a_fresh_start(launch: Launch, tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    code, started, said = launch(root)
    assert code == 0, said
    assert "step-" not in started + said


def test_a_root_that_is_not_there_is_no_fresh_start(launch: Launch, tmp_path: Path) -> None:
    code, _, said = launch(tmp_path / "nowhere")
    assert code != 0, said
    assert "no such directory" in said


def test_a_good_checkpoint_is_resumed_from(launch: Launch, copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path, "--promote")
    code, started, said = launch(path.parent)
    assert code == 0, said
    assert str(path) in started + said


def test_a_root_with_damage_alone_stops_the_launch(launch: Launch, copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path, "--promote")
    harms: tuple[Callable[[], None], ...] = (
        lambda: damage.truncate(path, file="__1_0.distcp", size=-1),
        lambda: damage.remove(path, file=MANIFEST),
        lambda: damage.remove(path, file=".metadata"),
    )
    for harm in harms:
        harm()
        code, started, said = launch(path.parent)
        assert code != 0, said
        assert started == ""


def test_a_storage_that_fails_stops_the_launch(launch: Launch, copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    for failure in (1, 4, 127, 130):
        launch.script("ckptctl", f"exit {failure}")
        code, started, said = launch(path.parent)
        assert code != 0, said
        assert started == ""


def test_each_save_is_committed_and_promoted(copy: Copy, tmp_path: Path) -> None:
    paths = [copy("fsdp2/step-8"), copy("fsdp2/step-12")]
    root = paths[0].parent
    for step in ("8", "12"):
        code, _, said = Launch(shown(AFTER), tmp_path)(root, STEP=step, RUN_ID="r1")
        assert code == 0, said
        shutil.rmtree(tmp_path / "bin")
    assert all((path / MANIFEST).is_file() for path in paths), "nothing is older than a day"
    assert (root / "latest_committed").read_text() == "step-12\n"


def test_a_launch_on_other_ranks_says_where_to_resume_from(copy: Copy, tmp_path: Path) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path, "--promote")
    code, _, said = Launch(shown(OTHER), tmp_path)(path.parent, RANKS="2")
    assert code == 0, said
    made = tmp_path / "run-w2" / "step-12"
    assert str(made) in said.splitlines()
    assert (made / MANIFEST).is_file()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "launch.py"
    path.write_text(shown(PYTHON))
    return path


def test_python_resumes_starts_fresh_or_stops(copy: Copy, tmp_path: Path, program: Path) -> None:
    launch = Launch(f"PYTHONPATH={ROOT} exec {sys.executable} {program}", tmp_path)
    (tmp_path / "empty").mkdir()
    code, started, said = launch(tmp_path / "empty")
    assert (code, started) == (0, "torchrun train.py\n"), said
    path = copy("fsdp2/step-12")
    code, started, said = launch(path.parent)
    assert (code, started) == (1, ""), said
    assert "not starting: " in said
    done("commit", path)
    code, started, said = launch(path.parent)
    assert (code, started) == (0, f"torchrun train.py --resume {path}\n"), said


def test_slurm_resumes_starts_fresh_or_stops(copy: Copy, tmp_path: Path) -> None:
    launch = Launch(shown(SLURM), tmp_path)
    (tmp_path / "empty").mkdir()
    code, started, said = launch(tmp_path / "empty", SLURM_NNODES="4")
    assert (code, started) == (0, "srun torchrun --nnodes=4 train.py\n"), said
    path = copy("fsdp2/step-12")
    code, started, said = launch(path.parent, SLURM_NNODES="4")
    assert (code, started) == (10, ""), said
    done("commit", path)
    code, started, said = launch(path.parent, SLURM_NNODES="4")
    assert (code, started) == (0, f"srun torchrun --nnodes=4 train.py --resume {path}\n"), said


def test_an_init_container_leaves_the_path_or_fails(copy: Copy, tmp_path: Path) -> None:
    container = yaml.safe_load(shown(KUBERNETES))["initContainers"][0]
    assert container["command"] == ["bash", "-c"]
    launch = Launch(container["args"][0], tmp_path)
    path = copy("fsdp2/step-12")
    resume = tmp_path / "resume"
    code, _, said = launch(path.parent, SHARED=str(tmp_path))
    assert code != 0, said
    done("commit", path)
    code, _, said = launch(path.parent, SHARED=str(tmp_path))
    assert (code, resume.read_text()) == (0, f"{path}\n"), said
    (tmp_path / "empty").mkdir()
    code, _, said = launch(tmp_path / "empty", SHARED=str(tmp_path))
    assert (code, resume.read_text()) == (0, ""), said


def test_a_gate_passes_what_is_committed_and_fails_what_is_not_sure(
    copy: Copy, tmp_path: Path
) -> None:
    gate = yaml.safe_load(shown(ACTIONS))["steps"][1]["run"]
    path = copy("fsdp2/step-12")
    launch = Launch(f"set -e\n{gate}", tmp_path)
    done("commit", path)
    code, _, said = launch(path.parent, CHECKPOINT=str(path))
    assert code == 0, said
    damage.truncate(path, file="__1_0.distcp", size=-1)
    code, _, said = launch(path.parent, CHECKPOINT=str(path))
    assert code == 10, said
