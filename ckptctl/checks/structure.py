"""What several checks derive from listing and metadata: computed once, then only looked at."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property

from ckptctl.dataclass import dataclass
from ckptctl.model.checkpoint import BoxIndex, Checkpoint, TensorEntry
from ckptctl.model.geometry import Tiling, tile

_MOST_TANGLES = 3
"""Tensors of which the cover is searched for long in vain, before no more patience is spent."""

_MOST_ALIKE = 1024
"""Boxes of a tensor up to which it is remembered how they cover it."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How the items of one file lie in it: byte ranges of gaps, pairs of items that share bytes."""

    indices: tuple[int, ...]
    gaps: tuple[tuple[int, int], ...]
    overlaps: tuple[tuple[int, int], ...]
    end: int

    @property
    def contiguous(self) -> bool:
        """True if the items lie one behind the other from byte 0 on."""
        return not self.gaps and not self.overlaps


@dataclass(frozen=True)
class Structure:
    """A checkpoint as listing and metadata describe it, with all that follows from that alone."""

    checkpoint: Checkpoint

    @cached_property
    def boxes(self) -> BoxIndex:
        """Finds the box of an item."""
        return BoxIndex(self.checkpoint)

    @cached_property
    def tilings(self) -> dict[str, Tiling]:
        """How the chunks of each tensor cover it; those of many tensors are cut alike."""
        found: dict[str, Tiling] = {}
        known: dict[object, Tiling] = {}
        tangles = 0
        for entry in self.checkpoint.entries.values():
            if not isinstance(entry, TensorEntry):
                continue
            boxes = entry.boxes
            few = len(boxes) <= _MOST_ALIKE
            columns = (boxes.offsets.tobytes(), boxes.sizes.tobytes()) if few else ()
            cut = (entry.shape, len(boxes), columns)
            tiling = known.get(cut) if few else None
            if tiling is None:
                tiling = tile(entry.shape, boxes, patient=tangles < _MOST_TANGLES)
                tangles += not tiling.finished
                if few:
                    known[cut] = tiling
            found[entry.fqn] = tiling
        return found

    @cached_property
    def layouts(self) -> dict[str, FileLayout]:
        """The layout of each file that items lie in."""
        items = self.checkpoint.items
        found = {}
        for path, indices in items.by_path().items():
            gaps: list[tuple[int, int]] = []
            overlaps: list[tuple[int, int]] = []
            end, last = 0, -1
            for index in indices:
                start, stop = items.offsets[index], items.offsets[index] + items.lengths[index]
                if start > end:
                    gaps.append((end, start))
                elif start < end:
                    overlaps.append((last, index))
                if stop >= end:
                    end, last = stop, index
            found[path] = FileLayout(tuple(indices), tuple(gaps), tuple(overlaps), end)
        return found

    @cached_property
    def present(self) -> dict[str, int]:
        """The size of each regular file that items lie in and that is there."""
        files = self.checkpoint.files
        return {p: files[p].size for p in self.layouts if p in files and files[p].is_file}

    def unlisted(self, path: str) -> list[tuple[int, int]]:
        """Return the byte ranges of a file that is there which no item lies in.

        Of a file that describes itself its reader has accounted for each byte.
        """
        if path in self.checkpoint.described:
            return []
        layout, size = self.layouts[path], self.present[path]
        gaps = [(low, min(high, size)) for low, high in layout.gaps if low < size]
        return [*gaps, (layout.end, size)] if size > layout.end else gaps

    @cached_property
    def within(self) -> int:
        """How many items lie inside their files, so that they can be looked at."""
        return self.within_files(self.layouts)

    def within_files(self, paths: Container[str]) -> int:
        """Count the items that lie inside their files, of some of the files."""
        items, count = self.checkpoint.items, 0
        for path, size in self.present.items():
            if path not in paths:
                continue
            indices = self.layouts[path].indices
            count += sum(items.offsets[i] + items.lengths[i] <= size for i in indices)
        return count
