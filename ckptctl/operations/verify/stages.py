"""The stages of verification, from cheap to dear: what each asks, reads, and says of its reach.

A stage takes the work as the stages before it left it and returns it with what it found; none
knows another. Bytes are read in one of them, for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ckptctl.checks import (
    AUDIT_CHECKS,
    DIGEST_CHECKS,
    IDENTITY_CHECKS,
    ITEM_CHECKS,
    OBJECT_CHECKS,
    STRUCTURE_CHECKS,
    VALUE_CHECKS,
    Context,
)
from ckptctl.dataclass import replace
from ckptctl.model.checkpoint import Fault, FaultKind, Item, TensorEntry
from ckptctl.model.finding import Coverage, Gap, GapKind, Report, Stage
from ckptctl.model.observation import Against, Objects
from ckptctl.operations.provenance.collect import Collection, Plan
from ckptctl.operations.provenance.evidence import coverage_of as identity_coverage
from ckptctl.operations.provenance.evidence import gather
from ckptctl.operations.provenance.forms import saved_elsewhere
from ckptctl.operations.verify.audit import audit_of
from ckptctl.operations.verify.audit import coverage_of as audit_coverage
from ckptctl.operations.verify.beside import Companions, weigh_digests
from ckptctl.operations.verify.examine import Done, Examiner
from ckptctl.operations.verify.units import ToRead, item_units, sealing_units, to_read
from ckptctl.operations.verify.unlisted import unlisted_items
from ckptctl.operations.verify.values import coverage as value_coverage
from ckptctl.operations.verify.values import expected_values, leave_out
from ckptctl.operations.verify.work import Work

PARTLY_READ = frozenset({"missing-rank", "malformed-entry", "unreadable-metadata"})
"""Checks that mean that not all keys are known, so that none can be called missing."""


class Step(Protocol):
    """One stage; where nothing was asked for that it answers, it leaves the work as it is."""

    def run(self, work: Work) -> Work:
        """Return the work with what was found; damage is a finding, a silent storage a gap."""
        ...


class Structure:
    """Files and metadata: everything that listing and metadata tell.

    Nothing more is read, but for bytes that belong to no entry: where items end in them.
    """

    def run(self, work: Work) -> Work:
        """Ask what is there, and how its parts fit together."""
        context = replace(work.context, unlisted=unlisted_items(work.located, work.context))
        checkpoint, sources = context.checkpoint, len(context.checkpoint.sources)
        tensors = sum(isinstance(e, TensorEntry) for e in checkpoint.entries.values())
        objects = len(checkpoint.entries) - tensors
        files = len({*context.present, *checkpoint.sources})
        expected = len({*context.layouts, *checkpoint.sources}) + (not sources)
        rows = [
            Coverage(Stage.FILES, "files", files, expected),
            Coverage(Stage.METADATA, "tensors", tensors, tensors),
            Coverage(Stage.METADATA, "objects", objects, objects),
        ]
        return work.ask(STRUCTURE_CHECKS, context, rows, examined=bool(checkpoint.entries))


class Completeness:
    """The audit: is all there that a resume needs? Reads a few small values."""

    def run(self, work: Work) -> Work:
        """Audit; where the metadata itself is not whole, that has been said already."""
        audit = audit_of(work.located, work.context)
        if audit is None:  # no key is known
            return work
        context = replace(work.context, audit=audit)
        row = audit_coverage(audit)
        if any(finding.check in PARTLY_READ for finding in work.report.findings):
            gap = Gap(GapKind.DAMAGED, "the metadata is not whole", row.total)
            row = Coverage(Stage.AUDIT, "keys", 0, row.total, gaps=(gap,))
            return work.found(Report.of(coverage=[row]), context=context)
        return work.ask(AUDIT_CHECKS, context, [row], examined=audit.keys > 0)


class Content:
    """Items and bytes: each byte is read once, for the checks of items, digests, values, identity."""

    def run(self, work: Work) -> Work:
        """Do all units of work, look once more at what a digest accuses, and ask about digests."""
        context = work.context
        if work.options.values:
            context = replace(context, values=expected_values(context.checkpoint))
        plan = Plan(context) if work.wants_identity else None
        collected = Collection(plan)
        for one in plan.told(context.checkpoint) if plan is not None else ():
            collected.add(one)
        examiner = Examiner(work.located, context, work.options, work.progress, plan=plan)
        chosen = _chosen(work, context)
        leave_out(context.values, chosen.astray)
        reports, unread = [Report.of(coverage=chosen.rows)], list[str]()
        faults, digests, problem = list[Fault](), dict[str, tuple[int, str]](), ""
        checked, objects = dict[str, Against](), Objects()
        for done in examiner.run(chosen.units, label=work.located.url, executor=work.executor):
            reports.append(done.report)
            problem = problem or done.problem
            collected.add(done.collected)
            faults += done.faults
            objects += done.objects
            if not done.unit.expected:
                _note_sealed(done, context, digests, checked)
            elif not done.faults and not done.problem:  # what else promises a digest
                checked[done.unit.path] = Against.DIGEST
            unread += _unread(done)
            if work.sealing is not None and (problem or unread):
                break
        reports += _second_look(work, context, examiner, faults)
        damaged = {f.where.file for one in reports for f in one.findings if f.where.file}
        faults = weigh_digests(context, faults, damaged)
        raws = objects.foreign
        if context.seal.manifest is None and saved_elsewhere(work.located, raws):
            raws = objects.short
        reports = [_without(one, raws) for one in reports] if raws else reports
        objects = replace(objects, raws=raws)
        open_question = objects.saved and objects.loose and context.seal.manifest is None
        if open_question and work.options.asks("unknown-encoding"):
            found = saved_elsewhere(work.located, objects.loose)
            objects = replace(objects, elsewhere=found)
        context = replace(context, content_faults=tuple(faults), objects=objects)
        report = Report.all(reports)
        work = work.found(
            report,
            _asked(work, report),
            problem=problem,
            collected=collected,
            digests=digests,
            checked=checked,
            unread=tuple(unread),
        )
        work = work.ask(OBJECT_CHECKS, context, examined=objects != Objects())
        hashed = any(row.examined for row in report.coverage if row.unit == "files")
        return work.ask(DIGEST_CHECKS, context, _absent(context), examined=hashed)


class Values:
    """The numbers in tensors, which were looked at while their bytes went by."""

    def run(self, work: Work) -> Work:
        """Judge each tensor as a whole, where that was asked for."""
        if not work.options.values:
            return work
        row = value_coverage(work.context.values)
        return work.ask(VALUE_CHECKS, work.context, [row], examined=row.examined > 0)


class Identity:
    """Step and run: what the files say of them. Reads names and ends of items of neighbours."""

    def run(self, work: Work) -> Work:
        """Weigh all that was collected, with the records and with what neighbours tell."""
        collected = work.collected
        if collected is None or not work.wants_identity or not work.context.checkpoint.readable:
            return work
        step = work.sealing.step if work.sealing is not None else None
        evidence = gather(work.located, work.context, collected, work.options, step=step)
        context = replace(work.context, evidence=evidence)
        rows = identity_coverage(context)
        told = any(row.examined for row in rows) or context.assessment.saved_as is not None
        return work.ask(IDENTITY_CHECKS, context, rows, examined=told)


STAGES: tuple[Step, ...] = (
    Structure(),
    Companions(),
    Completeness(),
    Content(),
    Values(),
    Identity(),
)
"""All of them, in the order in which they run."""


def run_stages(work: Work, stages: tuple[Step, ...] = STAGES) -> Work:
    """Run stages one after the other; a commit stops after the first that finds an error."""
    for stage in stages:
        work = stage.run(work)
        if work.sealing is not None and (work.errors or work.problem or work.unread):
            break
    return work


def _chosen(work: Work, context: Context) -> ToRead:
    """Choose what is read: for a commit all that it promises."""
    sealing, options = work.sealing, work.options
    if sealing is None:
        return to_read(context, options)
    return ToRead(sealing_units(context, options, sealing.algorithm, sealing.files), [])


def _note_sealed(
    done: Done,
    context: Context,
    digests: dict[str, tuple[int, str]],
    checked: dict[str, Against],
) -> None:
    """Note the digest of a file, and what its bytes were checked against, be it by two units."""
    path = done.unit.path
    if not done.unit.items:
        checked.setdefault(path, done.against)
    elif done.unit.algorithm or done.against is Against.NOTHING or path not in context.layouts:
        checked[path] = done.against
    else:  # what lies between the items has no CRC
        checked[path] = Against.SOME_CRCS
    if done.unit.algorithm:
        digests[path] = done.unit.size, done.digest


def _unread(done: Done) -> list[str]:
    """Say what of a file could not be read, though the storage answered."""
    if done.problem:
        return []
    gaps = [gap for row in done.report.coverage for gap in row.gaps]
    return [f"{done.unit.path}: {gap.reason}" for gap in gaps if gap.kind.unfinished]


def _without(report: Report, raws: Iterable[Item]) -> Report:
    """Take back what was said of objects before it was known that a planner writes all of them so."""
    spots = {(item.path, item.offset) for item in raws}
    findings = [
        one
        for one in report.findings
        if one.check != "item-structure" or (one.where.file, one.where.start) not in spots
    ]
    return Report.of(findings, report.coverage)


def _second_look(
    work: Work, context: Context, examiner: Examiner, faults: list[Fault]
) -> list[Report]:
    """Look at the items of altered files, to say what is lost; they are counted as covered already."""
    altered = {f.where.file for f in faults if f.kind is FaultKind.ALTERED_FILE}
    if not altered:
        return []
    every = item_units(context, replace(work.options, quick=False))
    units = [unit for unit in every if unit.path in altered]
    return [Report.of(done.report.findings) for done in examiner.run(units, label=work.located.url)]


def _asked(work: Work, report: Report) -> set[str]:
    """Name the checks of items that had something to ask: items, their records, or hashed files."""
    seen = any(r.examined for r in report.coverage if r.stage in (Stage.ITEMS, Stage.CONTENT))
    return {check.id for check in ITEM_CHECKS if work.options.asks(check.id)} if seen else set()


def _absent(context: Context) -> list[Coverage]:
    """Account for items whose bytes are not there."""
    count = (
        sum(len(layout.indices) for layout in context.layouts.values()) - context.structure.within
    )
    if not count:
        return []
    gaps = (Gap(GapKind.ABSENT, "their bytes are not there", count),)
    return [Coverage(Stage.ITEMS, "items", 0, count, gaps=gaps)]
