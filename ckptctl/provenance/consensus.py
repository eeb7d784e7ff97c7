"""Do the steps that files hold contradict each other, and could something harmless explain it?

Harmless are: a parameter that was frozen or added later (its optimizer step lags), a scheduler that
counts epochs, a counter that starts anew, a step counted before or after it is taken.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ckptctl.dataclass import dataclass, replace
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.companion import Kind
from ckptctl.provenance.counters import Stamp, optimizer_of

_BY_CHANCE = 20
"""Ways of choosing so many lagging parameters of all: with fewer, all may lie in one file by chance."""


class Level(enum.IntEnum):
    """How surely a file is of another step than the rest."""

    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


@dataclass(frozen=True, slots=True)
class Consensus:
    """The step that the files agree on, and what each way of counting has for it.

    Ways of counting may differ for good reason: micro-batches, epochs, a parameter group's own.
    ``files`` are those that count in a way, ``replicated`` the keys that several files hold.
    """

    step: int | None
    schemes: Mapping[str, int]
    files: Mapping[str, frozenset[str]]
    replicated: frozenset[str] = frozenset()

    def elsewhere(self, stamp: Stamp, files: frozenset[str]) -> bool:
        """True if others than these files count in this way too."""
        return not self.files[_scheme(stamp)] <= files

    def agrees(self, stamp: Stamp) -> bool:
        """True if a stamp says the common step, in its own way of counting if others share it."""
        if stamp.step == self.step or stamp.exact:
            return stamp.step == self.step
        scheme = _scheme(stamp)
        return len(self.files[scheme]) > 1 and self.schemes[scheme] == stamp.step


@dataclass(frozen=True, slots=True)
class Support:
    """What speaks for a dissent besides votes; ``firm`` if it names the same step itself."""

    text: str = ""
    firm: bool = False


@dataclass(frozen=True, slots=True)
class Dissent:
    """A file that says ``step`` where the others say ``common``; ``stamps`` are what says so."""

    file: str
    step: int
    common: int
    level: Level
    stamps: tuple[Stamp, ...]
    support: str = ""


def _scheme(stamp: Stamp) -> str:
    if stamp.scheme:
        return stamp.scheme
    if stamp.kind in (Kind.OPTIMIZER, Kind.GROUP):  # two models may take steps of their own
        return f"{stamp.kind.value} {optimizer_of(stamp)}"
    return stamp.key


def consensus(stamps: Iterable[Stamp], declared: int | None) -> Consensus:
    """Find what the files agree on; the declared step wins where any of them says it."""
    by_scheme: dict[str, list[Stamp]] = {}
    every = list(stamps)
    for stamp in every:
        by_scheme.setdefault(_scheme(stamp), []).append(stamp)
    kinds = {name: found[0].kind for name, found in by_scheme.items()}
    step: int | None = None
    if any(stamp.step == declared for stamp in every):
        step = declared
    elif any(stamp.exact for stamp in every):
        step = _most_common([stamp for stamp in every if stamp.exact])
    else:
        for kind in Kind:  # from the most telling to the least
            values = [s for name, found in by_scheme.items() if kinds[name] is kind for s in found]
            if values:
                step = _most_common(values)
                break
    schemes = {
        name: step
        if any(s.step == step for s in found) and step is not None
        else _most_common(found)
        for name, found in by_scheme.items()
    }
    files = {name: frozenset(stamp.file for stamp in all_) for name, all_ in by_scheme.items()}
    holders: dict[str, set[str]] = {}
    for stamp in every:
        holders.setdefault(stamp.key, set()).add(stamp.file)
    replicated = frozenset(key for key, held in holders.items() if len(held) > 1)
    return Consensus(step, schemes, files, replicated)


def _most_common(stamps: list[Stamp]) -> int:
    """Return the step that most files have, then most stamps, then the later one."""
    files = Counter(step for _, step in {(stamp.file, stamp.step) for stamp in stamps})
    counts = Counter(stamp.step for stamp in stamps)
    return max(counts, key=lambda step: (files[step], counts[step], step))


def dissents(
    stamps: Iterable[Stamp],
    common: Consensus,
    *,
    confined: Callable[[Stamp], bool],
    support: Callable[[frozenset[str], int, int], Support],
) -> list[Dissent]:
    """Find the files that contradict the rest.

    The files of one rank are weighed together where none of them agrees with the rest, otherwise
    each for itself. ``confined`` tells whether all of a stamp's parameter lies in the stamp's file,
    so that freezing it would change that file alone. ``support`` says what else speaks for files
    being of a step and not of the common one.
    """
    if common.step is None:
        return []
    every = list(stamps)
    optimizer = sum(stamp.kind is Kind.OPTIMIZER for stamp in every)
    frozen = _frozen(every, common)
    parted = apart(every)
    found: list[Dissent] = []
    for own in _units(every, common):
        files = frozenset(stamp.file for stamp in own)
        one = _weigh(own, files, common, common.step, optimizer, confined, frozen, parted)
        if one is None:
            continue
        other = support(files, one.step, one.common)
        level = _supported(one, other)
        if level is not None:
            found.extend(
                Dissent(file, one.step, one.common, level, _of(one.stamps, file), other.text)
                for file in sorted(files)
            )
    sure = {one.step for one in found if one.level is Level.CERTAIN}
    return [replace(d, level=Level.CERTAIN) if d.step in sure else d for d in found]


def _of(stamps: Iterable[Stamp], file: str) -> tuple[Stamp, ...]:
    return tuple(stamp for stamp in stamps if stamp.file == file)


def _units(stamps: list[Stamp], common: Consensus) -> list[list[Stamp]]:
    """Group the stamps of files, or of ranks with several files, that agree with the rest in nothing."""
    by_file: dict[str, list[Stamp]] = {}
    by_rank: dict[int | str, list[Stamp]] = {}
    for stamp in stamps:
        rank = rank_of(stamp.file)
        by_file.setdefault(stamp.file, []).append(stamp)
        by_rank.setdefault(stamp.file if rank is None else rank, []).append(stamp)
    units: list[list[Stamp]] = []
    for own in by_rank.values():
        if not any(map(common.agrees, own)):
            units.append(own)
            continue
        files = {stamp.file for stamp in own}
        units.extend(
            by_file[file] for file in sorted(files) if not any(map(common.agrees, by_file[file]))
        )
    return units


def _frozen(stamps: list[Stamp], common: Consensus) -> set[int]:
    """Return the steps at which parameters lag in files that otherwise agree with the rest."""
    good = {stamp.file for stamp in stamps if common.agrees(stamp)}
    return {
        stamp.step
        for stamp in stamps
        if stamp.kind is Kind.OPTIMIZER and stamp.file in good and not common.agrees(stamp)
    }


def apart(stamps: list[Stamp]) -> frozenset[str]:
    """Return the shared ways of counting in which all of the optimizer says one and companions another.

    A frozen parameter explains only that some of the optimizer's steps are others.
    """
    optimizer: dict[str, set[int]] = {}
    others: dict[str, set[int]] = {}
    for stamp in stamps:
        if stamp.scheme:
            held = optimizer if stamp.kind is Kind.OPTIMIZER else others
            held.setdefault(stamp.scheme, set()).add(stamp.step)
    return frozenset(
        scheme
        for scheme, steps in optimizer.items()
        if len(steps) == 1 and others.get(scheme, steps) != steps
    )


@dataclass(frozen=True, slots=True)
class _Weighed:
    """What files say together; ``harmless`` if one thing alone says it that may count anything."""

    step: int
    common: int
    level: Level
    stamps: tuple[Stamp, ...]
    direct: bool
    harmless: bool


def _weigh(
    own: list[Stamp],
    files: frozenset[str],
    common: Consensus,
    step: int,
    optimizer: int,
    confined: Callable[[Stamp], bool],
    frozen: set[int],
    apart: frozenset[str],
) -> _Weighed | None:
    """Weigh what files say that agree with the rest in nothing."""
    exact = tuple(stamp for stamp in own if stamp.exact)
    if exact:  # there is no other way to read it
        said = exact[0].step
        same = tuple(stamp for stamp in own if stamp.step == said)
        return _Weighed(said, step, Level.CERTAIN, same, direct=True, harmless=False)
    direct = [stamp for stamp in own if common.elsewhere(stamp, files)]
    alone = [stamp for stamp in own if not common.elsewhere(stamp, files)]
    values = {stamp.step for stamp in direct}
    if len(values) > 1:
        return None  # several that lag, each by its own: added or frozen one by one
    if direct:
        said, against = direct[0].step, common.schemes[_scheme(direct[0])]
    else:
        said, against = _most_common(alone), step
    alone = [stamp for stamp in alone if stamp.step == said]
    says = (*direct, *alone)
    kinds = {stamp.kind for stamp in says}
    lagging = [s for s in direct if s.kind is Kind.OPTIMIZER and s.key not in common.replicated]
    spread = [stamp for stamp in lagging if not confined(stamp)]
    twice = any(stamp.key in common.replicated for stamp in direct)
    level = Level.POSSIBLE
    lags = not twice and kinds == {Kind.OPTIMIZER} and said in frozen
    if lags:
        pass  # parameters in good files lag just as much: all were frozen at that step
    elif direct and (
        twice
        or any(stamp.scheme in apart for stamp in direct)
        or len(kinds) > 1
        or (len(spread) > 1 and math.comb(optimizer, len(lagging)) >= _BY_CHANCE)
    ):
        level = Level.CERTAIN
    elif len(spread) > 1:
        level = Level.LIKELY
    # what no other file counts may count anything: epochs, micro-batches, steps not yet taken
    harmless = lags or (
        not direct
        and (abs(said - against) <= 1 or _multiples(said, against) or kinds == {Kind.SCHEDULER})
    )
    return _Weighed(said, against, level, says, bool(direct), harmless)


def _supported(one: _Weighed, other: Support) -> Level | None:
    """Return the level with what else speaks for it, or None where nothing need be said."""
    if other.firm or (other.text and one.direct):
        return Level.CERTAIN
    if one.harmless:
        return None
    return max(one.level, Level.LIKELY) if other.text else one.level


def _multiples(one: int, other: int) -> bool:
    low, high = sorted((one, other))
    return low == 0 or high % low == 0
