"""``ckptctl history``."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptctl.cli.options import Json, emit
from ckptctl.cli.output.text import Screen, columns, safe
from ckptctl.operations.catalog.history import Event, history
from ckptctl.storage import open_store


def history_command(
    root: Annotated[str, typer.Argument(help="Directory or URL that holds checkpoints.")],
    json: Json = False,
) -> None:
    """Show who committed, promoted, rolled back and quarantined what, when and why."""
    events = history(open_store(root))
    emit("history", {"root": root, "events": events}, lambda s: render(events, s), json=json)


def render(events: list[Event], screen: Screen) -> None:
    """Print one line for each record, oldest first."""
    rows = [("TIME", "WHAT", "CHECKPOINT", "STEP", "BY", "REASON")]
    rows += [
        (
            safe(event.time or "?"),
            f"{event.what} (revision {event.revision})" if event.revision else event.what,
            safe(event.checkpoint),
            "-" if event.step is None else f"{event.step}",
            safe(event.actor),
            safe(event.reason),
        )
        for event in events
    ]
    for number, cells in enumerate(columns(rows, right=(3,))):
        line = "".join(cells).rstrip()
        screen.line(screen.paint(line, "bold") if number == 0 else line)
