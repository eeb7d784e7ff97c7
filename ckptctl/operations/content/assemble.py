"""Putting the row-major bytes of a box together from the pieces of a tensor, in bounded memory.

Bands of the box are filled from contiguous ranges of each piece. Where a whole tensor is read,
every byte of every piece passes once and in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from ckptctl.crc import crc32
from ckptctl.dataclass import dataclass
from ckptctl.model.checkpoint import Item
from ckptctl.model.geometry import Box
from ckptctl.operations.content.checked import Check, Recorded, complain
from ckptctl.operations.content.cut import KINDS
from ckptctl.operations.content.segments import Run, extend
from ckptctl.storage import Reader

if TYPE_CHECKING:
    import numpy as np

Block: TypeAlias = tuple[memoryview, int | None]

_AGAIN = 1 << 20


class InMemory:
    """A piece that had to be rearranged in memory."""

    def __init__(self, data: bytes) -> None:
        """Take row-major bytes."""
        self._data = memoryview(data)
        self.size = len(data)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from ``start`` on."""
        buffer[:] = self._data[start : start + len(buffer)]


@dataclass(slots=True)
class Piece:
    """One box of a tensor and where its row-major bytes are; ``next`` is what the CRC has reached.

    There is none without ``check``: what its bytes are, or were, checked against. Where there are
    ``runs``, the CRC of each read is noted there.
    """

    box: Box
    item: Item
    source: Reader | InMemory
    start: int
    size: int
    check: Check
    next: int = 0
    computed: int = 0
    runs: list[Run] | None = None

    def read_into(self, position: int, buffer: memoryview) -> int | None:
        """Read bytes of the piece from ``position`` on; return their CRC-32 where ``runs`` are noted."""
        self.source.read_into(self.start + position, buffer)
        in_order = position == self.next
        if in_order:
            self.next += len(buffer)
        if self.runs is not None:
            crc = crc32(buffer)
            extend(self.runs, position, len(buffer), crc)
            return crc
        if in_order and isinstance(self.check, Recorded):
            self.computed = crc32(buffer, self.computed)
        return None

    @property
    def passed(self) -> bool:
        """True if every byte has passed once, in order."""
        return self.next == self.size

    def settle(self) -> None:
        """Raise ``MalformedData`` unless the bytes are those that were written, as far as is recorded.

        Where not all of them have passed in order they are read once more.
        """
        if isinstance(self.check, Recorded):
            if self.runs is not None and len(self.runs) == 1 and self.passed:
                self.computed = self.runs[0].crc
            elif self.runs is not None or not self.passed:
                whole = memoryview(bytearray(min(_AGAIN, self.size)))
                self.runs, self.next, self.computed = None, 0, 0
                while not self.passed:
                    self.read_into(self.next, whole[: min(len(whole), self.size - self.next)])
            complain(self.item, self.computed, self.check.crc)


def volume(box: Box, target: Box) -> int:
    """Return how many elements of the target lie in a box."""
    common = box.overlap(target)
    return 1 if not target.sizes else common.volume if common is not None else 0


def stream(pieces: list[Piece], target: Box, width: int, block: int) -> Iterator[Block]:
    """Yield the row-major bytes of a box; each block is valid until the next.

    With it comes the CRC-32 of a block that was read as it is, where it was computed.

    The pieces cover the box, once each; ``width`` is bytes of an element.
    """
    pieces.sort(key=lambda piece: piece.box.offsets)
    straight = all(
        (piece.box.offsets[1:], piece.box.sizes[1:]) == (target.offsets[1:], target.sizes[1:])
        for piece in pieces
    )
    if not straight:
        # many pieces share a band: what is read of each at once should not get too little
        yield from _bands(pieces, target, width, block * max(1, min(4, len(pieces) // 8)))
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
            yield part, piece.read_into(position, part)


def _bands(pieces: list[Piece], target: Box, width: int, block: int) -> Iterator[Block]:
    """Put bands of the box together from pieces that are cut along several dimensions."""
    import numpy as np

    kind = np.dtype(KINDS[width])
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
            yield band[: stop - start].reshape(-1).view(np.uint8).data, None


def _all_sizes(pieces: list[Piece], target: Box) -> list[tuple[int, ...]]:
    return [target.sizes, *(piece.box.sizes for piece in pieces)]


def _axis(pieces: list[Piece], target: Box, width: int, block: int) -> int:
    """Choose the dimension along which bands are cut: the first whose rows fit into a block."""
    for axis in range(len(target.sizes)):
        if max(math.prod(s[axis + 1 :]) for s in _all_sizes(pieces, target)) * width <= block:
            return axis
    return len(target.sizes) - 1


def _fill(
    band: np.ndarray,
    scratch: np.ndarray,
    piece: Piece,
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
