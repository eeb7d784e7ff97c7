"""Gathering all that ties a checkpoint's files to a step and a run, and saying how far it reaches."""

from __future__ import annotations

from ckptctl import protocol
from ckptctl.checks import Context
from ckptctl.checks.provenance import COMPARING
from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.finding import Coverage, Gap, GapKind, Stage
from ckptctl.model.manifest import RECEIPTS, Receipt
from ckptctl.operations.located import Located
from ckptctl.operations.provenance.collect import Collection
from ckptctl.operations.provenance.neighbours import Compared, neighbours_of
from ckptctl.operations.provenance.siblings import named_part
from ckptctl.operations.verify.options import Options
from ckptctl.provenance.counters import RunMark, Stamp
from ckptctl.provenance.evidence import Evidence, Identity, Source
from ckptctl.provenance.restarts import untied
from ckptctl.provenance.tears import torn_at
from ckptctl.words import listed

_MOST_NAMED = 12
_MOST_RECEIPTS = 1 << 14


def gather(
    located: Located,
    context: Context,
    collected: Collection,
    options: Options,
    *,
    step: int | None = None,
) -> Evidence:
    """Put together what was picked up, the records of ckptctl, and what neighbours tell.

    ``step`` is the declared one where it is neither the manifest's nor in the directory's name.
    """
    gaps: list[Gap] = []
    manifest = context.seal.manifest
    declared = manifest.step if manifest is not None and manifest.step is not None else step
    named, by_name = named_part(located.store, located.place)
    plan = collected.plan if any(options.asks(check) for check in COMPARING) else None
    companions = [
        one.path
        for one in context.checkpoint.companions.values()
        if one.state and one.known and context.checkpoint.files[one.path].is_file
    ]
    said = context.beside.says
    stamps = (*collected.stamps, *(one for one in said if isinstance(one, Stamp)))
    declared = by_name if declared is None else declared
    compared = Compared()
    if plan is not None:
        compared = neighbours_of(
            located,
            context,
            plan,
            collected.summaries,
            workers=options.workers,
            numbers=not options.quick and options.asks("exchanged-shards"),
            counted=stamps if torn_at(stamps) else untied(stamps),
            older_than=declared if options.asks("shrunken-checkpoint") else None,
        )
    return Evidence(
        files=tuple(sorted({*context.present, *companions})),
        declared=declared,
        named=named,
        stamps=stamps,
        counters=tuple(collected.counters),
        runs=(*collected.runs, *(one for one in said if isinstance(one, RunMark))),
        makers=dict(collected.makers),
        receipts=tuple(_receipts(located, context, gaps)),
        neighbours=compared.neighbours,
        beside=compared.total,
        lacking=compared.lacking,
        gaps=tuple(gaps),
    )


def _receipts(located: Located, context: Context, gaps: list[Gap]) -> list[Receipt]:
    paths = [p for p in context.checkpoint.files if p.startswith(f"{RECEIPTS}/rank-")]
    try:
        return protocol.read_receipts(located.store, located.base, paths[:_MOST_RECEIPTS])
    except MalformedData as error:
        gaps.append(Gap(GapKind.DAMAGED, f"a receipt is damaged: {error}", len(paths)))
    except StorageError as error:
        gaps.append(Gap(GapKind.UNREAD, f"a receipt could not be read: {error}", len(paths)))
    return []


def coverage_of(context: Context) -> list[Coverage]:
    """Say for how many files something tells their step, and name the others."""
    identity = context.assessment.identity
    files = identity.files
    silent = identity.of(Source.NONE)
    verb = "is" if len(silent) == 1 else "are"
    reason = f"nothing says which step {listed(silent, _MOST_NAMED)} {verb} of"
    gaps = [Gap(GapKind.SILENT, reason, len(silent))] if silent else []
    rows = [
        Coverage(Stage.IDENTITY, "files", len(files) - len(silent), len(files), gaps=tuple(gaps))
    ]
    found = context.evidence.neighbours
    if found:
        bad = [
            Gap(GapKind.NOT_COMPARED, f"{one.name} could not be compared: {one.problem}")
            for one in found
            if one.problem
        ]
        done = len(found) - len(bad)
        total = max(context.evidence.beside, len(found))
        left = total - len(found)
        if left:
            bad.append(Gap(GapKind.NOT_COMPARED, "neighbours further away were not compared", left))
        rows.append(Coverage(Stage.IDENTITY, "neighbours", done, total, gaps=tuple(bad)))
    unread = context.evidence.gaps
    if unread:
        total = sum(gap.count for gap in unread)
        rows.append(Coverage(Stage.IDENTITY, "receipts", 0, total, gaps=unread))
    return rows


def identity_of(context: Context) -> Identity:
    """Return the step of a checkpoint and how each file is known to be of it."""
    return context.assessment.identity
