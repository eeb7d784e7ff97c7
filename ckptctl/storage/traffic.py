"""How much may be asked of a store at once: by the store, not by the machine's processors.

Where an answer comes over a network, what takes time is waiting for it, and memory is what bounds
the work; a local disk is as fast as the processors that look at its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Protocol

TASKS = 64
"""Tasks at once on a store that is reached over a network."""

BUDGET = 128 << 20
"""Bytes that tasks at work may hold together."""

BLOCK = 4 << 20
"""Bytes of one read, and of the largest window: an object that is no larger is fetched at once."""

_MOST_LOCAL = 8


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
