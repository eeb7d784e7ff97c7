"""How long work tells whoever waits for it."""

from __future__ import annotations

from threading import Lock
from typing import Protocol


class Progress(Protocol):
    """Told about bytes as they are read; calls come from one thread at a time."""

    def start(self, label: str, total: int) -> None:
        """Begin a piece of work of so many bytes."""

    def advance(self, count: int) -> None:
        """So many more bytes are done."""

    def finish(self) -> None:
        """The piece of work is over."""


class Shared:
    """Progress that several threads report to."""

    def __init__(self, progress: Progress | None = None) -> None:
        """Pass everything on to ``progress``, one call at a time; ``done`` counts the bytes."""
        self._progress, self._lock = progress or Silent(), Lock()
        self.done = 0

    def start(self, label: str, total: int) -> None:
        """Begin a piece of work of so many bytes."""
        self._progress.start(label, total)

    def advance(self, count: int) -> None:
        """So many more bytes are done."""
        with self._lock:
            self.done += count
            self._progress.advance(count)

    def finish(self) -> None:
        """The piece of work is over."""
        self._progress.finish()


class Silent:
    """Tells nobody."""

    def start(self, label: str, total: int) -> None:
        """Ignore."""

    def advance(self, count: int) -> None:
        """Ignore."""

    def finish(self) -> None:
        """Ignore."""
