"""``ckptctl prune``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckptctl import api
from ckptctl.cli.options import DryRun, Format, Framework, Json, Quiet, Root, Yes, chosen, confirm
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.text import Screen, columns, plural, safe, said, size
from ckptctl.results import Fate, Plan


def prune_command(
    root: Root = None,
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="Keep this many of the newest whole ones.")
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option(min=1, help="Keep those whose step is a multiple of this.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete only what is older, e.g. 12h or 7d.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Delete old checkpoints: by numeric step, records first and data after.

    Never what any pointer names, nor the newest committed one that verifies, nor the only whole
    copy, nor a save younger than a day. Off a terminal nothing is deleted without --yes.
    """
    output = chosen(output_format, json=json)

    def agreed(plan: Plan) -> bool:
        render_plan(plan, Screen(sys.stderr))
        confirm(f"delete {plural(len(plan.doomed), 'checkpoint')}?", yes=False)
        return True

    result = api.prune(
        root,
        keep_last=keep_last,
        keep_every=keep_every,
        older_than=older_than,
        dry_run=dry_run or (not yes and not sys.stdin.isatty()),
        framework=framework,
        confirm=None if yes else agreed,
    )
    return emit(result, output, command="prune", quiet=quiet)


@render.register
def render_plan(plan: Plan, screen: Screen) -> None:
    """Print the fate of every checkpoint and what it frees."""
    rows = [("NAME", "STEP", "STATE", "SIZE", "FATE", "WHY")]
    rows += [
        (
            safe(fate.name),
            "-" if fate.step is None else f"{fate.step}",
            fate.state.value,
            size(fate.size),
            _word(fate, plan),
            said(fate.reason),
        )
        for fate in plan.fates
    ]
    for number, cells in enumerate(columns(rows, right=(1, 3))):
        if number and plan.fates[number - 1].delete:
            cells[4] = screen.paint(cells[4], "red")
        line = "".join(cells).rstrip()
        screen.line(screen.paint(line, "bold") if number == 0 else line)
    freed = size(sum(fate.size for fate in plan.doomed))
    count = plural(len(plan.doomed), "checkpoint")
    if plan.done:
        screen.line(f"deleted {count}, {freed}")
    else:
        screen.line(f"would delete {count}, {freed}; nothing was deleted (--yes deletes)")


def _word(fate: Fate, plan: Plan) -> str:
    if not fate.delete:
        return "keep"
    return "deleted" if plan.done else "delete"
