"""The verdict of a verification: what all that was found comes to, and why, in words."""

from __future__ import annotations

from ckptctl.checks import IDENTITY_CHECKS
from ckptctl.model.finding import Finding, GapKind, Severity
from ckptctl.model.manifest import Manifest
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.verify.work import Work
from ckptctl.provenance.evidence import Identity, Source

_LOOSE = (GapKind.NO_CRC, GapKind.FORM_ONLY)
_OF_IDENTITY = frozenset(check.id for check in IDENTITY_CHECKS)
_MOST_NAMED = 4
_DOUBTS = {
    "newer-than-metadata": "their times do not fit one save",
    "odd-time": "their times do not fit one save",
    "odd-counter": "a counter is out of line",
    "unknown-encoding": "some of it is in an unknown encoding",
    "stale-metadata": "the metadata was written for another save",
    "unreferenced-bytes": "items of it belong to no key",
    "shared-shard": "some are equal in another checkpoint",
}
"""Notes with which a checkpoint is not called good on its files' word alone."""

_WARNED = {"unreferenced-file": "more lies in shards that nothing refers to"}
"""The same for what is more than a note."""


def judge(work: Work) -> tuple[Verdict, str]:
    """Return the verdict and why: damage outranks what is unfinished, which outranks all else."""
    report, options = work.report, work.options
    worst = report.worst()
    if worst is not None and worst >= options.fail_on:
        return Verdict.FINDINGS, _worst(report.findings[0])
    if work.problem or any(gap.kind.unfinished for row in report.coverage for gap in row.gaps):
        return Verdict.UNFINISHED, work.problem or "part of it could not be read, see above"
    if not work.context.checkpoint.entries:
        return Verdict.NOTHING, "it holds no keys, so there is nothing to examine"
    if not work.asked:
        return Verdict.NOTHING, "none of the chosen checks had anything to ask"
    if any(f.check in _OF_IDENTITY and f.severity is Severity.WARNING for f in report.findings):
        return Verdict.SUSPECT, "see the warnings about its identity"
    manifest = work.context.seal.manifest
    if manifest is not None:
        return Verdict.OK, f"{_committed(manifest)}{_accepted(work)}"
    identity = work.context.assessment.identity
    why = why_unverified(work, identity) or _unproven(work)
    if why:
        return Verdict.UNVERIFIED, f"{why} (no manifest)"
    run = "" if identity.one_run else " and none its run"
    return Verdict.OK, f"every file says step {identity.step}{run} (inferred: no manifest)"


def _worst(finding: Finding) -> str:
    file = f"{finding.where.file}: " if finding.where.file else ""
    return f"{finding.check}: {file}{finding.message}"


def _committed(manifest: Manifest) -> str:
    step = "" if manifest.step is None else f" as step {manifest.step}"
    run = "" if manifest.run_id is None else f" of run {manifest.run_id}"
    return f"committed{step}{run}"


def _accepted(work: Work) -> str:
    """Say that what is called good is so because a person said it."""
    checks = sorted({finding.check for finding in work.report.findings if finding.accepted})
    return f"; accepted in spite of {', '.join(checks)}" if checks else ""


def _unproven(work: Work) -> str:
    """Say which part of the content nothing was recorded to check against; empty for none."""
    rows = [row for row in work.report.coverage if row.unit == "records"]
    loose = sum(gap.count for row in rows for gap in row.gaps if gap.kind in _LOOSE)
    total = sum(row.total for row in rows)
    return f"no CRC is recorded for {loose:,} of {total:,} records" if loose else ""


def why_unverified(work: Work, identity: Identity) -> str:
    """Say what is missing for a file's step to be known; empty where every file says one step."""
    named = work.located.place.name.step
    if not identity.files:
        return "nothing says which step it is of"
    odd = identity.of(Source.AT_ODDS)
    if odd:
        steps = sorted({one.steps[0] for one in identity.files if one.file in odd and one.steps})
        said = f" step {', '.join(map(str, steps))}" if steps else " another step"
        rest = "" if identity.step is None else f" and the others {identity.step}"
        return f"{_listed(odd)} {_verb(odd, 'says', 'say')}{said}{rest}"
    silent = identity.of(Source.NONE)
    if silent:
        return f"nothing says which step {_listed(silent)} {_verb(silent, 'is', 'are')} of"
    peers = identity.of(Source.PEERS)
    if peers:
        verb = _verb(peers, "is", "are")
        return f"only data positions say which step {_listed(peers)} {verb} of"
    if named is not None and identity.step != named:
        return f"every file says step {identity.step} and the name {named}"
    if len(identity.runs) > 1:
        return f"every file says step {identity.step}, but they name {len(identity.runs)} runs"
    found = work.report.findings
    doubts = {_DOUBTS[f.check] for f in found if f.check in _DOUBTS}
    doubts |= {_WARNED[f.check] for f in found if f.check in _WARNED and f.severity > Severity.NOTE}
    if doubts:
        return f"every file says step {identity.step}, but {' and '.join(sorted(doubts))}"
    return ""


def _verb(files: tuple[str, ...], one: str, many: str) -> str:
    return one if len(files) == 1 else many


def _listed(files: tuple[str, ...]) -> str:
    if len(files) > _MOST_NAMED:
        return f"{files[0]} and {len(files) - 1} other files"
    return ", ".join(files)
