"""Reading a checkpoint's bytes, in parallel: items looked at, files hashed, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from threading import Lock

from ckptctl.checks import ITEM_CHECKS, Context
from ckptctl.digest import Hasher
from ckptctl.errors import StorageError
from ckptctl.formats.itemscan import block_of, scan_items
from ckptctl.model.checkpoint import Fault, Item, ObjectEntry, TensorEntry, rank_of
from ckptctl.model.dtypes import item_size
from ckptctl.model.finding import Coverage, Finding, Location, Report, Severity, Stage
from ckptctl.model.observation import ItemSeen
from ckptctl.operations.progress import Progress, Silent
from ckptctl.operations.work import UNFINISHED_PREFIX, Options, Tally, Unit
from ckptctl.storage import Store


@dataclass(frozen=True, slots=True)
class Done:
    """What one worker found; ``digest`` where the unit was hashed."""

    unit: Unit
    report: Report
    digest: str = ""
    faults: tuple[Fault, ...] = ()
    problem: str = ""


class Examiner:
    """Looks at the bytes of one checkpoint."""

    def __init__(
        self,
        store: Store,
        base: str,
        context: Context,
        options: Options,
        progress: Progress | None = None,
    ) -> None:
        """Take the checkpoint at ``base`` in a store."""
        self._store, self._base = store, base
        self._context, self._options = context, options
        self._progress, self._lock = progress or Silent(), Lock()
        self._checks = [check for check in ITEM_CHECKS if options.asks(check.id)]

    def run(
        self, units: list[Unit], *, label: str = "", executor: Executor | None = None
    ) -> Iterator[Done]:
        """Do all units, by threads where there are several, and yield them as they are done."""
        self._progress.start(label, sum(unit.bytes for unit in units))
        try:
            if executor is None and (self._options.workers == 1 or len(units) < 2):
                yield from map(self._do, units)
                return
            pool = executor or ThreadPoolExecutor(self._options.workers)
            futures: list[Future[Done]] = []
            try:
                # the longest first, so that no single one is left to the end
                order = sorted(units, key=lambda unit: -unit.bytes)
                futures = [pool.submit(self._do, unit) for unit in order]
                for future in as_completed(futures):
                    yield future.result()
            finally:
                for future in futures:
                    future.cancel()
                if executor is None:
                    pool.shutdown()
        finally:
            self._progress.finish()

    def _path(self, path: str) -> str:
        return f"{self._base}/{path}" if self._base else path

    def _tick(self, count: int) -> None:
        with self._lock:
            self._progress.advance(count)

    def _do(self, unit: Unit) -> Done:
        return self._look(unit) if unit.items else self._hash(unit)

    def _look(self, unit: Unit) -> Done:
        """Look at the items of a unit, and hash its file on the way where that was asked for."""
        findings: list[Finding] = []
        rows = Tally(unit, self._options)
        hasher = Hasher(unit.algorithm) if unit.algorithm else None

        def sink(block: bytes | memoryview) -> None:
            if hasher is not None:
                hasher.update(block)
            self._tick(len(block))

        try:
            for seen in self._scan(unit.items, content=unit.content, sink=sink):
                found = self._ask(seen)
                if any(finding.severity == Severity.ERROR for finding in found):
                    found = self._look_again(seen, found, content=unit.content)
                findings.extend(found)
                rows.add(seen)
        except StorageError as error:
            report = Report.of(findings, rows.coverage(str(error)))
            return Done(unit, report, problem=str(error))
        digest = hasher.text() if hasher is not None else ""
        return Done(unit, Report.of(findings, rows.coverage("")), digest)

    def _scan(
        self,
        items: Iterable[Item],
        *,
        content: bool,
        sink: Callable[[bytes | memoryview], object] | None = None,
    ) -> Iterator[ItemSeen]:
        entries, boxes = self._context.checkpoint.entries, self._context.boxes
        chosen = list(items)

        def expected_bytes(item: Item) -> int | None:
            entry, box = entries.get(item.fqn), boxes.box(item)
            if not isinstance(entry, TensorEntry) or box is None:
                return None
            return box.volume * (item_size(entry.dtype) or 16)

        with self._store.open(self._path(chosen[0].path)) as reader:
            yield from scan_items(
                reader,
                chosen,
                content=content,
                is_tensor=lambda fqn: not isinstance(entries.get(fqn), ObjectEntry | None),
                expected_bytes=expected_bytes,
                sink=sink if content else None,
            )

    def _ask(self, seen: ItemSeen) -> list[Finding]:
        return [finding for check in self._checks for finding in check.ask(self._context, seen)]

    def _look_again(self, seen: ItemSeen, found: list[Finding], *, content: bool) -> list[Finding]:
        """Read an accused item once more; only what both readings say is said of the checkpoint."""
        again = next(self._scan([seen.item], content=content))
        if self._ask(again) == found:
            return found
        message = f"a first read gave: {found[0].message}; a second read gave something else"
        fault = Fault("unstable-read", message)
        return self._ask(replace(again, faults=(fault,)))

    def _hash(self, unit: Unit) -> Done:
        """Hash a whole file; one whose digest is not the expected one is read a second time."""
        try:
            digest = self._digest(unit)
            faults: tuple[Fault, ...] = ()
            if unit.expected and digest != unit.expected:
                again = self._digest(unit)
                faults = (_accusation(unit, digest, again),)
        except StorageError as error:
            gap = ((UNFINISHED_PREFIX + str(error), 1),)
            row = Coverage(Stage.CONTENT, "files", 0, 1, 0, gap)
            return Done(unit, Report.of(coverage=[row]), problem=str(error))
        row = Coverage(Stage.CONTENT, "files", 1, 1, unit.size)
        return Done(unit, Report.of(coverage=[row]), digest, faults)

    def _digest(self, unit: Unit) -> str:
        hasher = Hasher(unit.algorithm)
        with self._store.open(self._path(unit.path)) as reader:
            if reader.size != unit.size:
                raise StorageError(
                    f"{unit.path} has {reader.size} bytes now and had {unit.size} when it was "
                    "listed: somebody is writing to it"
                )
            buffer = memoryview(bytearray(min(block_of(reader), max(1, unit.size))))
            for start in range(0, unit.size, len(buffer)):
                block = buffer[: min(len(buffer), unit.size - start)]
                reader.read_into(start, block)
                hasher.update(block)
                self._tick(len(block))
        return hasher.text()


def _accusation(unit: Unit, first: str, second: str) -> Fault:
    where = Location(file=unit.path, rank=rank_of(unit.path))
    if first != second:
        message = f"two reads gave {first} and {second}; the manifest promises {unit.expected}"
        return Fault("unstable-file", message, where)
    return Fault("altered-file", f"{first}, and the manifest promises {unit.expected}", where)
