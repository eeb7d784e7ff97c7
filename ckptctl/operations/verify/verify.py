"""``ckptctl verify``: stages from cheap to dear, each saying how far it could be asked."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from ckptctl.checks import (
    AUDIT_CHECKS,
    DIGEST_CHECKS,
    IDENTITY_CHECKS,
    STRUCTURE_CHECKS,
    VALUE_CHECKS,
    Check,
    Context,
)
from ckptctl.completeness.audit import Audit
from ckptctl.errors import StorageError
from ckptctl.formats.dcp import reader as dcp
from ckptctl.model.checkpoint import FaultKind, TensorEntry
from ckptctl.model.finding import Coverage, Finding, Gap, GapKind, Report, Severity, Stage
from ckptctl.model.seal import Seal
from ckptctl.model.verdict import Verdict
from ckptctl.operations.find import Place, address, not_read
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.collect import Collection, Plan
from ckptctl.operations.provenance.evidence import coverage_of, gather, identity_of
from ckptctl.operations.verify import values as valuing
from ckptctl.operations.verify.audit import audit_into
from ckptctl.operations.verify.examine import Examiner
from ckptctl.operations.verify.units import (
    Options,
    Unit,
    hashing_units,
    left_out,
    units_of,
)
from ckptctl.protocol import read_pointer, read_seal
from ckptctl.provenance.evidence import Identity
from ckptctl.storage import Store

SMALL_FILE = 1 << 20
"""Bytes up to which a file is hashed even by a quick look, where a manifest has its digest."""

_OF_IDENTITY = frozenset(check.id for check in IDENTITY_CHECKS)
PARTLY_READ = frozenset({"missing-rank", "malformed-entry", "unreadable-metadata"})
"""Checks that mean that not all keys are known, so that none can be called missing."""

__all__ = ["Options", "Verdict", "Verification", "verify"]


@dataclass(frozen=True, slots=True)
class Verification:
    """What one checkpoint was found to be."""

    checkpoint: str
    step: int | None
    format: str
    verdict: Verdict
    report: Report
    keys: int = 0
    items: int = 0
    ranks: tuple[int, ...] = ()
    size: int = 0
    world_size: int | None = None
    manifest: str | None = None
    run_id: str | None = None
    problem: str = ""
    audit: Audit | None = None
    identity: Identity = field(default_factory=Identity)

    @property
    def doubt(self) -> Finding | None:
        """The first reason to suspect that a file is of another step, if there is one.

        A wrong name, old metadata or a copy of another checkpoint make it suspect too, but what it
        holds is of one step.
        """
        return next((f for f in self.report.findings if f.check == "suspected-shard"), None)


def verify(
    store: Store,
    place: Place,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Verification:
    """Verify one checkpoint; whatever is wrong with it is in the report, never an exception.

    Where it has a manifest, the digests in it prove the content, and a file that fails them is
    looked at item by item to say what is lost; elsewhere the CRC of each record must do.
    """
    options = options or Options()
    url = address(store, place.path)
    base = Verification(url, place.name.step, place.format, Verdict.UNFINISHED, Report())
    if place.problem:
        return replace(base, problem=place.problem)
    if not place.readable and place.format:
        return replace(base, problem=not_read(place))
    try:
        context = Context(dcp.read(store, place.path), _seal(store, place, options))
    except StorageError as error:
        return replace(base, problem=str(error))
    identity = any(options.asks(check.id) for check in IDENTITY_CHECKS)
    plan = Plan(context) if identity else None
    collected = Collection()
    examiner = Examiner(store, place.path, context, options, progress, plan=plan)
    if options.values:
        valuing.prepare(context)
    reports = [_structure(context, options)]
    reports.append(_audit(store, place, context, options, reports[0]))
    problem = ""
    units, rest = _plan(context, options)
    reports.append(rest)
    accused: list[str] = []
    for done in examiner.run(units, label=url, executor=executor):
        reports.append(done.report)
        problem = problem or done.problem
        collected.add(done.gleaned)
        context.content_faults.extend(done.faults)
        accused.extend(
            done.unit.path for fault in done.faults if fault.kind is FaultKind.ALTERED_FILE
        )
    if accused:
        suspects = [
            u for u in units_of(context, replace(options, quick=False)) if u.path in accused
        ]
        # these items are counted already, as covered by the digests of their files
        looks = (done.report.findings for done in examiner.run(suspects, label=url))
        reports.extend(Report.of(findings) for findings in looks)
    reports.append(Report.of(_ask(DIGEST_CHECKS, context, options), _unreachable(context)))
    if options.values:
        asked = _ask(VALUE_CHECKS, context, options)
        reports.append(Report.of(asked, [valuing.coverage(context)]))
    if plan is not None and context.checkpoint.readable:
        context.evidence = gather(store, place, context, plan, collected, options)
        reports.append(Report.of(_ask(IDENTITY_CHECKS, context, options), coverage_of(context)))
    report = _addressed(
        Report.of(
            (finding for one in reports for finding in one.findings),
            (row for one in reports for row in one.coverage),
        ),
        url,
    )
    checkpoint, manifest = context.checkpoint, context.seal.manifest
    return replace(
        base,
        step=manifest.step if manifest is not None else place.name.step,
        format=dcp.NAME,
        verdict=_verdict(report, options, problem, sealed=manifest is not None),
        report=report,
        keys=len(checkpoint.entries),
        items=len(checkpoint.items),
        ranks=checkpoint.ranks,
        size=sum(file.size for file in checkpoint.files.values()),
        world_size=len(checkpoint.sources) if checkpoint.replicated else None,
        manifest=manifest.digest if manifest is not None else None,
        run_id=manifest.run_id if manifest is not None else None,
        problem=problem,
        audit=context.audit,
        identity=identity_of(context),
    )


def _seal(store: Store, place: Place, options: Options) -> Seal:
    """Read the checkpoint's records and the pointer, where one names it."""
    asked = place.path and options.asks("pointer-mismatch")
    pointer = read_pointer(store).revision if asked else None
    return read_seal(
        store,
        place.path,
        name=place.name.text,
        pointers=() if pointer is None else (pointer,),
        required=options.require_manifest,
    )


def _plan(context: Context, options: Options) -> tuple[list[Unit], Report]:
    """Choose what is read, and account for what is not because digests cover it."""
    sealed = context.seal.manifest is not None
    if not sealed or options.sample is not None or options.part is not None:
        return units_of(context, options), Report()
    if options.values and not options.quick:
        units, rows = valuing.sealed_units(context, options)
        return units, Report.of(coverage=rows)
    if not options.quick:
        return hashing_units(context), Report.of(coverage=[_covered(context, "by file digests")])
    units = hashing_units(context, largest=SMALL_FILE)
    promised = len(context.seal.manifest.files) if context.seal.manifest else 0
    omitted = promised - len(units)
    gap = replace(left_out(options), count=omitted)
    rows = [Coverage(Stage.CONTENT, "files", 0, omitted, gaps=(gap,))] if omitted else []
    if options.sizes_only:
        return units, Report.of(coverage=[*rows, _covered(context, "by sizes in the manifest")])
    return units + units_of(context, options), Report.of(coverage=rows)


def _covered(context: Context, how: str) -> Coverage:
    items = context.checkpoint.items
    count = 0
    for path, size in context.present.items():
        indices = context.layouts[path].indices
        count += sum(items.offsets[i] + items.lengths[i] <= size for i in indices)
    gaps = (Gap(GapKind.COVERED, f"covered {how}", count),) if count else ()
    return Coverage(Stage.ITEMS, "items", 0, count, gaps=gaps)


def _ask(checks: Iterable[Check[None]], context: Context, options: Options) -> list[Finding]:
    return [
        finding
        for check in checks
        if options.asks(check.id)
        for finding in check.ask(context, None)
    ]


def _verdict(report: Report, options: Options, problem: str, *, sealed: bool) -> Verdict:
    worst = report.worst()
    if worst is not None and worst >= options.fail_on:
        return Verdict.FINDINGS
    if problem or any(gap.kind.unfinished for row in report.coverage for gap in row.gaps):
        return Verdict.UNFINISHED
    if any(f.check in _OF_IDENTITY and f.severity is Severity.WARNING for f in report.findings):
        return Verdict.SUSPECT
    return Verdict.OK if sealed else Verdict.UNVERIFIED


def _addressed(report: Report, url: str) -> Report:
    """Write the checkpoint's name into every finding and the commands it recommends."""
    root = url.rstrip("/").rpartition("/")[0] or "."
    return Report.of(
        (
            replace(
                finding,
                where=replace(finding.where, checkpoint=url),
                remedy=finding.remedy.replace("{checkpoint}", url).replace("{root}", root),
            )
            for finding in report.findings
        ),
        report.coverage,
    )


def _structure(context: Context, options: Options) -> Report:
    """Stages 1 and 2: everything that listing and metadata can tell."""
    findings = _ask(STRUCTURE_CHECKS, context, options)
    checkpoint = context.checkpoint
    tensors = sum(isinstance(e, TensorEntry) for e in checkpoint.entries.values())
    return Report.of(
        findings,
        [
            Coverage(
                Stage.FILES,
                "files",
                len(context.present) + len(checkpoint.sources),
                len(context.layouts) + max(1, len(checkpoint.sources)),
            ),
            Coverage(Stage.METADATA, "tensors", tensors, tensors),
            Coverage(
                Stage.METADATA,
                "objects",
                len(checkpoint.entries) - tensors,
                len(checkpoint.entries) - tensors,
            ),
        ],
    )


def _audit(
    store: Store, place: Place, context: Context, options: Options, structure: Report
) -> Report:
    """Ask what is complete; where the metadata itself is not whole, that has been said already."""
    rows = audit_into(context, store, place.path, options.wanted)
    if any(finding.check in PARTLY_READ for finding in structure.findings):
        total = sum(row.total for row in rows)
        gaps = (Gap(GapKind.DAMAGED, "the metadata is not whole", total),)
        return Report.of(coverage=[Coverage(Stage.AUDIT, "keys", 0, total, gaps=gaps)])
    return Report.of(_ask(AUDIT_CHECKS, context, options), rows)


def _unreachable(context: Context) -> list[Coverage]:
    """Account for items whose bytes are not there."""
    items = context.checkpoint.items
    count = 0
    for path, layout in context.layouts.items():
        size = context.present.get(path, -1)
        count += sum(items.offsets[i] + items.lengths[i] > size for i in layout.indices)
    if not count:
        return []
    gaps = (Gap(GapKind.ABSENT, "their bytes are not there", count),)
    return [Coverage(Stage.ITEMS, "items", 0, count, gaps=gaps)]
