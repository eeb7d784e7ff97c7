"""``ckptctl resolve``."""

import sys
from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import Format, Framework, Json, Quiet, Root, Workers, chosen
from ckptctl.cli.output.accepted import line
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.resolution import explain, loss, summary
from ckptctl.cli.output.text import Screen, safe
from ckptctl.cli.parameters import Option
from ckptctl.results import NoneUsable, Resolution, Undecided


def resolve_command(
    root: Root = None,
    full: Annotated[
        bool, Option("--full", help="Check every byte, not only sizes and small files.")
    ] = False,
    quick: Annotated[
        bool, Option("--quick", help="Read no content of one that is not committed.")
    ] = False,
    require_world_size: Annotated[
        int | None, Option(min=1, help="Only one saved by this many ranks.")
    ] = None,
    min_step: Annotated[int | None, Option(min=0, help="Only this step or later.")] = None,
    run_id: Annotated[str | None, Option(help="Only one of this run.")] = None,
    max_loss: Annotated[
        str | None,
        Option(
            metavar="STEPS|AGE", help="How far behind the newest it may be: 500, 2h; more is 10."
        ),
    ] = None,
    allow_uncommitted: Annotated[
        bool,
        Option(
            "--allow-uncommitted", help="Where no committed one is good, verify and take others."
        ),
    ] = False,
    pointer_fallback: Annotated[
        bool,
        Option(
            "--pointer-fallback",
            help="Take the decision before where the newest, or what it names, cannot be read.",
        ),
    ] = False,
    allow_missing_root: Annotated[
        bool,
        Option(
            "--allow-missing-root", help="A root that is not there is a run that has not begun (3)."
        ),
    ] = False,
    workers: Workers = None,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Print the path of the checkpoint to resume from, and nothing else, on standard output.

    Exit codes: 0 found; 3 the root is there and holds nothing that could be one, start fresh; 10
    some exist and none is good, or more is lost than --max-loss allows; 4 the storage failed, the
    root is not there, or it is not known which was decided on last. Only 3 is a fresh start. What
    is newer and was not taken, why, and what is lost goes to standard error.
    """
    output = chosen(output_format, json=json)
    try:
        found = api.resolve(
            root,
            full=full,
            quick=quick,
            require_world_size=require_world_size,
            min_step=min_step,
            run_id=run_id,
            max_loss=max_loss,
            allow_uncommitted=allow_uncommitted,
            pointer_fallback=pointer_fallback,
            allow_missing_root=allow_missing_root,
            workers=workers,
            framework=framework,
            progress=progress(quiet=quiet or output != "text"),
        )
    except (NoneUsable, Undecided) as error:
        explain(error.notes, error.skipped)
        raise
    silent = quiet and found.committed
    explain(found.notes, found.skipped, quiet=silent)
    for one in found.accepted if not silent else ():
        sys.stderr.write(f"ckptctl: note: {safe(found.name)}: accepted {line(one)}\n")
    if output == "text" and not silent:
        sys.stderr.write(f"ckptctl: {summary(found)}\n")
    if found.lost.count:  # whatever else is not said
        sys.stderr.write(f"ckptctl: {loss(found)}\n")
    return emit(found, output, command="resolve")


@render.register
def render_resolution(found: Resolution, screen: Screen) -> None:
    """Print the path and nothing else: it is read by scripts, so it is not escaped."""
    screen.line(found.path)
