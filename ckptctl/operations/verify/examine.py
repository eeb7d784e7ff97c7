"""Reading a checkpoint's bytes, in parallel: items looked at, files hashed, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from ckptctl.checks import ITEM_CHECKS, Context
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import StorageError
from ckptctl.formats.companions import LEGACY
from ckptctl.formats.items.runs import block_of
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.items.templates import Lane, Templates, by_form
from ckptctl.hashing import Hasher, digest_of
from ckptctl.model.checkpoint import Fault, FaultKind, Item, TensorEntry, rank_of
from ckptctl.model.finding import Coverage, Finding, Gap, GapKind, Location, Report, Severity, Stage
from ckptctl.model.observation import Against, ItemSeen, Objects, ValuesSeen, family, is_cast
from ckptctl.operations.located import Located
from ckptctl.operations.progress import Progress, Shared
from ckptctl.operations.provenance.collect import Catcher, Collected, Collector, Plan
from ckptctl.operations.verify.inside import Inside, Said
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.tally import Tally, unread
from ckptctl.operations.verify.units import Unit
from ckptctl.operations.verify.values import UnitValues, unconfirmed
from ckptctl.storage import Reader
from ckptctl.storage.traffic import BLOCK, LONG, Budget, is_remote, tasks

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

_LITTLE = 4 << 20
_UNSTABLE = Gap(GapKind.UNSTABLE, "two reads of them differ")


@dataclass(frozen=True, slots=True)
class Done:
    """What one worker found; ``digest`` where the unit was hashed, ``against`` what was checked by CRC."""

    unit: Unit
    report: Report
    digest: str = ""
    faults: tuple[Fault, ...] = ()
    problem: str = ""
    collected: Collected | None = None
    against: Against = Against.NOTHING
    objects: Objects = field(default_factory=Objects)


class Examiner:
    """Looks at the bytes of one checkpoint."""

    def __init__(
        self,
        located: Located,
        context: Context,
        options: Options,
        progress: Progress | None = None,
        *,
        plan: Plan | None = None,
    ) -> None:
        """Take a checkpoint; ``plan`` says what to collect on the way."""
        self._located, self._context, self._options = located, context, options
        self._plan, self._progress, self._lock = plan, Shared(progress), Lock()
        self._budget = Budget()
        self._templates = Templates(by_form(context.boxes))
        self._said = Said(context.checkpoint)
        self._checks = [check for check in ITEM_CHECKS if options.asks(check.id)]

    def run(
        self, units: list[Unit], *, label: str = "", executor: Executor | None = None
    ) -> Iterator[Done]:
        """Do all units, by threads where there are several, and yield them as they are done."""
        self._progress.start(label, sum(unit.bytes for unit in units))
        try:
            if executor is None and self._alone(units):
                yield from map(self._do, units)
                return
            from concurrent.futures import ThreadPoolExecutor, as_completed

            pool = executor or ThreadPoolExecutor(self._workers(len(units)))
            futures: list[Future[list[Done]]] = []
            try:
                # the longest first, so that no single one is left to the end
                order = sorted(self._groups(units), key=lambda group: -sum(u.bytes for u in group))
                futures = [pool.submit(self._do_all, group) for group in order]
                for future in as_completed(futures):
                    yield from future.result()
            finally:
                for future in futures:
                    future.cancel()
                if executor is None:
                    pool.shutdown()
        finally:
            self._progress.finish()

    def _alone(self, units: list[Unit]) -> bool:
        """Tell whether threads would not help: also a little from a local disk is there at once."""
        little = not is_remote(self._located.store) and sum(unit.bytes for unit in units) <= _LITTLE
        return little or self._options.workers == 1 or len(units) < 2

    def _workers(self, units: int) -> int:
        return max(1, min(units, tasks(self._located.store, self._options.workers)))

    def _groups(self, units: list[Unit]) -> list[list[Unit]]:
        """Put units of one small file together where each is a request: it is fetched once for all."""
        if not is_remote(self._located.store):
            return [[unit] for unit in units]
        files, groups = self._context.checkpoint.files, dict[object, list[Unit]]()
        for number, unit in enumerate(units):
            small = unit.path in files and 0 < files[unit.path].size <= LONG
            groups.setdefault(unit.path if small else number, []).append(unit)
        return list(groups.values())

    def _do_all(self, group: list[Unit]) -> list[Done]:
        """Do units of one file, all of which look at what one request brings."""
        if len(group) == 1:
            return [self._do(group[0])]
        with self._open(group[0].path) as reader:
            return [self._do(unit, reader) for unit in group]

    def _open(self, path: str) -> Reader:
        return self._located.open(path, self._context.checkpoint.files)

    def _do(self, unit: Unit, reader: Reader | None = None) -> Done:
        # many small files at once, and only so many large ones as there is memory for their blocks
        size = max(unit.size, sum(item.length for item in unit.items))
        with self._budget.holding(2 * min(size, BLOCK)):
            return self._look(unit, reader) if unit.items else self._hash(unit, reader)

    def _look(self, unit: Unit, reader: Reader | None) -> Done:
        """Look at the items of a unit, and hash its file on the way where that was asked for."""
        findings: list[Finding] = []
        tally = Tally(unit, self._options)
        values = UnitValues(self._context, self._options, unit)
        hasher = Hasher(unit.algorithm) if unit.algorithm else None
        collector = self._plan.collector(unit.path) if self._plan is not None else None
        keep = collector.wants if collector is not None else None
        lane = self._lane(unit, collector, values)
        digest, faults, problem = "", tuple[Fault, ...](), ""
        count, saved, texts, loose = 0, set[str](), list[Item](), list[Item]()
        broken, raws = 0, list[Item]()
        casts = Objects()
        inside = Inside(unit, self._context, self._options, collector)
        hashed = 0

        def sink(block: bytes | memoryview) -> None:
            nonlocal hashed
            if hasher is not None:
                hasher.update(block)
                hashed += len(block)
            inside.feed(block)
            self._progress.advance(len(block))

        try:
            for seen in self._scan(unit.items, unit, sink, keep, lane, reader):
                seen = self._said.news(seen)
                if seen.faults and not self._understood(seen):
                    tally.add(seen, interpreted=False)
                    continue
                found = self._ask(seen)
                if _accuses(found) or unconfirmed(seen):
                    seen, found = self._look_again(seen, found, unit)
                findings.extend(found)
                tally.add(seen)
                if seen.is_text:
                    texts.append(seen.item)
                    if not seen.is_json:
                        loose.append(seen.item)
                elif seen.is_raw:
                    raws.append(seen.item)
                elif self._is_broken_object(seen):
                    broken += 1
                elif self._is_saved_object(seen):
                    count += 1
                    saved.add(family(seen.item.fqn))
                cast = self._cast(seen)
                if cast is not None:
                    casts += Objects(casts={cast: (seen.item, 1)})
                values.add(seen, bad=_accuses(found))
                if collector is not None:
                    collector.add(seen)
                if not found:
                    lane.learn(seen, cast)
            inside.hand_over(values, bad=_accuses(findings))
            digest = hasher.text() if hasher is not None else ""
            if hasher is not None and hashed != unit.size:  # the items are not all of the file
                digest = self._digest(unit)
            faults = self._compare(unit, digest)
            if any(fault.kind is FaultKind.ALTERED_FILE for fault in faults):
                findings.clear()  # its items are looked at once more, with their CRCs
            with self._lock:
                values.hand_over(faults)
        except StorageError as error:
            problem = str(error) or "no reason was given"
        tally.add_alike(lane)
        casts += Objects(casts=lane.casts)
        report = Report.of(findings, tally.coverage(problem))
        if problem:
            return Done(unit, report, problem=problem)
        if collector is not None:
            collector.add_makers(lane.torch_versions)
        collected = collector.done() if collector is not None else None
        return Done(
            unit,
            report,
            digest,
            faults,
            collected=collected,
            against=tally.against,
            objects=Objects(
                count,
                tuple(texts),
                tuple(loose),
                tuple(raws),
                broken,
                frozenset(saved),
                casts=casts.casts,
            ),
        )

    def _cast(self, seen: ItemSeen) -> tuple[str, str] | None:
        """Return the dtypes, held and said, of a tensor that was cast when it was saved."""
        entry, payload = self._context.checkpoint.entries.get(seen.item.fqn), seen.payload
        if payload is None or not isinstance(entry, TensorEntry) or not is_cast(entry, payload):
            return None
        return payload.dtype, entry.dtype

    def _lane(self, unit: Unit, collector: Collector | None, values: UnitValues) -> Lane:
        """Return what passes items that are like others."""
        return Lane(
            self._templates,
            content=unit.content and not unit.expected,
            values=unit.content and self._options.values,
            spared=collector.offsets if collector is not None else frozenset(),
            see=partial(values.add, bad=False) if self._options.values else None,
        )

    def _scan(
        self,
        items: Iterable[Item],
        unit: Unit,
        sink: Callable[[bytes | memoryview], object] | None = None,
        keep: Callable[[Item], bool] | None = None,
        lane: Lane | None = None,
        reader: Reader | None = None,
    ) -> Iterator[ItemSeen]:
        """Look at some items of a unit; where a digest is promised, no CRC need be computed.

        Without a ``reader`` the file is opened, so that it is read afresh.
        """
        chosen, boxes = list(items), self._context.boxes
        with nullcontext(reader) if reader else self._open(chosen[0].path) as reader:
            if unit.expected:
                _require_size(reader, unit)
            yield from scan_items(
                reader,
                chosen,
                content=unit.content,
                is_tensor=boxes.is_tensor,
                expected_bytes=boxes.payload,
                sink=sink if unit.content else None,
                values=self._options.values,
                checksums=not unit.expected,
                keep=keep,
                lane=lane,
            )

    def _understood(self, seen: ItemSeen) -> bool:
        """Tell whether what does not fit is damage: not where only a name promised what it is."""
        companion = self._context.checkpoint.companions.get(seen.item.path)
        if seen.item.fqn or companion is None:
            return True
        if any(fault.kind is FaultKind.UNSAFE_ITEM for fault in seen.faults):
            return True
        if not companion.known:
            return False
        with self._located.open(seen.item.path) as reader:
            return reader.read(0, min(reader.size, len(LEGACY))) != LEGACY

    def _is_broken_object(self, seen: ItemSeen) -> bool:
        """Tell whether an item is what is left of an object that ``torch.save`` wrote."""
        is_tensor = self._context.boxes.is_tensor(seen.item.fqn)
        return bool(seen.faults and seen.item.fqn) and not is_tensor

    def _is_saved_object(self, seen: ItemSeen) -> bool:
        """Tell whether an item is an object in the form that ``torch.save`` gives it."""
        if seen.payload is not None or seen.faults or not seen.records or not seen.item.fqn:
            return False
        return not self._context.boxes.is_tensor(seen.item.fqn)

    def _ask(self, seen: ItemSeen) -> list[Finding]:
        return [finding for check in self._checks for finding in check.ask(self._context, seen)]

    def _look_again(
        self, seen: ItemSeen, found: list[Finding], unit: Unit
    ) -> tuple[ItemSeen, list[Finding]]:
        """Read an accused item once more; only what both readings say is said of the checkpoint."""
        again = next(self._scan([seen.item], unit))
        if self._ask(again) == found and again.values == seen.values:
            return seen, found
        first = found[0].message if found else "numbers that are not finite"
        message = f"a first read gave: {first}; a second read gave something else"
        fault = Fault(FaultKind.UNSTABLE_READ, message)
        unsure = replace(seen, values=ValuesSeen(gap=_UNSTABLE))
        return unsure, self._ask(replace(again, faults=(fault,)))

    def _hash(self, unit: Unit, reader: Reader | None) -> Done:
        """Hash a whole file; one whose digest is not the expected one is read a second time."""
        try:
            collector = self._plan.collector(unit.path) if self._plan is not None else None
            catcher = Catcher(collector.ranges()) if collector is not None else None
            digest = self._digest(unit, catcher, reader)
            faults = self._compare(unit, digest)
        except StorageError as error:
            row = Coverage(Stage.CONTENT, "files", 0, 1, gaps=(unread(str(error)),))
            return Done(unit, Report.of(coverage=[row]), problem=str(error))
        row = Coverage(Stage.CONTENT, "files", 1, 1, unit.size)
        collected = None
        if collector is not None and catcher is not None:
            collector.add_bytes(catcher.pieces)
            collected = collector.done()
        return Done(unit, Report.of(coverage=[row]), digest, faults, collected=collected)

    def _compare(self, unit: Unit, digest: str) -> tuple[Fault, ...]:
        """Accuse a file whose digest is not the expected one, after a second read."""
        if not unit.expected or digest == unit.expected:
            return ()
        return (_accusation(unit, digest, self._digest(unit)),)

    def _digest(
        self, unit: Unit, catcher: Catcher | None = None, reader: Reader | None = None
    ) -> str:
        def each(block: memoryview) -> None:
            if catcher is not None:
                catcher.feed(block)
            self._progress.advance(len(block))

        with nullcontext(reader) if reader else self._open(unit.path) as reader:
            _require_size(reader, unit)
            return digest_of(reader, unit.size, unit.algorithm, block=block_of(reader), each=each)


def _require_size(reader: Reader, unit: Unit) -> None:
    if reader.size != unit.size:
        raise StorageError(
            f"{unit.path} has {reader.size} bytes now and had {unit.size} when it was listed: "
            "somebody is writing to it"
        )


def _accuses(findings: list[Finding]) -> bool:
    return any(finding.severity == Severity.ERROR for finding in findings)


def _accusation(unit: Unit, first: str, second: str) -> Fault:
    where = Location(file=unit.path, rank=rank_of(unit.path))
    if first != second:
        message = f"two reads gave {first} and {second}; {unit.promised} promises {unit.expected}"
        return Fault(FaultKind.UNSTABLE_FILE, message, where)
    return Fault(
        FaultKind.ALTERED_FILE, f"{first}, and {unit.promised} promises {unit.expected}", where
    )
