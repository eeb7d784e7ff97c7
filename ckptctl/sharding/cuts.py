"""How tensors are cut, read off their boxes, and along which dimensions they are cut anew.

Boxes do not say which parallelism made them. The reading here: of a tensor cut along several
dimensions the first is the data-parallel cut and the others are tensor-parallel, as FSDP2 over
tensor parallelism has it; cut along one, it is cut as the checkpoint's other tensors suggest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ckptctl.dataclass import dataclass
from ckptctl.errors import UsageError
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.sharding.mesh import DATA_AXES, MODEL_AXES, Mesh


@dataclass(frozen=True, slots=True)
class Cuts:
    """How one tensor is cut: into how many intervals along each dimension, and into how many boxes.

    ``regular`` is false where the boxes are no grid.
    """

    counts: tuple[int, ...]
    boxes: int
    regular: bool = True

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions along which it is cut."""
        return tuple(d for d, count in enumerate(self.counts) if count > 1)


def cuts_of(entry: TensorEntry) -> Cuts:
    """Read off a tensor's boxes how it is cut; empty ones count, as they tell of ranks too."""
    flat, extents, ndim = entry.boxes.offsets, entry.boxes.sizes, entry.boxes.ndim
    counts = tuple(len(set(zip(flat[d::ndim], extents[d::ndim], strict=True))) for d in range(ndim))
    return Cuts(counts, len(entry.boxes), math.prod(counts) == len(entry.boxes))


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """What the cuts of all tensors say together.

    ``ranks`` is the most boxes that a tensor has, ``model`` the ranks over which one data-parallel
    part is cut again, 1 where none is. With ``across``, tensors are cut along one dimension each
    and not all along the first: by tensor parallelism alone.
    """

    ranks: int
    model: int
    across: bool

    @classmethod
    def of(cls, cuts: Iterable[Cuts]) -> SourceLayout:
        """Gather the cuts of all tensors."""
        ranks = model = 1
        across = False
        for one in cuts:
            dims = one.dims
            ranks = max(ranks, one.boxes)
            if one.regular and len(dims) == 2:
                model = max(model, one.counts[dims[1]])
            across = across or (len(dims) == 1 and dims[0] > 0)
        return cls(ranks, model, across and model == 1)

    @property
    def cut(self) -> bool:
        """True if any tensor is cut at all."""
        return self.ranks > 1

    def mesh(self, world_size: int) -> Mesh:
        """Return the mesh for so many ranks where none is asked for.

        The tensor-parallel cut stays as it is where its size divides the number of ranks, and is
        given up otherwise.
        """
        if self.model > 1 and world_size % self.model == 0:
            return Mesh(("dp", "tp"), (world_size // self.model, self.model))
        return Mesh(("dp",), (world_size,))

    def dims(self, cuts: Cuts, mesh: Mesh) -> dict[str, int]:
        """Choose the dimension that each axis of a mesh cuts of a tensor; none keeps it whole.

        Where nothing in the checkpoint is cut (one rank saved it, or replicas did), every tensor
        is cut along its first dimension; where other tensors are, one that is whole stays whole.
        """
        data = [name for name in mesh.names if name in DATA_AXES]
        model = next((name for name in mesh.names if name in MODEL_AXES), None)
        cut = cuts.dims
        if not cuts.counts or (not cut and self.cut):
            return {}
        data_dim, model_dim = 0, None
        if not cuts.regular:
            pass
        elif len(cut) > 1:
            data_dim, model_dim = cut[0], cut[1]
        elif len(cut) == 1 and self.across:
            data_dim, model_dim = (0, cut[0]) if model else (cut[0], None)
        elif cut and cut[0] > 0:
            model_dim = cut[0]
        elif cut and self.model > 1 and cuts.boxes > -(-self.ranks // self.model):
            model_dim = 0  # more parts than data-parallel ranks: both cut the first dimension
        found = dict.fromkeys(data, data_dim)
        if model is not None and model_dim is not None:
            found[model] = model_dim
        return found


@dataclass(frozen=True, slots=True)
class DimRule:
    """A user's word on tensors whose names match: the dimension of each axis, none for whole."""

    pattern: str
    dims: Mapping[str, int]
    bare: int | None = None

    @classmethod
    def parse(cls, text: str) -> DimRule:
        """Read ``GLOB=DIM``, ``GLOB=AXIS:DIM+AXIS:DIM`` or ``GLOB=replicate``.

        Raises ``UsageError`` for anything else.
        """
        pattern, _, value = text.rpartition("=")
        if not pattern or not value:
            raise UsageError(f"a rule reads GLOB=DIM or GLOB=replicate, not {text!r}")
        if value == "replicate":
            return cls(pattern, {})
        if value.isdecimal():
            return cls(pattern, {}, int(value))
        dims: dict[str, int] = {}
        for part in value.split("+"):
            axis, _, number = part.partition(":")
            if axis not in DATA_AXES | MODEL_AXES or not number.isdecimal():
                raise UsageError(f"{part!r} of the rule {text!r} is not AXIS:DIM, as in tp:1")
            dims[axis] = int(number)
        return cls(pattern, dims)

    def resolve(self, entry: TensorEntry, mesh: Mesh) -> dict[str, int]:
        """Return the dimension that each axis cuts of a tensor.

        A bare dimension is the one of tensor parallelism where the mesh has such an axis (the
        others cut the first), else the one that all axes cut. Raises ``UsageError`` for a
        dimension that the tensor does not have and an axis that the mesh does not have.
        """
        dims = dict(self.dims)
        if self.bare is not None:
            model = [name for name in mesh.names if name in MODEL_AXES]
            data = [name for name in mesh.names if name in DATA_AXES]
            dims = dict.fromkeys(data, 0 if model else self.bare)
            dims.update(dict.fromkeys(model[:1], self.bare))
        for axis, dim in dims.items():
            if axis not in mesh.names:
                raise UsageError(f"the rule for {self.pattern} names {axis}; the mesh is {mesh}")
            if dim >= len(entry.shape):
                raise UsageError(
                    f"the rule for {self.pattern} cuts dimension {dim} of {entry.fqn}, which has "
                    f"the shape {list(entry.shape)}"
                )
        return dims
