"""The state machine: random sequences of what trainers, people and accidents do to one root."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from slow.model.turns import ANY, When
from slow.model.world import COMMANDS, OTHERS, Other, World

NUMBERS = st.integers(0, 59)
ACTS = (*OTHERS, "publish", "promote", "commit")
WAITING = ("promote", "quarantine", "hint", "commit", "roll_back", "publish")
"""What may happen while ``prune`` waits for the answer and must be respected in full."""

Acts = Mapping[str, Sequence[str]]
"""What is done ``alone``, ``together`` as ``first+second``, and ``waiting`` for the answer."""

MOMENTS = st.one_of(
    st.builds(When, st.just(ANY), st.integers(0, 160)),
    st.builds(When, st.sampled_from(["rename_directory", "create", "delete"]), st.integers(0, 2)),
    st.builds(When, st.sampled_from(["open", "entries", "stat"]), st.integers(0, 40)),
)
"""Any call, the few that change something, or one of those that look."""


def machine(fresh: Callable[[], World]) -> type[RuleBasedStateMachine]:
    """Make a machine that works on one new world after another."""

    class Root(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = fresh()

        @initialize(saves=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4))
        def begin(self, saves: list[tuple[int, int]]) -> None:
            for a, b in saves:
                self.world.step("publish", a, b)

        @rule(acts=st.lists(st.tuples(st.sampled_from(ACTS), NUMBERS, NUMBERS), max_size=4))
        def alone(self, acts: list[tuple[str, int, int]]) -> None:
            for act, a, b in acts:
                self.world.step(act, a, b)

        @rule(
            act=st.sampled_from(COMMANDS),
            a=NUMBERS,
            b=NUMBERS,
            other=st.builds(Other, st.sampled_from(OTHERS), NUMBERS, NUMBERS, MOMENTS),
        )
        def together(self, act: str, a: int, b: int, other: Other) -> None:
            self.world.step(act, a, b, other)

        @rule(b=NUMBERS, other=st.builds(Other, st.sampled_from(WAITING), NUMBERS, NUMBERS))
        def while_it_waits(self, b: int, other: Other) -> None:
            self.world.step("prune_all", 0, b, other)

    return Root


def run(root: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run it, the same sequences each time; what is broken is raised."""
    run_state_machine_as_test(
        root,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=(Phase.generate, Phase.shrink),
            derandomize=True,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def wander(world: World, chance: random.Random, acts: Acts) -> None:
    """Walk one random sequence of some acts, without Hypothesis: nothing of it is made smaller."""

    def number() -> int:
        return chance.randrange(60)

    for _ in range(3):
        world.step("publish", number(), number())
    for _ in range(7):
        kind = chance.choice([name for name in ("alone", "together", "waiting") if acts[name]])
        act, a, b = chance.choice(acts[kind]), number(), number()
        if kind == "alone":
            world.step(act, a, b)
        elif kind == "waiting":
            world.step("prune_all", 0, number(), Other(act, a, b))
        else:
            call = chance.choice([ANY, "open", "entries", "create", "rename_directory"])
            most = {ANY: 160, "open": 40, "entries": 40}.get(call, 2)
            first, second = act.split("+")
            when = When(call, chance.randrange(most))
            world.step(first, number(), number(), Other(second, a, b, when))
