"""Was a checkpoint saved while its optimizer took a step? Then some parameters are one step ahead.

A parameter that got no gradient lags by any number, so lagging proves nothing. What is ahead of the
step that all else states took a step that was not over yet, unless the run counts from zero: there
every checkpoint of it is ahead, which neighbours show.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ckptctl.dataclass import dataclass
from ckptctl.model.checkpoint import Checkpoint, TensorEntry, rank_of
from ckptctl.model.companion import Kind
from ckptctl.model.finding import Severity
from ckptctl.pattern import pattern
from ckptctl.provenance.counters import Stamp, optimizer_of
from ckptctl.provenance.evidence import Neighbour

_IDLE = pattern(r"expert|(^|[._])moe([._]|$)", re.IGNORECASE)
"""Names of what gets no gradient in many a step."""

_DIGITS = pattern(r"(\d+)")


class Said(enum.Enum):
    """Which of two steps in a row all that is no optimizer states."""

    FORMER = "the former"
    LATTER = "the latter"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Tear:
    """An optimizer of which some parameters took a step that others did not take.

    ``files`` are those in which both lie, or which are of a rank that has both.
    """

    files: tuple[str, ...]
    ahead: tuple[Stamp, ...]
    behind: tuple[Stamp, ...]
    severity: Severity
    reason: str

    @property
    def step(self) -> int:
        """The step that was taken by some."""
        return self.ahead[0].step


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two steps in a row that parameters of one optimizer have, and how many lag further."""

    ahead: tuple[Stamp, ...]
    behind: tuple[Stamp, ...]
    lags: int

    @property
    def latter(self) -> int:
        return self.ahead[0].step


def torn_at(stamps: Iterable[Stamp]) -> bool:
    """Tell whether the steps of any optimizer are such that neighbours should be asked for theirs."""
    return bool(_pairs(stamps))


def tears(
    stamps: Sequence[Stamp],
    checkpoint: Checkpoint,
    declared: int | None,
    neighbours: Iterable[Neighbour] = (),
) -> list[Tear]:
    """Find optimizers that were saved while they took a step, or that look like it.

    ``declared`` is the step by name or manifest. An error is what no run that goes on as its
    neighbours did can leave; a note what a parameter without a gradient leaves too.
    """
    found = []
    asked = [one for one in neighbours if one.stamps]
    for pair in _pairs(stamps):
        severity, reason = _weigh(pair, stamps, checkpoint, declared, asked)
        if severity is not None:
            files = _torn_files(pair)
            found.append(Tear(files, pair.ahead, pair.behind, severity, reason))
    return found


def _pairs(stamps: Iterable[Stamp]) -> list[_Pair]:
    """Return the optimizers whose greatest two steps follow each other within one rank or file."""
    by_optimizer: dict[str, list[Stamp]] = {}
    for stamp in stamps:
        if stamp.kind in (Kind.OPTIMIZER, Kind.GROUP):
            by_optimizer.setdefault(f"{stamp.kind.value} {optimizer_of(stamp)}", []).append(stamp)
    found = []
    for own in by_optimizer.values():
        steps = sorted({stamp.step for stamp in own})
        if len(steps) < 2 or steps[-1] - steps[-2] != 1 or steps[-2] == 0:
            continue
        ahead = tuple(stamp for stamp in own if stamp.step == steps[-1])
        behind = tuple(stamp for stamp in own if stamp.step == steps[-2])
        pair = _Pair(ahead, behind, len(steps) - 2)
        if _torn_files(pair):
            found.append(pair)
    return found


def _unit(stamp: Stamp) -> int | str:
    rank = rank_of(stamp.file)
    return stamp.file if rank is None else rank


def _torn_files(pair: _Pair) -> tuple[str, ...]:
    both = {_unit(s) for s in pair.ahead} & {_unit(s) for s in pair.behind}
    return tuple(sorted({s.file for s in (*pair.ahead, *pair.behind) if _unit(s) in both}))


def _weigh(
    pair: _Pair,
    stamps: Sequence[Stamp],
    checkpoint: Checkpoint,
    declared: int | None,
    asked: Sequence[Neighbour],
) -> tuple[Severity | None, str]:
    """Say how surely it is a tear, and why; None where nothing need be said."""
    progress = _said(pair, (s.step for s in stamps if s.kind is Kind.PROGRESS), declared)
    schedule = _said(pair, (s.step for s in stamps if s.kind is Kind.SCHEDULER))
    if pair.lags > 1 or all(map(_idle, pair.behind)) or _unlike(pair, checkpoint):
        return None, ""  # parameters without a gradient, each by its own, or two ways of counting
    others = [_Pace.of(one, pair) for one in asked]
    if any(one.lagging for one in others):
        return None, ""  # these lag elsewhere too
    if progress is Said.FORMER and schedule is not Said.LATTER:
        if any(one.lead == 1 for one in others):
            return Severity.NOTE, "it is one ahead in other checkpoints too"
        if any(one.lead == 0 for one in others):
            return Severity.ERROR, "no other checkpoint has an optimizer that is ahead"
        stated = any(s.step == pair.latter - 1 for s in stamps if s.kind is Kind.PROGRESS)
        if stated and (schedule is Said.FORMER or _in_a_row(pair, checkpoint)):
            return Severity.ERROR, "the step was not over when it was saved"
        return Severity.WARNING, "a count from zero and a missed step look like this too"
    if progress is Said.LATTER and schedule is Said.FORMER:
        if any(one.schedule == 0 for one in others):
            return Severity.ERROR, "the schedule did not take that step either"
        if not any(one.schedule is not None for one in others) and _in_a_row(pair, checkpoint):
            return Severity.WARNING, "the schedule did not take that step either"
    if _in_a_row(pair, checkpoint):
        return Severity.NOTE, "parameters that missed a step look like this"
    return None, ""


def _said(pair: _Pair, steps: Iterable[int], *more: int | None) -> Said:
    every = {*steps, *more}
    if pair.latter in every:
        return Said.LATTER
    return Said.FORMER if pair.latter - 1 in every else Said.NEITHER


def _idle(stamp: Stamp) -> bool:
    return _IDLE.search(stamp.key) is not None


def _unlike(pair: _Pair, checkpoint: Checkpoint) -> bool:
    """Tell whether those ahead and those behind have other kinds of state: two rules in one optimizer.

    Some count the step before they take it, and some after.
    """
    parents = {stamp.key.rpartition(".")[0]: set[str]() for stamp in (*pair.ahead, *pair.behind)}
    for fqn in checkpoint.entries:
        parent, _, last = fqn.rpartition(".")
        if parent in parents:
            parents[parent].add(last)
    first, second = (
        {frozenset(parents[stamp.key.rpartition(".")[0]]) for stamp in side}
        for side in (pair.ahead, pair.behind)
    )
    return first.isdisjoint(second)


@dataclass(frozen=True, slots=True)
class _Pace:
    """How another checkpoint counts: its optimizer less its progress, its schedule less its progress.

    ``lagging`` if the parameters that are behind here are behind there too.
    """

    lead: int | None
    schedule: int | None
    lagging: bool

    @classmethod
    def of(cls, one: Neighbour, pair: _Pair) -> _Pace:
        """Read it off what a neighbour states."""
        ahead = {s.key for s in pair.ahead}
        behind = {s.key for s in pair.behind}
        fast = [s.step for s in one.stamps if s.key in ahead]
        slow = [s.step for s in one.stamps if s.key in behind]
        top = max([*fast, *slow], default=None)
        progress = {s.step for s in one.stamps if s.kind is Kind.PROGRESS}
        progress |= {one.step} if one.step is not None else set()
        schedules = {s.step for s in one.stamps if s.kind is Kind.SCHEDULER}
        lead = None if top is None else _nearest(progress, top, -1)
        schedule = next((d for d in (0, -1) for p in progress if p + d in schedules), None)
        lagging = bool(fast and slow) and max(slow) < max(fast)
        return cls(lead, schedule, lagging)


def _nearest(progress: Iterable[int], top: int, by: int) -> int | None:
    """Return 0 or 1, whichever the greatest step is ahead of one that progress has."""
    held = set(progress)
    return 0 if top in held else 1 if top + by in held else None


def _in_a_row(pair: _Pair, checkpoint: Checkpoint) -> bool:
    """Tell whether one cut through the parameters parts the two, in an order that an optimizer has.

    It goes through them as they are listed, group by group: the groups are often those with and
    without decay, and are made of one dtype each.
    """
    ahead = {stamp.key for stamp in pair.ahead}
    keys = {stamp.key for stamp in (*pair.ahead, *pair.behind)}
    listed = [key for key in checkpoint.entries if key in keys]
    listed += sorted(keys.difference(listed))
    orders: tuple[list[str], ...] = (listed, sorted(keys), sorted(keys, key=_natural))
    kinds = _kinds(checkpoint, keys)

    def split(order: Sequence[str]) -> int:
        return sum((a in ahead) != (b in ahead) for a, b in itertools.pairwise(order))

    for order in orders:
        if split(order) == 1:
            return True
        for first in (False, True):
            grouped = sorted(order, key=lambda key: (kinds.get(key, "") < "1") is first)
            if split(grouped) == 1:
                return True
    return _parted(keys, ahead, kinds.__getitem__)


def _parted(keys: Iterable[str], ahead: set[str], kind: Callable[[str], str]) -> bool:
    """Tell whether all of each kind are on one side."""
    sides: dict[str, set[bool]] = {}
    for key in keys:
        sides.setdefault(kind(key), set()).add(key in ahead)
    return all(len(side) == 1 for side in sides.values())


def _kinds(checkpoint: Checkpoint, keys: Iterable[str]) -> Mapping[str, str]:
    """Return dimensions and dtype of each parameter, by what its moments have."""
    found = dict.fromkeys(keys, "")
    parents = {key.rpartition(".")[0]: key for key in found}
    for fqn, entry in checkpoint.entries.items():
        key = parents.get(fqn.rpartition(".")[0])
        if key is not None and isinstance(entry, TensorEntry) and entry.shape != ():
            found[key] = f"{int(len(entry.shape) > 1)} {entry.dtype}"
    return found


def _natural(key: str) -> list[tuple[int, str]]:
    """Sort numbers by what they are worth."""
    return [(len(part) if part.isdigit() else 0, part) for part in _DIGITS.split(key)]
