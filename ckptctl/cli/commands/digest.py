"""``ckptctl digest``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckptctl.cli.options import Json, Quiet, emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, columns, plural, safe, size
from ckptctl.exit_codes import ExitCode
from ckptctl.operations.content.digest import Content, digest_content
from ckptctl.operations.content.open import open_tensors

_FINDINGS_CODE = 10


def digest_command(
    checkpoint: Annotated[
        str, typer.Argument(help="A DCP checkpoint, a safetensors file, or a directory of such.")
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only keys that match this pattern; repeatable."),
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Print only the digests over everything.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Threads that read.")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Print what every tensor and object holds as a digest, whatever its sharding and format.

    Two checkpoints of one state have equal digests, however many ranks wrote them. All bytes are
    read and every CRC-32 is checked; what cannot be digested is said, and the exit code is 10.
    """
    opened = open_tensors(checkpoint)
    content = digest_content(
        opened, only=only or (), workers=workers, progress=progress(quiet=quiet or json)
    )
    faults = tuple(fault.message for fault in opened.serious)
    problems = (*faults, *content.problems)
    emit(
        "digest",
        {"content": content, "problems": problems},
        lambda screen: render(content, screen, summary=summary),
        json=json,
        quiet=quiet,
    )
    for problem in problems:
        sys.stderr.write(f"ckptctl: {safe(problem)}\n")
    if problems:
        raise typer.Exit(_FINDINGS_CODE)
    if content.nothing:
        sys.stderr.write(f"ckptctl: {safe(opened.url)}: nothing to digest: no key is chosen\n")
        raise typer.Exit(ExitCode.STORAGE_FAILED)


def render(content: Content, screen: Screen, *, summary: bool) -> None:
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
