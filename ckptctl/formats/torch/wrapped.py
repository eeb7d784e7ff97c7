"""Tensors that a pickle holds inside others: DTensor, ShardedTensor, subclasses, with attributes.

What a rank holds of a distributed tensor is placed in the whole by the mesh and the placements that
are pickled with it. Source: ``torch/_tensor.py`` (``_rebuild_from_type_v2``), ``torch/_utils.py``
(``_rebuild_wrapper_subclass``), ``torch/distributed/device_mesh.py``,
``torch/distributed/tensor/placement_types.py``, ``torch/distributed/_shard/sharded_tensor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.pickles.tensors import TensorRef
from ckptctl.formats.pickles.unpickler import Function, Opaque
from ckptctl.model.geometry import Box, Shape
from ckptctl.sharding.mesh import chunk

_TYPED = "torch._tensor._rebuild_from_type_v2"
_WRAPPER = "torch._utils._rebuild_wrapper_subclass"
_MARKED = "torch._utils._rebuild_parameter_with_state"
_REBUILDS = ("torch._utils._rebuild_", "torch._tensor._rebuild_")
_MOST_RANKS = 1 << 20
_DEEPEST = 4

Numbers = Callable[[TensorRef], tuple[int, ...]]
"""Reads the whole numbers of a small tensor."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one file holds of a tensor: its dtype and whole shape, and pieces with their boxes.

    ``kind`` is the class of a tensor whose layout is not interpreted; it has no pieces then.
    """

    dtype: str
    shape: Shape
    pieces: tuple[tuple[Box, TensorRef], ...] = ()
    kind: str = "plain"


def unwrap(value: Opaque, numbers: Numbers, rank: int | None) -> TensorRef | Held | None:
    """Return the tensor that an object is, or None where it is none.

    ``rank`` is the one that wrote the file, None where nobody says. Raises ``MalformedData`` for a
    tensor that contradicts itself.
    """
    return _unwrap(value, numbers, rank, 0)


def _unwrap(
    value: object, numbers: Numbers, rank: int | None, depth: int
) -> TensorRef | Held | None:
    if isinstance(value, TensorRef | Held):
        return value
    if not isinstance(value, Opaque) or depth > _DEEPEST:
        return None
    label = value.label()
    if label == _TYPED:
        return _typed(value.args, numbers, rank, depth)
    if label == _MARKED and value.args:  # attributes change none of a parameter's numbers
        return _unwrap(value.args[0], numbers, rank, depth + 1)
    return Held("?", (), kind=label) if label.startswith(_REBUILDS) else None


def _typed(
    args: tuple[object, ...], numbers: Numbers, rank: int | None, depth: int
) -> TensorRef | Held:
    if len(args) != 4 or not isinstance(args[2], tuple):
        raise MalformedData("a tensor of a class of its own is not made of four parts")
    call, kind, given, state = args[0], args[1], args[2], args[3]
    if isinstance(call, Function):  # the class and the attributes change none of its numbers
        found = _unwrap(call(*given), numbers, rank, depth + 1)
        if found is None:
            raise MalformedData("a tensor with attributes is no tensor")
        return found
    name = _label(kind)
    if _label(call) != _WRAPPER:
        return Held("?", (), kind=name)
    dtype, shape = _outline(given)
    attributes = _attributes(state)
    if name.endswith(".DTensor") and name.startswith("torch.distributed."):
        return _dtensor(attributes, dtype, shape, numbers, rank)
    if name == "torch.distributed._shard.sharded_tensor.api.ShardedTensor":
        return _sharded(state, dtype, shape, numbers, rank, depth)
    return Held(dtype, shape, kind=name)


def _label(kind: object) -> str:
    return kind.label() if isinstance(kind, type) and issubclass(kind, Opaque) else "?"


def _outline(given: tuple[object, ...]) -> tuple[str, Shape]:
    """Return dtype and shape of ``(class, dtype, shape, stride, ...)``."""
    if len(given) < 3 or not isinstance(given[1], str):
        raise MalformedData("a wrapped tensor has no dtype or no shape")
    return str(given[1]), _shape(given[2])


def _shape(value: object) -> Shape:
    if type(value) is tuple and len(value) <= 64 and all(type(n) is int and n >= 0 for n in value):
        return value
    raise MalformedData("a wrapped tensor's shape is not made of sizes")


def _attributes(state: object) -> dict[object, object]:
    parts = state if type(state) is tuple else (state,)
    return {key: held for part in parts if isinstance(part, dict) for key, held in part.items()}


def _state(value: object) -> Mapping[object, object]:
    """Return the attributes of a stand-in; empty for anything else."""
    return _attributes(value.state) if isinstance(value, Opaque) else {}


def _dtensor(
    attributes: Mapping[object, object],
    dtype: str,
    shape: Shape,
    numbers: Numbers,
    rank: int | None,
) -> Held:
    local, spec = attributes.get("_local_tensor"), _state(attributes.get("_spec"))
    placements = spec.get("placements")
    if not isinstance(local, TensorRef) or type(placements) is not tuple:
        return Held(dtype, shape, kind="torch.distributed.tensor.DTensor")
    cuts = [_placement(one) for one in placements]
    if any(cut is None for cut in cuts):
        return Held(dtype, shape, kind="DTensor with a partial placement")
    sizes, coordinates = _mesh(_state(spec.get("mesh")), numbers, rank)
    if len(sizes) != len(cuts):
        raise MalformedData(f"a DTensor has {len(cuts)} placements on a mesh of {len(sizes)} axes")
    if coordinates is None:
        return Held(dtype, shape, kind="DTensor of a rank that nobody names")
    order = list(_order([cut for cut in cuts if cut is not None], sizes, spec.get("shard_order")))
    offsets, extents = [0] * len(shape), list(shape)
    for axis, dim in order:
        if not 0 <= dim < len(shape):
            raise MalformedData(f"a DTensor of {len(shape)} dimensions is cut along {dim}")
        begin, extents[dim] = chunk(extents[dim], sizes[axis], coordinates[axis])
        offsets[dim] += begin
    if tuple(extents) != local.shape:
        raise MalformedData(
            f"a DTensor of {list(shape)} should have {extents} on rank {rank}, and has "
            f"{list(local.shape)}"
        )
    return Held(local.dtype, shape, ((Box(tuple(offsets), local.shape), local),))


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a mesh axis cuts: along ``dim``, None for not at all, after ``split`` cuts to its right."""

    dim: int | None
    split: int = 1


def _placement(value: object) -> _Cut | None:
    """Read a placement; None for one by which no rank holds any of the numbers themselves."""
    if not isinstance(value, Opaque):
        raise MalformedData("a DTensor's placement is none")
    name, held = value.label().rpartition(".")[2], _state(value)
    if name == "Replicate":
        return _Cut(None)
    if name not in ("Shard", "_StridedShard"):
        return None
    dim = held.get("dim", value.args[0] if value.args else None)
    split = held.get("split_factor", value.args[1] if len(value.args) > 1 else 1)
    if type(dim) is not int or type(split) is not int or split < 1:
        raise MalformedData("a DTensor's placement has no dimension")
    return _Cut(dim, split if name == "_StridedShard" else 1)


def _order(cuts: list[_Cut], sizes: Shape, named: object) -> Iterator[tuple[int, int]]:
    """Yield mesh axis and dimension of each cut in the order in which they were made."""
    if any(cut.split > 1 for cut in cuts) or not isinstance(named, tuple):
        yield from _strided(cuts, sizes)
        return
    for entry in named:
        if not isinstance(entry, Opaque) or len(entry.args) != 2:
            raise MalformedData("the order of a DTensor's cuts is not readable")
        dim, axes = entry.args
        if type(dim) is not int or type(axes) is not tuple:
            raise MalformedData("the order of a DTensor's cuts is not readable")
        for axis in axes:
            if type(axis) is not int or not 0 <= axis < len(cuts) or cuts[axis].dim != dim:
                raise MalformedData("the order of a DTensor's cuts does not fit its placements")
            yield axis, dim


def _strided(cuts: list[_Cut], sizes: Shape) -> Iterator[tuple[int, int]]:
    """Yield cuts from left to right; a strided one once those to its right have cut as often."""
    for dim in sorted({cut.dim for cut in cuts if cut.dim is not None}):
        waiting: list[list[int]] = []
        for axis, cut in enumerate(cuts):
            if cut.dim != dim:
                continue
            if cut.split > 1:
                waiting.append([axis, cut.split])
                continue
            yield axis, dim
            for one in reversed(waiting):
                one[1] //= sizes[axis]
            while waiting and waiting[-1][1] <= 1:
                yield waiting.pop()[0], dim
        for axis, _ in reversed(waiting):
            yield axis, dim


def _mesh(
    mesh: Mapping[object, object], numbers: Numbers, rank: int | None
) -> tuple[Shape, Shape | None]:
    """Return the sizes of a mesh's axes, and where on them a rank is; None where nobody says."""
    ranks = _ranks(mesh, numbers)
    axes = _axes(mesh, len(ranks))
    sizes = tuple(prod(shape) for shape, _ in axes)
    if prod(sizes) == 1:
        return sizes, (0,) * len(sizes)
    if rank is None or rank not in ranks:
        return sizes, None
    position, place = ranks.index(rank), []
    for shape, stride in axes:
        at = 0
        for extent, step in zip(shape, stride, strict=True):
            at = at * extent + position // step % extent
        place.append(at)
    return sizes, tuple(place)


def _ranks(mesh: Mapping[object, object], numbers: Numbers) -> tuple[int, ...]:
    """Return the ranks of a mesh, or of the one that it was cut from, in its own order."""
    for name in ("_flatten_rank_map", "_flatten_mesh_list"):
        found = mesh.get(name)
        if isinstance(found, tuple | list) and all(type(one) is int for one in found):
            return tuple(found)
    for name in ("_rank_map", "_mesh", "mesh"):
        ref = mesh.get(name)
        if isinstance(ref, TensorRef) and prod(ref.shape) <= _MOST_RANKS:
            return numbers(ref)
    raise MalformedData("a DTensor's mesh names no ranks")


def _axes(mesh: Mapping[object, object], count: int) -> list[tuple[Shape, Shape]]:
    """Return shape and stride of each axis, strides in places of the list of ranks."""
    layout = _state(mesh.get("_layout"))
    inner = layout.get("axes")
    if isinstance(inner, tuple | list):
        return [_axis(_state(one).get("shape"), _state(one).get("stride")) for one in inner]
    shape, stride = layout.get("shape"), layout.get("stride")
    if isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride):
        return [_axis(*one) for one in zip(shape, stride, strict=True)]
    ref = next((mesh[name] for name in ("_mesh", "mesh") if name in mesh), None)
    sizes = ref.shape if isinstance(ref, TensorRef) else (count,)
    found: list[tuple[Shape, Shape]] = []
    step = 1
    for size in reversed(sizes):
        found.insert(0, _axis(size, step))
        step *= size
    if step != count:
        raise MalformedData(f"a DTensor's mesh of {list(sizes)} has {count} ranks")
    return found


def _axis(shape: object, stride: object) -> tuple[Shape, Shape]:
    shapes = shape if isinstance(shape, tuple) else (shape,)
    steps = stride if isinstance(stride, tuple) else (stride,)
    whole = all(type(one) is int and 0 < one <= _MOST_RANKS for one in (*shapes, *steps))
    if not whole or len(shapes) != len(steps) or len(shapes) > 64:
        raise MalformedData("a DTensor's mesh has axes without a size")
    return shapes, steps


def _sharded(
    state: object, dtype: str, shape: Shape, numbers: Numbers, rank: int | None, depth: int
) -> Held:
    """Read a ShardedTensor: a list of shards, each with its offsets and sizes."""
    shards = _shards(state)
    if shards is None:
        return Held(dtype, shape, kind="torch.distributed._shard.sharded_tensor.api.ShardedTensor")
    pieces = []
    for shard in shards:
        held = _state(shard)
        local = _unwrap(held.get("tensor"), numbers, rank, depth + 1)
        place = _state(held.get("metadata"))
        offsets, sizes = place.get("shard_offsets"), place.get("shard_sizes")
        if not isinstance(local, TensorRef) or not isinstance(offsets, list | tuple):
            return Held(dtype, shape, kind="a ShardedTensor whose shards are no plain tensors")
        box = Box(_shape(tuple(offsets)), local.shape)
        fits = isinstance(sizes, list | tuple) and tuple(sizes) == local.shape
        if not fits or len(box.offsets) != len(shape) or len(local.shape) != len(shape):
            raise MalformedData("a shard of a ShardedTensor has not the sizes that are said of it")
        pieces.append((box, local))
    return Held(dtype, shape, tuple(pieces))


def _shards(state: object) -> list[Opaque] | None:
    """Find the list of shards in what a ShardedTensor was pickled with."""
    parts = state if isinstance(state, tuple) else (state,)
    for part in parts:
        if isinstance(part, list) and all(isinstance(one, Opaque) for one in part):
            return part
        if isinstance(part, dict) and isinstance(part.get("_local_shards"), list):
            return [one for one in part["_local_shards"] if isinstance(one, Opaque)]
        if isinstance(part, tuple):
            found = _shards(part)
            if found is not None:
                return found
    return None
