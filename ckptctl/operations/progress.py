"""How long work tells whoever waits for it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told about bytes as they are read; calls come from one thread at a time."""

    def start(self, label: str, total: int) -> None:
        """Begin a piece of work of so many bytes."""

    def advance(self, count: int) -> None:
        """So many more bytes are done."""

    def finish(self) -> None:
        """The piece of work is over."""


class Silent:
    """Tells nobody."""

    def start(self, label: str, total: int) -> None:
        """Ignore."""

    def advance(self, count: int) -> None:
        """Ignore."""

    def finish(self) -> None:
        """Ignore."""
