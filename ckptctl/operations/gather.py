"""Reading tensors whole, or any box of them, from the pieces that ranks saved.

Bytes come in row-major order whatever the sharding, in bounded memory: bands of the box are put
together from contiguous ranges of each piece. Reading a whole tensor visits every byte of every
piece once and in order, so each piece's CRC-32 is checked on the way.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING

from ckptctl.errors import MalformedData, NothingThere, Refused
from ckptctl.formats.stored import Stored, decode, locate_tensor
from ckptctl.model.checkpoint import Checkpoint, Item, TensorEntry
from ckptctl.model.dtypes import item_size
from ckptctl.model.geometry import Box
from ckptctl.model.paths import is_contained
from ckptctl.storage import Reader, Store

if TYPE_CHECKING:
    import numpy as np

BLOCK = 1 << 20
"""Bytes of one band, and of one read."""

_MOST_OPEN = 128
_LARGEST_STRIDED = 1 << 30
RAW_FORMATS = ("safetensors", "torch")
"""Formats whose items are a tensor's bare row-major bytes, without a zip around them."""


class _Bytes:
    """A piece that had to be rearranged in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = len(data)

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self._data[start : start + len(buffer)]


@dataclass(slots=True)
class _Piece:
    """One box of a tensor and where its row-major bytes are; ``next`` is what the CRC has reached."""

    box: Box
    item: Item
    source: Reader | _Bytes
    start: int
    size: int
    crc: int | None
    next: int = 0
    computed: int = 0

    def read_into(self, position: int, buffer: memoryview) -> None:
        """Read bytes of the piece from ``position`` on."""
        self.source.read_into(self.start + position, buffer)
        if position == self.next:
            self.next += len(buffer)
            if self.crc is not None:
                self.computed = zlib.crc32(buffer, self.computed)

    def check(self) -> None:
        """Raise ``MalformedData`` if all bytes were read and do not give the recorded CRC."""
        if self.crc is not None and self.next == self.size and self.computed != self.crc:
            raise MalformedData(
                f"{self.item.path}: {self.item.fqn}: CRC-32 is {self.computed:08x}, "
                f"{self.crc:08x} was written"
            )


@dataclass(slots=True)
class TensorSource:
    """The tensors of one checkpoint, opened for reading; safe to use from several threads."""

    store: Store
    base: str
    checkpoint: Checkpoint
    _items: dict[str, list[int]] = field(default_factory=dict)
    _readers: dict[str, Reader] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> TensorSource:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def entry(self, fqn: str) -> TensorEntry:
        """Return a tensor's entry; raises ``NothingThere`` where there is no such tensor."""
        entry = self.checkpoint.entries.get(fqn)
        if not isinstance(entry, TensorEntry):
            raise NothingThere(f"{self.store.url}: there is no tensor {fqn}")
        return entry

    def items_of(self, fqn: str) -> list[Item]:
        """Return the items of one key, in the order of the metadata."""
        with self._lock:
            if not self._items:
                for index, name in enumerate(self.checkpoint.items.fqns):
                    self._items.setdefault(name, []).append(index)
        return [self.checkpoint.items[index] for index in self._items.get(fqn, ())]

    def read(self, fqn: str, box: Box | None = None, *, block: int = BLOCK) -> Iterator[memoryview]:
        """Yield the row-major bytes of a tensor, or of a box of it; each block until the next.

        Raises ``MalformedData`` for damage and for tensors whose layout is not interpreted,
        ``Refused`` where pieces leave a part of the box open.
        """
        entry = self.entry(fqn)
        whole = Box((0,) * len(entry.shape), entry.shape)
        target = whole if box is None else box
        width = item_size(entry.dtype)
        with ExitStack() as stack:
            if width is None:
                yield from self._opaque(entry, target, whole, block, stack)
                return
            if target.volume == 0:
                return
            pieces = [
                piece
                for piece in self._pieces(entry, width, target, stack)
                if piece.box.overlap(target) is not None or not target.sizes
            ]
            covered = sum(_volume(piece.box, target) for piece in pieces)
            if covered != target.volume:
                raise Refused(
                    f"{fqn}: its pieces hold {covered} of {target.volume} elements of a part of "
                    f"it; `ckptctl verify` says what is missing"
                )
            yield from _stream(pieces, target, width, block)
            if target == whole:
                for piece in pieces:
                    piece.check()

    def reader(self, path: str, stack: ExitStack) -> Reader:
        """Return a file of the checkpoint opened for reading, kept open where there is room."""
        if not is_contained(path):
            raise MalformedData(f"{path!r} lies outside the checkpoint")
        with self._lock:
            found = self._readers.get(path)
            if found is not None:
                return found
        reader = self.store.open(f"{self.base}/{path}" if self.base else path)
        with self._lock:
            if path not in self._readers and len(self._readers) < _MOST_OPEN:
                self._readers[path] = reader
                return reader
        stack.enter_context(reader)
        return reader

    def stored(self, item: Item, stack: ExitStack) -> tuple[Reader, Stored]:
        """Find where a tensor item's storage lies: what to read it from, and where in there."""
        reader = self.reader(item.path, stack)
        if item.transforms:
            decoded, item = decode(reader, item)
            stack.enter_context(decoded)
            reader = decoded
        return reader, locate_tensor(reader, item)

    def _pieces(
        self, entry: TensorEntry, width: int, target: Box, stack: ExitStack
    ) -> Iterator[_Piece]:
        """Open the pieces that touch a box, one of each where ranks saved copies."""
        sizes = {box.offsets: box for box in entry.boxes if box.volume or not entry.shape}
        taken: set[tuple[int, ...]] = set()
        for item in self.items_of(entry.fqn):
            box = sizes.get(item.offsets) if item.offsets is not None else None
            if box is None or box.offsets in taken:
                continue
            if target.sizes and box.overlap(target) is None:
                continue
            taken.add(box.offsets)
            yield self._piece(entry, item, box, width, stack)

    def _piece(
        self, entry: TensorEntry, item: Item, box: Box, width: int, stack: ExitStack
    ) -> _Piece:
        if self.checkpoint.format in RAW_FORMATS:
            reader = self.reader(item.path, stack)
            if item.length != box.volume * width or item.end > reader.size:
                raise MalformedData(
                    f"{item.path}: {item.fqn}: {item.length} bytes where {box.volume * width} "
                    f"were expected, in a file of {reader.size}"
                )
            return _Piece(box, item, reader, item.offset, item.length, None)
        reader, stored = self.stored(item, stack)
        if stored.kind != "plain":
            raise MalformedData(
                f"{item.path}: {item.fqn}: the layout of {stored.kind} is not interpreted"
            )
        if stored.dtype != entry.dtype or stored.shape != box.sizes:
            raise MalformedData(
                f"{item.path}: {item.fqn}: it holds {stored.dtype} {list(stored.shape)}, and the "
                f"metadata says {entry.dtype} {list(box.sizes)}"
            )
        if stored.plain_bytes:
            return _Piece(box, item, reader, stored.start, stored.size, stored.crc)
        data = _rearranged(reader, item, stored, width)
        return _Piece(box, item, _Bytes(data), 0, len(data), None)

    def _opaque(
        self, entry: TensorEntry, target: Box, whole: Box, block: int, stack: ExitStack
    ) -> Iterator[memoryview]:
        """Yield the storage of a tensor whose elements are not whole bytes, which is one piece."""
        items = self.items_of(entry.fqn)
        boxes = [box for box in entry.boxes if box.volume]
        if target != whole or len(boxes) > 1 or not items:
            raise MalformedData(
                f"{entry.fqn}: elements of {entry.dtype} are not whole bytes, so it cannot be cut"
            )
        reader, stored = self.stored(items[0], stack)
        piece = _Piece(whole, items[0], reader, stored.start, stored.size, stored.crc)
        for position in range(0, stored.size, block):
            buffer = memoryview(bytearray(min(block, stored.size - position)))
            piece.read_into(position, buffer)
            yield buffer
        piece.check()


def _volume(box: Box, target: Box) -> int:
    common = box.overlap(target)
    return 1 if not target.sizes else common.volume if common is not None else 0


def _stream(pieces: list[_Piece], target: Box, width: int, block: int) -> Iterator[memoryview]:
    pieces.sort(key=lambda piece: piece.box.offsets)
    straight = all(
        (piece.box.offsets[1:], piece.box.sizes[1:]) == (target.offsets[1:], target.sizes[1:])
        for piece in pieces
    )
    if not straight:
        yield from _bands(pieces, target, width, block)
        return
    row = math.prod(target.sizes[1:]) * width
    buffer = memoryview(bytearray(min(block, target.volume * width)))
    for piece in pieces:
        start, stop = 0, piece.size
        if target.sizes:
            common = piece.box.overlap(target)
            if common is None:
                continue
            start = (common.offsets[0] - piece.box.offsets[0]) * row
            stop = start + common.sizes[0] * row
        for position in range(start, stop, block):
            part = buffer[: min(block, stop - position)]
            piece.read_into(position, part)
            yield part


def _bands(pieces: list[_Piece], target: Box, width: int, block: int) -> Iterator[memoryview]:
    """Put bands of the box together from pieces that are cut along several dimensions."""
    import numpy as np

    kind = np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[width])
    axis = _axis(pieces, target, width, block)
    widest = max(math.prod(sizes[axis + 1 :]) for sizes in _all_sizes(pieces, target))
    rows = max(1, block // (widest * width))
    outer = [
        range(o, o + s) for o, s in zip(target.offsets[:axis], target.sizes[:axis], strict=True)
    ]
    low, high = target.offsets[axis], target.offsets[axis] + target.sizes[axis]
    band = np.empty((min(rows, high - low), *target.sizes[axis + 1 :]), kind)
    scratch = np.empty(min(rows, high - low) * widest, kind)
    for index in itertools.product(*outer):
        near = [
            piece
            for piece in pieces
            if all(o <= i < o + s for i, o, s in zip(index, piece.box.offsets, piece.box.sizes))  # noqa: B905 - the index is shorter
        ]
        for start in range(low, high, rows):
            stop = min(start + rows, high)
            for piece in near:
                _fill(band, scratch, piece, target, axis, index, start, stop)
            yield band[: stop - start].reshape(-1).view(np.uint8).data


def _all_sizes(pieces: list[_Piece], target: Box) -> list[tuple[int, ...]]:
    return [target.sizes, *(piece.box.sizes for piece in pieces)]


def _axis(pieces: list[_Piece], target: Box, width: int, block: int) -> int:
    """Choose the dimension along which bands are cut: the first whose rows fit into a block."""
    for axis in range(len(target.sizes)):
        if max(math.prod(s[axis + 1 :]) for s in _all_sizes(pieces, target)) * width <= block:
            return axis
    return len(target.sizes) - 1


def _fill(
    band: np.ndarray,
    scratch: np.ndarray,
    piece: _Piece,
    target: Box,
    axis: int,
    index: tuple[int, ...],
    start: int,
    stop: int,
) -> None:
    """Copy what a piece holds of one band."""
    box = piece.box
    first = max(start, box.offsets[axis])
    last = min(stop, box.offsets[axis] + box.sizes[axis])
    if first >= last:
        return
    position = 0
    for i, (offset, size) in enumerate(zip(box.offsets[: axis + 1], box.sizes, strict=False)):
        position = position * size + ((index[i] if i < axis else first) - offset)
    inner = box.sizes[axis + 1 :]
    count = (last - first) * math.prod(inner)
    part = scratch[:count]
    width = part.dtype.itemsize
    piece.read_into(position * math.prod(inner) * width, part.view("u1").data)
    here: list[slice] = []
    there: list[slice] = []
    for d in range(axis + 1, len(box.sizes)):
        begin = max(box.offsets[d], target.offsets[d])
        end = min(box.offsets[d] + box.sizes[d], target.offsets[d] + target.sizes[d])
        here.append(slice(begin - target.offsets[d], end - target.offsets[d]))
        there.append(slice(begin - box.offsets[d], end - box.offsets[d]))
    shaped = part.reshape((last - first, *inner))
    at = (slice(first - start, last - start), *here)
    of = (slice(None), *there)
    band[at] = shaped[of]


def _rearranged(reader: Reader, item: Item, stored: Stored, width: int) -> bytes:
    """Return the row-major bytes of a strided, lazily conjugated or big-endian tensor."""
    import numpy as np

    if stored.size > _LARGEST_STRIDED:
        raise MalformedData(
            f"{item.path}: {item.fqn}: a strided piece of {stored.size} bytes is too large to "
            "rearrange"
        )
    data = reader.read(stored.start, stored.start + stored.size)
    if stored.crc is not None and zlib.crc32(data) != stored.crc:
        raise MalformedData(f"{item.path}: {item.fqn}: its CRC-32 does not fit its bytes")
    if 0 in stored.shape:
        return b""
    complex_ = stored.dtype.startswith("complex")
    part = width // 2 if complex_ else width
    flat = np.frombuffer(data, f"{'<' if stored.little else '>'}u{part}")
    if not stored.little:
        flat = flat.astype(f"<u{part}")
    lanes = 2 if complex_ else 1
    pairs = flat.reshape(-1, lanes)[stored.offset :]
    reach = 1 + sum((n - 1) * s for n, s in zip(stored.shape, stored.stride, strict=True))
    if reach > len(pairs):
        raise MalformedData(f"{item.path}: {item.fqn}: it reaches past the end of its storage")
    view = np.lib.stride_tricks.as_strided(
        pairs,
        (*stored.shape, lanes),
        (*(s * width for s in stored.stride), part),
        writeable=False,
    )
    out = np.ascontiguousarray(view)
    unknown = set(stored.flags) - {"conj", "neg"}
    if unknown:
        raise MalformedData(f"{item.path}: {item.fqn}: its flag {unknown.pop()} is not known")
    if stored.flags:
        out = out.copy()
    sign = np.array(1 << (part * 8 - 1), f"<u{part}")
    if "conj" in stored.flags and complex_:
        out[..., 1] ^= sign
    if "neg" in stored.flags:
        if not (complex_ or "float" in stored.dtype):
            raise MalformedData(f"{item.path}: {item.fqn}: a negated {stored.dtype} is not read")
        out ^= sign
    return out.tobytes()
