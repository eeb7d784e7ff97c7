"""What the values of each tensor are like, put together from the pieces it was saved in."""

from __future__ import annotations

from ckptctl.dataclass import dataclass, field
from ckptctl.model.checkpoint import BoxIndex, Item, TensorEntry
from ckptctl.model.finding import Gap, GapKind
from ckptctl.model.geometry import Box, Shape
from ckptctl.model.observation import ValuesSeen
from ckptctl.pattern import pattern

_BUCKET = pattern(r"(?:^|\.)distributed\.dp_group_idx_\d+\.gbuf_idx_\d+\..*bucket_idx_\d+\.\w+$")
_ALIGNED = 64
_UNPLACED = Gap(GapKind.NOT_INTERPRETED, "the metadata does not say where in the tensor they are")


def _is_padding(box: Box) -> bool:
    """Tell whether a piece is what Megatron puts between the parameters of a bucket.

    Its distributed optimizer begins each parameter at a multiple of 64 elements, and saves
    uninitialised memory for what lies between (``distrib_optimizer.py``,
    ``sharded_param_state_dp_reshardable``). Nothing ever reads it.
    """
    if len(box.offsets) != 1:
        return False
    start, size = box.offsets[0], box.sizes[0]
    return start % _ALIGNED != 0 and size < _ALIGNED and (start + size) % _ALIGNED == 0


@dataclass(slots=True)
class Bad:
    """One piece that holds what is no finite number; ``first`` is an index of the whole tensor."""

    item: Item
    nan: int
    infinite: int
    negative: int
    first: Shape
    ranks: set[int] = field(default_factory=set)

    @property
    def sort_key(self) -> tuple[int, str, int]:
        """The worst first, then by place."""
        return -self.nan - self.infinite, self.item.path, self.item.offset


@dataclass(slots=True)
class TensorValues:
    """The values of one tensor so far; of a box that several ranks saved, the worst copy counts.

    ``expected`` is the number of its pieces, ``pieces`` of those whose values were looked at.
    """

    entry: TensorEntry
    expected: int = 1
    pieces: int = 0
    gaps: set[Gap] = field(default_factory=set)
    bad: dict[Shape, Bad] = field(default_factory=dict)
    padding: dict[Shape, Bad] = field(default_factory=dict)
    largest: float = 0.0
    largest_in: Item | None = None
    extreme: bool = False
    subnormal: bool = True

    @property
    def bucket(self) -> bool:
        """True if the tensor is a bucket of many parameters, with padding between them."""
        return len(self.entry.shape) == 1 and _BUCKET.search(self.entry.fqn) is not None

    def add(self, item: Item, boxes: BoxIndex, seen: ValuesSeen) -> None:
        """Take what was seen of one piece."""
        if seen.gap is not None:
            self.skip(seen.gap)
            return
        padding, box = False, None
        if seen.first is not None or self.bucket:
            box = boxes.box(item)
            if box is None or (seen.first is not None and len(seen.first) != len(box.offsets)):
                self.skip(_UNPLACED)
                return
            padding = self.bucket and _is_padding(box)
        self.pieces += 1
        if seen.first is not None and box is not None:
            first = tuple(o + i for o, i in zip(box.offsets, seen.first, strict=True))
            new = Bad(item, seen.nan, seen.infinite, seen.negative, first)
            where = self.padding if padding else self.bad
            old = where.get(box.offsets, new)
            new.ranks = old.ranks | ({item.rank} if item.rank is not None else set())
            where[box.offsets] = min(old, new, key=lambda bad: bad.sort_key)
            where[box.offsets].ranks = new.ranks
        if padding:
            return
        self.extreme = self.extreme or seen.extreme
        self.subnormal = self.subnormal and (seen.subnormal or not seen.largest)
        place = (-seen.largest, item.path, item.offset)
        if self.largest_in is None or place < (
            -self.largest,
            self.largest_in.path,
            self.largest_in.offset,
        ):
            self.largest, self.largest_in = seen.largest, item

    @property
    def whole(self) -> bool:
        """True if all of the tensor was looked at."""
        return self.pieces >= self.expected

    def totals(self) -> tuple[int, int, int]:
        """Count NaN, infinities, and the infinities below zero; each box once."""
        bad = self.bad.values()
        return sum(b.nan for b in bad), sum(b.infinite for b in bad), sum(b.negative for b in bad)

    def skip(self, gap: Gap) -> None:
        """Account for a piece whose values were not looked at."""
        self.gaps.add(gap)
