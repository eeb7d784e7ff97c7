"""``ckptctl resolve``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from ckptctl.cli.options import Json, Quiet
from ckptctl.cli.output.json import to_json
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import safe
from ckptctl.operations.catalog.resolve import (
    NoneUsable,
    Resolution,
    ResolveOptions,
    Skipped,
    resolve,
)
from ckptctl.storage import open_store


def resolve_command(
    root: Annotated[str, typer.Argument(help="Directory or URL that holds checkpoints.")],
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
        typer.Option("--allow-uncommitted", help="Also take a whole one that nobody committed."),
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Threads that read.")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Print the path of the checkpoint to resume from, and nothing else, on standard output.

    Exit codes: 0 found; 3 none exists, start fresh; 10 some exist and none is good, do not start
    fresh; 4 the storage failed. What was passed over, and why, goes to standard error.
    """
    options = ResolveOptions(
        full=full,
        world_size=require_world_size,
        min_step=min_step,
        run_id=run_id,
        allow_uncommitted=allow_uncommitted,
    )
    if workers is not None:
        options = options.with_workers(workers)
    try:
        found = resolve(open_store(root), options=options, progress=progress(quiet=quiet or json))
    except NoneUsable as error:
        _explain(error.notes, error.skipped)
        raise
    _explain(found.notes, found.skipped, quiet=quiet and found.committed)
    if json:
        sys.stdout.write(to_json("ckptctl/resolve/1", {"resolution": found}) + "\n")
        return
    if not quiet or not found.committed:
        sys.stderr.write(f"ckptctl: {_summary(found)}\n")
    sys.stdout.write(f"{found.url}\n")


def _summary(found: Resolution) -> str:
    step = "no step" if found.step is None else f"step {found.step}"
    return f"{safe(found.path)} ({step}): {safe(found.how)}; {found.proof}"


def _explain(notes: Iterable[str], skipped: Iterable[Skipped], *, quiet: bool = False) -> None:
    if quiet:
        return
    for note in notes:
        sys.stderr.write(f"ckptctl: note: {safe(note)}\n")
    for skip in skipped:
        sys.stderr.write(f"ckptctl: passed over {safe(skip.checkpoint)}: {safe(skip.reason)}\n")
