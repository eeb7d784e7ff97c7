"""``ckptctl digest``."""

import sys
from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import Checkpoint, Format, Framework, Json, Quiet, Workers, chosen
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, columns, plural, safe, said, size, unchecked
from ckptctl.cli.parameters import Option
from ckptctl.results import Content
from ckptctl.words import listed


def digest_command(
    checkpoint: Checkpoint = None,
    only: Annotated[
        list[str] | None,
        Option(metavar="GLOB", help="Only keys that match this pattern; repeatable."),
    ] = None,
    summary: Annotated[
        bool, Option("--summary", help="Print only the digests over everything.")
    ] = False,
    strict: Annotated[
        bool, Option("--strict", help="Exit with 10 if anything has to be left out.")
    ] = False,
    workers: Workers = None,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Print what every tensor and object holds as a digest, whatever its sharding and format.

    Two checkpoints of one state have equal digests, however many ranks wrote them. All bytes are
    read and every CRC-32 is checked; damage is said, and the exit code is 10. What there is no reader
    for, such as a subclass of tensors or an unknown compression, is left out and named.
    """
    output = chosen(output_format, json=json)
    content = api.digest(
        checkpoint,
        only=only or (),
        strict=strict,
        workers=workers,
        framework=framework,
        progress=progress(quiet=quiet or output != "text"),
    )
    code = emit(content, output, command="digest", quiet=quiet, summary=summary)
    for problem in content.problems:
        sys.stderr.write(f"ckptctl: {said(problem)}\n")
    for one in content.left_out if not quiet or content.verdict.exit_code else ():
        sys.stderr.write(f"ckptctl: left out: {said(one)}\n")
    if content.unchecked and not quiet:
        sys.stderr.write(f"ckptctl: {unchecked(content.unchecked)}\n")
    if content.unread and not quiet:
        names = safe(listed(content.unread))
        sys.stderr.write(f"ckptctl: not read as a part of it: {names}\n")
    if content.nothing:
        sys.stderr.write(
            f"ckptctl: {said(content.checkpoint)}: nothing to digest: no key is chosen\n"
        )
    return code


@render.register
def render_content(content: Content, screen: Screen, *, summary: bool = False) -> None:
    """Print one line for each key, and the digests over all of them."""
    if not summary:
        rows = [
            [row.digest or "-", f"{row.dtype} {list(row.shape)}", safe(row.fqn)]
            for row in content.tensors
        ]
        rows += [
            [
                row.digest or "-",
                "object" + ("" if row.rank is None else f" of rank {row.rank}"),
                safe(row.fqn),
            ]
            for row in content.objects
        ]
        for line in columns(rows):
            screen.line("".join(line))
    total = sum(row.size for row in content.tensors)
    for digest, count, what in (
        (
            content.tensors_digest,
            len(content.tensors),
            f"{plural(len(content.tensors), 'tensor')}, {size(total)}",
        ),
        (content.objects_digest, len(content.objects), plural(len(content.objects), "object")),
    ):
        none = "no digest over all" if count else "no digest"
        screen.line(screen.paint(f"{digest or none}  {what}", "bold"))
