"""Do boxes cover a tensor exactly once? Properties, and a count of every element as the judge."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.model.geometry import Box, Boxes, Shape, describe, tile

EVERYTHING = 1 << 30
"""A limit that leaves nothing out."""


def boxes_of(ndim: int, boxes: Sequence[Box]) -> Boxes:
    return Boxes.of(ndim, boxes)


def clipped(shape: Shape, box: Box) -> Box:
    """The part of a box that lies inside; it may be empty."""
    low = tuple(map(min, box.offsets, shape))
    high = tuple(map(min, box.ends, shape))
    return Box(low, tuple(h - lo for lo, h in zip(low, high, strict=True)))


def count(shape: Shape, boxes: Sequence[Box]) -> np.ndarray:
    """Count how often each element is covered; what reaches outside covers what it has inside."""
    counts = np.zeros(shape, np.int64)
    for box in (clipped(shape, box) for box in boxes):
        counts[tuple(slice(o, e) for o, e in zip(box.offsets, box.ends, strict=True))] += 1
    return counts


def cells_of(cuts: Sequence[Sequence[int]]) -> list[Box]:
    """Make the cells of a grid from the sorted cuts of each dimension, both ends included."""
    spans = [list(itertools.pairwise(cut)) for cut in cuts]
    return [
        Box(tuple(low for low, _ in cell), tuple(high - low for low, high in cell))
        for cell in itertools.product(*spans)
    ]


@st.composite
def grids(draw: st.DrawFn, min_extent: int = 0) -> tuple[Shape, list[Box]]:
    """A shape of 0 to 4 dimensions cut into a grid, unevenly, empty cells included."""
    shape = tuple(draw(st.lists(st.integers(min_extent, 12), max_size=4)))
    cuts = [
        [0, *sorted(draw(st.lists(st.integers(0, extent), max_size=4))), extent] for extent in shape
    ]
    return shape, draw(st.permutations(cells_of(cuts)))


def guillotine(rng: random.Random, whole: Box, pieces: int) -> list[Box]:
    """Cut one box after another in two, anywhere, until there are so many (or none can be cut)."""
    boxes = [whole]
    for _ in range(20 * pieces):
        if len(boxes) >= pieces:
            break
        box = boxes.pop(rng.randrange(len(boxes)))
        dims = [d for d, size in enumerate(box.sizes) if size > 1]
        if not dims:
            boxes.append(box)
            continue
        d = rng.choice(dims)
        at = rng.randrange(1, box.sizes[d])
        for offset, size in ((0, at), (at, box.sizes[d] - at)):
            boxes.append(
                Box(
                    (*box.offsets[:d], box.offsets[d] + offset, *box.offsets[d + 1 :]),
                    (*box.sizes[:d], size, *box.sizes[d + 1 :]),
                )
            )
    rng.shuffle(boxes)
    return boxes


def solid(boxes: Sequence[Box]) -> list[int]:
    """The positions of the boxes that hold something."""
    return [i for i, box in enumerate(boxes) if box.volume]


@given(grids())
def test_every_grid_is_exact(grid: tuple[Shape, list[Box]]) -> None:
    shape, boxes = grid
    assert tile(shape, boxes_of(len(shape), boxes)).exact


@given(grids(min_extent=1), st.data())
def test_a_removed_box_is_the_hole(grid: tuple[Shape, list[Box]], data: st.DataObject) -> None:
    shape, boxes = grid
    gone = boxes.pop(data.draw(st.sampled_from(solid(boxes))))
    tiling = tile(shape, boxes_of(len(shape), boxes), limit=EVERYTHING)
    assert not tiling.exact
    assert not tiling.overlaps
    assert not tiling.outside
    assert sum(hole.volume for hole in tiling.holes) == gone.volume
    assert all(hole.overlap(gone) == hole for hole in tiling.holes)


@given(grids(min_extent=1), st.data())
def test_a_doubled_box_is_the_overlap(grid: tuple[Shape, list[Box]], data: st.DataObject) -> None:
    shape, boxes = grid
    twice = boxes[data.draw(st.sampled_from(solid(boxes)))]
    boxes.insert(data.draw(st.integers(0, len(boxes))), twice)
    tiling = tile(shape, boxes_of(len(shape), boxes))
    assert [common for _, _, common in tiling.overlaps] == [twice]
    first, second, _ = tiling.overlaps[0]
    assert first != second
    assert boxes[first] == boxes[second] == twice
    assert not tiling.holes


@given(st.randoms(use_true_random=False), st.integers(2, 30), st.data())
def test_a_moved_box_leaves_a_hole_and_makes_an_overlap(
    rng: random.Random, pieces: int, data: st.DataObject
) -> None:
    shape = (9, 7)
    boxes = guillotine(rng, Box((0, 0), shape), pieces)
    number = data.draw(st.sampled_from(range(len(boxes))))
    box = boxes[number]
    room = [n - size for n, size in zip(shape, box.sizes, strict=True)]
    moved = Box(tuple(data.draw(st.integers(0, most)) for most in room), box.sizes)
    boxes[number] = moved
    tiling = tile(shape, boxes_of(2, boxes), limit=EVERYTHING)
    assert tiling.exact == (moved == box)
    if moved != box:
        common = moved.overlap(box)
        lost = box.volume - (common.volume if common else 0)
        assert sum(hole.volume for hole in tiling.holes) == lost
        assert sum(part.volume for _, _, part in tiling.overlaps) == lost
        assert all(number in pair[:2] for pair in tiling.overlaps)


@given(
    st.randoms(use_true_random=False),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 80),
)
def test_partitions_that_are_no_grids_are_exact(
    rng: random.Random, extents: list[int], pieces: int
) -> None:
    shape = tuple(extents)
    boxes = guillotine(rng, Box((0,) * len(shape), shape), pieces)
    assert tile(shape, boxes_of(len(shape), boxes)).exact
    gone = boxes.pop()
    tiling = tile(shape, boxes_of(len(shape), boxes), limit=EVERYTHING)
    assert sum(hole.volume for hole in tiling.holes) == gone.volume


@st.composite
def arbitrary(draw: st.DrawFn) -> tuple[Shape, list[Box]]:
    """Any boxes at all, some of them outside."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    span = st.tuples(st.integers(0, 7), st.integers(0, 7))
    boxes = []
    for spans in draw(st.lists(st.tuples(*[span for _ in shape]), max_size=12)):
        boxes.append(Box(tuple(o for o, _ in spans), tuple(s for _, s in spans)))
    return shape, boxes


@settings(max_examples=600)
@given(arbitrary())
def test_arbitrary_boxes_agree_with_a_count_of_every_element(
    case: tuple[Shape, list[Box]],
) -> None:
    shape, boxes = case
    counts = count(shape, boxes)
    tiling = tile(shape, boxes_of(len(shape), boxes), limit=EVERYTHING)
    assert tiling.finished
    assert list(tiling.outside) == [i for i, box in enumerate(boxes) if not box.within(shape)]
    holes = count(shape, tiling.holes)
    assert (holes == (counts == 0)).all()
    assert all(hole.within(shape) and hole.volume for hole in tiling.holes)
    assert bool(tiling.overlaps) == bool((counts > 1).any())
    for first, second, common in tiling.overlaps:
        assert first != second
        assert clipped(shape, boxes[first]).overlap(clipped(shape, boxes[second])) == common
    doubled = count(shape, [common for _, _, common in tiling.overlaps])
    assert ((doubled > 0) == (counts > 1)).all() or not shape  # a 0-d tensor names one pair
    assert tiling.exact == (bool((counts == 1).all()) and not tiling.outside)


@given(arbitrary(), st.integers(1, 4))
def test_a_limit_cuts_each_list_and_hides_no_kind(
    case: tuple[Shape, list[Box]], limit: int
) -> None:
    shape, boxes = case
    columns = boxes_of(len(shape), boxes)
    some, everything = tile(shape, columns, limit=limit), tile(shape, columns, limit=EVERYTHING)
    for part, whole in (
        (some.holes, everything.holes),
        (some.overlaps, everything.overlaps),
        (some.outside, everything.outside),
    ):
        assert len(part) == min(limit, len(whole))
    assert some.exact == everything.exact


def test_boxes_come_back_as_they_went_in() -> None:
    given_boxes = [Box((0, 3), (2, 1)), Box((2**62, 0), (0, 2**62))]
    columns = boxes_of(2, given_boxes)
    assert list(columns) == given_boxes
    assert len(columns) == 2
    with pytest.raises(IndexError):
        columns[2]
    with pytest.raises(IndexError):
        columns[-1]


@pytest.mark.parametrize(
    ("offsets", "sizes", "inside"),
    [
        ((0, 0), (4, 6), True),
        ((4, 0), (0, 6), True),
        ((5, 0), (0, 6), False),
        ((0, 0), (4, 7), False),
        ((-1, 0), (1, 1), False),
        ((0, 0), (-1, 1), False),
        ((0,), (4,), False),
    ],
)
def test_within(offsets: Shape, sizes: Shape, inside: bool) -> None:
    assert Box(offsets, sizes).within((4, 6)) is inside


def test_an_empty_tensor_needs_no_boxes_and_a_scalar_needs_one() -> None:
    assert tile((0, 3), Boxes(2)).exact
    assert tile((0, 3), boxes_of(2, [Box((0, 0), (0, 3))] * 3)).exact
    assert tile((), Boxes(0)).holes == (Box((), ()),)
    assert tile((), boxes_of(0, [Box((), ())])).exact
    assert tile((), boxes_of(0, [Box((), ())] * 2)).overlaps == ((0, 1, Box((), ())),)


def test_numbers_near_the_limit_are_exact() -> None:
    huge = (1 << 62) + 1
    halves = [Box((0, 0), (huge, 1 << 40)), Box((0, 1 << 40), (huge, 1 << 40))]
    assert tile((huge, 2 << 40), boxes_of(2, halves)).exact
    short = [halves[0], Box((0, 1 << 40), (huge - 1, 1 << 40))]
    (hole,) = tile((huge, 2 << 40), boxes_of(2, short)).holes
    assert hole == Box((huge - 1, 1 << 40), (1, 1 << 40))


@pytest.mark.slow
def test_a_hundred_thousand_cells_of_a_grid_are_exact() -> None:
    boxes = cells_of([range(1001), range(0, 301, 3)])
    random.Random(7).shuffle(boxes)
    assert len(boxes) == 100_000
    assert tile((1000, 300), boxes_of(2, boxes)).exact
    gone = boxes.pop()
    assert tile((1000, 300), boxes_of(2, boxes)).holes == (gone,)


@pytest.mark.slow
def test_a_large_partition_that_is_no_grid_is_decided() -> None:
    """256 columns, each cut into rows of its own: legal, and met after a custom planner."""
    rng = random.Random(3)
    boxes = []
    for column in range(256):
        cuts = [0, *sorted(rng.sample(range(1, 100_000), 199)), 100_000]
        boxes += [Box((low, column), (high - low, 1)) for low, high in itertools.pairwise(cuts)]
    rng.shuffle(boxes)
    assert tile((100_000, 256), boxes_of(2, boxes)).exact


@pytest.mark.slow
def test_a_tangle_ends_and_is_never_called_exact() -> None:
    rng = random.Random(0)
    side = 100_000
    boxes = []
    for number in range(20_000):
        if number % 2:
            boxes.append(Box((number, 0, 0), (1, side, side)))
        else:
            boxes.append(Box((0, number, rng.randrange(side // 2)), (side, 1, side // 2)))
    assert not tile((side,) * 3, boxes_of(3, boxes), limit=EVERYTHING).exact


@pytest.mark.parametrize(
    ("offsets", "sizes", "shape", "words"),
    [
        ((), (), (), "the value"),
        ((0, 0), (6, 8), (6, 8), "all"),
        ((3, 0), (3, 8), (6, 8), "rows 3-5"),
        ((3, 0), (1, 8), (6, 8), "row 3"),
        ((0, 2), (6, 2), (6, 8), "columns 2-3"),
        ((3, 2), (3, 1), (6, 8), "rows 3-5, column 2"),
        ((4,), (2,), (6,), "elements 4-5"),
        ((4,), (1,), (6,), "element 4"),
        ((6, 0), (0, 8), (6, 8), "no rows"),
        ((0, 0, 1), (2, 3, 2), (2, 3, 4), "dim-2 indices 1-2"),
        ((0, 0, 1), (2, 3, 1), (2, 3, 4), "dim-2 index 1"),
        ((0, 0, 4), (2, 3, 0), (2, 3, 4), "no dim-2 indices"),
    ],
)
def test_describe(offsets: Shape, sizes: Shape, shape: Shape, words: str) -> None:
    assert describe(Box(offsets, sizes), shape) == words


@given(grids())
def test_volumes_of_a_grid_add_up(grid: tuple[Shape, list[Box]]) -> None:
    shape, boxes = grid
    assert sum(box.volume for box in boxes) == math.prod(shape)
