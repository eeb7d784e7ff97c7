"""What is tied together and apart: a restart, another way of counting, or a file of another step."""

from __future__ import annotations

import pytest

from ckptctl.model.companion import UPDATES, Kind
from ckptctl.provenance.consensus import Dissent, Level
from ckptctl.provenance.counters import Stamp
from ckptctl.provenance.evidence import Neighbour
from ckptctl.provenance.restarts import settled, untied

SCHEDULE, SHARD = "scheduler.pt", "__0_0.distcp"


def stamps(adam: int, schedule: int) -> tuple[Stamp, ...]:
    return (
        Stamp(SHARD, "state.w.step", Kind.OPTIMIZER, adam, UPDATES),
        Stamp(SCHEDULE, "last_epoch", Kind.SCHEDULER, schedule, UPDATES),
    )


def beside(step: int, adam: int, schedule: int, *alike: str) -> Neighbour:
    return Neighbour(f"step-{step}", step, stamps=stamps(adam, schedule), alike=frozenset(alike))


SAVED = {
    "alone": ((), Level.LIKELY),
    "apart in another too": ((beside(8, 8, 4),), None),
    "the number of another": ((beside(4, 4, 4), beside(6, 6, 6)), Level.CERTAIN),
    "what a fresh one has by now": ((beside(4, 4, 4),), Level.LIKELY),
    "what a fresh one has by now, and the same bytes": (
        (beside(4, 4, 4, SCHEDULE),),
        Level.CERTAIN,
    ),
    "of no other": ((beside(2, 2, 2),), Level.POSSIBLE),
    "of no other, and a later one goes on": ((beside(12, 12, 12),), Level.LIKELY),
    "others that say nothing": ((Neighbour("step-4", 4),), Level.LIKELY),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_schedule_of_less(name: str) -> None:
    others, expected = SAVED[name]
    own = stamps(8, 4)
    found = [Dissent(SCHEDULE, 4, 8, Level.CERTAIN, own[1:])]
    levels = [one.level for one in settled(found, own, others)]
    assert levels == ([] if expected is None else [expected])


def test_what_is_exact_stays() -> None:
    exact = Stamp(SCHEDULE, "global_step", Kind.PROGRESS, 4, exact=True)
    own = (*stamps(8, 4), exact)
    found = [Dissent(SCHEDULE, 4, 8, Level.CERTAIN, (own[1], exact))]
    assert settled(found, own, [beside(4, 4, 2)]) == found


def test_only_what_is_apart_is_asked_for() -> None:
    assert untied(stamps(8, 8)) == []
    assert untied(stamps(8, 4)) == list(stamps(8, 4))
