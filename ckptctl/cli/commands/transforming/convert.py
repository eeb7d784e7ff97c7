"""``ckptctl convert``."""

from typing import Annotated

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
    chosen,
    pairs,
)
from ckptctl.cli.output.accepted import accepted, unmatched
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, plural, safe, said, size, unchecked
from ckptctl.cli.parameters import Option
from ckptctl.results import Conversion

_MOST_LINES = 12


def convert_command(
    to: Annotated[str, Option(metavar="safetensors|torch|dcp", help="The format to write.")],
    out: Annotated[str, Option(metavar="DEST", help="A directory, or a file for torch.")],
    checkpoint: Checkpoint = None,
    only: Annotated[
        list[str] | None, Option(metavar="GLOB", help="Take only these keys; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, Option(metavar="GLOB", help="Leave these keys out; repeatable.")
    ] = None,
    dtype: Annotated[
        str, Option(metavar="DTYPE", help="Cast floats: bfloat16, float16, float32, float64.")
    ] = "",
    strip_prefix: Annotated[
        list[str] | None,
        Option(metavar="PREFIX", help="Take this off the names; repeatable."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        Option(metavar="OLD=NEW", help="Replace a prefix of the names; repeatable."),
    ] = None,
    max_shard_size: Annotated[
        str, Option(metavar="SIZE", help="Bytes of one safetensors file at most.")
    ] = "5GB",
    world_size: Annotated[
        int, Option(min=1, metavar="N", help="The ranks that a DCP checkpoint is cut for.")
    ] = 1,
    force: Annotated[
        bool, Option("--force", help="Leave out what is damaged, and name it.")
    ] = False,
    strict: Annotated[
        bool, Option("--strict", help="Refuse what there is no reader for (10), which is left out.")
    ] = False,
    resume: Annotated[
        bool, Option("--resume", help="Finish what the same conversion left unfinished.")
    ] = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Begin again; replace what convert wrote earlier.")
    ] = False,
    accept: Accept = None,
    reason: Annotated[str, Option(help="Why it is accepted, for the records.")] = "",
    workers: Workers = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    framework: Framework = "",
    proof: Proof = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Write a checkpoint's tensors in another format, streamed, and compare them afterwards.

    Every tensor of the result is read back and must be what was read from the source, whose CRCs
    are checked on the way; only then does the result get its name. What the format cannot hold is
    named, and so is what there is no reader for. An existing destination is refused (5), and a source
    that is not whole (10).
    """
    output = chosen(output_format, json=json)
    result = api.convert(
        checkpoint,
        out,
        to=to,
        only=only or (),
        exclude=exclude or (),
        dtype=dtype,
        strip_prefix=strip_prefix or (),
        rename=pairs("--rename", rename, "OLD=NEW, prefixes of names"),
        max_shard_size=max_shard_size,
        world_size=world_size,
        force=force,
        strict=strict,
        resume=resume,
        overwrite=overwrite,
        accept=accept or (),
        reason=reason,
        workers=workers,
        dry_run=dry_run,
        framework=framework,
        proof=proof,
        progress=progress(quiet=quiet or output != "text"),
    )
    unmatched(result.unmatched)
    return emit(result, output, command="convert", quiet=quiet)


@render.register
def render_conversion(result: Conversion, screen: Screen) -> None:
    """Print what was written, what was left out, what a cast lost, and the proof."""
    verb = "would write" if result.dry_run else "wrote"
    what = plural(result.tensors, "tensor")
    if result.values:
        what += f" and {plural(result.values, 'value')}"
    screen.line(
        f"{screen.paint(verb, 'green', 'bold')} {safe(result.out)}: {what}, "
        f"{plural(len(result.outputs), 'file')}, {size(result.size)}"
    )
    accepted(result.accepted, screen, source=True)
    for name, kept in list(result.shared.items())[:_MOST_LINES]:
        screen.wrapped(f"kept once: {safe(name)} is {safe(kept)}", 2)
    reasons: dict[str, list[str]] = {}
    for one in result.left_out:
        reasons.setdefault(one.reason, []).append(one.fqn)
    for reason, names in list(reasons.items())[:_MOST_LINES]:
        shown = ", ".join(map(safe, names[:4])) + (
            f" and {len(names) - 4} more" if len(names) > 4 else ""
        )
        screen.wrapped(f"left out: {shown}: {said(reason)}", 2)
    if result.unsafe:
        shown = ", ".join(map(safe, result.unsafe[:4]))
        more = f" and {len(result.unsafe) - 4} more" if len(result.unsafe) > 4 else ""
        screen.wrapped(f"weights_only=False is needed to load it, for {shown}{more}", 2)
    if result.casts:
        worst = max(result.casts, key=lambda cast: cast.error)
        screen.wrapped(
            f"cast: {plural(len(result.casts), 'tensor')} to {worst.target}, largest error "
            f"{worst.error:.3g} in {safe(worst.fqn)}",
            2,
        )
        for cast in result.casts:
            if cast.overflowed:
                screen.wrapped(
                    f"overflow: {plural(cast.overflowed, 'value')} of {safe(cast.fqn)} became "
                    "infinite",
                    2,
                )
    if result.proof:
        screen.line(f"proof: read back and equal to the source, {result.proof}")
        screen.wrapped(f"proven by {result.proven_by}: {result.covers}", 2)
    if result.unchecked:
        screen.wrapped(unchecked(result.unchecked), 2)
