"""Making the plan of a reshard from what metadata says; nothing is read.

A box of the result that is a box of the source too is copied, and so is every object: items do not
depend on where they lie or what they are called. The rest is written anew. What all ranks hold,
and objects, go to whichever rank has least, the largest first.
"""

from __future__ import annotations

import fnmatch
import heapq
from collections.abc import Mapping, Sequence

from ckptctl.completeness.classifier import Classifier
from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, UsageError
from ckptctl.formats.registry import sharded_writer
from ckptctl.formats.torch.zip_writer import WRITABLE, object_length
from ckptctl.model.checkpoint import Checkpoint, Entry, Items, TensorEntry, rank_of
from ckptctl.model.geometry import Box, Boxes, Shape
from ckptctl.operations.reshard.steps import TensorSteps
from ckptctl.sharding.cuts import Cuts, DimRule, SourceLayout, cuts_of
from ckptctl.sharding.mesh import Mesh, Part, parts
from ckptctl.sharding.plan import Copy, Give, Plan, Step, TargetFile
from ckptctl.sharding.rank_policy import Contents, Decision, Policy, decide, suggest
from ckptctl.sharding.rank_state import Family

_NO_RANK = 1 << 62
BESIDE = ("common.pt", "meta.pt", "metadata.json")
"""What Megatron and Lightning keep beside the shards and need to load them. Megatron's
``integrity.json`` is not among them: it holds the digests of the files that are written anew."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the result shall be.

    Without ``mesh`` the cuts of the source say. ``rules`` outrank both, the first that matches.
    ``as_they_are`` names tensors whose items cannot be cut, as they hold something else than
    bytes; ``source`` names the save, for the plan. ``pickles`` is for sources whose tensors are no
    items that could be copied, and holds their objects.
    """

    world_size: int
    mesh: Mesh | None = None
    rules: Sequence[DimRule] = ()
    policies: Mapping[str, Policy] = field(
        default_factory=lambda: {"rng": Policy.FAIL, "data": Policy.FAIL}
    )
    as_they_are: frozenset[str] = frozenset()
    source: str = ""
    pickles: Mapping[str, bytes] | None = None

    def check(self) -> None:
        """Raise ``UsageError`` for what does not fit together."""
        if self.world_size < 1:
            raise UsageError(f"{self.world_size} is no number of ranks")
        if self.mesh is not None and self.mesh.world_size != self.world_size:
            raise UsageError(
                f"the mesh {self.mesh} has {self.mesh.world_size} ranks, and {self.world_size} are "
                "asked for"
            )


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what was decided on state that each rank has its own of, and what could be."""

    plan: Plan
    decision: Decision
    suggested: Mapping[str, Policy]


def plan_reshard(
    checkpoint: Checkpoint,
    request: Request,
    classifier: Classifier,
    per_rank: tuple[Family, ...],
    contents: Contents | None = None,
) -> Planned:
    """Plan a reshard of a checkpoint whose structure is sound.

    ``per_rank`` is the state that is kept per rank, ``contents`` are its digests; what is not in
    there counts as different on every rank. Raises ``UsageError`` for a request that makes no sense, ``MalformedData`` for a
    tensor that is not whole.
    """
    request.check()
    cuts = {
        entry.fqn: cuts_of(entry)
        for entry in checkpoint.entries.values()
        if isinstance(entry, TensorEntry)
    }
    layout = SourceLayout.of(cuts[fqn] for fqn in cuts if _can_cut(checkpoint, fqn, request))
    mesh = request.mesh or layout.mesh(request.world_size)
    decision = decide(per_rank, mesh, request.policies, contents or {}, ranks=len(checkpoint.ranks))
    planner = _Planner(checkpoint, request, mesh, layout, cuts, classifier)
    added: dict[str, list[str]] = {}
    for name, (key, _) in decision.copied.items():
        added.setdefault(key.fqn, []).append(name)
    for fqn, entry in checkpoint.entries.items():
        path = checkpoint.paths_in_state.get(fqn)
        if fqn not in decision.dropped:
            planner.add(entry, fqn, path)
        for name in added.get(fqn, ()):
            key, rank = decision.copied[name]
            planner.add(entry, name, None if path is None else key.path_of(rank, path))
    plan = Plan(
        source=request.source,
        world_size=request.world_size,
        mesh=str(mesh),
        files=planner.files(),
        entries=planner.entries,
        paths=planner.paths,
        policies={name: policy.value for name, policy in request.policies.items()},
        dropped=tuple(sorted(decision.dropped)),
        copied={name: key.fqn for name, (key, _) in decision.copied.items()},
        beside={
            name: checkpoint.files[name].size
            for name in BESIDE
            if name in checkpoint.files and checkpoint.files[name].is_file
        },
    )
    suggested = (
        suggest(per_rank, mesh, request.policies, contents or {}, ranks=len(checkpoint.ranks))
        if decision.refusals
        else {}
    )
    return Planned(plan, decision, suggested)


def _can_cut(checkpoint: Checkpoint, fqn: str, request: Request) -> bool:
    entry = checkpoint.entries[fqn]
    return (
        isinstance(entry, TensorEntry)
        and entry.dtype in WRITABLE
        and fqn not in request.as_they_are
    )


@dataclass(slots=True)
class _Free:
    """An item that any of several ranks may hold."""

    order: tuple[int, int]
    step: Step
    ranks: tuple[int, ...]


class _Planner:
    """Gathers the items of each rank."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        request: Request,
        mesh: Mesh,
        layout: SourceLayout,
        cuts: Mapping[str, Cuts],
        classifier: Classifier,
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.paths: dict[str, tuple[str | int, ...]] = {}
        self._checkpoint, self._request, self._mesh = checkpoint, request, mesh
        self._layout, self._cuts = layout, cuts
        self._classifier = classifier
        self._everyone = tuple(range(request.world_size))
        self._items = _index(checkpoint.items)
        self._held: list[list[tuple[tuple[int, int], Step]]] = [[] for _ in self._everyone]
        self._free: list[_Free] = []

    def add(self, entry: Entry, name: str, path: tuple[str | int, ...] | None) -> None:
        """Add one key of the source, under the same name or another."""
        number = len(self.entries)
        if path is not None:
            self.paths[name] = path
        if not isinstance(entry, TensorEntry):
            self.entries[name] = type(entry)(name)
            self._place((-1, number), self._object(entry.fqn, name), self._everyone)
            return
        chosen = self._parts(entry)
        boxes = Boxes.of(len(entry.shape), (part.box for part in chosen))
        self.entries[name] = TensorEntry(name, entry.dtype, entry.shape, boxes, entry.requires_grad)
        fresh = self._request.pickles is not None
        origins = self._items.get(entry.fqn, {})
        steps = TensorSteps(entry, origins, self._checkpoint.items, fresh=fresh)
        for part, step in zip(chosen, steps.of([part.box for part in chosen], name), strict=True):
            self._place((number, 0), step, part.ranks)

    def _object(self, fqn: str, name: str) -> Step:
        if self._request.pickles is None:
            return self._copy(name, None, self._item(fqn, None))
        pickle = self._request.pickles[fqn]
        return Give(name, pickle, object_length(pickle))

    def _parts(self, entry: TensorEntry) -> list[Part]:
        if not _can_cut(self._checkpoint, entry.fqn, self._request):
            boxes = {box.offsets: box for box in entry.boxes}
            return [Part(box, self._everyone) for box in boxes.values()]
        for rule in self._request.rules:
            if fnmatch.fnmatchcase(entry.fqn, rule.pattern):
                return parts(entry.shape, self._mesh, rule.resolve(entry, self._mesh))
        if self._cuts[entry.fqn].boxes == 1 and not self._divided(entry.fqn):
            return [Part(entry.boxes[0], self._everyone)]
        dims = self._layout.dims(self._cuts[entry.fqn], self._mesh)
        return parts(entry.shape, self._mesh, dims)

    def _divided(self, fqn: str) -> bool:
        """Tell whether trainers divide such a tensor among ranks: not generators and counters."""
        return self._classifier.component(fqn) in ("model", "optimizer")

    def _item(self, fqn: str, origin: Shape | None) -> int:
        index = self._items.get(fqn, {}).get(origin)
        if index is None:
            raise MalformedData(f"{fqn}: the metadata does not say where it is stored")
        return index

    def _copy(self, name: str, box: Box | None, index: int) -> Copy:
        items = self._checkpoint.items
        return Copy(name, box, index, items.lengths[index], items.transforms.get(index, ()))

    def _place(self, order: tuple[int, int], step: Step, ranks: tuple[int, ...]) -> None:
        if len(ranks) == 1:
            self._held[ranks[0]].append((order, step))
        elif step.box is not None and step.box.volume == 0 and step.box.sizes:
            self._held[ranks[0]].append((order, step))  # an empty tail: the first that has it
        else:
            self._free.append(_Free(order, step, ranks))

    def files(self) -> tuple[TargetFile, ...]:
        """Hand out what several ranks may hold, and return what each holds."""
        loads = [sum(step.length for _, step in held) for held in self._held]
        heap = [(load, rank) for rank, load in enumerate(loads)]
        heapq.heapify(heap)
        self._free.sort(key=lambda free: (-free.step.length, free.order))
        for free in self._free:
            if len(free.ranks) == len(loads):
                while heap[0][0] != loads[heap[0][1]]:
                    heapq.heapreplace(heap, (loads[heap[0][1]], heap[0][1]))
                rank = heap[0][1]
            else:
                rank = min(free.ranks, key=lambda one: (loads[one], one))
            self._held[rank].append((free.order, free.step))
            loads[rank] += free.step.length
        return tuple(
            TargetFile(
                sharded_writer().shard(rank),
                rank,
                tuple(s for _, s in sorted(held, key=lambda o: o[0])),
            )
            for rank, held in enumerate(self._held)
        )


def _index(items: Items) -> dict[str, dict[Shape | None, int]]:
    """Number the items by key and origin; of copies that ranks saved, the lowest rank's counts."""
    found: dict[str, dict[Shape | None, int]] = {}
    for index, (fqn, origin) in enumerate(zip(items.fqns, items.origins, strict=True)):
        known = found.setdefault(fqn, {})
        if origin not in known or _rank(items, index) < _rank(items, known[origin]):
            known[origin] = index
    return found


def _rank(items: Items, index: int) -> tuple[int, str, int]:
    rank = rank_of(items.paths[index])
    return (_NO_RANK if rank is None else rank, items.paths[index], items.offsets[index])
