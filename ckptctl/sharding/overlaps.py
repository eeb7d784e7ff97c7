"""Which of many boxes touch a given one, without looking at all of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ckptctl.model.geometry import Box


class Overlaps:
    """An index over the boxes of one tensor, along the dimension that tells most of them apart."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        """Sort the boxes once."""
        self._boxes = boxes
        ndim = len(boxes[0].offsets) if boxes else 0
        cuts = [len({box.offsets[d] for box in boxes}) for d in range(ndim)]
        self._axis = max(range(ndim), key=cuts.__getitem__, default=0)
        self._ndim = ndim
        self._order = list(range(len(boxes)))
        if ndim:
            self._order.sort(key=lambda i: boxes[i].offsets[self._axis])
            self._begins = [boxes[i].offsets[self._axis] for i in self._order]
            self._longest = max(box.sizes[self._axis] for box in boxes)

    def of(self, box: Box) -> list[int]:
        """Return the numbers of the boxes that share elements with ``box``, in ascending order."""
        if not self._ndim:
            return self._order[:1]
        begin, end = box.offsets[self._axis], box.ends[self._axis]
        low = bisect_right(self._begins, begin - self._longest)
        high = bisect_left(self._begins, end)
        near = self._order[low:high]
        return sorted(i for i in near if self._boxes[i].overlap(box) is not None)
