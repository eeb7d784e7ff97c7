"""Cutting tensors over meshes: by torch's own rule, every element once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.errors import UsageError
from ckptctl.model.geometry import Box, Boxes, tile
from ckptctl.sharding.mesh import Mesh, chunk, parts
from ckptctl.sharding.overlaps import Overlaps


@given(st.integers(0, 200), st.integers(1, 40))
def test_chunks_are_those_of_torch(extent: int, count: int) -> None:
    torch = pytest.importorskip("torch")
    theirs = [len(piece) for piece in torch.chunk(torch.empty(extent), count)]
    theirs += [0] * (count - len(theirs))
    ours = [chunk(extent, count, index) for index in range(count)]
    assert [size for _, size in ours] == theirs
    begin = 0
    for offset, size in ours:
        assert offset == begin
        begin += size
    assert begin == extent


@given(st.integers(0, 50), st.integers(1, 12))
def test_offsets_are_those_of_dtensor(extent: int, count: int) -> None:
    placements = pytest.importorskip("torch.distributed.tensor.placement_types")
    for rank in range(count):
        size, offset = placements.Shard.local_shard_size_and_offset(extent, count, rank)
        assert chunk(extent, count, rank) == (offset, size)


@pytest.mark.parametrize(
    ("extent", "count", "sizes"),
    [(10, 4, [3, 3, 3, 1]), (5, 4, [2, 2, 1, 0]), (9, 8, [2, 2, 2, 2, 1, 0, 0, 0]), (0, 2, [0, 0])],
)
def test_uneven_and_empty_tails(extent: int, count: int, sizes: list[int]) -> None:
    assert [chunk(extent, count, index)[1] for index in range(count)] == sizes


def test_empty_tails_are_saved_once() -> None:
    held = parts((1, 3), Mesh(("dp",), (4,)), {"dp": 0})
    assert [(p.box.offsets, p.box.sizes, p.ranks) for p in held] == [
        ((0, 0), (1, 3), (0,)),
        ((1, 0), (0, 3), (1, 2, 3)),
    ]


def test_tensor_parallel_cuts_come_first() -> None:
    """Six rows over dp=2, tp=2 as torch saves them: offsets 0, 3, 2, 5 for ranks 0 to 3."""
    held = parts((6, 8), Mesh(("dp", "tp"), (2, 2)), {"dp": 0, "tp": 0})
    assert [(p.box.offsets[0], p.box.sizes[0], p.ranks) for p in held] == [
        (0, 2, (0,)),
        (3, 2, (1,)),
        (2, 1, (2,)),
        (5, 1, (3,)),
    ]


def test_a_part_with_elements_outranks_an_empty_tail_at_the_same_place() -> None:
    held = parts((2,), Mesh(("dp", "tp"), (2, 2)), {"dp": 0, "tp": 0})
    assert [(p.box.offsets[0], p.box.sizes[0]) for p in held if p.box.volume] == [(0, 1), (1, 1)]
    assert tile((2,), Boxes.of(1, (p.box for p in held))).exact


def test_what_replicas_hold_is_held_by_all_of_them() -> None:
    mesh = Mesh(("replicate", "dp"), (2, 3))
    held = parts((6,), mesh, {"dp": 0})
    assert [p.ranks for p in held] == [(0, 3), (1, 4), (2, 5)]
    assert parts((), mesh, {})[0].ranks == tuple(range(6))


MESHES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(
    lambda sizes: Mesh(("dp", "tp", "ep")[: len(sizes)], tuple(sizes))
)


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    MESHES,
    st.lists(st.integers(0, 3) | st.none(), min_size=3, max_size=3),
)
def test_parts_hold_every_element_once(
    shape: tuple[int, ...], mesh: Mesh, chosen: list[int | None]
) -> None:
    dims = {
        name: dim
        for name, dim in zip(mesh.names, chosen, strict=False)
        if dim is not None and dim < len(shape)
    }
    held = parts(shape, mesh, dims)
    assert tile(shape, Boxes.of(len(shape), (p.box for p in held))).exact
    assert len({p.box.offsets for p in held}) == len(held)
    assert all(p.ranks and p.ranks == tuple(sorted(p.ranks)) for p in held)
    assert sum(p.box.volume for p in held) == math.prod(shape)


@pytest.mark.parametrize("text", ["", "dp", "dp=", "dp=0", "dp=x", "xx=2", "dp=2,dp=2", "dp=-1"])
def test_what_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Mesh.parse(text)


def test_a_mesh_reads_as_it_is_written() -> None:
    mesh = Mesh.parse("dp=4, tp=2")
    assert (mesh.names, mesh.sizes, mesh.world_size, str(mesh)) == (
        ("dp", "tp"),
        (4, 2),
        8,
        "dp=4,tp=2",
    )
    assert list(mesh.coordinates())[3] == (1, 1)  # the last axis counts fastest


def boxes_of(ndim: int) -> Any:
    box = st.tuples(
        st.tuples(*[st.integers(0, 8)] * ndim), st.tuples(*[st.integers(0, 4)] * ndim)
    ).map(lambda pair: Box(*pair))
    return st.tuples(st.lists(box, max_size=12), box)


@given(st.integers(1, 3).flatmap(boxes_of))
def test_overlaps_are_all_found(drawn: tuple[list[Box], Box]) -> None:
    boxes, wanted = drawn
    expected = [i for i, box in enumerate(boxes) if box.overlap(wanted) is not None]
    assert Overlaps(boxes).of(wanted) == expected


def test_the_one_box_of_a_scalar_is_found() -> None:
    assert Overlaps([Box((), ())]).of(Box((), ())) == [0]
    assert Overlaps([]).of(Box((), ())) == []
