"""The form of a check, and what checks may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from ckptctl.completeness.audit import Audit, Wanted
from ckptctl.model.checkpoint import BoxIndex, Checkpoint, Fault, FaultKind, Item, TensorEntry
from ckptctl.model.damage import describe_loss, describe_part
from ckptctl.model.finding import Finding, Location, Severity, Stage
from ckptctl.model.geometry import Tiling, tile
from ckptctl.model.observation import ItemSeen
from ckptctl.model.seal import Seal
from ckptctl.model.tensor_values import TensorValues
from ckptctl.provenance.assessment import Assessment
from ckptctl.provenance.evidence import Evidence

Subject = TypeVar("Subject")

_MOST_TANGLES = 3
"""Tensors of which the cover is searched for long in vain, before no more patience is spent."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One positive answer of a check, before it is given the check's name and severity.

    ``severity`` and ``remedy`` are this answer's own, where they are not the check's.
    """

    message: str
    where: Location = field(default_factory=Location)
    loss: str = ""
    severity: Severity | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """A question: ``run`` yields a hit for each place where the answer is bad.

    ``remedy`` says what to do next; ``{checkpoint}`` and ``{root}`` in it are filled in.
    """

    id: str
    stage: Stage
    severity: Severity
    summary: str
    remedy: str
    run: Callable[[Context, Subject], Iterable[Hit]]

    def ask(self, context: Context, subject: Subject) -> Iterator[Finding]:
        """Run the check and name what it finds."""
        for hit in self.run(context, subject):
            severity, remedy = hit.severity or self.severity, hit.remedy or self.remedy
            yield Finding(self.id, severity, hit.message, hit.where, hit.loss, remedy)


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


class Context:
    """A checkpoint with what several checks derive from it, computed once."""

    def __init__(self, checkpoint: Checkpoint, seal: Seal | None = None) -> None:
        """Derive nothing yet; ``seal`` holds what ckptctl's own records say."""
        self.checkpoint = checkpoint
        self.seal = seal or Seal()
        self.audit: Audit | None = None
        self.wanted = Wanted()
        self.evidence = Evidence()
        self.content_faults: list[Fault] = []
        self.values: dict[str, TensorValues] = {}
        self.boxes = BoxIndex(checkpoint)
        self._tilings: dict[str, Tiling] = {}
        self._tangles = 0
        self._assessment: Assessment | None = None

    @property
    def assessment(self) -> Assessment:
        """All evidence of step and run weighed together, once for the evidence that there is."""
        if self._assessment is None or self._assessment.evidence is not self.evidence:
            self._assessment = Assessment(self.checkpoint, self.seal, self.evidence)
        return self._assessment

    def tiling(self, entry: TensorEntry) -> Tiling:
        """How the chunks of a tensor cover it."""
        found = self._tilings.get(entry.fqn)
        if found is None:
            found = tile(entry.shape, entry.boxes, patient=self._tangles < _MOST_TANGLES)
            self._tangles += not found.finished
            self._tilings[entry.fqn] = found
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

    def where(self, item: Item) -> Location:
        """The location of an item."""
        return Location(
            file=item.path,
            rank=item.rank,
            fqn=item.fqn,
            box=self.boxes.box(item),
            start=item.offset,
            stop=item.end,
        )

    def loss(self, indices: Iterable[int]) -> str:
        """Say what is lost with these items."""
        items = self.checkpoint.items
        return describe_loss(self.checkpoint, self.boxes, (items[i] for i in indices))


def reported(context: Context, kind: FaultKind) -> Iterator[Hit]:
    """Yield what readers could not accept, of one kind."""
    for fault in (*context.checkpoint.faults, *context.content_faults):
        if fault.kind is kind:
            yield Hit(fault.message, fault.where, fault.loss, remedy=fault.remedy)


def from_faults(kind: FaultKind) -> Callable[[Context, None], Iterator[Hit]]:
    """Make the run of a check that reports what readers could not accept, and nothing else."""

    def run(context: Context, _: None) -> Iterator[Hit]:
        yield from reported(context, kind)

    return run


def from_item_faults(
    kind: FaultKind, *, lost: bool = False
) -> Callable[[Context, ItemSeen], Iterator[Hit]]:
    """Make the run of a check that reports what did not fit in an item, ``lost`` or not."""

    def run(context: Context, seen: ItemSeen) -> Iterator[Hit]:
        for fault in seen.faults:
            if fault.kind is kind:
                part = describe_part(context.checkpoint, context.boxes, seen.item) if lost else ""
                yield Hit(fault.message, context.where(seen.item), part)

    return run
