"""The form of a check, and what checks may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

from ckptctl.checks.structure import FileLayout, Structure
from ckptctl.completeness.audit import Audit, Wanted
from ckptctl.dataclass import dataclass, field
from ckptctl.model.checkpoint import BoxIndex, Checkpoint, Fault, FaultKind, Item, TensorEntry
from ckptctl.model.damage import describe_loss, describe_part
from ckptctl.model.finding import Finding, Location, Severity, Stage, Touched
from ckptctl.model.geometry import Tiling
from ckptctl.model.observation import ItemSeen, Objects
from ckptctl.model.seal import Seal
from ckptctl.model.tensor_values import TensorValues
from ckptctl.provenance.assessment import Assessment
from ckptctl.provenance.evidence import Beside, Evidence

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Hit:
    """One positive answer of a check, before it is given the check's name and severity.

    ``severity`` and ``remedy`` are this answer's own, where they are not the check's. ``touched``
    is for what touches more, or less, than what lies at ``where``, ``about`` for what is of no place:
    a component.
    """

    message: str
    where: Location = field(default_factory=Location)
    loss: str = ""
    severity: Severity | None = None
    remedy: str = ""
    touched: Touched | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class Override:
    """Whether a person may accept what a check finds, and why, in one sentence.

    It is a list of what is allowed: ``most`` is the worst that may be accepted, None for nothing.
    ``words`` means that a manifest does not pin all that the finding rests on, so that what is
    accepted has to say the same later on.
    """

    why: str
    most: Severity | None = Severity.ERROR
    words: bool = False

    @property
    def allowed(self) -> bool:
        """True if anything of it may be accepted."""
        return self.most is not None


def never(why: str) -> Override:
    """Say why what a check finds cannot be accepted."""
    return Override(why, None)


_NOTE = never("it is a note, which stands in nobody's way")
_UNDECIDED = never("nobody has decided that it may be")


def where_committed(context: Context) -> bool:
    """Apply where a manifest promises something."""
    return context.seal.manifest is not None


def where_promised(context: Context) -> bool:
    """Apply where a manifest or a companion has digests of files."""
    return context.seal.manifest is not None or bool(context.beside.digests)


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """A question: ``run`` yields a hit for each place where the answer is bad.

    ``remedy`` says what to do next; ``{checkpoint}`` and ``{root}`` in it are filled in. Where it
    does not apply there is nothing to ask: an answer then proves nothing. ``override`` says whether
    a person may accept what it finds, where that was decided.
    """

    id: str
    stage: Stage
    severity: Severity
    summary: str
    remedy: str
    run: Callable[[Context, Subject], Iterable[Hit]]
    applies: Callable[[Context], bool] | None = None
    override: Override | None = None

    @property
    def acceptable(self) -> Override:
        """Whether a person may accept what it finds: not unless that was decided."""
        if self.override is not None:
            return self.override
        return _NOTE if self.severity is Severity.NOTE else _UNDECIDED

    def has_subject(self, context: Context) -> bool:
        """Tell whether there is anything to ask."""
        return self.applies is None or self.applies(context)

    def ask(self, context: Context, subject: Subject) -> Iterator[Finding]:
        """Run the check and name what it finds."""
        for hit in self.run(context, subject):
            severity, remedy = hit.severity or self.severity, hit.remedy or self.remedy
            yield Finding(
                self.id,
                severity,
                hit.message,
                hit.where,
                hit.loss,
                remedy,
                hit.touched,
                hit.about,
            )


@dataclass(frozen=True)
class Context:
    """What checks may look at: a checkpoint, and what has been learned of it so far.

    ``content_faults`` are those of whole files, ``values`` what the numbers in tensors are like,
    ``objects`` in which form the objects that were looked at are written.
    ``beside`` is what companions that are text say. ``unlisted`` counts the whole items in files of
    which some bytes belong to no entry, where there is nothing but whole items.
    Each stage that learns something makes a new context with ``replace``; none is changed.
    """

    structure: Structure
    seal: Seal = field(default_factory=Seal)
    wanted: Wanted = field(default_factory=Wanted)
    audit: Audit | None = None
    evidence: Evidence = field(default_factory=Evidence)
    beside: Beside = field(default_factory=Beside)
    content_faults: tuple[Fault, ...] = ()
    values: Mapping[str, TensorValues] = field(default_factory=dict)
    objects: Objects = field(default_factory=Objects)
    unlisted: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, seal: Seal | None = None, **known: Any) -> Context:
        """Make the context of a checkpoint of which nothing else is known yet, or only ``known``."""
        return cls(Structure(checkpoint), seal or Seal(), **known)

    @property
    def checkpoint(self) -> Checkpoint:
        """What listing and metadata say."""
        return self.structure.checkpoint

    @property
    def boxes(self) -> BoxIndex:
        """Finds the box of an item."""
        return self.structure.boxes

    @property
    def layouts(self) -> Mapping[str, FileLayout]:
        """The layout of each file that items lie in."""
        return self.structure.layouts

    @property
    def present(self) -> Mapping[str, int]:
        """The size of each regular file that items lie in and that is there."""
        return self.structure.present

    @cached_property
    def assessment(self) -> Assessment:
        """All evidence of step and run weighed together."""
        return Assessment(self.checkpoint, self.seal, self.evidence)

    def tiling(self, entry: TensorEntry) -> Tiling:
        """How the chunks of a tensor cover it."""
        return self.structure.tilings[entry.fqn]

    def where(self, item: Item) -> Location:
        """The location of an item."""
        return Location(
            file=item.path,
            rank=item.rank,
            fqn=item.fqn or None,
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
    for fault in (*context.checkpoint.faults, *context.beside.faults, *context.content_faults):
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
