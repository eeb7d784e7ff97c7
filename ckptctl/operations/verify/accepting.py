"""What a person accepts in spite of a check: asked for now, or recorded by a manifest already."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from ckptctl.checks import by_id
from ckptctl.checks.base import Override
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import Refused
from ckptctl.model.acceptance import MOST, Acceptance, AcceptedFinding, Spot, spot
from ckptctl.model.finding import Accepted, Finding, Report, Severity
from ckptctl.version import __version__

_NOTHING_TO_DO = "nothing, it was accepted"
_NO_USE = "; the manifest says that this was accepted, which counts for nothing: it proves damage"


@dataclass(frozen=True, slots=True)
class Wish:
    """One check whose findings are to be accepted: those whose file, key or component fits, or all."""

    check: str
    pattern: str = ""

    def __str__(self) -> str:
        """As it is typed."""
        return f"{self.check}:{self.pattern}" if self.pattern else self.check

    def fits(self, finding: Finding) -> bool:
        """Tell whether a finding is one of those that are meant."""
        if finding.check != self.check:
            return False
        names = (finding.where.file, finding.where.fqn, finding.about)
        return not self.pattern or any(
            name == self.pattern or fnmatch.fnmatchcase(name, self.pattern)
            for name in names
            if name
        )


@dataclass(frozen=True, slots=True)
class Accepting:
    """What is accepted now: why, who says so, and when."""

    wishes: tuple[Wish, ...] = ()
    reason: str = ""
    actor: str = ""
    time: str = ""

    def wish(self, finding: Finding) -> Wish | None:
        """Return the first wish that a finding fits."""
        return next((wish for wish in self.wishes if wish.fits(finding)), None)

    def acceptances(self, findings: Iterable[Finding]) -> tuple[Acceptance, ...]:
        """Make records of what was accepted just now, one for each wish that anything fits.

        Raises ``Refused`` where that is more than anybody has looked at.
        """
        rows: dict[Wish, list[AcceptedFinding]] = {}
        for finding in findings:
            wish = self.wish(finding)
            if wish is not None and finding.accepted is not None and finding.accepted.new:
                rows.setdefault(wish, []).append(AcceptedFinding.of(finding))
        for wish, found in rows.items():
            if len(found) > MOST:
                raise Refused(
                    f"`accept` of {wish} fits {len(found):,} findings, and {MOST:,} are the most "
                    "that one acceptance takes: a pattern chooses among them; nothing was changed"
                )
        tool = f"ckptctl {__version__}"
        return tuple(
            Acceptance(
                wish.check,
                wish.pattern,
                self.reason,
                tuple(dict.fromkeys(rows[wish])),
                self.time,
                self.actor,
                tool,
            )
            for wish in self.wishes
            if wish in rows
        )

    def unmatched(self, findings: Iterable[Finding]) -> tuple[str, ...]:
        """Name the wishes that no finding fits: more likely than not they are misspelled."""
        met = {wish for one in findings if one.accepted for wish in self.wishes if wish.fits(one)}
        return tuple(str(wish) for wish in self.wishes if wish not in met)


@dataclass(frozen=True, slots=True)
class Acceptances:
    """All that is accepted of one checkpoint: by its records, and now."""

    recorded: tuple[Acceptance, ...] = ()
    now: Accepting = field(default_factory=Accepting)

    def weigh(self, report: Report) -> Report:
        """Make notes of the findings that are accepted; they keep how bad they are without that."""
        if not (self.recorded or self.now.wishes) or not report.findings:
            return report
        known: dict[tuple[str, Spot], list[tuple[Acceptance, AcceptedFinding]]] = {}
        for acceptance in self.recorded:
            for row in acceptance.findings:
                known.setdefault((acceptance.check, row.spot), []).append((acceptance, row))
        checks = by_id()
        findings = [
            self._weighed(one, known.get((one.check, spot(one)), ()), checks[one.check].acceptable)
            for one in report.findings
        ]
        return Report.of(findings, report.coverage)

    def _weighed(
        self,
        finding: Finding,
        known: Iterable[tuple[Acceptance, AcceptedFinding]],
        override: Override,
    ) -> Finding:
        if finding.severity is Severity.NOTE or finding.accepted is not None:
            return finding
        for acceptance, row in known:
            if row.covers(finding, words=override.words):
                if override.most is None or finding.severity > override.most:
                    return replace(finding, message=f"{finding.message}{_NO_USE}")
                why = Accepted(
                    acceptance.reason, acceptance.actor, acceptance.time, finding.severity
                )
                return _accepted(finding, why)
        allowed = override.most is not None and finding.severity <= override.most
        if allowed and self.now.wish(finding) is not None:
            now = self.now
            why = Accepted(now.reason, now.actor, now.time, finding.severity, new=True)
            return _accepted(finding, why)
        return finding


def way_round(errors: Iterable[Finding]) -> str:
    """Say how to accept what is wrong, where all of it may be; empty otherwise."""
    known, checks = by_id(), dict[str, None]()
    for one in errors:
        most = known[one.check].acceptable.most
        if most is None or one.severity > most:
            return ""
        checks[one.check] = None
    asked = " and ".join(f"`accept={check}`" for check in checks)
    return f"; if it is meant so, {asked} with a `reason` accepts it" if asked else ""


def _accepted(finding: Finding, why: Accepted) -> Finding:
    return replace(finding, severity=Severity.NOTE, remedy=_NOTHING_TO_DO, accepted=why)
