"""Looking at items in one pass over their file: zip structure, ``data.pkl``, the CRC of each record.

Small items are read in runs of neighbours; a large one is streamed through one buffer, its end
first because its directory is there. No byte is read twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, TypeAlias

from ckptctl.errors import MalformedData, UnsafeData
from ckptctl.formats import torchzip, transforms
from ckptctl.formats.tensorpickle import parse_tensor
from ckptctl.formats.values import dangerous_names
from ckptctl.model.checkpoint import Fault, Item
from ckptctl.model.finding import Location
from ckptctl.model.observation import ItemSeen, Payload, RecordSeen
from ckptctl.storage import Reader

RUN = 1 << 20
"""Bytes of one read when content is checked: what is hashed right away should fit the cache."""

QUICK_RUN = 256 << 10
_QUICK_ITEM = 16 << 10
_TAIL = 64 << 10
_QUICK_END = 4 << 10
_SMALL_RECORD = 1 << 20
_OBJECT_LIMIT = 1 << 30

_parse_small = lru_cache(maxsize=4096)(parse_tensor)
_SMALL_PICKLE = 2048


def parse_payload(data: bytes) -> Payload:
    """Read a tensor's ``data.pkl``; the same few lines stand in very many items."""
    return _parse_small(data) if len(data) <= _SMALL_PICKLE else parse_tensor(data)


Sink: TypeAlias = Callable[[bytes | memoryview], object]
"""Takes bytes as they are read, in the order of the file."""


class ItemBytes(Protocol):
    """The bytes of one item; positions count from where the item begins."""

    def get(self, start: int, stop: int) -> bytes | memoryview:
        """Return a few bytes."""

    def pieces(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield many bytes in order, each piece valid until the next."""


class _Whole:
    """An item that lies in memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def get(self, start: int, stop: int) -> memoryview:
        return self._data[start:stop]

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        yield self._data[start:stop]


class _Spooled:
    """A decoded item in a temporary file."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read

    def get(self, start: int, stop: int) -> bytes:
        return self._read(start, stop)

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        for low in range(start, stop, RUN):
            yield self._read(low, min(stop, low + RUN))


class _Sparse:
    """An item of which only the ends are read, and single headers between."""

    def __init__(self, reader: Reader, item: Item) -> None:
        self._reader, self._base = reader, item.offset
        self.bytes_read = 0
        self._tail_start = max(0, item.length - _QUICK_END)
        self._tail = self._fetch(self._tail_start, item.length)
        self._head = self._fetch(0, min(_QUICK_END, self._tail_start))

    def _fetch(self, start: int, stop: int) -> bytes:
        self.bytes_read += stop - start
        return self._reader.read(self._base + start, self._base + stop)

    def get(self, start: int, stop: int) -> bytes:
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : stop - self._tail_start]
        if stop <= len(self._head):
            return self._head[start:stop]
        return self._fetch(start, stop)

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        yield self.get(start, stop)


class _Stream:
    """A large item read forwards through one buffer, after its tail."""

    def __init__(self, reader: Reader, item: Item, buffer: memoryview, sink: Sink | None) -> None:
        self._reader, self._base = reader, item.offset
        self._buffer, self._sink = buffer, sink
        self._start = self._stop = 0  # what the buffer holds
        self._tail_start = item.length - min(_TAIL, item.length)
        self._tail = reader.read(item.offset + self._tail_start, item.end)
        self.bytes_read = len(self._tail)

    def extend_tail(self, start: int) -> None:
        """Make the tail begin earlier, for a directory larger than the usual."""
        if start < self._tail_start:
            more = self._reader.read(self._base + start, self._base + self._tail_start)
            self.bytes_read += len(more)
            self._tail, self._tail_start = more + self._tail, start

    def _advance(self) -> None:
        """Replace the buffer by the bytes that follow it."""
        self._start = self._stop
        self._stop = min(self._start + len(self._buffer), self._tail_start)
        block = self._buffer[: self._stop - self._start]
        self._reader.read_into(self._base + self._start, block)
        self.bytes_read += len(block)
        if self._sink is not None:
            self._sink(block)

    def get(self, start: int, stop: int) -> bytes:
        if start < self._start:  # only to explain a fault: nothing good goes backwards
            return self._reader.read(self._base + start, self._base + stop)
        return b"".join(self.pieces(start, stop))

    def pieces(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        while start < stop and start < self._tail_start:
            while start >= self._stop:
                self._advance()
            end = min(stop, self._stop)
            yield self._buffer[start - self._start : end - self._start]
            start = end
        if start < stop:
            yield self._tail[start - self._tail_start : stop - self._tail_start]

    def finish(self) -> None:
        """Hand over what nobody asked for, so that the sink sees every byte in order."""
        if self._sink is not None:
            while self._stop < self._tail_start:
                self._advance()
            self._sink(self._tail)


def block_of(reader: Reader) -> int:
    """Return the bytes of one read: what the store prefers, where it says so."""
    return int(getattr(reader, "block", RUN))


def runs(items: Sequence[Item], block: int, *, content: bool) -> Iterator[list[Item]]:
    """Group items, in the order of their bytes, into neighbours to be read together."""
    largest, longest = (block, block) if content else (_QUICK_ITEM, QUICK_RUN)
    run: list[Item] = []
    for item in items:
        small = item.length <= largest
        if run and not (
            small and item.offset == run[-1].end and item.end - run[0].offset <= longest
        ):
            yield run
            run = []
        run.append(item)
        if not small:
            yield run
            run = []
    if run:
        yield run


def scan_items(
    reader: Reader,
    items: Sequence[Item],
    *,
    content: bool,
    is_tensor: Callable[[str], bool],
    expected_bytes: Callable[[Item], int | None],
    sink: Sink | None = None,
) -> Iterator[ItemSeen]:
    """Look at items of one file that lie inside it, given in the order of their bytes.

    With ``content`` every byte is read and each record's CRC computed; without it only headers,
    directories and ``data.pkl``. ``expected_bytes`` bounds what a compressed item may decode to.
    With ``content``, ``sink`` is given all bytes of the items in the order of the file.
    """
    buffer: memoryview | None = None
    block = block_of(reader)
    for run in runs(items, block, content=content):
        first = run[0]
        if len(run) > 1 or first.length <= (block if content else _QUICK_ITEM):
            data = memoryview(reader.read(first.offset, run[-1].end))
            if sink is not None:
                sink(data)
            for item in run:
                low = item.offset - first.offset
                view = _Whole(data[low : low + item.length])
                yield _see(view, item, is_tensor, expected_bytes, content=content)
        elif content:
            buffer = memoryview(bytearray(block)) if buffer is None else buffer
            stream = _Stream(reader, first, buffer, sink)
            seen = _see(stream, first, is_tensor, expected_bytes, content=content)
            stream.finish()
            yield replace(seen, bytes_read=stream.bytes_read)
        else:
            sparse = _Sparse(reader, first)
            seen = _see(sparse, first, is_tensor, expected_bytes, content=content)
            yield replace(seen, bytes_read=sparse.bytes_read)


def _see(
    data: ItemBytes,
    item: Item,
    is_tensor: Callable[[str], bool],
    expected_bytes: Callable[[Item], int | None],
    *,
    content: bool,
) -> ItemSeen:
    tensor = is_tensor(item.fqn)
    if not item.transforms:
        return _see_zip(data, item, item.length, item.offset, content=content, tensor=tensor)
    reason = transforms.unreadable(item.transforms)
    if not reason and not content:
        reason = "it is compressed, and its content was left out"
    if reason:
        return ItemSeen(item, unread=reason)
    expected = expected_bytes(item)
    limit = _OBJECT_LIMIT if expected is None else expected + (1 << 20)
    try:
        file, size = transforms.decode(data.pieces(0, item.length), len(item.transforms), limit)
    except MalformedData as error:
        return ItemSeen(item, faults=(_fault(item, str(error)),))
    with closing(file):

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            return file.read(stop - start)

        return _see_zip(_Spooled(read), item, size, 0, content=content, tensor=tensor)


def _fault(item: Item, message: str) -> Fault:
    where = Location(file=item.path, fqn=item.fqn, start=item.offset, stop=item.end)
    return Fault("item-structure", message, where)


def _see_zip(
    data: ItemBytes, item: Item, length: int, base: int, *, content: bool, tensor: bool
) -> ItemSeen:
    """Walk the records in the order of their bytes."""
    faults: list[Fault] = []
    records: list[RecordSeen] = []
    small: dict[str, bytes] = {}
    try:
        directory = torchzip.read_directory(lambda a, b: bytes(data.get(a, b)), length)
        if isinstance(data, _Stream):
            data.extend_tail(directory.start)
        position = 0
        for head in directory.heads:
            if head.header != position:
                raise MalformedData(f"record {head.name} does not begin where the one before ends")
            stop = min(directory.start, head.header + torchzip.LOCAL_SIZE + len(head.raw_name))
            header = bytes(data.get(head.header, stop))
            if len(header) < torchzip.LOCAL_SIZE + len(head.raw_name):
                raise MalformedData(f"record {head.name}: its local header is cut short")
            start = torchzip.data_start(header, head)
            trailer_size = torchzip.trailer_size(head)
            position = start + head.size + trailer_size
            if position > directory.start:
                raise MalformedData(f"record {head.name} reaches past the records' end")
            computed: int | None = None
            keep = head.size <= _SMALL_RECORD and not head.name.startswith("data/")
            if keep:
                small[head.name] = bytes(data.get(start, start + head.size))
                computed = zlib.crc32(small[head.name])
            elif content:
                computed = 0
                for piece in data.pieces(start, start + head.size):
                    computed = zlib.crc32(piece, computed)
            trailer: int | None = None
            if trailer_size and (content or keep):
                trailer = torchzip.trailer_crc(
                    bytes(data.get(position - trailer_size, position)), head
                )
            records.append(
                RecordSeen(head.name, base + start, head.size, head.crc, trailer, computed)
            )
        if position != directory.start:
            raise MalformedData("bytes lie between the last record and the zip directory")
    except MalformedData as error:
        message = str(error)
        if not records and length > 9 and bytes(data.get(8, 9)) == b"{":
            message = "it holds safetensors bytes, which torch's own DCP reader cannot load either"
        faults.append(_fault(item, message))
    payload = None
    if not faults:
        payload = _read_small(small, records, item, faults, tensor=tensor)
    return ItemSeen(
        item,
        tuple(records),
        payload,
        _torch_versions(small),
        tuple(faults),
        bytes_read=item.length,
    )


def _read_small(
    small: dict[str, bytes],
    records: list[RecordSeen],
    item: Item,
    faults: list[Fault],
    *,
    tensor: bool,
) -> Payload | None:
    if not any(record.name == "data.pkl" for record in records):
        faults.append(_fault(item, "it has no data.pkl"))
        return None
    if small.get("byteorder", b"little") not in (b"little", b"big"):
        faults.append(_fault(item, f"its byte order reads {small['byteorder'][:16]!r}"))
    damaged = any(
        r.name == "data.pkl" and r.recorded and r.computed not in (r.crc, r.trailer_crc)
        for r in records
    )
    if damaged or "data.pkl" not in small:  # damage is reported by its CRC; what it says is noise
        return None
    try:
        if tensor:
            return parse_payload(small["data.pkl"])
        names = dangerous_names(small["data.pkl"])
    except UnsafeData as error:
        faults.append(replace(_fault(item, str(error)), check="unsafe-item"))
        return None
    except MalformedData as error:
        faults.append(_fault(item, str(error)))
        return None
    if names:
        message = f"it asks its reader to run {', '.join(names[:4])}; nothing was run"
        faults.append(replace(_fault(item, message), check="unsafe-item"))
    return None


def _torch_versions(small: dict[str, bytes]) -> str:
    """Tell from the set of records which torch releases write such an item."""
    if ".format_version" in small:
        return "2.7 or later"
    return "2.1-2.6" if "byteorder" in small else "2.0"
