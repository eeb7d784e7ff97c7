"""What companions state, held against the rest: what is a contradiction, and what is legal."""

from __future__ import annotations

import pytest

from ckptctl.model.companion import UPDATES, Companion, Form, Kind, Told
from ckptctl.provenance.consensus import Level, Support, consensus, dissents
from ckptctl.provenance.counters import RunMark, Stamp, stamps_beside

STATE, SCHEDULE, META = "trainer_state.json", "scheduler.pt", "meta.pt"
PARAMETERS = ("a", "b", "c", "d")


def stated(step: int, file: str = STATE) -> Stamp:
    return Stamp(file, "global_step", Kind.PROGRESS, step, exact=True)


def counted(step: int, file: str = STATE) -> Stamp:
    return Stamp(file, "global_step", Kind.PROGRESS, step, UPDATES)


def schedule(step: int, scheme: str = UPDATES) -> Stamp:
    return Stamp(SCHEDULE, "last_epoch", Kind.SCHEDULER, step, scheme)


def adam(*steps: int, scheme: str = UPDATES) -> list[Stamp]:
    """The optimizer's steps of four parameters, two in the file of each of two ranks."""
    every = steps * len(PARAMETERS) if len(steps) == 1 else steps
    return [
        Stamp(f"__{at // 2}_0.distcp", f"state.{name}.step", Kind.OPTIMIZER, step, scheme)
        for at, (name, step) in enumerate(zip(PARAMETERS, every, strict=True))
    ]


def accused(*stamps: Stamp, declared: int | None = 6) -> dict[str, int]:
    found = dissents(
        stamps,
        consensus(stamps, declared),
        confined=lambda _: False,
        support=lambda *_: Support(),
    )
    return {one.file: one.step for one in found if one.level is Level.CERTAIN}


RANKS = ("__0_0.distcp", "__1_0.distcp")

WRONG = {
    "the state of before": ((stated(4), schedule(6), *adam(6)), {STATE: 4}),
    "the schedule of before": ((stated(6), schedule(4), *adam(6)), {SCHEDULE: 4}),
    "the optimizer of before": ((stated(6), schedule(6), *adam(4)), dict.fromkeys(RANKS, 4)),
    "the optimizer of one step before": (
        (stated(6), schedule(6), *adam(5)),
        dict.fromkeys(RANKS, 5),
    ),
    "the schedule of before where steps were skipped": (
        (stated(6), schedule(3), *adam(5)),
        {SCHEDULE: 3},
    ),
    "loops of before": ((stated(4, META), counted(4, META), *adam(6)), {META: 4}),
    "shards of before": (
        (stated(6, META), counted(6, META), *adam(4)),
        dict.fromkeys(RANKS, 4),
    ),
    "two that state steps": ((stated(6, "rank0.pt"), stated(4, "rank1.pt")), {"rank1.pt": 4}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_contradicts_the_rest(name: str) -> None:
    stamps, expected = WRONG[name]
    assert accused(*stamps) == expected


LEGAL: dict[str, tuple[tuple[Stamp, ...], int | None]] = {
    "all agree": ((stated(6), schedule(6), *adam(6)), 6),
    "a scaler skipped steps": ((stated(6), schedule(5), *adam(5)), 6),
    "the optimizer started anew": ((stated(6), schedule(2), *adam(2)), 6),
    "training began twice with one optimizer": ((stated(6), schedule(106), *adam(106)), 6),
    "some parameters were frozen": ((stated(6), schedule(6), *adam(6, 4, 6, 4)), 6),
    "a schedule of epochs that nothing ties": (
        (stated(6, META), schedule(1, scheme=""), *adam(6)),
        6,
    ),
    "two optimizers, which nothing ties": ((stated(12, META), *adam(6, scheme="")), 12),
    "a directory without a step": ((stated(6), schedule(6), *adam(6)), None),
    "a directory that was renamed": ((stated(6), schedule(6), *adam(6)), 8),
    "a state alone": ((stated(6),), None),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_legal_accuses_nothing(name: str) -> None:
    stamps, declared = LEGAL[name]
    assert accused(*stamps, declared=declared) == {}


def test_what_a_companion_states_is_read_where_its_framework_puts_it() -> None:
    one = Companion(
        "x.pt",
        Form.TORCH,
        told=(
            Told(("a", "step"), offset=-1, exact=True),
            Told(("last",), Kind.SCHEDULER, unless=frozenset({"best"})),
        ),
    )
    value = {"a": {"step": 7}, "last": 3, "run_id": "r"}
    assert list(stamps_beside(one, value)) == [
        Stamp("x.pt", "a.step", Kind.PROGRESS, 6, exact=True),
        Stamp("x.pt", "last", Kind.SCHEDULER, 3),
        RunMark("x.pt", "run_id", "r"),
    ]
    assert [s for s in stamps_beside(one, {**value, "best": 1}) if isinstance(s, Stamp)] == [
        Stamp("x.pt", "a.step", Kind.PROGRESS, 6, exact=True)
    ]


@pytest.mark.parametrize(
    "value", [None, [], 7, {}, {"a": 7}, {"a": {"step": True}}, {"a": {"step": 0}},
              {"a": {"step": 1.5}}, {"a": {"step": float("nan")}}, {"a": {"step": 1 << 60}},
              {"a": {"step": "6"}}],
)  # fmt: skip
def test_what_is_no_step_states_none(value: object) -> None:
    one = Companion("x.pt", Form.TORCH, told=(Told(("a", "step"), offset=-1, exact=True),))
    assert list(stamps_beside(one, value)) == []
