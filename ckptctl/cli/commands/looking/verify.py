"""``ckptctl verify``."""

import re
import sys
from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import (
    AllowMissing,
    Format,
    Framework,
    Json,
    Mapped,
    Workers,
    chosen,
    components,
)
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, said
from ckptctl.cli.output.verify import View, render_one
from ckptctl.cli.parameters import Argument, Option
from ckptctl.errors import UsageError
from ckptctl.model.finding import Severity


def verify_command(
    paths: Annotated[
        list[str] | None,
        Argument(
            help="Checkpoints, or roots whose checkpoints are all verified.  "
            "[default: CKPTCTL_ROOT, else here]"
        ),
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Stop before reading what tensors hold.")
    ] = False,
    sample: Annotated[
        str | None,
        Option(metavar="SHARE", help="Read the content of a random share, e.g. 5%."),
    ] = None,
    part: Annotated[
        str | None,
        Option(metavar="K/N", help="Read the k-th of n equal shares of the content."),
    ] = None,
    workers: Workers = None,
    fail_on: Annotated[
        str, Option(metavar="warning|error", help="What makes the exit code 10.")
    ] = "error",
    select: Annotated[
        list[str] | None, Option(metavar="CHECK", help="Ask only this check; repeatable.")
    ] = None,
    ignore: Annotated[
        list[str] | None, Option(metavar="CHECK", help="Leave this check out; repeatable.")
    ] = None,
    require: Annotated[
        list[str] | None,
        Option(
            metavar="WHAT",
            help="Accept only what is committed (manifest), or holds all that a profile needs "
            "(resume, weights, serve); repeatable.",
        ),
    ] = None,
    allow_missing: AllowMissing = None,
    mapping: Mapped = None,
    values: Annotated[
        bool, Option("--values", help="Also look for NaN, Inf and absurd numbers in tensors.")
    ] = False,
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Print nothing where nothing is wrong.")
    ] = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Prove that checkpoints are whole, by stages: files, metadata, items, content.

    Content is proven by the CRC-32 that torch stores with every record and never reads itself.
    Each byte is read once. What could not be checked is said, and never counts as good.
    """
    output = chosen(output_format, json=json)
    view = View(
        quick=quick,
        chosen=bool(select or ignore),
        fail_on=Severity.WARNING if fail_on == "warning" else Severity.ERROR,
        quiet=quiet,
    )
    screen = Screen(sys.stdout)
    found = api.verify(
        *(paths or (None,)),
        quick=quick,
        sample=None if sample is None else _share(sample),
        part=None if part is None else _part(part),
        values=values,
        select=select or (),
        ignore=ignore or (),
        require=require or (),
        allow_missing=allow_missing or (),
        mapping=components(mapping),
        fail_on=fail_on,
        workers=workers,
        framework=framework,
        progress=progress(quiet=quiet or output != "text"),
        each=(lambda one: render_one(one, screen, view)) if output == "text" else None,
    )
    code = emit(found, output, command="verify", quiet=quiet)
    for failure in found.failures:
        sys.stderr.write(f"ckptctl: {said(failure.message)}\n")
    return code


def _share(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < value <= 1:
        raise UsageError(f"--sample takes a share such as 5% or 0.05, not {text!r}")
    return value


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= parts:
        raise UsageError(f"--part takes a fraction such as 3/16, not {text!r}")
    return number, parts
