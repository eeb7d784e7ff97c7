"""What a person accepted in spite of a check: part of a manifest, or of an amendment of it.

An acceptance is of findings that were there when it was given. What is found later, at another
place, is not covered by it, whatever its pattern would match.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.model.finding import Finding, Severity
from ckptctl.pattern import pattern

LONGEST = 1000
"""Characters of a reason or a pattern, and of what is kept of a finding's words."""

MOST = 10_000
"""Findings that one acceptance may be of."""

Spot: TypeAlias = tuple[str | None, int | None, str | None, int | None, int | None, str]
"""File, rank, key, first byte, last byte, and what it is about where no place tells that."""

_OPTION = pattern(r" \(`[a-z_]+=[^`]*` accepts that\)$")
_SEVERITIES = {severity.word: severity for severity in Severity}


@dataclass(frozen=True, slots=True)
class AcceptedFinding:
    """One finding as it was when it was accepted: how bad, what it said, where.

    ``start`` and ``stop`` are bytes of the file; ``about`` is what it is of, where no place tells.
    """

    severity: str
    message: str
    file: str | None = None
    rank: int | None = None
    key: str | None = None
    start: int | None = None
    stop: int | None = None
    about: str = ""

    @classmethod
    def of(cls, finding: Finding) -> AcceptedFinding:
        """Keep what tells an accepted finding from others."""
        severity = finding.severity if finding.accepted is None else finding.accepted.severity
        return cls(severity.word, said(finding), *spot(finding))

    @property
    def spot(self) -> Spot:
        """Where it is, as :func:`spot` has it."""
        return self.file, self.rank, self.key, self.start, self.stop, self.about

    def covers(self, finding: Finding, *, words: bool) -> bool:
        """Tell whether a finding at this place is this one, and no worse; with ``words``, says the same."""
        no_worse = finding.severity <= _SEVERITIES.get(self.severity, Severity.NOTE)
        return no_worse and (not words or self.message == said(finding))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Findings of one check that a person accepted, and why; ``pattern`` is what was asked for, if anything."""

    check: str
    pattern: str
    reason: str
    findings: tuple[AcceptedFinding, ...]
    time: str = ""
    actor: str = ""
    tool: str = ""


def spot(finding: Finding) -> Spot:
    """Return where a finding is, for comparing."""
    where = finding.where
    return where.file, where.rank, where.fqn, where.start, where.stop, finding.about


def said(finding: Finding) -> str:
    """Return what a finding says, without the option that it names: that depends on what was asked."""
    return _OPTION.sub("", finding.message)[:LONGEST]


def told(one: Acceptance) -> dict[str, Any]:
    """Return an acceptance as it is told of what something was made from: it accepts nothing there."""
    return {
        "check": one.check,
        "pattern": one.pattern,
        "reason": one.reason,
        "findings": len(one.findings),
        "time": one.time,
        "actor": one.actor,
    }


def acceptance_of(body: object) -> Acceptance:
    """Make an acceptance of what a record holds; raises ``MalformedData`` for what is none."""
    try:
        if isinstance(body, dict) and isinstance(body.get("findings"), list):
            rows = tuple(AcceptedFinding(**row) for row in body["findings"])
            found = Acceptance(**{**body, "findings": rows})
            if _typed(found):
                return found
    except TypeError:
        pass
    raise MalformedData(f"an entry of what it accepts is not valid: {str(body)[:80]}")


def _typed(found: Acceptance) -> bool:
    texts = (found.check, found.pattern, found.reason, found.time, found.actor, found.tool)
    return (
        all(isinstance(text, str) for text in texts)
        and bool(found.reason.strip())
        and 0 < len(found.findings) <= MOST
        and all(_row(row) for row in found.findings)
    )


def _row(row: AcceptedFinding) -> bool:
    return (
        row.severity in _SEVERITIES
        and isinstance(row.message, str)
        and isinstance(row.about, str)
        and all(isinstance(text, str | None) for text in (row.file, row.key))
        and all(type(number) in (int, type(None)) for number in (row.rank, row.start, row.stop))
    )
