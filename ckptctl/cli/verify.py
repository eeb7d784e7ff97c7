"""``ckptctl verify``."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from ckptctl.checks import by_id
from ckptctl.cli.bar import progress
from ckptctl.cli.machine import to_json
from ckptctl.cli.text import Screen, plural, ranks, safe, size
from ckptctl.errors import CkptctlError, UsageError
from ckptctl.model.finding import Coverage, Finding, Severity, Stage
from ckptctl.model.geometry import Box
from ckptctl.operations.locate import locate
from ckptctl.operations.verify import Verdict, Verification, verify
from ckptctl.operations.work import Options
from ckptctl.storage import open_store

_MOST_FINDINGS = 40
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_FINDINGS_CODE = 10
_UNFINISHED_CODE = 4


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
        str | None,
        typer.Option(
            metavar="manifest", help="Accept only committed checkpoints: a gate's setting."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing where nothing is wrong.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prove that checkpoints are whole, by stages: files, metadata, items, content.

    Content is proven by the CRC-32 that torch stores with every record and never reads itself.
    Each byte is read once. What could not be checked is said, and never counts as good.
    """
    options = _options(quick, sample, part, workers, fail_on, select, ignore, require)
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
        _render_sum(results, screen)
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
    require: str | None,
) -> Options:
    if sum((quick, sample is not None, part is not None)) > 1:
        raise UsageError("choose one of --quick, --sample and --part")
    known = by_id()
    for name in (*(select or ()), *(ignore or ())):
        if name not in known:
            raise UsageError(
                f"there is no check {name!r}; the checks are {', '.join(sorted(known))}"
            )
    if require not in (None, "manifest"):
        raise UsageError(f"--require takes manifest, not {require!r}")
    if fail_on not in ("warning", "error"):
        raise UsageError(f"--fail-on takes warning or error, not {fail_on!r}")
    options = Options(
        quick=quick,
        sample=None if sample is None else _share(sample),
        part=None if part is None else _part(part),
        select=frozenset(select or ()),
        ignore=frozenset(ignore or ()),
        fail_on=Severity[fail_on.upper()],
        require_manifest=require is not None,
    )
    return options if workers is None else options.with_workers(workers)


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
    verdicts = {result.verdict for result in results}
    if Verdict.FINDINGS in verdicts:
        return _FINDINGS_CODE
    codes = [error.exit_code for error in failures]
    if Verdict.UNFINISHED in verdicts:
        codes.append(_UNFINISHED_CODE)
    return max(codes, default=0)


def render(result: Verification, screen: Screen, options: Options, *, quiet: bool) -> None:
    """Print the verification of one checkpoint: coverage, findings, verdict."""
    good = result.verdict in (Verdict.OK, Verdict.UNVERIFIED)
    if quiet and good:
        return
    name = safe(result.checkpoint)
    if not quiet:
        screen.line(screen.paint(name, "bold") + _summary(result))
        for stage in Stage:
            rows = [row for row in result.report.coverage if row.stage == stage]
            if rows:
                screen.wrapped(f"{stage.word:<9} {_coverage(rows)}", 2)
    findings = result.report.findings
    shown = [f for f in findings if not quiet or f.severity >= options.fail_on]
    for finding in shown[:_MOST_FINDINGS]:
        _render_finding(finding, screen)
    if len(shown) > _MOST_FINDINGS:
        screen.line(f"... and {len(shown) - _MOST_FINDINGS} more; --json has all of them")
    screen.line(_verdict(result, options, screen, name))


def _summary(result: Verification) -> str:
    parts = [result.format or "unknown format"]
    if result.ranks:
        word = "rank" if len(result.ranks) == 1 else "ranks"
        parts.append(f"{word} {ranks(result.ranks)}")
    if result.world_size is not None:
        parts.append(f"world size {result.world_size}, each rank saved on its own")
    if result.keys:
        parts += [plural(result.keys, "key"), plural(result.items, "item"), size(result.size)]
    return f"  ({', '.join(parts)})"


def _coverage(rows: list[Coverage]) -> str:
    words = []
    for row in rows:
        if row.total:
            part = f"{row.examined:,} of {row.total:,} {row.unit}"
            words.append(part if row.examined != row.total else f"all {plural_of(row)}")
    text = ", ".join(words) or "nothing to examine"
    read = sum(row.bytes_read for row in rows)
    if read:
        text += f", {size(read)} read"
    for row in rows:
        for reason, count in row.gaps:
            text += f"; {count:,} not examined: {safe(reason)}"
    return text


def plural_of(row: Coverage) -> str:
    """Write a count with the row's unit."""
    return plural(row.total, row.unit.removesuffix("s"))


def _render_finding(finding: Finding, screen: Screen) -> None:
    where = finding.where
    place = [safe(where.file)] if where.file else []
    if where.rank is not None:
        place.append(f"(rank {where.rank})")
    if where.fqn:
        place.append(safe(where.fqn))
    if where.box is not None:
        place.append(_slices(where.box))
    if where.start is not None and where.stop is not None:
        place.append(f"bytes {where.start}-{where.stop}")
    head = f"{finding.severity.word} {finding.check}:"
    screen.wrapped(f"{screen.paint(head, _COLOURS[finding.severity], 'bold')} {' '.join(place)}", 2)
    screen.wrapped(safe(finding.message), 6)
    if finding.loss:
        screen.wrapped(f"lost: {safe(finding.loss)}", 6)
    if finding.remedy:
        screen.wrapped(f"next: {safe(finding.remedy)}", 6)


def _slices(box: Box) -> str:
    return f"[{', '.join(f'{o}:{o + s}' for o, s in zip(box.offsets, box.sizes, strict=True))}]"


def _verdict(result: Verification, options: Options, screen: Screen, name: str) -> str:
    counts = [
        plural(number, severity.word)
        for severity in sorted(Severity, reverse=True)
        if (number := sum(f.severity == severity for f in result.report.findings))
    ]
    if result.verdict is Verdict.FINDINGS:
        return screen.paint(f"FINDINGS: {name}: {', '.join(counts)}", "red", "bold")
    if result.verdict is Verdict.UNFINISHED:
        reason = safe(result.problem) or "part of it could not be read, see above"
        return screen.paint(f"COULD NOT FINISH: {name}: {reason}", "yellow", "bold")
    text = f"OK: {name}: {_extent(result, options)}"
    if counts:
        text += f" ({', '.join(counts)})"
    if result.verdict is Verdict.UNVERIFIED:
        text += "; identity unverified (no manifest)"
    else:
        step = "" if result.step is None else f" as step {result.step}"
        run = "" if result.run_id is None else f" of run {safe(result.run_id)}"
        text += f"; committed{step}{run}"
    return screen.paint(text, "green", "bold")


def _extent(result: Verification, options: Options) -> str:
    """Say how much of the content the verdict rests on."""
    if options.select or options.ignore:
        return "the chosen checks found nothing"
    rows = [row for row in result.report.coverage if row.stage == Stage.CONTENT]
    examined, total = sum(row.examined for row in rows), sum(row.total for row in rows)
    if options.quick:
        return "structure whole, content not read"
    items = [row for row in result.report.coverage if row.stage == Stage.ITEMS]
    seen, all_items = sum(row.examined for row in items), sum(row.total for row in items)
    if result.manifest is None and seen < all_items:
        return f"structure whole, content of {seen:,} of {all_items:,} items checked"
    if examined == total:
        return "whole, content checked by " + ("digest" if result.manifest else "CRC")
    if examined == 0:
        return "structure whole, content not checkable"
    return f"structure whole, content of {examined:,} of {total:,} records checked"


def _render_sum(results: list[Verification], screen: Screen) -> None:
    good = sum(result.verdict in (Verdict.OK, Verdict.UNVERIFIED) for result in results)
    bad = sum(result.verdict is Verdict.FINDINGS for result in results)
    rest = len(results) - good - bad
    text = f"{plural(len(results), 'checkpoint')}: {good} ok, {bad} with findings"
    screen.line(text + (f", {rest} not finished" if rest else ""))
