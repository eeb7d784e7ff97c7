"""``ckptctl verify``."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Annotated

import typer

from ckptctl.checks import VALUE_CHECKS, by_id
from ckptctl.cli.output.audit import AllowMissing, Mapped, wanted_of
from ckptctl.cli.output.json import to_json
from ckptctl.cli.output.progress import progress
from ckptctl.cli.output.text import Screen, safe
from ckptctl.cli.output.verify import render, render_sum
from ckptctl.completeness.audit import PROFILES
from ckptctl.errors import CkptctlError, UsageError
from ckptctl.exit_codes import ExitCode
from ckptctl.model.finding import Severity
from ckptctl.operations.find import locate
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verification, verify
from ckptctl.storage import open_store


def verify_command(
    paths: Annotated[
        list[str], typer.Argument(help="Checkpoints, or roots whose checkpoints are all verified.")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Stop before reading what tensors hold.")
    ] = False,
    sample: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Read the content of a random share, e.g. 5%."),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="K/N", help="Read the k-th of n equal shares of the content."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Threads that read.  [default: CPUs, to 8]")
    ] = None,
    fail_on: Annotated[
        str, typer.Option(metavar="warning|error", help="What makes the exit code 10.")
    ] = "error",
    select: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Ask only this check; repeatable.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Leave this check out; repeatable.")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="Accept only what is committed (manifest), or holds all that a profile needs "
            "(resume, weights, serve); repeatable.",
        ),
    ] = None,
    allow_missing: AllowMissing = None,
    mapping: Mapped = None,
    values: Annotated[
        bool, typer.Option("--values", help="Also look for NaN, Inf and absurd numbers in tensors.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing where nothing is wrong.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prove that checkpoints are whole, by stages: files, metadata, items, content.

    Content is proven by the CRC-32 that torch stores with every record and never reads itself.
    Each byte is read once. What could not be checked is said, and never counts as good.
    """
    options = _options(quick, sample, part, workers, fail_on, select, ignore)
    options = _with_values(options, values)
    options = _with_requirements(options, require or [], allow_missing, mapping)
    screen = Screen(sys.stdout)
    results: list[Verification] = []
    failures: list[CkptctlError] = []
    for path in dict.fromkeys(paths):
        try:
            store, places = locate(path, open_store)
        except CkptctlError as error:
            failures.append(error)
            continue
        for place in places:
            result = verify(store, place, options=options, progress=progress(quiet=quiet or json))
            results.append(result)
            if not json:
                render(result, screen, options, quiet=quiet)
    code = _exit_code(results, failures)
    if json:
        fields: dict[str, object] = {
            "exit_code": code,
            "checkpoints": results,
            "errors": [str(error) for error in failures],
        }
        sys.stdout.write(to_json("ckptctl/verify/1", fields) + "\n")
    elif len(results) > 1 and not quiet:
        render_sum(results, screen)
    for failure in failures:
        sys.stderr.write(f"ckptctl: {safe(failure)}\n")
    if code:
        raise typer.Exit(code)


def _options(
    quick: bool,
    sample: str | None,
    part: str | None,
    workers: int | None,
    fail_on: str,
    select: list[str] | None,
    ignore: list[str] | None,
) -> Options:
    if sum((quick, sample is not None, part is not None)) > 1:
        raise UsageError("choose one of --quick, --sample and --part")
    known = by_id()
    for name in (*(select or ()), *(ignore or ())):
        if name not in known:
            raise UsageError(
                f"there is no check {name!r}; the checks are {', '.join(sorted(known))}"
            )
    if fail_on not in ("warning", "error"):
        raise UsageError(f"--fail-on takes warning or error, not {fail_on!r}")
    options = Options(
        quick=quick,
        sample=None if sample is None else _share(sample),
        part=None if part is None else _part(part),
        select=frozenset(select or ()),
        ignore=frozenset(ignore or ()),
        fail_on=Severity[fail_on.upper()],
    )
    return options if workers is None else options.with_workers(workers)


def _with_requirements(
    options: Options,
    require: list[str],
    allow_missing: list[str] | None,
    mapping: list[str] | None,
) -> Options:
    for name in require:
        if name not in ("manifest", *PROFILES):
            raise UsageError(f"--require takes manifest, {', '.join(PROFILES)}, not {name!r}")
    profiles = sorted(set(require) - {"manifest"})
    if len(profiles) > 1:
        raise UsageError(f"--require takes one of {' and '.join(profiles)}, not both")
    wanted = wanted_of(profiles[0] if profiles else "", allow_missing, mapping)
    return replace(options, wanted=wanted, require_manifest="manifest" in require)


def _with_values(options: Options, values: bool) -> Options:
    if values and options.quick:
        raise UsageError("--values has to read what tensors hold, which --quick leaves out")
    idle = options.select & {check.id for check in VALUE_CHECKS}
    if idle and not values:
        raise UsageError(f"--select {min(idle)} needs --values")
    return replace(options, values=values)


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


def _exit_code(results: list[Verification], failures: list[CkptctlError]) -> int:
    """Damage outranks an unfinished check, which outranks a path that is not there."""
    codes = [int(result.exit_code) for result in results]
    if ExitCode.FINDINGS in codes:
        return int(ExitCode.FINDINGS)
    return max([*codes, *(int(error.exit_code) for error in failures)], default=0)
