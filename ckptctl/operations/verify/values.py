"""``--values``: what is read for it, and how far the values of all tensors were looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ckptctl.checks import Context
from ckptctl.model.checkpoint import Checkpoint, Fault, FaultKind, Item, TensorEntry
from ckptctl.model.dtypes import FLOATING, NAMES
from ckptctl.model.finding import Coverage, Gap, GapKind, Stage, united
from ckptctl.model.observation import ItemSeen, ValuesSeen
from ckptctl.model.tensor_values import TensorValues
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.units import Unit

_DAMAGED = Gap(GapKind.DAMAGED, "their bytes are damaged")
_UNSTABLE = Gap(GapKind.UNSTABLE, "two reads of their file differ")
_NEVER_SEEN = Gap(GapKind.ABSENT, "their bytes are not there or could not be read")
_ASTRAY = Gap(GapKind.COVERED, "the metadata does not place them one behind the other")


def expected_values(checkpoint: Checkpoint) -> dict[str, TensorValues]:
    """Expect the values of every tensor whose dtype can hold what is no finite number."""
    pieces = Counter(checkpoint.items.fqns)
    return {
        fqn: TensorValues(entry, max(pieces[fqn], len(entry.boxes)))
        for fqn, entry in checkpoint.entries.items()
        if isinstance(entry, TensorEntry) and (entry.dtype in FLOATING or entry.dtype not in NAMES)
    }


class UnitValues:
    """The values of the items of one unit, kept until it is known whether they can be trusted."""

    def __init__(self, context: Context, options: Options, unit: Unit) -> None:
        """Start with nothing; stays empty where values are not asked for."""
        self._context, self._options, self._content = context, options, unit.content
        self._seen: list[tuple[Item, ValuesSeen]] = []

    def add(self, seen: ItemSeen, *, bad: bool) -> None:
        """Keep what was seen of one item; ``bad`` means that its bytes are not what they should be."""
        if seen.item.fqn in self._context.values:
            self._seen.append((seen.item, self._judged(seen, bad=bad)))

    def _judged(self, seen: ItemSeen, *, bad: bool) -> ValuesSeen:
        gap: Gap | None = None
        if not self._content:
            gap = self._options.left_out
        elif seen.unread:
            gap = Gap(GapKind.UNREAD, seen.unread)
        elif seen.values is not None and seen.values.gap is not None:
            return seen.values
        elif bad or seen.payload is None:
            gap = _DAMAGED
        elif seen.values is not None:
            return seen.values
        elif seen.payload.dtype not in NAMES:
            reason = f"dtype {seen.payload.dtype} is not interpreted"
            gap = Gap(GapKind.NOT_INTERPRETED, reason)
        return ValuesSeen(gap=gap)

    def hand_over(self, faults: Iterable[Fault]) -> None:
        """Add them to those of their tensors, unless the digest of their file says otherwise.

        A file that was altered is looked at once more, item by item, and then tells its values.
        """
        kinds = {fault.kind for fault in faults}
        if FaultKind.ALTERED_FILE in kinds:
            return
        for item, seen in self._seen:
            values = self._context.values[item.fqn]
            if kinds:
                values.skip(_UNSTABLE)
            else:
                values.add(item, self._context.boxes, seen)


def unconfirmed(seen: ItemSeen) -> bool:
    """Tell whether values are accused that no CRC shows to be the ones that were written."""
    return (
        seen.values is not None
        and seen.values.first is not None
        and any(record.computed is not None and not record.proven for record in seen.records)
    )


def leave_out(values: Mapping[str, TensorValues], items: Iterable[Item]) -> None:
    """Account for items that are not looked at, because they do not lie one behind the other."""
    for item in items:
        if item.fqn in values:
            values[item.fqn].skip(_ASTRAY)


def coverage(values: Mapping[str, TensorValues]) -> Coverage:
    """Say of how many tensors all values were looked at, and why not of the others."""
    gaps = [
        min(one.gaps, key=lambda gap: gap.reason, default=_NEVER_SEEN)
        for one in values.values()
        if not one.whole
    ]
    seen = len(values) - len(gaps)
    return Coverage(Stage.VALUES, "float tensors", seen, len(values), gaps=united(gaps))
