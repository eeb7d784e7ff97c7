"""How the boxes of one tensor come about, and which of them are fed by one read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData
from ckptctl.formats.torch.zip_writer import item_length
from ckptctl.model.checkpoint import Items, TensorEntry
from ckptctl.model.dtypes import ITEM_SIZE
from ckptctl.model.geometry import Box, Shape
from ckptctl.sharding.overlaps import Overlaps
from ckptctl.sharding.plan import Copy, Groups, Step, Write


class TensorSteps:
    """Finds where the boxes of one tensor come from."""

    def __init__(
        self,
        entry: TensorEntry,
        origins: Mapping[Shape | None, int],
        items: Items,
        *,
        fresh: bool,
    ) -> None:
        """Take a tensor and the number of the item at each origin.

        With ``fresh`` no item is copied as it is.
        """
        self._entry, self._origins, self._items = entry, origins, items
        self._width, self._fresh = ITEM_SIZE.get(entry.dtype, 1), fresh
        sources: dict[Shape, Box] = {}
        for box in entry.boxes:
            known = sources.get(box.offsets)
            if known is None or known.volume < box.volume:
                sources[box.offsets] = box
        self._sources = sources
        self._solid = [box for box in sources.values() if box.volume]
        self._overlaps: Overlaps | None = None
        self._boxes: dict[int, Box] = {}  # of the items that are cut, by their numbers

    def of(self, boxes: Sequence[Box], name: str) -> list[Step]:
        """Return how each box of the result comes about.

        Raises ``MalformedData`` for a box that the tensor does not hold whole.
        """
        steps = [self._step(box, name) for box in boxes]
        wide = [i for i, s in enumerate(steps) if isinstance(s, Write) and self._reads_more(s)]
        if len(wide) < 2:
            return steps
        groups = Groups(len(steps))
        first: dict[int, int] = {}
        for number in wide:
            for piece in self._pieces(steps[number]):
                groups.join(number, first.setdefault(piece, number))
        chosen = set(wide)
        for members in groups.all():
            if len(members) > 1 and members[0] in chosen:
                self._share(steps, members)
        return steps

    def _step(self, box: Box, name: str) -> Step:
        index = self._origins.get(box.offsets)
        whole = index is not None and self._sources.get(box.offsets) == box
        if index is not None and whole and not self._fresh:
            transforms = self._items.transforms.get(index, ())
            return Copy(name, box, index, self._items.lengths[index], transforms)
        if self._overlaps is None:
            self._overlaps = Overlaps(self._solid)
        near = [self._solid[i] for i in self._overlaps.of(box)] if box.volume else []
        read, covered = 0, 0
        pieces = []
        for source in near:
            piece = self._origins.get(source.offsets)
            if piece is None:
                raise MalformedData(f"{self._entry.fqn}: one of its boxes is not stored")
            self._boxes[piece] = source
            common = source.overlap(box)
            covered += 1 if common is None else common.volume
            read += self._read_of(piece, box)
            pieces.append(piece)
        if covered != box.volume:
            raise MalformedData(
                f"{self._entry.fqn}: its boxes hold {covered} of {box.volume} elements of a part"
            )
        length = item_length(self._entry.dtype, box.sizes)
        return Write(name, box, tuple(pieces), length, read)

    def _read_of(self, piece: int, box: Box) -> int:
        """Return the bytes read of a piece for a box: what is packed as a whole, else its rows."""
        if piece in self._items.transforms:
            return self._items.lengths[piece]
        source = self._boxes[piece]
        if not source.sizes:
            return self._width
        low = max(source.offsets[0], box.offsets[0])
        rows = min(source.ends[0], box.ends[0]) - low
        return max(0, rows) * math.prod(source.sizes[1:]) * self._width

    def _reads_more(self, step: Write) -> bool:
        """Tell whether a box reads by itself what it does not need."""
        packed = any(piece in self._items.transforms for piece in step.pieces)
        return bool(step.box.sizes) and (packed or step.read > step.box.volume * self._width)

    @staticmethod
    def _pieces(step: Step) -> tuple[int, ...]:
        return step.pieces if isinstance(step, Write) else ()

    def _share(self, steps: list[Step], members: Iterable[int]) -> None:
        """Have some boxes fed by one read, where their pieces hold all that lies between them."""
        boxes = [box for number in members if (box := steps[number].box) is not None]
        low = tuple(map(min, zip(*(box.offsets for box in boxes), strict=True)))
        high = tuple(map(max, zip(*(box.ends for box in boxes), strict=True)))
        hull = Box(low, tuple(h - lo for lo, h in zip(low, high, strict=True)))
        pieces = {piece for number in members for piece in self._pieces(steps[number])}
        common = (self._boxes[piece].overlap(hull) for piece in pieces)
        if sum(box.volume for box in common if box is not None) != hull.volume:
            return
        for number in members:
            step = steps[number]
            if isinstance(step, Write):
                whole = tuple(self._read_of(piece, hull) for piece in step.pieces)
                steps[number] = replace(step, shared=hull, whole=whole)
