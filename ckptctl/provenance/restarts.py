"""Did a schedule or an optimizer start over, or is its file of another step? Neighbours tell.

What a trainer ties together is apart after a resume with a fresh schedule or optimizer, and where the
schedule counts epochs; a file of another save is apart as well. Of a way of counting that is like
this in other checkpoints too nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptctl.dataclass import replace
from ckptctl.model.companion import Kind
from ckptctl.provenance.consensus import Dissent, Level, apart
from ckptctl.provenance.counters import Stamp
from ckptctl.provenance.evidence import Neighbour


def untied(stamps: Iterable[Stamp]) -> list[Stamp]:
    """Return the stamps of ways of counting that should be one and are not."""
    every = list(stamps)
    schemes = apart(every)
    return [stamp for stamp in every if stamp.scheme in schemes]


def settled(
    found: Sequence[Dissent], stamps: Sequence[Stamp], neighbours: Iterable[Neighbour]
) -> list[Dissent]:
    """Weigh once more what contradicts the rest by a tie alone, with what neighbours state."""
    schemes = apart(list(stamps))
    asked = [one for one in neighbours if one.stamps]
    result = []
    for one in found:
        said = [stamp for stamp in one.stamps if stamp.scheme in schemes]
        tied = one.level is Level.CERTAIN and said and not any(s.exact for s in one.stamps)
        level = _level(one, said, asked) if tied else one.level
        if level is not None:
            result.append(replace(one, level=level))
    return result


def _level(one: Dissent, said: Sequence[Stamp], asked: Sequence[Neighbour]) -> Level | None:
    optimizer = any(stamp.kind is Kind.OPTIMIZER for stamp in said)
    schemes = {stamp.scheme for stamp in said}
    stale = known = later = False
    last: int | None = None
    for other in asked:
        ours, theirs = _sides(other.stamps, schemes, optimizer=optimizer)
        if not ours or not theirs:
            continue
        if ours != theirs:
            return None  # it is so there too
        known = True
        stale |= one.step in ours
        if one.step in ours and one.file in other.alike:
            return Level.CERTAIN
        if other.step is not None and other.step < one.common:
            last = other.step if last is None else max(last, other.step)
        later |= other.step is not None and other.step > one.common
    if not known:
        multiple = one.common > 0 and one.step > one.common and one.step % one.common == 0
        harmless = multiple or abs(one.step - one.common) == 1
        return Level.POSSIBLE if harmless else Level.LIKELY
    if stale:  # what started over after the last one that agrees may have come as far by now
        fresh = not later and last is not None and one.common - last == one.step
        return Level.LIKELY if fresh else Level.CERTAIN
    # a later one that counts on as if nothing had started over is of another attempt, or this is mixed
    return Level.LIKELY if later else Level.POSSIBLE


def _sides(
    stamps: Iterable[Stamp], schemes: set[str], *, optimizer: bool
) -> tuple[set[int], set[int]]:
    """Return the steps of the optimizer and of what it is tied to, the one that dissents first."""
    sides: tuple[set[int], set[int]] = (set(), set())
    for stamp in stamps:
        if stamp.scheme in schemes:
            sides[(stamp.kind is Kind.OPTIMIZER) is not optimizer].add(stamp.step)
    return sides
