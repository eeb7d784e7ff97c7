"""Each protecting rule, taken out, is missed by the model: so the model sees what it should."""

from __future__ import annotations

import random

import pytest

from cases.frame import target
from slow.model.machine import wander
from slow.model.mutants import MUTANTS
from slow.model.world import Broken, Statistics, worlds

MOST = 80
"""Sequences, each from a seed of its own, in which a mutant must show."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_taken_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant, seen = MUTANTS[name], Statistics()
    owner, attribute = target(mutant.target)
    found: Broken | None = None
    with worlds(seen) as fresh:
        monkeypatch.setattr(owner, attribute, mutant.instead(vars(owner)[attribute]))
        for seed in range(MOST):
            world = fresh()
            world.asking = mutant.asks
            try:
                wander(world, random.Random(seed), mutant.acts)
            except Broken as error:
                found = error
                break
    assert found is not None, f"nothing was noticed in {seen}"
    print(f"\n{name}: after {seen.sequences} sequences: {found}")
    assert found.rule.startswith(mutant.breaks), found
