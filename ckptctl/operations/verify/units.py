"""The work of a verification: which items one worker reads, and a tally of what was looked at."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ckptctl.checks import Context
from ckptctl.completeness.audit import Wanted
from ckptctl.hashing import algorithm_of
from ckptctl.model.checkpoint import Item
from ckptctl.model.finding import Coverage, Gap, GapKind, Severity, Stage, united
from ckptctl.model.observation import ItemSeen

_UNIT = 64 << 20
_NO_CRC = Gap(GapKind.NO_CRC, "no CRC recorded")


@dataclass(frozen=True, slots=True)
class Options:
    """How far to look.

    ``quick`` stops before payload bytes; ``sample`` reads that share of the items' contents,
    ``part`` the k-th of n equal shares. ``select`` and ``ignore`` hold check ids. With
    ``require_manifest`` a checkpoint that was never committed is a finding. ``sizes_only`` trusts
    the sizes of files larger than a megabyte where a manifest states them, and looks no further.
    With ``values`` the numbers in tensors are looked at as their bytes stream by. ``wanted`` says
    which components must be there.
    """

    quick: bool = False
    sample: float | None = None
    part: tuple[int, int] | None = None
    workers: int = field(default_factory=lambda: min(8, os.cpu_count() or 1))
    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    fail_on: Severity = Severity.ERROR
    require_manifest: bool = False
    sizes_only: bool = False
    values: bool = False
    wanted: Wanted = field(default_factory=Wanted)

    def with_workers(self, workers: int) -> Options:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)

    def asks(self, check: str) -> bool:
        """Tell whether a check is to be asked."""
        return check not in self.ignore and (not self.select or check in self.select)


@dataclass(frozen=True, slots=True)
class Unit:
    """What one worker does: look at neighbouring items of a file, hash the file, or both at once.

    Without ``algorithm`` nothing is hashed. ``expected`` is the digest to compare with.
    """

    path: str
    items: tuple[Item, ...] = ()
    content: bool = False
    algorithm: str = ""
    expected: str = ""
    size: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that the worker reports as it goes."""
        if not self.items:
            return self.size
        return sum(item.length for item in self.items) if self.content else 0


def units_of(context: Context, options: Options) -> list[Unit]:
    """Cut the items that lie inside their files into units of work."""
    units: list[Unit] = []
    chosen = _chooser(context, options)
    for path, size in context.present.items():
        run: list[Item] = []
        run_content = False
        run_bytes = 0
        for index in context.layouts[path].indices:
            item = context.checkpoint.items[index]
            if item.end > size:
                continue
            content = chosen(index)
            if run and (content != run_content or run_bytes >= _UNIT):
                units.append(Unit(path, tuple(run), run_content))
                run, run_bytes = [], 0
            run.append(item)
            run_content, run_bytes = content, run_bytes + item.length
        if run:
            units.append(Unit(path, tuple(run), run_content))
    return units


def hashing_units(context: Context, *, largest: int | None = None) -> list[Unit]:
    """Return one unit for each file that the manifest promises and that has its size."""
    manifest, files = context.seal.manifest, context.checkpoint.files
    return [
        Unit(
            record.path,
            algorithm=algorithm_of(record.digest),
            expected=record.digest,
            size=record.size,
        )
        for record in (manifest.files if manifest else ())
        if record.path in files
        and files[record.path].is_file
        and files[record.path].size == record.size
        and (largest is None or record.size <= largest)
    ]


def _chooser(context: Context, options: Options) -> Callable[[int], bool]:
    """Return what decides for each item, by its number, whether its content is read."""
    if options.sample is None and options.part is None:
        return lambda _: not options.quick
    order = [i for path in sorted(context.layouts) for i in context.layouts[path].indices]
    picked: set[int] = set()
    if options.sample is not None and order:
        count = max(1, round(options.sample * len(order)))
        picked.update(random.sample(order, min(count, len(order))))
    elif options.part is not None:
        number, parts = options.part
        lengths = context.checkpoint.items.lengths
        total, position = sum(lengths[i] for i in order), 0
        low, high = total * (number - 1) // parts, total * number // parts
        for index in order:
            if low <= position < high:
                picked.add(index)
            position += lengths[index]
    return picked.__contains__


class Tally:
    """Counts what was looked at in one unit."""

    def __init__(self, unit: Unit, options: Options) -> None:
        self._unit, self._options = unit, options
        self._items = self._records = self._checked = self._bytes = 0
        self._item_gaps: list[Gap] = []
        self._content_gaps: list[Gap] = []

    def add(self, seen: ItemSeen) -> None:
        """Count one item."""
        self._bytes += seen.bytes_read
        if seen.unread:
            content = self._unit.content
            gap = unread(seen.unread) if content else Gap(GapKind.LEFT_OUT, seen.unread)
            self._item_gaps.append(gap)
            return
        self._items += 1
        if seen.payload is not None and seen.payload.kind != "plain":
            reason = f"layout of {seen.payload.kind} is not interpreted"
            self._item_gaps.append(Gap(GapKind.NOT_INTERPRETED, reason))
        for record in seen.records:
            self._records += 1
            if not record.recorded:
                self._content_gaps.append(_NO_CRC)
            elif record.computed is not None:
                self._checked += 1
            else:
                self._content_gaps.append(left_out(self._options))

    def coverage(self, problem: str) -> list[Coverage]:
        """Return the rows of both stages."""
        total = len(self._unit.items)
        # an item whose layout is not interpreted was looked at all the same
        skipped = sum(gap.kind is not GapKind.NOT_INTERPRETED for gap in self._item_gaps)
        missing = total - self._items - skipped
        if missing and problem:
            self._item_gaps.append(unread(problem, missing))
        items = Coverage(Stage.ITEMS, "items", self._items, total, gaps=united(self._item_gaps))
        if self._unit.expected:  # the digest of the file says more than CRCs
            gaps = (unread(problem),) if problem else ()
            hashed = 0 if problem else 1
            return [items, Coverage(Stage.CONTENT, "files", hashed, 1, self._bytes, gaps)]
        return [
            items,
            Coverage(
                Stage.CONTENT,
                "records",
                self._checked,
                self._records,
                self._bytes,
                united(self._content_gaps),
            ),
        ]


def left_out(options: Options) -> Gap:
    """Say why the content of an item was not read."""
    reason = "outside the sample" if options.sample is not None else "outside the part"
    return Gap(GapKind.LEFT_OUT, "left out by --quick" if options.quick else reason)


def unread(problem: str, count: int = 1) -> Gap:
    """Say that the storage did not give what was asked of it: the verification is unfinished."""
    return Gap(GapKind.UNREAD, f"could not be read: {problem}", count)
