"""Files that are looked at as a whole: what is taken of the items in them while their bytes go by."""

from __future__ import annotations

from ckptctl.checks import Context
from ckptctl.dataclass import replace
from ckptctl.formats.items.raw import RawValues
from ckptctl.model.checkpoint import Checkpoint, FaultKind
from ckptctl.model.observation import ItemSeen
from ckptctl.operations.provenance.collect import Catcher, Collector
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.units import Unit
from ckptctl.operations.verify.values import UnitValues

_OF_METADATA = frozenset(
    {
        FaultKind.UNREADABLE_METADATA,
        FaultKind.UNSAFE_METADATA,
        FaultKind.TOO_LARGE,
        FaultKind.TOO_DEEP,
    }
)
_OF_ITEMS = frozenset(
    {
        FaultKind.ITEM_STRUCTURE,
        FaultKind.UNSAFE_ITEM,
        FaultKind.TOO_LARGE_ITEM,
        FaultKind.TOO_DEEP_ITEM,
    }
)


class Inside:
    """Counters, and the numbers in tensors, of the items in one file; it is fed with all its bytes."""

    def __init__(
        self, unit: Unit, context: Context, options: Options, collector: Collector | None
    ) -> None:
        """Look for nothing where no items lie in what the unit is about."""
        self._collector = collector if unit.within else None
        self._catcher = None if self._collector is None else Catcher(self._collector.ranges())
        layout = context.layouts.get(unit.path) if unit.within and options.values else None
        items = context.checkpoint.items
        self._values = None if layout is None else RawValues(items[i] for i in layout.indices)

    def feed(self, block: bytes | memoryview) -> None:
        """Take the bytes that follow."""
        if self._catcher is not None:
            self._catcher.feed(memoryview(block))
        if self._values is not None:
            self._values.feed(block)

    def hand_over(self, values: UnitValues, *, bad: bool) -> None:
        """Give away what was taken; ``bad`` means that the file is not as it should be."""
        for seen in self._values.seen() if self._values is not None else ():
            values.add(seen, bad=bad)
        if self._collector is not None and self._catcher is not None:
            self._collector.add_bytes(self._catcher.pieces)


class Said:
    """What readers have said of whole files already, so that nobody says it again."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Gather the faults of files that are looked at as a whole."""
        self._kinds: dict[str, set[FaultKind]] = {}
        for fault in checkpoint.faults:
            path = fault.where.file
            if path is not None and path in checkpoint.companions:
                self._kinds.setdefault(path, set()).add(fault.kind)

    def news(self, seen: ItemSeen) -> ItemSeen:
        """Leave out what is known of a file, unless one of its records is damaged."""
        kinds = self._kinds.get(seen.item.path)
        if not kinds or not kinds & _OF_METADATA or any(one.damaged for one in seen.records):
            return seen
        faults = tuple(fault for fault in seen.faults if fault.kind not in _OF_ITEMS)
        return replace(seen, faults=faults)
