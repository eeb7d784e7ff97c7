"""Boxes inside tensors: do they cover the whole, once each?

A box is a pair of tuples ``(offsets, sizes)`` in elements, one number for each dimension; DCP
calls it a chunk. Everything here is exact integer arithmetic.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise, repeat
from typing import TypeAlias

from ckptctl.dataclass import dataclass, field

Shape: TypeAlias = tuple[int, ...]

_BUDGET = 1_000_000
"""Comparisons that a search may take before it gives up: seconds, where real layouts take none."""


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor: where it begins and how far it reaches, in elements."""

    offsets: Shape
    sizes: Shape

    @property
    def volume(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def ends(self) -> Shape:
        """One past the last index, for each dimension."""
        return tuple(o + s for o, s in zip(self.offsets, self.sizes, strict=True))

    def within(self, shape: Shape) -> bool:
        """Tell whether the box lies inside a tensor of this shape (an empty one may touch its end)."""
        return len(self.offsets) == len(self.sizes) == len(shape) and all(
            o >= 0 and s >= 0 and o + s <= n
            for o, s, n in zip(self.offsets, self.sizes, shape, strict=True)
        )

    def overlap(self, other: Box) -> Box | None:
        """Return the common part of two boxes, or None where they share no element."""
        offsets, sizes = [], []
        for a, m, b, n in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=False):
            low, high = max(a, b), min(a + m, b + n)
            if high <= low:
                return None
            offsets.append(low)
            sizes.append(high - low)
        return Box(tuple(offsets), tuple(sizes))


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of one tensor, in columns: a million of them cost a few bytes each."""

    ndim: int
    count: int = 0
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))

    @classmethod
    def of(cls, ndim: int, boxes: Iterable[Box]) -> Boxes:
        """Gather boxes, all of ``ndim`` dimensions."""
        offsets, sizes, count = array("q"), array("q"), 0
        for box in boxes:
            offsets.extend(box.offsets)
            sizes.extend(box.sizes)
            count += 1
        return cls(ndim, count, offsets, sizes)

    def __len__(self) -> int:
        """Count the boxes."""
        return self.count

    def __getitem__(self, index: int) -> Box:
        """Return one box."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        low, high = index * self.ndim, (index + 1) * self.ndim
        return Box(tuple(self.offsets[low:high]), tuple(self.sizes[low:high]))

    def __iter__(self) -> Iterator[Box]:
        """Yield the boxes in their stored order."""
        return map(Box, self.origins(), self.extents())

    def origins(self) -> Iterator[Shape]:
        """Yield where each box begins."""
        return self._grouped(self.offsets)

    def extents(self) -> Iterator[Shape]:
        """Yield how far each box reaches."""
        return self._grouped(self.sizes)

    def _grouped(self, flat: array[int]) -> Iterator[Shape]:
        """Cut a column into one tuple for each box."""
        if not self.ndim:
            return repeat((), self.count)
        return zip(*[iter(flat)] * self.ndim, strict=True)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a set of boxes covers a tensor."""

    holes: tuple[Box, ...] = ()
    overlaps: tuple[tuple[int, int, Box], ...] = ()
    outside: tuple[int, ...] = ()
    finished: bool = True

    @property
    def exact(self) -> bool:
        """True if every element is covered exactly once and nothing lies outside."""
        return self.finished and not (self.holes or self.overlaps or self.outside)


def tile(shape: Shape, boxes: Boxes, *, limit: int = 16, patient: bool = True) -> Tiling:
    """Find what the boxes leave open, cover twice or reach outside of, up to ``limit`` of each.

    Empty boxes cover nothing and may sit anywhere inside, also at the very end: FSDP2 writes them
    for ranks that got no rows. A grid of tiles, which is what every writer makes, is proven in
    O(n log n); a set of boxes built to be slow ends with ``finished`` false instead of never, and
    without ``patient`` so does any that is no grid.
    """
    whole = Box((0,) * len(shape), shape)
    outside: list[int] = []
    solid: dict[int, Box] = {}
    for index, box in enumerate(boxes):
        inside: Box | None = box
        if not box.within(shape):
            outside.append(index)
            inside = box.overlap(whole)  # what lies inside is covered all the same
        if inside is not None and inside.volume:
            solid[index] = inside
    if not outside and _is_grid(shape, solid.values()):
        return Tiling()
    try:
        if not patient:
            raise _TooTangled
        overlaps = tuple(_overlaps(solid, limit))
        covered = sum(box.volume for box in solid.values())
        holes: tuple[Box, ...] = ()
        if covered != math.prod(shape) or overlaps:
            holes = tuple(_holes(whole, list(solid.values()), limit))
    except _TooTangled:
        return Tiling(outside=tuple(outside[:limit]), finished=False)
    return Tiling(holes, overlaps, tuple(outside[:limit]))


class _TooTangled(Exception):
    """The search would take far longer than any real layout needs."""


def _is_grid(shape: Shape, boxes: Collection[Box]) -> bool:
    """Tell whether the boxes are all the cells of one grid over the whole shape, once each."""
    cells = 1
    for d, extent in enumerate(shape):
        intervals = sorted({(box.offsets[d], box.sizes[d]) for box in boxes})
        position = 0
        for offset, size in intervals:
            if offset != position:
                return False
            position += size
        if position != extent:
            return False
        cells *= len(intervals)
    return cells == len(boxes) == len({box.offsets for box in boxes})


def _overlaps(boxes: dict[int, Box], limit: int) -> list[tuple[int, int, Box]]:
    """Find boxes that share elements by a sweep along the dimension with most cuts."""
    if len(boxes) < 2:
        return []
    ndim = len(next(iter(boxes.values())).offsets)
    if ndim == 0:
        first, second = list(boxes)[:2]
        return [(first, second, boxes[first])]
    cuts = [len({box.offsets[d] for box in boxes.values()}) for d in range(ndim)]
    axis, *others = sorted(range(ndim), key=lambda d: -cuts[d])
    order = sorted(boxes, key=lambda index: boxes[index].offsets[axis])
    found = _sweep_flat(boxes, order, axis, others[0], limit) if ndim == 2 else []
    if ndim == 2 and not found:
        return []
    try:
        return _sweep_deep(boxes, order, axis, limit)
    except _TooTangled:
        if not found:
            raise
        return found


def _sweep_flat(
    boxes: dict[int, Box], order: list[int], axis: int, across: int, limit: int
) -> list[tuple[int, int, Box]]:
    """Sweep in two dimensions: boxes under the line that do not overlap are disjoint intervals.

    So each new one need only be compared with its neighbours, in O(log n). That finds an overlap
    if there is any, though not all of them.
    """
    found: list[tuple[int, int, Box]] = []
    line: list[tuple[int, int]] = []
    ends: list[tuple[int, tuple[int, int]]] = []
    for index in order:
        box = boxes[index]
        while ends and ends[0][0] <= box.offsets[axis]:
            _, gone = heappop(ends)
            del line[bisect_left(line, gone)]
        key = (box.offsets[across], index)
        place = bisect_left(line, key)
        for near in range(max(0, place - 1), len(line)):
            if near >= place and line[near][0] >= box.ends[across]:
                break
            common = box.overlap(boxes[line[near][1]])
            if common is not None:
                found.append((line[near][1], index, common))
                if len(found) >= limit:
                    return found
        line.insert(place, key)
        heappush(ends, (box.ends[axis], key))
    return found


def _sweep_deep(
    boxes: dict[int, Box], order: list[int], axis: int, limit: int
) -> list[tuple[int, int, Box]]:
    """Sweep in one dimension, or in three and more, comparing all that is under the line."""
    found: list[tuple[int, int, Box]] = []
    budget = _BUDGET + 64 * len(boxes)
    active: list[int] = []
    for index in order:
        box = boxes[index]
        active = [other for other in active if boxes[other].ends[axis] > box.offsets[axis]]
        budget -= len(active)
        if budget < 0:
            raise _TooTangled
        for other in active:
            common = box.overlap(boxes[other])
            if common is not None:
                found.append((other, index, common))
                if len(found) >= limit:
                    return found
        active.append(index)
    return found


def _holes(whole: Box, boxes: list[Box], limit: int) -> Iterator[Box]:
    """Yield boxes that no given box touches, by cutting the space along the boxes' own edges."""
    wanted, budget = limit, _BUDGET + 64 * len(boxes)
    stack: list[tuple[Box, list[Box], int]] = [(whole, boxes, 0)]
    while stack and wanted > 0:
        space, inside, axis = stack.pop()
        if space.volume == 0:
            continue
        if not inside:
            yield space
            wanted -= 1
            continue
        if axis == len(space.offsets):
            continue
        begin, end = space.offsets[axis], space.ends[axis]
        edges = sorted(
            {begin, end}
            | {max(b.offsets[axis], begin) for b in inside}
            | {min(b.ends[axis], end) for b in inside}
        )
        slabs: list[tuple[Box, list[Box], int]] = []
        inside.sort(key=lambda b: b.offsets[axis])
        active: list[Box] = []
        position = 0
        for low, high in pairwise(edges):
            active = [b for b in active if b.ends[axis] > low]
            while position < len(inside) and inside[position].offsets[axis] <= low:
                if inside[position].ends[axis] > low:
                    active.append(inside[position])
                position += 1
            slab = Box(
                (*space.offsets[:axis], low, *space.offsets[axis + 1 :]),
                (*space.sizes[:axis], high - low, *space.sizes[axis + 1 :]),
            )
            slabs.append((slab, list(active), axis + 1))
            budget -= 1 + len(active)
            if budget < 0:
                raise _TooTangled
        stack.extend(reversed(slabs))


def describe(box: Box, shape: Shape) -> str:
    """Say in words which part of a tensor a box is, e.g. ``rows 3-5`` (both ends included)."""
    if not shape:
        return "the value"
    words = []
    for d, (offset, size, extent) in enumerate(zip(box.offsets, box.sizes, shape, strict=True)):
        if offset == 0 and size == extent:
            continue
        unit = "element" if len(shape) == 1 else {0: "row", 1: "column"}.get(d, f"dim-{d} index")
        plural = f"dim-{d} indices" if unit.endswith("index") else f"{unit}s"
        if size == 1:
            words.append(f"{unit} {offset}")
        elif size == 0:
            words.append(f"no {plural}")
        else:
            words.append(f"{plural} {offset}-{offset + size - 1}")
    return ", ".join(words) or "all"
