"""How much may be asked of a store at once: by the store, not by the machine's processors.

Where an answer comes over a network, what takes time is waiting for it, and memory is what bounds
the work; a local disk is as fast as the processors that look at its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import Protocol, TypeVar

TASKS = 64
"""Tasks at once on a store that is reached over a network."""

BUDGET = 128 << 20
"""Bytes that tasks at work may hold together."""

BLOCK = 4 << 20
"""Bytes of one read, and of the largest window: an object that is no larger is fetched at once."""

LONG = 1 << 20
"""Bytes of a read that is sent as it is: who reads so much at once knows what comes next."""

_MOST_LOCAL = 8

Asked = TypeVar("Asked")
Told = TypeVar("Told")
Other = TypeVar("Other")


class Addressed(Protocol):
    """A store, as far as it matters here."""

    @property
    def url(self) -> str:
        """The root as a user would type it."""


def is_remote(store: Addressed) -> bool:
    """Tell whether a store is reached by requests."""
    return "://" in store.url


def tasks(store: Addressed, asked: int | None) -> int:
    """Return how many tasks to run at once on a store; what the user asked for counts."""
    if asked is not None:
        return asked
    return TASKS if is_remote(store) else processors()


def processors() -> int:
    """Return how many tasks keep this machine's processors busy."""
    return min(_MOST_LOCAL, os.cpu_count() or 1)


def writers(asked: int | None) -> int:
    """Return how many files to write at once; each takes a part of an upload in memory."""
    return asked if asked is not None else max(4, processors())


def ahead(
    store: Addressed, function: Callable[[Asked], Told], asked: Sequence[Asked]
) -> Iterator[Callable[[], Told]]:
    """Yield for each of what is asked a call that returns the answer, or raises.

    On a remote store all are asked at once; elsewhere each one when its answer is taken.
    """
    if not is_remote(store) or len(asked) < 2:
        yield from (partial(function, one) for one in asked)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(TASKS, len(asked))) as pool:
        futures = [pool.submit(function, one) for one in asked]
        try:
            yield from (future.result for future in futures)
        finally:
            for future in futures:
                future.cancel()


def both(
    store: Addressed, first: Callable[[], Told], second: Callable[[], Other]
) -> tuple[Told, Other]:
    """Return two answers that do not depend on each other; a remote store is asked for both at once."""
    if not is_remote(store):
        return first(), second()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second)
        told = first()
        return told, other.result()


class Budget:
    """Bytes that tasks hold together; one that asks for more than there is runs alone."""

    def __init__(self, size: int = BUDGET) -> None:
        """Begin with nothing taken."""
        self._size, self._taken = size, 0
        self._changed = Condition()

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Wait until so many bytes fit, and hold them; no task may ask while it holds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._size)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()
