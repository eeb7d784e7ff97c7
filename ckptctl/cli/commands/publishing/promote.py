"""``ckptctl promote``."""

import sys
from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import (
    Accept,
    AllowMissing,
    Checkpoint,
    DryRun,
    Format,
    Framework,
    Json,
    Mapped,
    Quiet,
    Required,
    Workers,
    Yes,
    chosen,
    components,
    confirm,
)
from ckptctl.cli.output.accepted import accepted, unmatched
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, plural, safe, said
from ckptctl.cli.parameters import Option
from ckptctl.results import Promoted


def promote_command(
    checkpoint: Checkpoint = None,
    reason: Annotated[str, Option(help="Why, for the history.")] = "",
    quick: Annotated[
        bool, Option("--quick", help="Trust the sizes of large files; do not read them.")
    ] = False,
    values: Annotated[
        bool, Option("--values", help="Refuse NaN, Inf and what else verify --values finds.")
    ] = False,
    require: Required = "resume",
    allow_missing: AllowMissing = None,
    mapping: Mapped = None,
    expect: Annotated[
        int | None,
        Option(min=0, metavar="REVISION", help="Only if the pointer is at this revision."),
    ] = None,
    rollback: Annotated[
        bool, Option("--rollback", help="Allow moving back to an older step.")
    ] = False,
    accept: Accept = None,
    workers: Workers = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Verify a committed checkpoint against its manifest and move latest_committed to it.

    The pointer is a series of revisions that are only ever created: a lost race exits 5 and says
    who won. It never moves to what does not verify (10).
    """
    output = chosen(output_format, json=json)
    if rollback and not dry_run:
        confirm(f"move latest_committed back to {checkpoint or 'this checkpoint'}?", yes=yes)
    result = api.promote(
        checkpoint,
        reason=reason,
        quick=quick,
        values=values,
        require=require,
        allow_missing=allow_missing or (),
        mapping=components(mapping),
        expect=expect,
        rollback=rollback,
        accept=accept or (),
        dry_run=dry_run,
        workers=workers,
        framework=framework,
        progress=progress(quiet=quiet or output != "text"),
    )
    unmatched(result.unmatched)
    return emit(result, output, command="promote", quiet=quiet)


@render.register
def render_promote(result: Promoted, screen: Screen) -> None:
    """Print where the pointer is now."""
    target = f"{safe(result.target)} (revision {result.revision})"
    for gap in result.values_unseen:
        sys.stderr.write(
            f"ckptctl: the values of {plural(gap.count, 'tensor')} were not looked at: "
            f"{said(gap.reason)}\n"
        )
    accepted(result.accepted, screen)
    if not result.moved:
        screen.line(f"{result.pointer} names {target} already")
        return
    verb = "would move" if result.dry_run else "moved"
    screen.line(f"{screen.paint(verb, 'green', 'bold')} {result.pointer} to {target}")
    if result.courtesy:
        sys.stderr.write(
            f"ckptctl: the plain text copy was not refreshed, which changes nothing for ckptctl: "
            f"{safe(result.courtesy)}\n"
        )
