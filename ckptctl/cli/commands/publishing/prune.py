"""``ckptctl prune``."""

import sys
from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import DryRun, Format, Framework, Json, Quiet, Root, Yes, chosen, confirm
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.text import Screen, columns, plural, safe, said, size
from ckptctl.cli.parameters import Option
from ckptctl.results import Fate, Plan


def prune_command(
    root: Root = None,
    keep_last: Annotated[
        int | None, Option(min=1, help="Keep this many of the newest whole ones.")
    ] = None,
    keep_every: Annotated[
        int | None, Option(min=1, help="Keep those whose step is a multiple of this.")
    ] = None,
    older_than: Annotated[
        str | None, Option(metavar="AGE", help="Delete only what is older, e.g. 12h or 7d.")
    ] = None,
    min_age: Annotated[
        str, Option(metavar="AGE", help="Never delete what changed within this time.")
    ] = "1d",
    verify: Annotated[
        str,
        Option(
            metavar="quick|full",
            help="How far to verify what counts as kept.  [default: newest full, others quick]",
        ),
    ] = "",
    include_quarantined: Annotated[
        bool,
        Option("--include-quarantined", help="Delete quarantined ones by the same rules."),
    ] = False,
    ignore_pointer: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Go on although it cannot be resolved; repeatable."),
    ] = None,
    empty_trash: Annotated[
        bool, Option("--empty-trash", help="Delete for good what was pruned before.")
    ] = False,
    trash_days: Annotated[
        float | None,
        Option(min=0, metavar="N", help="Delete for good what was pruned N days ago."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Give up old checkpoints by numeric step: into ckptctl.trash, where undelete finds them.

    Only what is proven counts as kept. Never what any pointer names, nor what shares files with one
    that stays, nor the newest that verifies, nor a save younger than a day. Object stores have no
    trash: there it is deleted at once. Off a terminal nothing is deleted without --yes.
    """
    output = chosen(output_format, json=json)

    def agreed(plan: Plan) -> bool:
        render_plan(plan, Screen(sys.stderr))
        confirm(_question(plan), yes=False)
        return True

    result = api.prune(
        root,
        keep_last=keep_last,
        keep_every=keep_every,
        older_than=older_than,
        min_age=min_age,
        verify=verify,
        include_quarantined=include_quarantined,
        ignore_pointer=ignore_pointer or (),
        empty_trash=empty_trash,
        trash_days=trash_days,
        dry_run=dry_run or (not yes and not sys.stdin.isatty()),
        framework=framework,
        confirm=None if yes else agreed,
    )
    return emit(result, output, command="prune", quiet=quiet)


def _question(plan: Plan) -> str:
    """Ask for what is done: into the trash, out of it for good, or both."""
    asked = []
    if plan.doomed:
        asked.append(f"delete {plural(len(plan.doomed), 'checkpoint')}")
    if plan.emptied:
        asked.append(f"delete {plural(len(plan.emptied), 'checkpoint')} in the trash for good")
    return f"{' and '.join(asked)}?"


@render.register
def render_plan(plan: Plan, screen: Screen) -> None:
    """Print the fate of every checkpoint and what it frees."""
    if plan.fates:
        _table(plan, screen)
        _sum(plan, screen)
    for one in plan.emptied:
        if one.problem:
            screen.line(f"stays in the trash: {safe(one.name)}: {said(one.problem)}")
    gone = [one for one in plan.emptied if not one.problem]
    if gone or not plan.fates:
        verb = "deleted" if plan.done else "would delete"
        count, freed = plural(len(gone), "checkpoint"), size(sum(one.size for one in gone))
        screen.line(f"{verb} {count} in the trash for good, {freed}")


def _table(plan: Plan, screen: Screen) -> None:
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


def _sum(plan: Plan, screen: Screen) -> None:
    freed = size(sum(fate.size for fate in plan.doomed))
    count = plural(len(plan.doomed), "checkpoint")
    if not plan.done:
        screen.line(f"would delete {count}, {freed}; nothing was deleted (--yes deletes)")
    elif plan.trash and plan.doomed:
        root = safe(plan.root)
        screen.line(
            f"deleted {count}, {freed}: in {safe(plan.trash)} until `ckptctl prune {root} "
            f"--empty-trash`; `ckptctl undelete {root} NAME` brings one back"
        )
    else:
        screen.line(f"deleted {count}, {freed}")


def _word(fate: Fate, plan: Plan) -> str:
    if not fate.delete:
        return "stays" if fate.keeper else "keep"
    return "deleted" if plan.done else "delete"
