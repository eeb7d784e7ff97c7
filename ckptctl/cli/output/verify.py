"""What ``ckptctl verify`` prints of one checkpoint: coverage, findings, verdict."""

from __future__ import annotations

from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.audit import audit_line
from ckptctl.cli.output.text import Screen, plural, safe, said, size
from ckptctl.dataclass import dataclass
from ckptctl.model.finding import Coverage, Finding, Severity, Stage
from ckptctl.model.geometry import Box
from ckptctl.model.result.verdict import Verdict
from ckptctl.results import Verification, Verifications
from ckptctl.words import ranges as ranks

_MOST_FINDINGS = 40
_WITHOUT = {
    Verdict.UNFINISHED: "COULD NOT FINISH",
    Verdict.NOTHING: "NOTHING EXAMINED",
    Verdict.NOT_EXAMINED: "NOT EXAMINED",
}
"""Verdicts that rest on nothing that was examined."""

_WITH = {Verdict.SUSPECT: ("SUSPECT", "yellow"), Verdict.UNVERIFIED: ("UNVERIFIED", "yellow")}
_A = {Severity.ERROR: "an error", Severity.WARNING: "a warning", Severity.NOTE: "a note"}
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@dataclass(frozen=True, slots=True)
class View:
    """What the text of a verification rests on beside its result: how far was asked to look.

    ``chosen`` means that not all checks were asked; with ``quiet`` good news is left out, and
    findings below ``fail_on``.
    """

    quick: bool = False
    chosen: bool = False
    fail_on: Severity = Severity.ERROR
    quiet: bool = False


def render_one(result: Verification, screen: Screen, view: View) -> None:
    """Print the verification of one checkpoint: coverage, findings, verdict."""
    if view.quiet and result.good:
        return
    name = safe(result.checkpoint)
    if not view.quiet:
        screen.line(screen.paint(name, "bold") + _summary(result))
        for stage in Stage:
            rows = [row for row in result.report.coverage if row.stage == stage]
            if rows:
                text = _coverage(rows)
                if stage is Stage.AUDIT and result.audit is not None:
                    text = audit_line(result.audit) + _gaps(rows)
                screen.wrapped(f"{stage.word:<9} {text}", 2)
    findings = result.report.findings
    shown = [f for f in findings if not view.quiet or f.severity >= view.fail_on]
    for finding in shown[:_MOST_FINDINGS]:
        _render_finding(finding, screen)
    if len(shown) > _MOST_FINDINGS:
        screen.line(f"... and {len(shown) - _MOST_FINDINGS} more; --json has all of them")
    screen.line(_verdict(result, view, screen, name))


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
    return text + _gaps(rows)


def _gaps(rows: list[Coverage]) -> str:
    gaps = [gap for row in rows for gap in row.gaps]
    return "".join(f"; {gap.count:,} not examined: {said(gap.reason)}" for gap in gaps)


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
    screen.wrapped(" ".join([screen.paint(head, _COLOURS[finding.severity], "bold"), *place]), 2)
    screen.wrapped(said(finding.message), 6)
    if finding.loss:
        screen.wrapped(f"lost: {said(finding.loss)}", 6)
    if finding.accepted is not None:
        why = finding.accepted
        said_by = f"(by {safe(why.by)} at {safe(why.time)})"
        screen.wrapped(f"accepted, else it is {_A[why.severity]}: {safe(why.reason)} {said_by}", 6)
    elif finding.remedy:
        screen.wrapped(f"next: {said(finding.remedy)}", 6)


def _slices(box: Box) -> str:
    return f"[{', '.join(f'{o}:{o + s}' for o, s in zip(box.offsets, box.sizes, strict=True))}]"


def _verdict(result: Verification, view: View, screen: Screen, name: str) -> str:
    counts = [
        plural(number, severity.word)
        for severity in sorted(Severity, reverse=True)
        if (number := sum(f.severity == severity for f in result.report.findings))
    ]
    if result.verdict is Verdict.FINDINGS:
        return screen.paint(f"FINDINGS: {name}: {', '.join(counts)}", "red", "bold")
    why = said(result.why)
    if result.verdict in _WITHOUT:
        return screen.paint(f"{_WITHOUT[result.verdict]}: {name}: {why}", "yellow", "bold")
    text = f"{name}: {_extent(result, view)}"
    if counts:
        text += f" ({', '.join(counts)})"
    word, colour = _WITH.get(result.verdict, ("OK", "green"))
    return screen.paint(f"{word}: {text}; {why}", colour, "bold")


def _extent(result: Verification, view: View) -> str:
    """Say how much of the content the verdict rests on."""
    if view.chosen:
        return "the chosen checks found nothing"
    rows = [row for row in result.report.coverage if row.stage == Stage.CONTENT]
    examined, total = sum(row.examined for row in rows), sum(row.total for row in rows)
    if view.quick:
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


@render.register
def render_sum(found: Verifications, screen: Screen) -> None:
    """Print how many checkpoints were good; each was printed as soon as it was verified."""
    results = found.checkpoints
    if len(results) < 2:
        return
    always = ("ok", "with findings")
    words = ("ok", "unverified", "suspect", "with findings", "with nothing to examine")
    counts = dict.fromkeys((*words, "not examined", "not finished"), 0)
    for result in results:
        counts[_word(result)] += 1
    parts = [f"{number} {word}" for word, number in counts.items() if number or word in always]
    screen.line(f"{plural(len(results), 'checkpoint')}: {', '.join(parts)}")


def _word(result: Verification) -> str:
    return {
        Verdict.OK: "ok",
        Verdict.UNVERIFIED: "unverified",
        Verdict.SUSPECT: "suspect",
        Verdict.FINDINGS: "with findings",
        Verdict.NOTHING: "with nothing to examine",
        Verdict.NOT_EXAMINED: "not examined",
    }.get(result.verdict, "not finished")
