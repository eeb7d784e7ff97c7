"""Cutting the row-major bytes of a box into those of boxes inside it, as they stream by."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckptctl.crc import combine, crc32
from ckptctl.dataclass import dataclass
from ckptctl.model.geometry import Box, Shape

if TYPE_CHECKING:
    import numpy as np

KINDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""What numpy moves elements of so many bytes as, without looking at them."""


@dataclass(frozen=True, slots=True)
class Slab:
    """A run of elements that is a box: ``count`` from ``index`` on along ``axis``, whole inside.

    ``prefix`` is its place in the dimensions before, ``start`` the first element in the flat order.
    """

    prefix: Shape
    axis: int
    index: int
    count: int
    start: int


def slabs(start: int, stop: int, sizes: Shape) -> Iterator[Slab]:
    """Cut a range of a box's elements, in row-major order, into as few slabs as there can be."""
    inner = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    while start < stop:
        axis = next(d for d, n in enumerate(inner) if start % n == 0 and stop - start >= n)
        index = start // inner[axis] % sizes[axis]
        count = min((stop - start) // inner[axis], sizes[axis] - index)
        prefix = tuple(start // inner[d] % sizes[d] for d in range(axis))
        yield Slab(prefix, axis, index, count, start)
        start += count * inner[axis]


class Cutter:
    """Hands each of several boxes its own bytes, in its own row-major order.

    ``whole`` is the box whose bytes come, of one dimension at least; ``width`` is bytes of an
    element. The boxes lie inside it, and may leave parts of it to nobody.
    """

    def __init__(self, whole: Box, width: int, boxes: Sequence[Box]) -> None:
        """Begin before the first byte."""
        self._sizes, self._width = whole.sizes, width
        self._boxes = [
            tuple(
                (o - low, o - low + n)
                for o, n, low in zip(box.offsets, box.sizes, whole.offsets, strict=True)
            )
            for box in boxes
        ]
        self._position = 0

    def slabs(self, block: memoryview) -> list[tuple[Slab, np.ndarray]]:
        """Take the bytes that follow, whole elements, as arrays for ``part``."""
        import numpy as np

        flat = np.frombuffer(block, KINDS[self._width])
        first = self._position
        self._position += len(flat)
        found = []
        for slab in slabs(first, self._position, self._sizes):
            shape = (slab.count, *self._sizes[slab.axis + 1 :])
            low = slab.start - first
            found.append((slab, flat[low : low + math.prod(shape)].reshape(shape)))
        return found

    def part(self, number: int, slab: Slab, data: np.ndarray) -> memoryview | None:
        """Return what one of the boxes has of a slab, in order; None for nothing.

        It is valid as long as the block is.
        """
        import numpy as np

        box = self._boxes[number]
        for index, (low, high) in zip(slab.prefix, box, strict=False):
            if not low <= index < high:
                return None
        low, high = box[slab.axis]
        begin, end = max(low, slab.index), min(high, slab.index + slab.count)
        if begin >= end:
            return None
        where = [(begin - slab.index, end - slab.index), *box[slab.axis + 1 :]]
        cut = data[tuple(slice(*one) for one in where)]
        if not cut.size:
            return None
        return np.ascontiguousarray(cut).reshape(-1).view(np.uint8).data


class Sums:
    """CRC-32s of the row-major bytes of several boxes of a tensor, whose own bytes stream by."""

    def __init__(self, shape: Shape, width: int, boxes: Sequence[Box]) -> None:
        """Begin before the first byte; ``width`` is bytes of an element."""
        self.crcs = [0] * len(boxes)
        self._counts = [0] * len(boxes)
        self._sizes = [box.volume * width for box in boxes]
        self._position = 0
        row = math.prod(shape[1:]) * width
        self._spans: list[tuple[int, int, int]] | None = None
        if all(box.sizes[1:] == shape[1:] for box in boxes):
            starts = [box.offsets[0] * row if shape else 0 for box in boxes]
            ends = (start + size for start, size in zip(starts, self._sizes, strict=True))
            self._spans = sorted(zip(starts, ends, range(len(boxes)), strict=True))
        else:
            self._cutter = Cutter(Box((0,) * len(shape), shape), width, boxes)

    def feed(self, block: memoryview, crc: int | None) -> None:
        """Take the bytes that follow, whole elements; ``crc`` is theirs where it is known."""
        if self._spans is None:
            for slab, data in self._cutter.slabs(block):
                for number in range(len(self.crcs)):
                    part = self._cutter.part(number, slab, data)
                    if part is not None:
                        self._add(number, part, None)
            return
        begin = self._position
        self._position = end = begin + len(block)
        first = bisect_right(self._spans, (begin, end, len(self.crcs))) - 1
        for start, stop, number in self._spans[max(0, first) :]:
            if start >= end:
                break
            low, high = max(start, begin) - begin, min(stop, end) - begin
            if low < high:
                self._add(number, block[low:high], crc if high - low == len(block) else None)

    def _add(self, number: int, part: memoryview, crc: int | None) -> None:
        before = self.crcs[number]
        self._counts[number] += len(part)
        self.crcs[number] = crc32(part, before) if crc is None else combine(before, crc, len(part))

    def differ(self, crcs: Sequence[int]) -> bool:
        """Tell whether a box has another CRC-32 than expected, or did not pass whole."""
        return self._counts != self._sizes or self.crcs != list(crcs)
