"""Inputs without number, of which none may crash, hang, fill the memory, or be read otherwise than torch.

Two thousand of each kind by a fixed seed, and every input that once was a fault. A longer run is
``python -m tests.slow.fuzz --inputs 1000000``; it prints the seed and the number of each fault.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from slow.fuzz import harness
from slow.fuzz.campaign import CORPUS, SHARES, kept
from slow.fuzz.cases import Difference, Target
from slow.fuzz.shrink import smaller

SEED = 20261130
INPUTS = 20_000
OPEN: dict[str, str] = json.loads((CORPUS / "open.json").read_text(encoding="utf-8"))
"""What is known not to hold yet, by target or by the path of a kept input, and why."""

KEPT = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*.bin"))


def fuzz(*args: str) -> list[dict[str, object]]:
    """Run the fuzzer as a process of its own and return what it tells of each target."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.slow.fuzz", "--json", *args]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout, ended.stderr
    found: list[dict[str, object]] = json.loads(ended.stdout.splitlines()[-1])["targets"]
    return found


def marked(name: str) -> object:
    """Return a parameter; one that is known to fail must fail."""
    reason = OPEN.get(name)
    return pytest.param(name, marks=[pytest.mark.xfail(reason=reason)] if reason else [])


@pytest.mark.parametrize("name", [marked(name) for name in SHARES])
def test_no_input_of_a_fixed_seed_is_a_fault(name: str) -> None:
    count = INPUTS * SHARES[name][2] // 100
    args = ("--seed", str(SEED), "--inputs", str(count), "--workers", "1")
    (found,) = fuzz("--target", name, *args)
    assert found["faults"] == {}
    assert found["inputs"] == count


@pytest.fixture(scope="module")
def again() -> dict[str, str]:
    """What every kept input comes to."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.slow.fuzz", "--kept"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    text = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True).stdout
    found: dict[str, str] = json.loads(text)
    return found


@pytest.mark.parametrize("name", [marked(name) for name in KEPT])
def test_an_input_that_was_a_fault_is_none_any_more(name: str, again: dict[str, str]) -> None:
    assert again[name] == ""


def test_what_is_kept_is_small() -> None:
    assert KEPT
    assert sum((CORPUS / name).stat().st_size for name in KEPT) < 300_000


class Planted(Target):
    """A target whose faults are known."""

    name = "planted"

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        return "", rng.randbytes(4)

    def judge(self, slot: str, data: bytes) -> str:
        word = data[0] % 64
        if word == 1:
            raise Difference("another value")
        if word == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if word == 3:
            while True:
                pass
        if word == 4:
            return str(len(bytearray(1 << 40)))
        if word == 5:
            return {}["nothing"]
        return "equal"


def test_every_kind_of_fault_is_seen_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(harness, "SECONDS", 0.1)
    tally = harness.run(Planted(), 1, range(400), workers=2, chunk=100)
    expected: dict[str, int] = {}
    for number in range(400):
        word = harness.make(Planted(), 1, number)[1][0] % 64
        kind = {
            1: "another value",
            2: f"the process ended with -{int(signal.SIGSEGV)}",
            3: "more than 0 s of processor time",
            4: "out of memory",
            5: "KeyError",
        }.get(word)
        if kind:
            expected[kind] = expected.get(kind, 0) + 1
    assert len(expected) == 5
    assert tally.counts == expected
    assert tally.inputs == 400
    assert tally.outcomes == {"equal": 400 - sum(expected.values())}


def test_the_smallest_input_that_still_fails_is_left() -> None:
    pieces = [bytes([one]) for one in range(64)]
    left = smaller(pieces, lambda some: {b"\x07", b"\x2a"} <= set(some))
    assert left == [b"\x07", b"\x2a"]


def test_kept_inputs_are_judged_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "indices").mkdir()
    (tmp_path / "indices" / "index--sound.bin").write_bytes(b"{}")
    assert kept(tmp_path) == {"indices/index--sound.bin": ""}
