"""A command line in this process ends as one in a process of its own, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from conftest import FIXTURES
from support.cli import plant, run, run_process

NEW = "--world-size 2 --rng keep --data keep --dry-run".split()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "run"], 0),
        (["list", "run", "--json"], 0),
        (["show", "run/step-12"], 0),
        (["verify", "run"], 0),
        (["verify", "run/gone"], 4),
        (["digest", "run/step-12", "--summary"], 0),
        (["diff", "run/step-8", "run/step-12"], 10),
        (["resolve", "run"], 10),
        (["reshard", "run/step-12", "--out", "new/step-12", *NEW], 0),
        (["prune", "run", "--keep-last", "1"], 0),
        (["verify", "--bogus"], 2),
        (["--version"], 0),
        (["verify", "--help"], 0),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else str(words),
)
def test_both_end_alike(words: list[str], code: int, tmp_path: Path) -> None:
    plant(FIXTURES / "fsdp2", tmp_path / "run")
    environment = {"CKPTCTL_ACTOR": "me"}
    before = (Path.cwd(), os.environ.copy(), [*sys.argv], sys.stdin, sys.stdout, gc.isenabled())
    here = run(*words, cwd=tmp_path, env=environment)
    after = (Path.cwd(), os.environ.copy(), [*sys.argv], sys.stdin, sys.stdout, gc.isenabled())
    assert after == before
    there = run_process(*words, cwd=tmp_path, env=environment)
    module = "python -m ckptctl"  # how the process was started, which a usage line quotes
    assert (here.code, there.code) == (code, code)
    assert here.stdout == there.stdout.replace(module, "ckptctl")
    assert here.stderr == there.stderr.replace(module, "ckptctl")
