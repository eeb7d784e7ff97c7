"""A training loop of four processes is killed at random moments; what was promised is kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ckptctl.checks import CHECKS
from ckptctl.errors import NothingThere
from ckptctl.model.finding import Stage
from ckptctl.model.manifest import MANIFEST
from ckptctl.operations.catalog.resolve import NoneUsable
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, verify
from ckptctl.storage import open_store
from support.publish import (
    SOURCES,
    Source,
    load_source,
    newest,
    nursery,
    places,
    source_of,
)

FIRST, LONGER, SHORTER = 100.0, 1.02, 0.96
"""The most calls to the operating system that a loop may live at first. After one that finished no
save the next may live longer, after another shorter: about a third of them finish one, and all
moments of a save are hit."""


def last_acknowledged(path: Path) -> int:
    """Return the last step that the loop has promised; a torn line is no promise."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return int(lines[-1]) if lines else 0


def look(root: Path, *, full: bool, sources: list[Source]) -> int:
    """Resolve and compare all bytes with what was saved; return the step, 0 where none is."""
    try:
        step, path = newest(root, full=full)
    except (NothingThere, NoneUsable):
        return 0
    source = source_of(step, sources)
    expected = {**source.shards, ".metadata": source.metadata}
    assert {name: (path / name).read_bytes() for name in expected} == expected
    return step


def half_visible(root: Path) -> list[str]:
    """Return the checkpoints that have a manifest and do not verify against it."""
    store = open_store(root)
    sealed = [p for p in places(root) if any(entry.name == MANIFEST for entry in p.entries)]
    # the same two saves come again and again under new numbers: whose step it is, is not asked
    ignored = {check.id for check in CHECKS if check.stage > Stage.CONTENT} | {"pointer-mismatch"}
    options = Options(workers=1, ignore=frozenset(ignored))
    return [p.path for p in sealed if verify(store, p, options=options).verdict is not Verdict.OK]


@pytest.mark.parametrize(
    ("rounds", "seed"), [pytest.param(30, 19, marks=pytest.mark.quick), (150, 20), (150, 21)]
)
def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, rounds: int, seed: int) -> None:
    root, acknowledged, complaints = tmp_path / "run", tmp_path / "acknowledged", tmp_path / "err"
    root.mkdir()
    chance = random.Random(seed)
    sources = [load_source(case) for case in SOURCES]
    step, longest, died_in = 0, FIRST, set()
    with nursery(complaints) as run:
        for number in range(rounds):
            status = run(root, step, acknowledged, chance.randint(1, int(longest)))
            assert status == -9, complaints.read_text()
            promised = last_acknowledged(acknowledged)
            found = look(root, full=number % 10 == 0, sources=sources)
            assert found >= promised
            assert half_visible(root) == []
            died_in.add(state_of_next(root, found))
            longest *= SHORTER if found > step else LONGER
            step = found
    assert complaints.read_text() == ""
    assert step > rounds / 10
    assert len(died_in) >= 3, died_in


def state_of_next(root: Path, found: int) -> str:
    """Say how far the save got that was under way, so that the kills are known to be spread."""
    checkpoint = root / f"step-{found + 1}"
    if not checkpoint.exists():
        return "between saves"
    names = {path.name for path in checkpoint.rglob("*")}
    receipts = sum(name.startswith("rank-") for name in names)
    return f"{receipts} receipts"
