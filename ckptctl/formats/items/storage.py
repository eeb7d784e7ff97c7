"""Where the bytes of one stored tensor lie, and in which form, found without reading them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO

from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData, ShortRead, Unsupported
from ckptctl.formats.items import transforms
from ckptctl.formats.items.bytes import RUN
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.items.templates import Lane, Templates
from ckptctl.model.checkpoint import Item, Stored
from ckptctl.model.observation import ItemSeen
from ckptctl.storage import Reader

_DECODED_LIMIT = 1 << 30
"""Bytes that a compressed object may decode to; tensors are bounded by their own size."""

DECODED_SLACK = 1 << 20
"""Bytes of an item around its payload, at most."""


class Decoded(AbstractContextManager["Decoded"]):
    """A decompressed item in a temporary file, read like any other object."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        """Take the file over."""
        self._file, self.size = file, size

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``, or raise ``ShortRead``."""
        self._file.seek(start)
        data = self._file.read(stop - start)
        if len(data) != stop - start:
            raise ShortRead(f"a decompressed item ends before byte {stop}")
        return data

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from ``start`` on."""
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None:
        """Drop the file."""
        self._file.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drop the file."""
        self.close()


def decode(reader: Reader, item: Item, *, limit: int = _DECODED_LIMIT) -> tuple[Decoded, Item]:
    """Undo an item's transforms; return what to read it from, and the item as it lies there.

    Raises ``MalformedData`` where that is not possible.
    """
    reason = transforms.unreadable(item.transforms)
    if reason:
        raise Unsupported(f"{item.path}: {item.fqn}: {reason}")

    def pieces() -> Iterator[bytes]:
        for start in range(item.offset, item.end, RUN):
            yield reader.read(start, min(start + RUN, item.end))

    file, size = transforms.decode(pieces(), len(item.transforms), limit)
    return Decoded(file, size), replace(item, offset=0, length=size, transforms=())


def look(reader: Reader, item: Item, *, tensor: bool) -> ItemSeen:
    """Read the structure of one item, whose transforms are undone; not its payload.

    Raises ``MalformedData`` where it is damaged.
    """
    (seen,) = _looked(reader, item, tensor=tensor)
    return seen


def _looked(
    reader: Reader, item: Item, *, tensor: bool, lane: Lane | None = None
) -> Iterator[ItemSeen]:
    if item.offset < 0 or item.length < 0 or item.end > reader.size:
        raise MalformedData(
            f"{item.path}: {item.fqn}: bytes {item.offset}-{item.end} of {reader.size}"
        )
    for seen in scan_items(
        reader,
        [item],
        content=False,
        is_tensor=lambda _: tensor,
        expected_bytes=lambda _: None,
        probe=True,
        lane=lane,
    ):
        if seen.faults:
            raise MalformedData(f"{item.path}: {item.fqn}: {seen.faults[0].message}")
        yield seen


def locate_tensor(reader: Reader, item: Item, templates: Templates | None = None) -> Stored:
    """Find a tensor's storage inside its item; the ends of the item are read, not its payload.

    What is like others by ``templates`` need not be parsed. Raises ``MalformedData`` where the item
    is damaged or does not hold a tensor.
    """
    lane = Lane(templates, content=False) if templates is not None else None
    seen = next(_looked(reader, item, tensor=True, lane=lane), None)
    if lane is not None and lane.last is not None and seen is None:
        template, crc = lane.last
        return template.stored(item.offset, crc)
    if seen is None:
        raise MalformedData(f"{item.path}: {item.fqn}: nothing was read of it")
    found = stored_in(seen)
    if lane is not None and found.kind == "plain":
        lane.learn(seen)
    return found


def stored_in(seen: ItemSeen) -> Stored:
    """Return where a tensor's storage lies by what was seen of its item.

    Raises ``MalformedData`` where the item is damaged or does not hold a tensor.
    """
    item, payload = seen.item, seen.payload
    if payload is None:
        raise MalformedData(f"{item.path}: {item.fqn}: its data.pkl is damaged")
    by_name = {record.name: record for record in seen.records}
    if payload.kind != "plain":
        return Stored("", (), (), 0, item.offset, item.length, kind=payload.kind)
    record = by_name.get(f"data/{payload.storage_key}")
    if record is None:
        raise MalformedData(f"{item.path}: {item.fqn}: the record of its storage is not there")
    if payload.storage_bytes >= 0 and payload.storage_bytes != record.size:
        raise MalformedData(
            f"{item.path}: {item.fqn}: its storage has {record.size} bytes, and "
            f"{payload.storage_bytes} are declared"
        )
    order = by_name.get("byteorder")
    return Stored(
        payload.dtype,
        payload.shape,
        payload.stride,
        payload.storage_offset,
        record.start,
        record.size,
        record.crc if record.recorded else None,
        # "big" has three letters and "little" six
        little=order is None or order.size != len("big"),
        flags=payload.flags,
    )
