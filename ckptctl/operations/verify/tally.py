"""What was looked at of one unit of work, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.dataclass import replace
from ckptctl.model.finding import Coverage, Gap, GapKind, Stage, united
from ckptctl.model.observation import Against, ItemSeen
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.units import Unit

if TYPE_CHECKING:
    from ckptctl.formats.items.templates import Lane

_NO_CRC = Gap(GapKind.NO_CRC, "no CRC recorded")


class Tally:
    """Counts what was looked at in one unit."""

    def __init__(self, unit: Unit, options: Options) -> None:
        self._unit, self._options = unit, options
        self._what = "items" if all(item.fqn for item in unit.items) else "companions"
        self._items = self._records = self._checked = self._bytes = 0
        self._item_gaps: list[Gap] = []
        self._content_gaps: list[Gap] = []

    def add(self, seen: ItemSeen, *, interpreted: bool = True) -> None:
        """Count one item, or a companion of which nothing is known."""
        self._bytes += seen.bytes_read
        if seen.unread:
            content = self._unit.content
            gap = unread(seen.unread) if content else Gap(GapKind.LEFT_OUT, seen.unread)
            self._item_gaps.append(gap)
            return
        if not interpreted:
            reason = f"{seen.item.path}: not in a form that is read"
            self._item_gaps.append(Gap(GapKind.NOT_INTERPRETED, reason))
            self._content_gaps.append(Gap(GapKind.FORM_ONLY, f"no CRC recorded: {seen.item.path}"))
            self._items, self._records = self._items + 1, self._records + 1
            return
        self._items += 1
        if seen.payload is not None and seen.payload.kind != "plain":
            reason = f"layout of {seen.payload.kind} is not interpreted"
            self._item_gaps.append(Gap(GapKind.NOT_INTERPRETED, reason))
        if seen.is_raw:
            self._records += 1
            self._content_gaps.append(_NO_CRC)
        for record in seen.records:
            self._records += 1
            if not record.recorded:
                self._content_gaps.append(_NO_CRC)
            elif record.computed is not None:
                self._checked += 1
            else:
                self._content_gaps.append(self._options.left_out)

    def add_alike(self, lane: Lane) -> None:
        """Count the items that passed because they are like others."""
        self._items += lane.items
        self._records += lane.records
        self._checked += lane.checked
        self._bytes += lane.bytes
        left = lane.records - lane.checked
        if left:
            self._content_gaps.append(replace(self._options.left_out, count=left))

    @property
    def against(self) -> Against:
        """What the bytes of the unit's items were checked against."""
        if not self._checked:
            return Against.NOTHING
        unread = any(gap.kind is not GapKind.NOT_INTERPRETED for gap in self._item_gaps)
        whole = self._checked == self._records and not unread
        return Against.CRC if whole else Against.SOME_CRCS

    def coverage(self, problem: str) -> list[Coverage]:
        """Return the rows of both stages."""
        total = len(self._unit.items)
        # an item whose layout is not interpreted was looked at all the same
        skipped = sum(gap.kind is not GapKind.NOT_INTERPRETED for gap in self._item_gaps)
        missing = total - self._items - skipped
        if missing and problem:
            self._item_gaps.append(unread(problem, missing))
        items = Coverage(Stage.ITEMS, self._what, self._items, total, gaps=united(self._item_gaps))
        return [*self._enclosed(problem), *self._rows(items, problem)]

    def _enclosed(self, problem: str) -> list[Coverage]:
        """Account for the items that lie in what was looked at as a whole."""
        total = self._unit.within
        if not total:
            return []
        done = total if self._items == len(self._unit.items) and not self._item_gaps else 0
        if done:
            return [Coverage(Stage.ITEMS, "items", done, total)]
        why = (
            self._item_gaps[0] if self._item_gaps else Gap(GapKind.DAMAGED, "their file is damaged")
        )
        gap = unread(problem, total) if problem else replace(why, count=total)
        return [Coverage(Stage.ITEMS, "items", 0, total, gaps=(gap,))]

    def _rows(self, items: Coverage, problem: str) -> list[Coverage]:
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


def unread(problem: str, count: int = 1) -> Gap:
    """Say that the storage did not give what was asked of it: the verification is unfinished."""
    return Gap(GapKind.UNREAD, f"could not be read: {problem}", count)
