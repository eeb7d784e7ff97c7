"""CRC-32s of what was read, noted as it is read, and put together into those of whole pieces.

A piece that several files take from is read in segments by whoever writes them. In the order of the
piece their CRCs make up the one that the source recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from ckptctl.crc import combine
from ckptctl.dataclass import dataclass, field
from ckptctl.model.geometry import Box, Shape
from ckptctl.model.observation import ItemSeen

Records: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, bytes and CRC-32 of each record of an object."""


class Run(NamedTuple):
    """Bytes of a piece that were read in order: where they begin, how many, their CRC-32."""

    start: int
    size: int
    crc: int


class Seen(NamedTuple):
    """What was read of one piece; ``recorded`` is the CRC-32 that the source keeps of all of it."""

    recorded: int | None
    runs: tuple[Run, ...]


class PieceCrc(NamedTuple):
    """The CRC-32 of the row-major bytes of a box of a tensor."""

    box: Box
    crc: int


@dataclass(slots=True)
class Log:
    """What was read of a checkpoint, by whoever reads it.

    ``pieces`` is by key and origin, ``records`` by the file and the offset of an object's item.
    """

    pieces: dict[tuple[str, Shape], list[Seen]] = field(default_factory=dict)
    records: dict[tuple[str, int], Records] = field(default_factory=dict)
    unchecked: set[str] = field(default_factory=set)

    def note(self, fqn: str, origin: Shape, seen: Seen) -> None:
        """Note what was read of one piece."""
        self.pieces.setdefault((fqn, origin), []).append(seen)

    def add(self, other: Log) -> None:
        """Add what somebody else has read."""
        for key, found in other.pieces.items():
            self.pieces.setdefault(key, []).extend(found)
        self.records.update(other.records)
        self.unchecked |= other.unchecked


def extend(runs: list[Run], start: int, size: int, crc: int) -> None:
    """Note one more read, as part of the last run where it goes on there."""
    if runs and runs[-1].start + runs[-1].size == start:
        last = runs[-1]
        runs[-1] = Run(last.start, last.size + size, combine(last.crc, crc, size))
    else:
        runs.append(Run(start, size, crc))


def whole(runs: Iterable[Run], size: int) -> int | None:
    """Return the CRC-32 of a piece of so many bytes, or None where the runs do not make it up."""
    end = crc = 0
    for run in sorted(set(runs)):
        if run.start != end:
            return None
        end += run.size
        crc = combine(crc, run.crc, run.size)
    return crc if end == size else None


def records_of(seen: ItemSeen) -> Records:
    """Return the records that make up an object: its pickle and the storages it refers to."""
    return tuple(
        sorted(
            (record.name, record.size, record.computed or 0)
            for record in seen.records
            if record.name == "data.pkl" or record.name.startswith("data/")
        )
    )
