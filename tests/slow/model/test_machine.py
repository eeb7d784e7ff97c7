"""No sequence of commands and accidents deletes, hands out or seals what it must not.

``CKPTCTL_SEQUENCES=2000 pytest -s tests/slow/model/test_machine.py`` runs longer; the numbers of
sequences and of distinct states are printed at the end.
"""

from __future__ import annotations

import os

import pytest

from slow.model.machine import machine, run
from slow.model.world import Statistics, worlds


def _explore(*, examples: int, steps: int) -> Statistics:
    seen = Statistics()
    with worlds(seen) as fresh:
        run(machine(fresh), examples=examples, steps=steps)
    print(f"\nmodel: {seen}")
    return seen


@pytest.mark.quick
def test_a_few_sequences() -> None:
    seen = _explore(examples=12, steps=10)
    assert seen.overlaps > 5
    assert len(seen.shapes) > 30


def test_many_sequences() -> None:
    wanted = int(os.environ.get("CKPTCTL_SEQUENCES", "150"))
    seen = _explore(examples=wanted, steps=14)
    assert seen.sequences >= wanted
    assert len(seen.shapes) > wanted
