"""What lies around the checkpoints of a root, listed once where many of them are looked at.

A command that verifies one after the other would list the directory above them, and read all names in
it, each time again: that grows with the square of their number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from threading import Lock
from typing import Any

from ckptctl.model.names import CheckpointName, parse_name, steps_of
from ckptctl.storage import Entry, Store

Beside = tuple[CheckpointName, str]
"""What a name says, and the path of that name."""

_MOST_KEPT = 160
_MOST_FILES = 512


class Order:
    """The checkpoints of one directory in the order of steps, and those without one by name.

    The nearest of one are found without looking at all of them.
    """

    def __init__(self, entries: Sequence[Entry], *, series: bool = False) -> None:
        """Take what a directory holds; with ``series`` only all names together tell the steps."""
        names = [entry.name for entry in entries]
        known = steps_of(names) if series else [parse_name(name) for name in names]
        folders = [
            name for entry, name in zip(entries, known, strict=True) if entry.kind == "directory"
        ]
        self.tells_steps = any(name.step is not None for name in folders)
        """Whether any directory here is named for a step, whatever else it is."""
        groups: dict[int, list[Beside]] = {}
        stepless: list[Beside] = []
        for entry, name in zip(entries, known, strict=True):
            # a link is another name of a checkpoint and no other checkpoint
            there = entry.kind == "directory" and entry.target is None and not name.staging
            if not there or entry.name.startswith(("ckptctl.", ".")):
                continue
            group = stepless if name.step is None else groups.setdefault(name.step, [])
            group.append((name, entry.path))
        self._steps = sorted(groups)
        self._groups = groups
        self._stepless = sorted(stepless, key=_text)
        self._texts = [_text(one) for one in self._stepless]
        self._named = {_text(one) for group in groups.values() for one in group}
        self._stepped = sum(map(len, groups.values()))

    def stepped_beside(self, text: str) -> int:
        """Count those that have a step, without the one of this name."""
        return self._stepped - (text in self._named)

    def nearest(self, text: str, step: int | None, most: int) -> list[Beside]:
        """Return the nearest of a name by step, then those without one, the most alike first.

        Where the name has no step itself, the largest come first. It is left out itself.
        """
        found: list[Beside] = []
        for group in self._outwards(step):
            rest = [one for one in group if _text(one) != text]
            found += sorted(rest, key=lambda one: (-_alike(_text(one), text), one[1]))
            if len(found) >= most:
                return found[:most]
        for one in self._like(text):
            if len(found) >= most:
                break
            found.append(one)
        return found

    def _outwards(self, step: int | None) -> Iterator[list[Beside]]:
        """Yield those at each distance, the least first."""
        steps, groups = self._steps, self._groups
        if step is None:
            yield from (groups[one] for one in reversed(steps))
            return
        above = bisect_left(steps, step)
        below = above - 1
        while below >= 0 or above < len(steps):
            down = step - steps[below] if below >= 0 else None
            up = steps[above] - step if above < len(steps) else None
            group: list[Beside] = []
            if down is not None and (up is None or down <= up):
                group += groups[steps[below]]
                below -= 1
            if up is not None and (down is None or up <= down):
                group += groups[steps[above]]
                above += 1
            yield group

    def _like(self, text: str) -> Iterator[Beside]:
        """Yield those without a step: the more of its beginning a name shares, the earlier."""
        low = high = bisect_left(self._texts, text)
        for length in range(len(text), -1, -1):

            def begin(other: str, length: int = length) -> str:
                return other[:length]

            start = bisect_left(self._texts, text[:length], key=begin)
            stop = bisect_right(self._texts, text[:length], key=begin)
            for index in chain(range(start, low), range(high, stop)):
                if self._texts[index] != text:
                    yield self._stepless[index]
            low, high = start, stop


def _text(one: Beside) -> str:
    return one[0].text


def _alike(one: str, other: str) -> int:
    """Count the characters with which both begin."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


class Surroundings:
    """Lists each directory of a root once, and keeps what was opened there lately."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._entries: dict[tuple[str, str], tuple[Entry, ...]] = {}
        self._orders: dict[tuple[str, str, bool], Order] = {}
        self._kept: dict[Hashable, Any] = {}
        self._lock = Lock()

    def entries(self, store: Store, path: str) -> tuple[Entry, ...]:
        """Return what a directory held when it was looked at first."""
        key = store.url, path
        if key not in self._entries:
            self._entries[key] = tuple(store.entries(path))
        return self._entries[key]

    def order(self, store: Store, path: str, *, series: bool) -> Order:
        """Return the checkpoints of a directory in order."""
        key = store.url, path, series
        if key not in self._orders:
            self._orders[key] = Order(self.entries(store, path), series=series)
        return self._orders[key]

    def once(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """Return what was made for a key lately, else make it; what is large is not kept."""
        with self._lock:
            if key in self._kept:
                return self._kept[key]
        made = make()
        if size(made) <= _MOST_FILES:
            with self._lock:
                self._kept[key] = made
                if len(self._kept) > _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
        return made

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Know nothing in another process."""
        return Surroundings, ()
