"""Options that several commands have, opening what a user named, and printing a result once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ckptctl.cli.output.json import to_json
from ckptctl.cli.output.text import Screen, safe
from ckptctl.errors import Refused, UsageError
from ckptctl.operations.find import Place, locate, not_read
from ckptctl.storage import WritableStore, open_writable

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def open_one(url: str) -> tuple[WritableStore, Place]:
    """Open the one checkpoint that a user named, for writing its records."""
    store, places = locate(url, open_writable)
    if len(places) != 1 or not places[0].path:
        raise UsageError(
            f"{url} holds {len(places)} checkpoints; name one of them: `ckptctl list {url}`"
        )
    place = places[0]
    if not place.readable:
        raise Refused(f"{url}: {not_read(place)}")
    return store, place


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; raise ``Refused`` for any answer but yes."""
    if yes or not sys.stdin.isatty():
        return
    if not typer.confirm(safe(question), err=True):
        raise Refused("not confirmed; nothing was changed")


def emit(
    name: str,
    fields: dict[str, object],
    render: Callable[[Screen], None],
    *,
    json: bool,
    quiet: bool = False,
) -> None:
    """Print a result: as JSON, as text, or not at all."""
    if json:
        sys.stdout.write(to_json(f"ckptctl/{name}/1", fields) + "\n")
    elif not quiet:
        render(Screen(sys.stdout))
