"""``ckptctl commit`` and ``ckptctl promote``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptctl.cli.options import DryRun, Json, Quiet, Yes, confirm, emit, open_one
from ckptctl.cli.output.audit import AllowMissing, Mapped, Required, wanted_of
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, plural, safe, size
from ckptctl.errors import UsageError
from ckptctl.operations.provenance.facts_file import read_identity
from ckptctl.operations.publish.commit import CommitOptions, Committed, commit_checkpoint
from ckptctl.operations.publish.promote import Promoted, promote

Checkpoint = Annotated[str, typer.Argument(help="Directory or URL of one checkpoint.")]


def commit_command(
    checkpoint: Checkpoint,
    publish_as: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Publish a temporary directory as NAME."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="The step, where neither name nor receipts say it.")
    ] = None,
    run_id: Annotated[str | None, typer.Option(help="The run that the checkpoint is of.")] = None,
    identity: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Facts about the run: a JSON, YAML or TOML file."),
    ] = None,
    digest: Annotated[str, typer.Option(help="xxh3-128 or sha256.")] = "xxh3-128",
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Threads that read.")] = None,
    also_promote: Annotated[
        bool, typer.Option("--promote", help="Move the pointer to it as well.")
    ] = False,
    require: Required = "resume",
    allow_missing: AllowMissing = None,
    mapping: Mapped = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Verify a checkpoint, hash all its files in the same pass, and seal it with a manifest.

    Creating the manifest is the commit: of two that try, one wins and the other exits 5. What is
    not whole is not committed (10).
    """
    if also_promote and dry_run:
        raise UsageError("--dry-run of --promote needs a committed checkpoint: run them in turn")
    if not also_promote and (require != "resume" or allow_missing):
        raise UsageError("--require and --allow-missing are for --promote: a commit takes it all")
    wanted = wanted_of(require, allow_missing, mapping)
    store, place = open_one(checkpoint)
    chosen = CommitOptions(
        step=step,
        run_id=run_id,
        publish_as=publish_as,
        identity=read_identity(identity) if identity is not None else {},
        algorithm=digest,
        mapping=wanted.mapping,
        dry_run=dry_run,
    )
    if workers is not None:
        chosen = chosen.with_workers(workers)
    result = commit_checkpoint(store, place, options=chosen, progress=progress(quiet=quiet or json))
    if not json and not quiet:
        render_commit(result, Screen(sys.stdout))
    moved: Promoted | None = None
    if also_promote:
        store, place = open_one(result.checkpoint)
        moved = promote(store, place, reason="committed", quick=True, wanted=wanted)
        if not json and not quiet:
            render_promote(moved, Screen(sys.stdout))
    if json:
        emit("commit", {"commit": result, "promote": moved}, lambda _: None, json=True)


def render_commit(result: Committed, screen: Screen) -> None:
    """Print what was sealed."""
    verb = "would commit" if result.dry_run else "committed"
    step = "no step" if result.step is None else f"step {result.step}"
    screen.line(
        f"{screen.paint(verb, 'green', 'bold')} {safe(result.checkpoint)}: {step}, "
        f"{plural(result.files, 'file')}, {size(result.size)}, every byte verified and hashed"
    )
    screen.line(f"manifest {result.manifest}")


def promote_command(
    checkpoint: Checkpoint,
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Trust the sizes of large files; do not read them.")
    ] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Refuse NaN, Inf and what else verify --values finds.")
    ] = False,
    require: Required = "resume",
    allow_missing: AllowMissing = None,
    mapping: Mapped = None,
    expect: Annotated[
        int | None,
        typer.Option(min=0, metavar="REVISION", help="Only if the pointer is at this revision."),
    ] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Allow moving back to an older step.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Threads that read.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Verify a committed checkpoint against its manifest and move latest_committed to it.

    The pointer is a series of revisions that are only ever created: a lost race exits 5 and says
    who won. It never moves to what does not verify (10).
    """
    wanted = wanted_of(require, allow_missing, mapping)
    store, place = open_one(checkpoint)
    if rollback and not dry_run:
        confirm(f"move latest_committed back to {place.path}?", yes=yes)
    result = promote(
        store,
        place,
        reason=reason,
        quick=quick,
        values=values,
        wanted=wanted,
        expect=expect,
        rollback=rollback,
        dry_run=dry_run,
        workers=workers,
        progress=progress(quiet=quiet or json),
    )
    emit(
        "promote", {"promote": result}, lambda s: render_promote(result, s), json=json, quiet=quiet
    )


def render_promote(result: Promoted, screen: Screen) -> None:
    """Print where the pointer is now."""
    target = f"{safe(result.target)} (revision {result.revision})"
    for gap in result.values_unseen:
        sys.stderr.write(
            f"ckptctl: the values of {plural(gap.count, 'tensor')} were not looked at: "
            f"{safe(gap.reason)}\n"
        )
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
