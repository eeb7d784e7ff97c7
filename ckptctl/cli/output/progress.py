"""The progress bar: bytes, rate and time left, on standard error, on a terminal only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ckptctl.cli.output.text import safe

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_SMALL = 256 << 20
"""Bytes below which a bar would only flicker."""


class Bar:
    """A rich progress bar that shows itself for long work."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def start(self, label: str, total: int) -> None:
        """Show a bar for so many bytes."""
        if total < _SMALL:
            return
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        name = safe(label.rstrip("/").rpartition("/")[2] or label)
        self._task = self._bar.add_task(escape(name[-24:]), total=total)
        self._bar.start()

    def advance(self, count: int) -> None:
        """Move on."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, count)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def progress(*, quiet: bool) -> Bar | None:
    """Return a bar where somebody is there to see it, else nothing."""
    return Bar() if sys.stderr.isatty() and not quiet else None
