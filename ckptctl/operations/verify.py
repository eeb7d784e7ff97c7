"""``ckptctl verify``: stages from cheap to dear, each saying how far it could be asked."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from ckptctl.checks import ITEM_CHECKS, STRUCTURE_CHECKS, Context
from ckptctl.errors import StorageError
from ckptctl.formats import dcp
from ckptctl.formats.itemscan import scan_items
from ckptctl.model.checkpoint import Fault, Item, ObjectEntry, TensorEntry
from ckptctl.model.dtypes import item_size
from ckptctl.model.finding import Coverage, Finding, Report, Severity, Stage
from ckptctl.model.observation import ItemSeen
from ckptctl.operations.locate import Place
from ckptctl.operations.progress import Progress, Silent
from ckptctl.operations.work import UNFINISHED_PREFIX, Options, Tally, Unit, units_of
from ckptctl.storage import Store

__all__ = ["Options", "Verdict", "Verification", "verify"]


class Verdict(str, enum.Enum):
    """The answer in one word."""

    OK = "ok"
    UNVERIFIED = "ok, identity unverified"
    FINDINGS = "findings"
    UNFINISHED = "could not finish"


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
    problem: str = ""


def verify(
    store: Store,
    place: Place,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Verification:
    """Verify one checkpoint; whatever is wrong with it is in the report, never an exception."""
    options = options or Options()
    url = f"{store.url.rstrip('/')}/{place.path}" if place.path else store.url
    if not place.readable and place.format:
        problem = f"{place.format} is not read by this release"
        return Verification(
            url, place.name.step, place.format, Verdict.UNFINISHED, Report(), problem=problem
        )
    try:
        checkpoint = dcp.read(store, place.path)
    except StorageError as error:
        return Verification(
            url, place.name.step, place.format, Verdict.UNFINISHED, Report(), problem=str(error)
        )
    context = Context(checkpoint)
    reports = [_structure(context, options)]
    work = units_of(context, options)
    progress = progress or Silent()
    progress.start(url, sum(unit.bytes for unit in work))
    problem = ""
    try:
        for part in _run(store, place, context, work, options, executor):
            reports.append(part.report)
            problem = problem or part.problem
            progress.advance(part.bytes)
    finally:
        progress.finish()
    reports.append(Report.of(coverage=_unreachable(context)))
    report = _addressed(
        Report.of(
            (finding for one in reports for finding in one.findings),
            (row for one in reports for row in one.coverage),
        ),
        url,
    )
    return Verification(
        checkpoint=url,
        step=place.name.step,
        format=dcp.NAME,
        verdict=_verdict(report, options, problem),
        report=report,
        keys=len(checkpoint.entries),
        items=len(checkpoint.items),
        ranks=checkpoint.ranks,
        size=sum(file.size for file in checkpoint.files.values()),
        world_size=len(checkpoint.sources) if checkpoint.replicated else None,
        problem=problem,
    )


def _verdict(report: Report, options: Options, problem: str) -> Verdict:
    worst = report.worst()
    if worst is not None and worst >= options.fail_on:
        return Verdict.FINDINGS
    if problem or any(
        reason.startswith(UNFINISHED_PREFIX) for row in report.coverage for reason, _ in row.gaps
    ):
        return Verdict.UNFINISHED
    return Verdict.UNVERIFIED


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
    findings = [
        finding
        for check in STRUCTURE_CHECKS
        if options.asks(check.id)
        for finding in check.ask(context, None)
    ]
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


@dataclass(frozen=True, slots=True)
class _Done:
    report: Report
    bytes: int
    problem: str = ""


def _run(
    store: Store,
    place: Place,
    context: Context,
    units: list[Unit],
    options: Options,
    executor: Executor | None,
) -> Iterator[_Done]:
    if executor is None and (options.workers == 1 or len(units) < 2):
        for unit in units:
            yield _examine(store, place.path, context, unit, options)
        return
    pool = executor or ThreadPoolExecutor(options.workers)
    futures: list[Future[_Done]] = []
    try:
        futures = [
            pool.submit(_examine, store, place.path, context, unit, options) for unit in units
        ]
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        if executor is None:
            pool.shutdown()


def _examine(store: Store, base: str, context: Context, unit: Unit, options: Options) -> _Done:
    """Stages 3 and 4 for the items of one unit."""
    findings: list[Finding] = []
    rows = Tally(unit, options)
    try:
        for seen in _scan(store, base, context, unit.items, content=unit.content):
            found = _ask(context, seen, options)
            if any(finding.severity == Severity.ERROR for finding in found):
                found = _look_again(store, base, context, seen, found, options, unit)
            findings.extend(found)
            rows.add(seen)
    except StorageError as error:
        return _Done(Report.of(findings, rows.coverage(str(error))), unit.bytes, str(error))
    return _Done(Report.of(findings, rows.coverage("")), unit.bytes)


def _scan(
    store: Store, base: str, context: Context, items: Iterable[Item], *, content: bool
) -> Iterator[ItemSeen]:
    entries = context.checkpoint.entries
    chosen = list(items)
    path = chosen[0].path

    def expected_bytes(item: Item) -> int | None:
        entry, box = entries.get(item.fqn), context.boxes.box(item)
        if not isinstance(entry, TensorEntry) or box is None:
            return None
        return box.volume * (item_size(entry.dtype) or 16)

    with store.open(f"{base}/{path}" if base else path) as reader:
        yield from scan_items(
            reader,
            chosen,
            content=content,
            is_tensor=lambda fqn: not isinstance(entries.get(fqn), ObjectEntry | None),
            expected_bytes=expected_bytes,
        )


def _ask(context: Context, seen: ItemSeen, options: Options) -> list[Finding]:
    return [
        finding
        for check in ITEM_CHECKS
        if options.asks(check.id)
        for finding in check.ask(context, seen)
    ]


def _look_again(
    store: Store,
    base: str,
    context: Context,
    seen: ItemSeen,
    found: list[Finding],
    options: Options,
    unit: Unit,
) -> list[Finding]:
    """Read an accused item a second time; only what both readings say is said of the checkpoint."""
    again = next(_scan(store, base, context, [seen.item], content=unit.content))
    if _ask(context, again, options) == found:
        return found
    message = f"a first read gave: {found[0].message}; a second read gave something else"
    fault = Fault("unstable-read", message)
    return _ask(context, replace(again, faults=(fault,)), options)


def _unreachable(context: Context) -> list[Coverage]:
    """Account for items whose bytes are not there."""
    items = context.checkpoint.items
    count = 0
    for path, layout in context.layouts.items():
        size = context.present.get(path, -1)
        count += sum(items.offsets[i] + items.lengths[i] > size for i in layout.indices)
    if not count:
        return []
    return [Coverage(Stage.ITEMS, "items", 0, count, gaps=(("their bytes are not there", count),))]
