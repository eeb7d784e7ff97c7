"""What each rank counts for itself, compared with what its peers count, and the times of files.

Both are weak by themselves: a rank's position may have wrapped round at the end of its data, and
times are lost in most copies. They support what something else says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ckptctl.dataclass import dataclass
from ckptctl.provenance.counters import Counter

_FEWEST = 3
_FAR = 4
_QUIET = 5
_LONG = 10.0
"""Seconds: what was written further apart than this, and than the save took, is out of line."""


@dataclass(frozen=True, slots=True)
class PeerView:
    """One rank's counter beside those of its peers.

    ``low`` and ``high`` bound the others. ``estimate`` is the step it is worth, given that the
    others are of the common step and lie within half a step of each other.
    """

    file: str
    key: str
    value: float
    low: float
    high: float
    outlier: bool
    exact: bool
    moves: bool
    estimate: float | None = None

    @property
    def text(self) -> str:
        """Say it in words."""
        peers = f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        return f"{self.key} is {self.value:.15g} where its peers have {peers}"


def peer_views(counters: Iterable[Counter], step: int | None) -> list[PeerView]:
    """Compare counters of one name over at least three files."""
    groups: dict[str, dict[str, list[Counter]]] = {}
    for counter in counters:
        groups.setdefault(counter.key, {}).setdefault(counter.file, []).append(counter)
    views: list[PeerView] = []
    for by_file in groups.values():
        single = [found[0] for found in by_file.values() if len(found) == 1]
        if len(single) >= _FEWEST:
            views.extend(_compare(single, step))
    return views


def _compare(members: list[Counter], step: int | None) -> Iterable[PeerView]:
    every = sorted(member.value for member in members)
    far = {m.file for m in members if _distance(m.value, every) > _FAR * _spread(m.value, every)}
    core = sorted(member.value for member in members if member.file not in far)
    for member in members:
        outlier = member.file in far
        values = core if len(core) > 1 else every
        low, high = (values[0], values[-1]) if outlier else _others(member.value, values)
        unit = (low + high) / 2 / step if step else 0.0
        tight = member.moves and unit >= 1 and high - low < unit / 2
        yield PeerView(
            member.file,
            member.key,
            member.value,
            low,
            high,
            outlier=outlier,
            exact=high == low,
            moves=member.moves,
            estimate=member.value / unit if tight else None,
        )


def _others(value: float, values: list[float]) -> tuple[float, float]:
    """Return the bounds of sorted values without one that is equal to ``value``."""
    low = values[1] if value == values[0] else values[0]
    high = values[-2] if value == values[-1] else values[-1]
    return low, high


def _spread(value: float, values: list[float]) -> float:
    low, high = _others(value, values)
    return high - low


def _distance(value: float, values: list[float]) -> float:
    low, high = _others(value, values)
    return max(low - value, value - high)


def supports(view: PeerView, step: int, common: int) -> bool:
    """Tell whether a counter that is out of line says the same step as something else does."""
    if not view.outlier or view.estimate is None:
        return False
    return abs(view.estimate - step) <= max(0.6, abs(common - step) / 4)


def keeps_pace(view: PeerView, step: int) -> bool:
    """Tell whether a counter says the common step, and would say another if it were of another."""
    return view.estimate is not None and abs(view.estimate - step) < 0.6


def odd_times(shards: Mapping[str, float], metadata: float | None) -> dict[str, float]:
    """Find shards written long before or after the others, by far more than the save took.

    The metadata is of the save by definition, and so is the greater number. Returns how many
    seconds lie between each and the nearest of the others, negative for those written before.
    """
    odd: dict[str, float] = {}
    rest = dict(shards)
    while len(rest) + (metadata is not None) > 2:
        anchors = [*rest.values(), *([] if metadata is None else [metadata])]
        times = sorted(anchors)
        gaps = [(b - a, a, b) for a, b in itertools.pairwise(times)]
        width, before, after = max(gaps)
        older = {path for path, time in rest.items() if time <= before}
        newer = set(rest) - older
        home_is_old = metadata <= before if metadata is not None else len(older) > len(newer)
        away, home = (newer, older) if home_is_old else (older, newer)
        span = before - times[0] if home_is_old else times[-1] - after
        if not away or len(away) >= len(home) or width <= max(_LONG, _QUIET * span):
            break
        odd.update({path: rest[path] - (before if home_is_old else after) for path in away})
        rest = {path: rest[path] for path in home}
    return odd
