"""``ckptctl reshard``."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptctl.cli.options import DryRun, Json, Quiet, Yes, confirm, emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, columns, plural, safe, size
from ckptctl.operations.reshard.plan import Request
from ckptctl.operations.reshard.reshard import Resharding, ReshardOptions, reshard
from ckptctl.sharding.cuts import DimRule
from ckptctl.sharding.mesh import Mesh
from ckptctl.sharding.rank_policy import Policy

_REFUSED_CODE = 5
_MOST_FILES = 16
_COLOURS = {"kept": "green", "changed": "yellow", "unknown": "yellow"}


def reshard_command(
    checkpoint: Annotated[str, typer.Argument(help="Directory or URL of one DCP checkpoint.")],
    world_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many ranks the result is for.")
    ],
    out: Annotated[str, typer.Option(metavar="DEST", help="Directory or URL to be made.")],
    mesh: Annotated[
        str, typer.Option(metavar="AXES", help="How the ranks are laid out: dp=4,tp=2.")
    ] = "",
    dim_rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB=DIM",
            help="Cut tensors whose key matches along this dimension, or GLOB=replicate; the first "
            "that matches counts; repeatable.",
        ),
    ] = None,
    rng: Annotated[
        str, typer.Option(help="State of random generators per rank: keep, drop or fail.")
    ] = "fail",
    data: Annotated[
        str, typer.Option(help="Positions in the data per rank: keep, merge, drop or fail.")
    ] = "fail",
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish what the same reshard left in DEST.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Leave damaged keys out, and name them.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Threads that read and write.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write a checkpoint anew for another number of ranks, prove it equal, and commit it.

    No torch and no GPU; memory stays small however large the checkpoint is. The source is verified
    first and never touched. What a change of ranks does not preserve is said by --dry-run, before
    anything is queued. Nothing is committed unless every tensor and object reads back as it was.
    """
    policies = {
        "rng": _policy("--rng", rng, ("keep", "drop", "fail")),
        "data": _policy("--data", data, ("keep", "merge", "drop", "fail")),
    }
    request = Request(
        world_size,
        Mesh.parse(mesh) if mesh else None,
        tuple(map(DimRule.parse, dim_rule or ())),
        policies,
    )
    options = ReshardOptions(request, dry_run=dry_run, resume=resume, force=force)
    if workers is not None:
        options = options.with_workers(workers)
    if force and not dry_run:
        confirm("leave out whatever is damaged?", yes=yes)
    result = reshard(checkpoint, out, options=options, progress=progress(quiet=quiet or json))
    emit("reshard", {"reshard": result}, lambda s: render(result, s), json=json, quiet=quiet)
    if result.refusals:
        raise typer.Exit(_REFUSED_CODE)


def _policy(option: str, text: str, known: tuple[str, ...]) -> Policy:
    if text not in known:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}", param_hint=option)
    return Policy(text)


def render(result: Resharding, screen: Screen) -> None:
    """Print the plan, what goes on as before and what does not, and what came of it."""
    known = result.ranks_before is not None
    before = plural(result.ranks_before or 0, "rank") if known else "an unknown number of ranks"
    screen.line(
        f"{safe(result.source)}: {plural(result.keys, 'key')} of {before}, for "
        f"{plural(result.ranks, 'rank')} ({result.mesh})"
    )
    screen.line(
        f"  {plural(result.copied, 'item')} copied, {result.written:,} written anew; "
        f"{size(result.bytes_read)} to read, {size(result.bytes_written)} to write, at most "
        f"{size(result.memory)} of memory"
    )
    rows = [
        [
            f"  {safe(file.path)}",
            size(file.size),
            f"{file.copied:,} copied, {file.written:,} written",
        ]
        for file in result.files[:_MOST_FILES]
    ]
    for line in columns(rows, right=(1,)):
        screen.line("".join(line))
    if len(result.files) > _MOST_FILES:
        screen.line(f"  and {plural(len(result.files) - _MOST_FILES, 'more file')}")
    rows = [
        [
            f"  {aspect.name}",
            screen.paint(f"{aspect.verdict:7}", _COLOURS[aspect.verdict]),
            safe(aspect.why),
        ]
        for aspect in result.aspects
    ]
    for line in columns(rows):
        screen.line("".join(line))
    for names, what in ((result.dropped, "left out as asked"), (result.lost, "lost to damage")):
        if names:
            shown = ", ".join(map(safe, names[:4])) + (" and more" if len(names) > 4 else "")
            screen.line(f"  {plural(len(names), 'key')} {what}: {shown}")
    for refusal in result.refusals:
        screen.line(f"{screen.paint('cannot be done', 'red', 'bold')}: {safe(refusal)}")
    if result.refusals:
        return
    if result.dry_run:
        screen.line(f"would write {safe(result.destination)}; plan {result.plan}")
        return
    reused = f" ({plural(result.reused, 'file')} of an earlier attempt)" if result.reused else ""
    screen.line(
        f"{screen.paint('resharded', 'green', 'bold')} into {safe(result.destination)}{reused}: "
        f"{plural(result.tensors, 'tensor')} and {plural(result.objects, 'object')} read back "
        f"equal; committed"
    )
    screen.line(f"manifest {result.manifest}")
