"""What ``ckptctl quarantine`` and ``ckptctl release`` print."""

from __future__ import annotations

from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.text import Screen, safe
from ckptctl.results import Marked


@render.register
def render_mark(result: Marked, screen: Screen) -> None:
    """Print the mark that a checkpoint carries now."""
    name, reason = safe(result.name), safe(result.reason)
    if not result.changed:
        screen.line(f"{name} is quarantined already: {reason}")
        return
    word = "quarantined" if result.quarantined else "released"
    if result.dry_run:
        word = f"would be {word}"
    screen.line(f"{name} {screen.paint(word, 'yellow', 'bold')}: {reason}")
