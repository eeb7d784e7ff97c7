"""Looking at items that are bare row-major bytes, whose place and CRC the metadata tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from ckptctl.crc import crc32
from ckptctl.formats.items.bytes import RUN, Sink
from ckptctl.formats.items.values import Scanner, scanner_of, values_of
from ckptctl.model.checkpoint import Item, Stored
from ckptctl.model.dtypes import item_size
from ckptctl.model.observation import ItemSeen, Payload, RecordSeen
from ckptctl.storage import Reader

RECORD = "raw"
"""The name of the one record that such an item has."""


def see_raw(
    reader: Reader,
    item: Item,
    stored: Stored,
    *,
    content: bool,
    values: bool = False,
    checksums: bool = True,
    sink: Sink | None = None,
    keep: bool = False,
    block: int = RUN,
) -> ItemSeen:
    """Look at one item; with ``content`` its bytes are read once, in blocks.

    ``keep`` hands the bytes over with what was seen. Raises ``StorageError`` where the storage
    does not answer.
    """
    payload = payload_of(stored)
    name = f"data/{RECORD}"
    scanner = scanner_of(payload, name, big=not stored.little) if values and content else None
    known = stored.crc is not None or not item.length
    computed = 0 if content and checksums and known else None
    body = bytearray()
    for data in _blocks(reader, item, block) if content else ():
        if sink is not None:
            sink(data)
        if computed is not None:
            computed = crc32(data, computed)
        if scanner is not None:
            scanner.feed(data)
        if keep:
            body += data
    record = RecordSeen(name, item.offset, item.length, stored.crc or 0, computed=computed)
    return ItemSeen(
        item,
        (record,),
        payload,
        bytes_read=item.length if content else 0,
        values=values_of(payload, scanner, big=not stored.little) if values and content else None,
        body=bytes(body),
    )


class RawValues:
    """Looks at the numbers of items that lie in one file while the file's bytes go by, in order."""

    def __init__(self, items: Iterable[Item]) -> None:
        """Take items whose place is known; they may overlap, as views of one storage do."""
        self._waiting = sorted(items, key=lambda item: item.offset, reverse=True)
        self._open: list[tuple[Item, Payload, Scanner]] = []
        self._done: list[ItemSeen] = []
        self._position = 0

    def feed(self, block: bytes | memoryview) -> None:
        """Take the bytes that follow."""
        data = memoryview(block)
        start, stop = self._position, self._position + len(data)
        self._position = stop
        while self._waiting and self._waiting[-1].offset < stop:
            self._begin(self._waiting.pop())
        for item, _, scanner in self._open:
            scanner.feed(data[max(item.offset, start) - start : min(item.end, stop) - start])
        for one in [one for one in self._open if one[0].end <= stop]:
            self._open.remove(one)
            self._end(*one)

    def _begin(self, item: Item) -> None:
        stored = item.stored
        if stored is None:
            return
        payload = payload_of(stored)
        scanner = scanner_of(payload, f"data/{RECORD}", big=not stored.little)
        if scanner is None:
            self._end(item, payload, None)
        else:
            self._open.append((item, payload, scanner))

    def _end(self, item: Item, payload: Payload, scanner: Scanner | None) -> None:
        big = item.stored is not None and not item.stored.little
        values = values_of(payload, scanner, big=big)
        self._done.append(ItemSeen(item, (), payload, values=values))

    def seen(self) -> list[ItemSeen]:
        """Return what was seen of each item; of one whose bytes never came there is nothing."""
        for item in self._waiting:  # empty ones at the very end
            if item.offset == item.end and item.stored is not None:
                self._end(item, payload_of(item.stored), None)
        return self._done


def payload_of(stored: Stored) -> Payload:
    """Describe a tensor by where it is stored."""
    return Payload(
        kind=stored.kind,
        dtype=stored.dtype,
        shape=stored.shape,
        stride=stored.stride,
        storage_offset=stored.offset,
        storage_key=RECORD,
        storage_bytes=prod(stored.shape) * (item_size(stored.dtype) or 0),
        flags=stored.flags,
    )


def _blocks(reader: Reader, item: Item, block: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(block, max(1, item.length))))
    for start in range(item.offset, item.end, len(buffer)):
        data = buffer[: min(len(buffer), item.end - start)]
        reader.read_into(start, data)
        yield data
