"""``ckptctl resolve``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckptctl import api
from ckptctl.cli.options import Format, Framework, Json, Quiet, Root, Workers, chosen
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.resolution import explain, summary
from ckptctl.cli.output.text import Screen
from ckptctl.results import NoneUsable, Resolution


def resolve_command(
    root: Root = None,
    full: Annotated[
        bool, typer.Option("--full", help="Check every byte, not only sizes and small files.")
    ] = False,
    require_world_size: Annotated[
        int | None, typer.Option(min=1, help="Only one saved by this many ranks.")
    ] = None,
    min_step: Annotated[int | None, typer.Option(min=0, help="Only this step or later.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Only one of this run.")] = None,
    allow_uncommitted: Annotated[
        bool,
        typer.Option("--allow-uncommitted", help="Also take a whole one that is not committed."),
    ] = False,
    allow_missing_root: Annotated[
        bool,
        typer.Option(
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

    Exit codes: 0 found; 3 the root is there and holds none, start fresh; 10 some exist and none is
    good, do not start fresh; 4 the storage failed or the root is not there. What was passed over, and why, goes to standard error.
    """
    output = chosen(output_format, json=json)
    try:
        found = api.resolve(
            root,
            full=full,
            require_world_size=require_world_size,
            min_step=min_step,
            run_id=run_id,
            allow_uncommitted=allow_uncommitted,
            allow_missing_root=allow_missing_root,
            workers=workers,
            framework=framework,
            progress=progress(quiet=quiet or output != "text"),
        )
    except NoneUsable as error:
        explain(error.notes, error.skipped)
        raise
    explain(found.notes, found.skipped, quiet=quiet and found.committed)
    if output == "text" and not (quiet and found.committed):
        sys.stderr.write(f"ckptctl: {summary(found)}\n")
    return emit(found, output, command="resolve")


@render.register
def render_resolution(found: Resolution, screen: Screen) -> None:
    """Print the path and nothing else: it is read by scripts, so it is not escaped."""
    screen.line(found.path)
