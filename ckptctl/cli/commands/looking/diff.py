"""``ckptctl diff``."""

from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import Format, Framework, Json, Quiet, Workers, chosen
from ckptctl.cli.output.diff import render_diff as render_diff
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.parameters import Argument, Option
from ckptctl.comparison.difference import FailOn


def diff_command(
    a: Annotated[str, Argument(help="A checkpoint: directory, file or URL, a pointer, ROOT@STEP.")],
    b: Annotated[str, Argument(help="Of the other; the formats may differ.")],
    values: Annotated[
        bool, Option("--values", help="Say how the numbers of unequal tensors differ.")
    ] = False,
    quick: Annotated[bool, Option("--quick", help="Read no payload.")] = False,
    only: Annotated[
        list[str] | None,
        Option(metavar="GLOB", help="Only keys and facts with such names; repeatable."),
    ] = None,
    fail_on: Annotated[
        FailOn, Option(help="Exit 10 only for differences of this kind and worse.")
    ] = FailOn.ANY,
    workers: Workers = None,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Compare two checkpoints: identity of the run, keys, shapes, dtypes, progress, content.

    Content is equal or not whatever the sharding and the file format. Exits 0 where nothing that
    was asked for differs, 10 where something does.
    """
    output = chosen(output_format, json=json)
    result = api.diff(
        a,
        b,
        values=values,
        quick=quick,
        only=only or (),
        fail_on=fail_on.value,
        workers=workers,
        framework=framework,
        progress=progress(quiet=quiet or output != "text"),
    )
    return emit(result, output, command="diff", quiet=quiet)
