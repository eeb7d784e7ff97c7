"""``ckptctl prune``."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from ckptctl.cli.options import DryRun, Json, Quiet, Yes, confirm, emit
from ckptctl.cli.output.text import Screen, columns, plural, safe, size
from ckptctl.errors import UsageError
from ckptctl.operations.publish.prune import Fate, Plan, Policy, carry_out, plan
from ckptctl.storage import open_writable

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def prune_command(
    root: Annotated[str, typer.Argument(help="Directory or URL that holds checkpoints.")],
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
    json: Json = False,
) -> None:
    """Delete old checkpoints: by numeric step, records first and data after.

    Never what any pointer names, nor the newest committed one that verifies, nor the only whole
    copy, nor a save younger than a day. Off a terminal nothing is deleted without --yes.
    """
    if keep_last is None and keep_every is None and older_than is None:
        raise UsageError("say what to keep: --keep-last, --keep-every or --older-than")
    policy = Policy(keep_last, keep_every, None if older_than is None else _seconds(older_than))
    store = open_writable(root)
    chosen = plan(store, policy)
    rehearsal = dry_run or (not yes and not sys.stdin.isatty())
    if rehearsal or not chosen.doomed:
        emit("prune", {"plan": chosen}, lambda s: render(chosen, s), json=json, quiet=quiet)
        return
    if not yes:
        render(chosen, Screen(sys.stderr))
        confirm(f"delete {plural(len(chosen.doomed), 'checkpoint')}?", yes=yes)
    gone = {fate.path: fate for fate in carry_out(store, chosen)}
    done = Plan(chosen.root, tuple(gone.get(fate.path, fate) for fate in chosen.fates), done=True)
    emit("prune", {"plan": done}, lambda s: render(done, s), json=json, quiet=quiet)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if match is None:
        raise UsageError(f"--older-than takes an age such as 90m, 12h, 7d or 2w, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def render(chosen: Plan, screen: Screen) -> None:
    """Print the fate of every checkpoint and what it frees."""
    rows = [("NAME", "STEP", "STATE", "SIZE", "FATE", "WHY")]
    rows += [
        (
            safe(fate.path),
            "-" if fate.step is None else f"{fate.step}",
            fate.state.value,
            size(fate.size),
            _word(fate, chosen),
            safe(fate.reason),
        )
        for fate in chosen.fates
    ]
    for number, cells in enumerate(columns(rows, right=(1, 3))):
        if number and chosen.fates[number - 1].delete:
            cells[4] = screen.paint(cells[4], "red")
        line = "".join(cells).rstrip()
        screen.line(screen.paint(line, "bold") if number == 0 else line)
    freed = size(sum(fate.size for fate in chosen.doomed))
    count = plural(len(chosen.doomed), "checkpoint")
    if chosen.done:
        screen.line(f"deleted {count}, {freed}")
    else:
        screen.line(f"would delete {count}, {freed}; nothing was deleted (--yes deletes)")


def _word(fate: Fate, chosen: Plan) -> str:
    if not fate.delete:
        return "keep"
    return "deleted" if chosen.done else "delete"
