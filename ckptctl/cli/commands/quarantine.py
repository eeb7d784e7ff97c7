"""``ckptctl quarantine`` and ``ckptctl release``."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptctl.cli.options import DryRun, Json, Quiet, Yes, confirm, emit, open_one
from ckptctl.cli.output.text import Screen, safe
from ckptctl.operations.publish.quarantine import Marked, set_mark

Checkpoint = Annotated[str, typer.Argument(help="Directory or URL of one checkpoint.")]
Reason = Annotated[str, typer.Option(help="Why, for whoever is on call next.")]


def quarantine_command(
    checkpoint: Checkpoint,
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Mark a checkpoint as not to be used; resolve passes it over, promote refuses it.

    Nothing is moved or deleted. The mark is a record of its own, and `ckptctl release` takes it
    back with another.
    """
    _mark(checkpoint, reason, quarantined=True, dry_run=dry_run, yes=yes, quiet=quiet, json=json)


def release_command(
    checkpoint: Checkpoint,
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Take a quarantine back."""
    _mark(checkpoint, reason, quarantined=False, dry_run=dry_run, yes=yes, quiet=quiet, json=json)


def _mark(
    checkpoint: str,
    reason: str,
    *,
    quarantined: bool,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    json: bool,
) -> None:
    store, place = open_one(checkpoint)
    verb = "quarantine" if quarantined else "release"
    if not dry_run:
        confirm(f"{verb} {place.path}?", yes=yes)
    result = set_mark(store, place, quarantined=quarantined, reason=reason, dry_run=dry_run)
    emit(verb, {"mark": result}, lambda s: render_mark(result, s), json=json, quiet=quiet)


def render_mark(result: Marked, screen: Screen) -> None:
    """Print the mark that a checkpoint carries now."""
    name, reason = safe(result.checkpoint), safe(result.reason)
    if not result.changed:
        screen.line(f"{name} is quarantined already: {reason}")
        return
    word = "quarantined" if result.quarantined else "released"
    if result.dry_run:
        word = f"would be {word}"
    screen.line(f"{name} {screen.paint(word, 'yellow', 'bold')}: {reason}")
