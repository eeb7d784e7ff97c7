"""Looking at items that are bare row-major bytes, whose place and CRC the metadata tells."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ckptctl.crc import crc32
from ckptctl.formats.items.bytes import RUN, Sink
from ckptctl.formats.items.values import scanner_of, values_of
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
    width = item_size(stored.dtype) or 0
    needed = prod(stored.shape) * width
    payload = Payload(
        dtype=stored.dtype,
        shape=stored.shape,
        stride=stored.stride,
        storage_offset=stored.offset,
        storage_key=RECORD,
        storage_bytes=needed,
        flags=stored.flags,
    )
    name = f"data/{RECORD}"
    scanner = scanner_of(payload, name, big=not stored.little) if values and content else None
    computed = 0 if content and checksums and stored.crc is not None else None
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


def _blocks(reader: Reader, item: Item, block: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(block, max(1, item.length))))
    for start in range(item.offset, item.end, len(buffer)):
        data = buffer[: min(len(buffer), item.end - start)]
        reader.read_into(start, data)
        yield data
