"""Windows of objects that are read in small pieces: what one request brought, kept for the next reads.

Each open reader has windows of its own, so that whoever looks twice opens twice and reads afresh.
All windows of a store together keep to a budget, those on their way included; what does not fit
is read exactly and not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

from ckptctl.storage.traffic import BLOCK

FIRST = 256 << 10
"""Bytes of an object that is fetched whole, and of the first window that is read ahead of a larger one."""

_NEAR = 64 << 10
_MOST_IN_VAIN = 4

BUDGET = 96 << 20
"""Bytes of all windows of one store."""


class Window:
    """Bytes ``[start, stop)`` of an object, there or on their way."""

    __slots__ = ("data", "start", "stop")

    def __init__(self, start: int, stop: int) -> None:
        """Begin with nothing but the promise."""
        self.start, self.stop = start, stop
        self.data: Future[bytes] = Future()

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.stop - self.start


class Shelf:
    """The windows of one open reader, in the order of their last use.

    ``asked`` and ``fetched`` are bytes: what is read ahead in vain is bounded by what was asked for.
    """

    __slots__ = ("ahead", "asked", "fetched", "size", "windows")

    def __init__(self, size: int, *, ahead: bool = True) -> None:
        """Begin without any; ``size`` is that of the object. Without ``ahead`` reads stay apart."""
        self.size, self.ahead = size, FIRST // 2 if ahead else 0
        self.asked = self.fetched = 0
        self.windows: list[Window] = []

    def holding(self, start: int, stop: int) -> Window | None:
        """Return the window that holds these bytes, or will."""
        self.asked += stop - start
        for window in reversed(self.windows):
            if window.start <= start and stop <= window.stop:
                return window
        return None

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """Choose what to fetch: a small object whole; more of a larger one only where reads go on."""
        if self.size <= FIRST:
            return 0, self.size
        if self._goes_on(start):
            if self.size <= BLOCK:
                return 0, self.size
            self.ahead = min(BLOCK, 2 * self.ahead)
            stop = max(stop, min(start + self.ahead, self._next(stop)))
        return start, min(self.size, max(stop, start + _NEAR))

    def _goes_on(self, start: int) -> bool:
        """Tell whether a read follows others closely, and what was read ahead so far was of use."""
        if not self.ahead or self.fetched > _MOST_IN_VAIN * self.asked + BLOCK:
            return False
        return any(one.start <= start <= one.stop + self.ahead for one in self.windows)

    def _next(self, stop: int) -> int:
        """Return where the next window begins."""
        return min((one.start for one in self.windows if one.start >= stop), default=self.size)


class Windows:
    """All windows of one store; safe to use from several threads."""

    def __init__(self, budget: int = BUDGET) -> None:
        """Begin with none."""
        self._budget, self._held = budget, 0
        self._lock = Lock()
        self._order: OrderedDict[Window, Shelf] = OrderedDict()

    def read(
        self, shelf: Shelf, start: int, stop: int, fetch: Callable[[int, int], bytes]
    ) -> bytes:
        """Return bytes of an object from its windows; ``fetch`` brings what is not there.

        Several threads that need one window wait for one request.
        """
        mine = False
        with self._lock:
            window = shelf.holding(start, stop)
            if window is not None:
                self._order.move_to_end(window)
            else:
                window = self._opened(shelf, start, stop)
                mine = window is not None
        if window is None:
            return fetch(start, stop)
        if mine:
            try:
                window.data.set_result(fetch(window.start, window.stop))
            except BaseException as error:
                with self._lock:
                    self._drop(window)
                window.data.set_exception(error)
                raise
        elif window.data.exception() is not None:  # of another thread's request: ask once more
            return fetch(start, stop)
        return window.data.result()[start - window.start : stop - window.start]

    def keep(self, shelf: Shelf, data: bytes) -> None:
        """Keep the first bytes of an object that are there already, where they fit."""
        window = Window(0, len(data))
        window.data.set_result(data)
        with self._lock:
            if self._room(window.size):
                self._add(window, shelf)

    def close(self, shelf: Shelf) -> None:
        """Let go of all windows of a reader."""
        with self._lock:
            for window in list(shelf.windows):
                self._drop(window)

    def _opened(self, shelf: Shelf, start: int, stop: int) -> Window | None:
        """Make a window for bytes that none holds; None where only an exact read fits."""
        low, high = shelf.reach(start, stop)
        if not self._room(high - low):
            return None
        window = Window(low, high)
        self._add(window, shelf)
        return window

    def _room(self, size: int) -> bool:
        """Make room by dropping windows that were not used for long and are not on their way."""
        for window in list(self._order):
            if self._held + size <= self._budget:
                break
            if window.data.done():
                self._drop(window)
        return self._held + size <= self._budget

    def _add(self, window: Window, shelf: Shelf) -> None:
        self._order[window] = shelf
        shelf.windows.append(window)
        shelf.fetched += window.size
        self._held += window.size

    def _drop(self, window: Window) -> None:
        shelf = self._order.pop(window, None)
        if shelf is not None:
            shelf.windows.remove(window)
            self._held -= window.size
