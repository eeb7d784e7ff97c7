"""``ckptctl diff``."""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer

from ckptctl.cli.options import Json, Quiet
from ckptctl.cli.output.diff import render_diff
from ckptctl.cli.output.json import to_json
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen
from ckptctl.comparison.consequences import Consequence
from ckptctl.errors import UsageError
from ckptctl.operations.diff.diff import DiffOptions, diff

FINDINGS, UNFINISHED = 10, 4


class FailOn(str, enum.Enum):
    """The least difference that makes the exit code 10."""

    BREAKS_LOAD = "breaks-load"
    DATA_ORDER = "changes-data-order"
    NUMERICS = "changes-numerics"
    ANY = "any"

    @property
    def threshold(self) -> Consequence | None:
        """The consequence meant; None for any."""
        return None if self is FailOn.ANY else Consequence(self.value.replace("-", " "))


def diff_command(
    a: Annotated[str, typer.Argument(help="Directory, file or URL of one checkpoint.")],
    b: Annotated[str, typer.Argument(help="Of the other; the formats may differ.")],
    values: Annotated[
        bool, typer.Option("--values", help="Say how the numbers of unequal tensors differ.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Read no payload.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only keys and facts with such names; repeatable."),
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="Exit 10 only for differences of this kind and worse.")
    ] = FailOn.ANY,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Threads that read.")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare two checkpoints: identity of the run, keys, shapes, dtypes, progress, content.

    Content is equal or not whatever the sharding and the file format. Exits 0 where nothing that
    was asked for differs, 10 where something does.
    """
    if quick and values:
        raise UsageError("--values reads payload and --quick does not: choose one")
    options = DiffOptions(only=tuple(only or ()), quick=quick, values=values)
    if workers is not None:
        options = options.with_workers(workers)
    result = diff(a, b, options=options, progress=progress(quiet=quiet or json))
    fails = result.fails(fail_on.threshold)
    unknown = result.content.problems
    if json:
        fields: dict[str, object] = {"differs": fails, "fail_on": fail_on.value, "diff": result}
        sys.stdout.write(to_json("ckptctl/diff/1", fields) + "\n")
    elif fails or unknown or result.nothing or not quiet:
        render_diff(result, Screen(sys.stdout))
    if fails:
        raise typer.Exit(FINDINGS)
    if unknown or result.nothing:
        raise typer.Exit(UNFINISHED)
