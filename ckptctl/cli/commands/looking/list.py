"""``ckptctl list``."""

from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import Format, Framework, Json, Root, chosen
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.text import Screen, age, columns, safe, said, size
from ckptctl.cli.parameters import Option
from ckptctl.model.commit_state import State
from ckptctl.results import Listing

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
    root: Root = None,
    committed: Annotated[bool, Option("--committed", help="Only committed ones.")] = False,
    state: Annotated[
        list[State] | None,
        Option(metavar="STATE", help="Only those in this state; may be repeated."),
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Only the last so many.")] = None,
    check: Annotated[bool, Option("--check", help="Parse large metadata too.")] = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """List every checkpoint below a root, in numeric order of their steps.

    Looks at names, sizes and small metadata, never at payloads: "complete" means that every file
    the metadata needs is there and as long as it says. `ckptctl verify` proves more.
    """
    listing = api.list_checkpoints(
        root, committed=committed, states=state or (), limit=limit, check=check, framework=framework
    )
    return emit(listing, chosen(output_format, json=json), command="list")


@render.register
def render_listing(listing: Listing, screen: Screen) -> None:
    """Print a listing as aligned columns, one line for each checkpoint."""
    header = ("NAME", "STEP", "STATE", "FORMAT", "RANKS", "FILES", "SIZE", "AGE", "POINTERS")
    rows = [header]
    for row in listing.checkpoints:
        number = row.step if row.step is not None else row.epoch
        rows.append(
            (
                safe(row.name),
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
    for row, line in zip(listing.checkpoints, cells[1:], strict=True):
        line[2] = screen.paint(line[2], _COLOURS.get(row.state, ""))
        screen.line("".join(line).rstrip())
        if row.reason:
            screen.wrapped(screen.paint(said(row.reason), "dim"), 4)
        if row.accepted:
            text = f"accepted in spite of {safe(', '.join(row.accepted))}"
            screen.wrapped(screen.paint(text, "dim"), 4)
    if listing.undecided:
        screen.wrapped(screen.paint(said(listing.undecided), "yellow"), 0)
    for pointer in listing.dangling:
        name, text = safe(pointer.name), safe(pointer.text)
        screen.line(
            screen.paint(f"pointer {name} names {text or 'nothing'}, which is not here", "yellow")
        )
