"""The bytes of one item: lying in memory, decoded to a file, streamed, or only looked at in part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

from ckptctl.model.checkpoint import Item
from ckptctl.storage import Reader

RUN = 1 << 20
"""Bytes of one read when content is checked: what is hashed right away should fit the cache."""

_TAIL = 64 << 10
_QUICK_END = 4 << 10

Sink: TypeAlias = Callable[[bytes | memoryview], object]
"""Takes bytes as they are read, in the order of the file."""


class ItemBytes(Protocol):
    """The bytes of one item; positions count from where the item begins."""

    def get(self, start: int, stop: int) -> bytes | memoryview:
        """Return a few bytes."""

    def pieces(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield many bytes in order, each piece valid until the next."""


class Whole:
    """An item that lies in memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def get(self, start: int, stop: int) -> memoryview:
        return self._data[start:stop]

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        yield self._data[start:stop]


class Spooled:
    """A decoded item in a temporary file."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read

    def get(self, start: int, stop: int) -> bytes:
        return self._read(start, stop)

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        for low in range(start, stop, RUN):
            yield self._read(low, min(stop, low + RUN))


class Sparse:
    """An item of which only the ends are read, and single headers between."""

    def __init__(self, reader: Reader, item: Item) -> None:
        self._reader, self._base = reader, item.offset
        self.bytes_read = 0
        self._tail_start = max(0, item.length - _QUICK_END)
        self.tail = self._fetch(self._tail_start, item.length)
        self.head = self._fetch(0, min(_QUICK_END, self._tail_start))

    def _fetch(self, start: int, stop: int) -> bytes:
        self.bytes_read += stop - start
        return self._reader.read(self._base + start, self._base + stop)

    def get(self, start: int, stop: int) -> bytes:
        if start >= self._tail_start:
            return self.tail[start - self._tail_start : stop - self._tail_start]
        if stop <= len(self.head):
            return self.head[start:stop]
        return self._fetch(start, stop)

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        yield self.get(start, stop)


class Distant:
    """An item of which single parts are read, each request dear: no more of them than to stream it.

    Its end is read first, then its beginning; ``expect`` tells whether all that is needed lies
    there. Where it does not, the blocks in which it lies are read as ``Stream`` reads them.
    """

    def __init__(self, reader: Reader, item: Item, block: int) -> None:
        self._reader, self._base, self._block = reader, item.offset, block
        self._tail_start = item.length - min(_TAIL, item.length)
        self.bytes_read = 0
        self._tail = self._fetch(self._tail_start, item.length)
        self._first: int | None = None  # until it is known what is needed
        self._start = self._stop = 0
        self._data = b""

    def _fetch(self, start: int, stop: int) -> bytes:
        self.bytes_read += stop - start
        return self._reader.read(self._base + start, self._base + stop)

    def expect(self, start: int, parts: Iterable[tuple[int, int]]) -> None:
        """Make the tail begin at ``start`` at the latest; ``parts`` are what will be asked for."""
        self._extend_tail(start)
        near = all(stop <= _QUICK_END or low >= self._tail_start for low, stop in parts)
        self._first = _QUICK_END if near else 0

    def _extend_tail(self, start: int) -> None:
        if start < self._tail_start:
            self._tail = self._fetch(start, self._tail_start) + self._tail
            self._tail_start = start

    def _load(self, start: int) -> None:
        first = self._first or 0
        low = start // self._block * self._block
        stop = min(first if start < first else low + self._block, self._tail_start)
        self._data, self._start, self._stop = self._fetch(low, stop), low, stop

    def get(self, start: int, stop: int) -> bytes:
        return b"".join(self.pieces(start, stop))

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        if self._first is None:  # a directory that is larger than the usual
            self._extend_tail(start)
        while start < stop and start < self._tail_start:
            if not self._start <= start < self._stop:
                self._load(start)
            end = min(stop, self._stop)
            yield self._data[start - self._start : end - self._start]
            start = end
        if start < stop:
            yield self._tail[start - self._tail_start : stop - self._tail_start]


class Stream:
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
