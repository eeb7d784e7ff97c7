"""Stage 4: are the bytes the ones that were written?"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.checks.base import Check, Context, Hit, Override, never
from ckptctl.dataclass import replace
from ckptctl.model.damage import describe_part
from ckptctl.model.finding import Severity, Stage
from ckptctl.model.observation import ItemSeen


def _checksum(context: Context, seen: ItemSeen) -> Iterator[Hit]:
    for record in seen.records:
        if record.damaged:
            where = context.where(seen.item)
            if not seen.item.transforms:
                where = replace(where, start=record.start, stop=record.start + record.size)
            loss = describe_part(context.checkpoint, context.boxes, seen.item)
            yield Hit(
                f"record {record.name}: CRC-32 is {record.computed:08x}, {record.crc:08x} was "
                "written; torch does not check this and loads it in silence",
                where,
                loss,
            )


def _stored(context: Context, seen: ItemSeen) -> Iterator[Hit]:
    for record in seen.records:
        copies = {record.crc, record.trailer_crc} - {None}
        if record.computed is not None and record.computed in copies and len(copies) > 1:
            yield Hit(
                f"record {record.name}: one of the two stored copies of its CRC-32 is damaged; the "
                "data fit the other copy",
                context.where(seen.item),
            )


CHECKS: tuple[Check[ItemSeen], ...] = (
    Check(
        "checksum",
        Stage.CONTENT,
        Severity.ERROR,
        "The bytes of a record do not give the CRC-32 that was written with them.",
        "restore the file from another copy and run `ckptctl verify {checkpoint}` again, or choose "
        "another checkpoint with `ckptctl list {root}`",
        _checksum,
        override=never("the bytes are not those that were written"),
    ),
    Check(
        "stored-checksum",
        Stage.CONTENT,
        Severity.WARNING,
        "A stored CRC-32 is damaged while the data it guards are good.",
        "the data are whole, the medium may not be: copy {checkpoint} elsewhere",
        _stored,
        override=Override("the bytes fit the other copy of the checksum"),
    ),
)
