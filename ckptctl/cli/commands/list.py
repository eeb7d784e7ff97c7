"""``ckptctl list``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckptctl.cli.output.json import to_json
from ckptctl.cli.output.text import Screen, age, columns, safe, size
from ckptctl.model.commit_state import State
from ckptctl.operations.catalog.list import Listing, list_checkpoints
from ckptctl.storage import open_store

_COLOURS = {
    State.COMPLETE: "green",
    State.COMMITTED: "green",
    State.PROMOTED: "green",
    State.STAGING: "cyan",
    State.INCOMPLETE: "yellow",
    State.QUARANTINED: "red",
    State.UNREADABLE: "red",
}


def list_command(
    root: Annotated[str, typer.Argument(help="Directory or URL that holds checkpoints, or one.")],
    committed: Annotated[bool, typer.Option("--committed", help="Only committed ones.")] = False,
    state: Annotated[
        list[State] | None,
        typer.Option(metavar="STATE", help="Only those in this state; may be repeated."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the last so many.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Parse large metadata too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every checkpoint below a root, in numeric order of their steps.

    Looks at names, sizes and small metadata, never at payloads: "complete" means that every file
    the metadata needs is there and as long as it says. `ckptctl verify` proves more.
    """
    states = list(state or [])
    if committed:
        states += [State.COMMITTED, State.PROMOTED]
    listing = list_checkpoints(open_store(root), check=check, states=states, limit=limit)
    if json:
        fields: dict[str, object] = {
            "root": listing.root,
            "checkpoints": listing.rows,
            "dangling": listing.dangling,
        }
        sys.stdout.write(to_json("ckptctl/list/1", fields) + "\n")
    else:
        render(listing, Screen(sys.stdout))


def render(listing: Listing, screen: Screen) -> None:
    """Print a listing as aligned columns, one line for each checkpoint."""
    header = ("NAME", "STEP", "STATE", "FORMAT", "RANKS", "FILES", "SIZE", "AGE", "POINTERS")
    rows = [header]
    for row in listing.rows:
        number = row.step if row.step is not None else row.epoch
        rows.append(
            (
                safe(row.path),
                "-" if number is None else f"{number}",
                row.state.value,
                row.format,
                "-" if not row.ranks else f"{row.ranks}",
                f"{row.files}",
                size(row.size),
                age(row.modified),
                safe(", ".join(row.pointers)),
            )
        )
    cells = columns(rows, right=(1, 4, 5, 6, 7))
    screen.line(screen.paint("".join(cells[0]).rstrip(), "bold"))
    for row, line in zip(listing.rows, cells[1:], strict=True):
        line[2] = screen.paint(line[2], _COLOURS.get(row.state, ""))
        screen.line("".join(line).rstrip())
        if row.reason:
            screen.wrapped(screen.paint(safe(row.reason), "dim"), 4)
    for pointer in listing.dangling:
        name, text = safe(pointer.name), safe(pointer.text)
        screen.line(
            screen.paint(f"pointer {name} names {text or 'nothing'}, which is not here", "yellow")
        )
