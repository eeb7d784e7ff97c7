"""What an item's zip directory says of its content: sizes and CRCs, read from its last bytes.

Two items with equal summaries hold equal bytes, up to a chance of one in four thousand million for each
record; nothing of the payload is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckptctl.crc import zeros
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.observation import RecordSeen
from ckptctl.storage import Reader

CrcSummary = tuple[tuple[str, int, int], ...]
"""Name, bytes and CRC-32 of the records that hold what was saved."""

TAIL = 1 << 10
"""Bytes read from an item's end: enough for the directory of one tensor."""

_LARGEST_TAIL = 1 << 20


def summary_of(reader: Reader, offset: int, length: int) -> CrcSummary | None:
    """Read the print of an item that lies at ``offset``; None where no CRCs were recorded.

    Raises ``MalformedData`` where it is no item of torch's.
    """
    start = max(0, length - TAIL)
    return summary_in(
        reader.read(offset + start, offset + length), length, more=_more(reader, offset)
    )


def _more(reader: Reader, offset: int) -> Callable[[int, int], bytes]:
    def read(start: int, stop: int) -> bytes:
        return reader.read(offset + start, offset + stop) if stop - start <= _LARGEST_TAIL else b""

    return read


def summary_in(
    tail: bytes, length: int, *, more: Callable[[int, int], bytes] | None = None
) -> CrcSummary | None:
    """Read the print of an item of ``length`` bytes from its last ones; ``more`` gives earlier ones."""
    base = length - len(tail)

    def read(start: int, stop: int) -> bytes:
        if start >= base:
            return tail[start - base : stop - base]
        return more(start, stop) if more is not None else b""

    heads = torchzip.read_directory(read, length).heads
    return _summary((head.name, head.size, head.crc) for head in heads)


def summary_from(records: Iterable[RecordSeen]) -> CrcSummary | None:
    """Make the print of an item from records that were seen already."""
    return _summary((record.name, record.size, record.crc) for record in records)


def _summary(records: Iterable[tuple[str, int, int]]) -> CrcSummary | None:
    found = tuple(
        record for record in records if record[0] == "data.pkl" or record[0].startswith("data/")
    )
    if not found or any(size and not crc for _, size, crc in found):
        return None
    return found


def says_something(one: CrcSummary) -> bool:
    """Tell whether a tensor's print is of bytes that are not all zero."""
    return any(size and crc != zeros(size) for name, size, crc in one if name.startswith("data/"))
