"""``ckptctl reshard``."""

import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ckptctl import api
from ckptctl.cli.options import (
    Accept,
    Checkpoint,
    DryRun,
    Format,
    Framework,
    Json,
    Proof,
    Quiet,
    Workers,
    Yes,
    chosen,
    confirm,
)
from ckptctl.cli.output.accepted import accepted, unmatched
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.resolution import explain, summary
from ckptctl.cli.output.spelling import flag
from ckptctl.cli.output.text import Screen, columns, plural, safe, said, size, unchecked
from ckptctl.cli.parameters import Option
from ckptctl.model.result.plain import absolute
from ckptctl.results import DecisionNeeded, NoneUsable, Resharding, Undecided
from ckptctl.words import listed

_MOST_FILES = 16
_COLOURS = {"kept": "green", "changed": "yellow", "unknown": "yellow"}


def reshard_command(
    ctx: typer.Context,
    world_size: Annotated[
        int, Option(min=1, metavar="N", help="How many ranks the result is for.")
    ],
    checkpoint: Checkpoint = None,
    out: Annotated[
        str | None,
        Option(metavar="DEST", help="Directory or URL to be made.  [default: ROOT-wN/NAME]"),
    ] = None,
    mesh: Annotated[
        str, Option(metavar="AXES", help="How the ranks are laid out: dp=4,tp=2.")
    ] = "",
    dim_rule: Annotated[
        list[str] | None,
        Option(
            metavar="GLOB=DIM",
            help="Cut tensors whose key matches along this dimension, or GLOB=replicate; the first "
            "that matches counts; repeatable.",
        ),
    ] = None,
    rng: Annotated[
        str, Option(help="State of random generators per rank: keep, drop or fail.")
    ] = "fail",
    data: Annotated[
        str, Option(help="Positions in the data per rank: keep, merge, drop or fail.")
    ] = "fail",
    resume: Annotated[
        bool, Option("--resume", help="Finish what the same reshard left unfinished.")
    ] = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Begin again; nothing committed is ever replaced.")
    ] = False,
    force: Annotated[
        bool, Option("--force", help="Leave damaged keys out, and name them.")
    ] = False,
    accept: Accept = None,
    reason: Annotated[str, Option(help="Why it is accepted, for the records.")] = "",
    workers: Workers = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    framework: Framework = "",
    proof: Proof = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Write a checkpoint anew for another number of ranks, prove it equal, and commit it.

    No torch and no GPU; memory stays small however large the checkpoint is. The source is verified
    first and never touched. What a change of ranks does not preserve is said by --dry-run, before
    anything is queued. Nothing is committed unless every tensor and object reads back as it was.
    """
    output = chosen(output_format, json=json)
    if force and not dry_run:
        confirm("leave out whatever is damaged?", yes=yes)
    try:
        result = api.reshard(
            checkpoint,
            out,
            world_size=world_size,
            mesh=mesh,
            dim_rule=dim_rule or (),
            rng=rng,
            data=data,
            resume=resume,
            overwrite=overwrite,
            force=force,
            accept=accept or (),
            reason=reason,
            workers=workers,
            dry_run=dry_run,
            framework=framework,
            proof=proof,
            progress=progress(quiet=quiet or output != "text"),
        )
    except (NoneUsable, Undecided) as error:
        explain(error.notes, error.skipped)
        raise
    except DecisionNeeded as needed:
        _explain_choice(needed.resharding, quiet=quiet)
        if needed.resharding.suggested:
            needed.args = (f"{needed}; to do it, type",)
            needed.remedy = command_line(ctx.params, needed.resharding)
        raise
    _explain_choice(result, quiet=quiet)
    unmatched(result.unmatched)
    code = emit(result, output, command="reshard", quiet=quiet)
    if result.suggested:
        sys.stderr.write(f"{safe(command_line(ctx.params, result))}\n")
    return code


def _explain_choice(result: Resharding, *, quiet: bool) -> None:
    if result.chosen is not None and not quiet:
        explain(result.chosen.notes, result.chosen.skipped)
        sys.stderr.write(f"ckptctl: {summary(result.chosen)}\n")


def command_line(given: Mapping[str, Any], result: Resharding) -> str:
    """Return the whole command that does what was asked for, with the decisions that it needs."""
    values = {**given, **result.suggested, "out": absolute(result.destination)}
    words = ["ckptctl", "reshard", absolute(result.source)]
    for name, value in values.items():
        option = flag(name)
        if not option or value in (None, False, "", [], ()):
            continue
        if value is True:
            words.append(option)
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            words += [option, str(one)]
    return shlex.join(words)


@render.register
def render_resharding(result: Resharding, screen: Screen) -> None:
    """Print the plan, what goes on as before and what does not, and what came of it."""
    known = result.ranks_before is not None
    before = plural(result.ranks_before or 0, "rank") if known else "an unknown number of ranks"
    screen.line(
        f"{safe(result.source)}: {plural(result.keys, 'key')} of {before}, for "
        f"{plural(result.ranks, 'rank')} ({result.mesh})"
    )
    screen.line(
        f"  {plural(result.copied, 'item')} copied, {result.written:,} written; "
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
            said(aspect.why),
        ]
        for aspect in result.aspects
    ]
    for line in columns(rows):
        screen.line("".join(line))
    if result.dropped:
        count = plural(len(result.dropped), "key")
        screen.line(f"  {count} left out as asked: {safe(listed(result.dropped))}")
    if result.lost:
        screen.line(f"  lost to damage: {safe(listed(result.lost, 8))}")
    accepted(result.accepted, screen, source=True)
    for refusal in result.refusals:
        screen.line(f"{screen.paint('cannot be done', 'red', 'bold')}: {said(refusal)}")
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
    screen.wrapped(f"proven by {result.proven_by}: {result.covers}", 2)
    if result.unchecked:
        screen.wrapped(unchecked(result.unchecked), 2)
    screen.line(f"manifest {result.manifest}")
