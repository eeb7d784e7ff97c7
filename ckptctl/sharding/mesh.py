"""Who holds which part of a tensor: the rule by which DTensor cuts, and meshes of ranks.

Source: ``torch.chunk`` and ``torch/distributed/tensor/placement_types.py`` (``Shard``,
``_StridedShard``), torch 2.13. FSDP2 over tensor parallelism cuts one dimension twice, the
tensor-parallel cut first; every rank's part is one box all the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from ckptctl.dataclass import dataclass
from ckptctl.errors import UsageError
from ckptctl.model.geometry import Box, Shape

DATA_AXES = frozenset({"dp", "fsdp", "dp_shard"})
"""Mesh axes whose ranks cut dimension 0 last, as FSDP2 does."""

REPLICA_AXES = frozenset({"replicate", "dp_replicate", "ddp"})
"""Mesh axes whose ranks all hold the same."""

MODEL_AXES = frozenset({"tp", "ep"})
"""Mesh axes whose ranks hold parts of single tensors, cut before the data axes cut."""

_MOST_RANKS = 1 << 20


def chunk(extent: int, parts: int, index: int) -> tuple[int, int]:
    """Return begin and size of one of ``parts`` chunks of ``range(extent)``.

    All have ``ceil(extent / parts)`` elements but the last that is not empty; those behind it are
    empty and begin at the end.
    """
    step = -(-extent // parts)
    begin = min(index * step, extent)
    return begin, min(step, extent - begin)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes of ranks by name and size, the outermost first; the innermost counts fastest."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read ``dp=4,tp=2``; raises ``UsageError`` for what is no mesh."""
        names, sizes = [], []
        for part in text.split(","):
            name, _, number = (word.strip() for word in part.partition("="))
            if name not in DATA_AXES | REPLICA_AXES | MODEL_AXES:
                known = ", ".join(sorted(DATA_AXES | REPLICA_AXES | MODEL_AXES))
                raise UsageError(f"a mesh has no axis {name!r}; there are {known}")
            if not number.isdecimal() or not 0 < int(number) <= _MOST_RANKS:
                raise UsageError(f"axis {name} has a size that is no number of ranks: {number!r}")
            names.append(name)
            sizes.append(int(number))
        if len(set(names)) != len(names):
            raise UsageError(f"an axis stands twice in the mesh {text!r}")
        mesh = cls(tuple(names), tuple(sizes))
        if mesh.world_size > _MOST_RANKS:
            raise UsageError(f"{mesh.world_size} ranks are more than this tool plans for")
        return mesh

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        """The mesh as it is typed."""
        return ",".join(f"{n}={s}" for n, s in zip(self.names, self.sizes, strict=True))

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Yield the place of each rank in the mesh, in rank order."""
        return itertools.product(*map(range, self.sizes))

    def count(self, axes: frozenset[str]) -> int:
        """Return how many ranks these axes make together."""
        return math.prod(s for n, s in zip(self.names, self.sizes, strict=True) if n in axes)


@dataclass(frozen=True, slots=True)
class Part:
    """One box of a tensor and the ranks that hold it, lowest first."""

    box: Box
    ranks: tuple[int, ...]


def parts(shape: Shape, mesh: Mesh, dims: Mapping[str, int]) -> list[Part]:
    """Cut a tensor over a mesh; ``dims`` names the dimension that each axis cuts.

    An axis without a dimension replicates. Axes of tensor parallelism cut first, in the order of
    the mesh, then the others. Boxes that several ranks hold come once; of empty ones only those
    that torch would save: one for each place they begin at. Boxes come in rank order.
    """
    cutting = [a for a, name in enumerate(mesh.names) if name in dims]
    order = sorted(cutting, key=lambda a: mesh.names[a] not in MODEL_AXES)
    held: dict[Shape, tuple[Box, list[int]]] = {}
    for rank, place in enumerate(mesh.coordinates()):
        offsets, sizes = [0] * len(shape), list(shape)
        for axis in order:
            dim = dims[mesh.names[axis]]
            begin, size = chunk(sizes[dim], mesh.sizes[axis], place[axis])
            offsets[dim] += begin
            sizes[dim] = size
        box = Box(tuple(offsets), tuple(sizes))
        known = held.get(box.offsets)
        if known is not None and known[0].volume < box.volume:
            # an empty tail begins where a part that is not empty does: torch keeps the latter
            held[box.offsets] = (box, [rank])
        elif known is None:
            held[box.offsets] = (box, [rank])
        elif known[0] == box:
            known[1].append(rank)
    return [Part(box, tuple(ranks)) for box, ranks in held.values()]
