"""What tells two checkpoints apart: rows of facts, structure, progress and content."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

from ckptctl.comparison.consequences import Consequence
from ckptctl.dataclass import dataclass, field
from ckptctl.model.geometry import Shape
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.model.result.verdict import Verdict as Answered
from ckptctl.model.run_facts import Plain


@dataclass(frozen=True, slots=True)
class FactChange:
    """A fact of the run that differs; ``only`` is ``a`` or ``b`` where the other lacks it."""

    name: str
    a: Plain
    b: Plain
    consequence: Consequence
    about: str = ""
    only: str = ""


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of either side; ``apart`` is how far B is ahead of A, None where one has none."""

    name: str
    a: Plain
    b: Plain
    apart: float | None = None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key that only one side has."""

    fqn: str
    component: str
    consequence: Consequence
    tensor: bool = True


@dataclass(frozen=True, slots=True)
class Renamed:
    """Keys that only what stands at one place of their names tells apart."""

    old: str
    new: str
    pairs: tuple[tuple[str, str], ...]
    consequence: Consequence = Consequence.BREAKS_LOAD


@dataclass(frozen=True, slots=True)
class EntryChange:
    """A key whose ``what`` (kind, shape, dtype or sharding) is another on the other side."""

    fqn: str
    what: str
    a: str
    b: str
    consequence: Consequence


@dataclass(frozen=True, slots=True)
class Structure:
    """How the keys of both sides compare; ``same`` counts those with equal kind, shape and dtype."""

    removed: tuple[KeyChange, ...] = ()
    added: tuple[KeyChange, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    changed: tuple[EntryChange, ...] = ()
    keys: int = 0
    same: int = 0

    def of(self, what: str) -> list[EntryChange]:
        """Return the changes of one kind."""
        return [one for one in self.changed if one.what == what]


@dataclass(frozen=True, slots=True)
class Statistics:
    """How the numbers of one tensor differ, over elements that are finite on both sides.

    ``relative`` is the largest difference in proportion to the larger of the two numbers.
    ``norm`` is that of the difference, ``relative_norm`` in proportion to the norm of A.
    ``differing`` counts elements that are not equal, ``first`` is the index of the first of them.
    ``nan`` and ``infinite`` count on side A and on side B.
    """

    elements: int
    differing: int
    largest: float
    relative: float
    norm_a: float
    norm_b: float
    norm: float
    relative_norm: float
    nan: tuple[int, int] = (0, 0)
    infinite: tuple[int, int] = (0, 0)
    first: Shape | None = None


class Verdict(str, enum.Enum):
    """What is known of the content of one key."""

    EQUAL = "equal"
    DIFFERS = "differs"
    CONVERTED = "another dtype"
    UNKNOWN = "not compared"


@dataclass(frozen=True, slots=True)
class ContentRow:
    """The content of one key on both sides; ``how`` says by what it was compared.

    ``a`` and ``b`` are the values themselves where they are small and no tensors. ``problem``
    says why nothing is known.
    """

    fqn: str
    other: str
    component: str
    verdict: Verdict
    how: str = ""
    consequence: Consequence = Consequence.NUMERICS
    tensor: bool = True
    statistics: Statistics | None = None
    a: object = None
    b: object = None
    shown: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ContentResult:
    """The content of all keys; ``rows`` hold what is not equal, ``equal`` counts the rest by how."""

    rows: tuple[ContentRow, ...] = ()
    equal: Mapping[str, int] = field(default_factory=dict)
    equal_objects: int = 0
    tensors: int = 0
    objects: int = 0
    bytes_read: int = 0

    def of(self, verdict: Verdict, *, tensor: bool) -> list[ContentRow]:
        """Return the rows of one verdict."""
        return [row for row in self.rows if row.verdict is verdict and row.tensor is tensor]

    @property
    def unread(self) -> int:
        """How many keys were not compared though nothing is wrong with them."""
        return sum(row.verdict is Verdict.UNKNOWN and not row.problem for row in self.rows)

    @property
    def problems(self) -> list[ContentRow]:
        """What could not be compared because something is wrong with it."""
        return [row for row in self.rows if row.problem]


class FailOn(str, enum.Enum):
    """The least difference that counts as a finding."""

    BREAKS_LOAD = "breaks-load"
    DATA_ORDER = "changes-data-order"
    NUMERICS = "changes-numerics"
    ANY = "any"

    @property
    def threshold(self) -> Consequence | None:
        """The consequence meant; None for any."""
        return None if self is FailOn.ANY else Consequence(self.value.replace("-", " "))


@dataclass(frozen=True, slots=True)
class SideSeen:
    """One of the two checkpoints at a glance."""

    checkpoint: str = field(metadata=PATH)
    format: str
    step: int | None
    committed: bool
    keys: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diff(Answer):
    """Everything that tells A and B apart, as far as it was asked for.

    ``not_compared`` are files that hold no key and no state, such as a configuration.
    """

    a: SideSeen
    b: SideSeen
    identity: tuple[FactChange, ...]
    compared_facts: int
    progress: tuple[Counter, ...]
    structure: Structure
    content: ContentResult
    quick: bool = False
    fail_on: FailOn = FailOn.ANY
    not_compared: tuple[str, ...] = ()

    @property
    def verdict(self) -> Answered:
        """Findings where what was asked about differs; unfinished where it could not be told."""
        if self.fails(self.fail_on.threshold):
            return Answered.FINDINGS
        if self.content.problems:
            return Answered.UNFINISHED
        return Answered.NOTHING if self.nothing else Answered.OK

    @property
    def nothing(self) -> bool:
        """True if there was nothing to compare: no key on either side, or none that was asked for."""
        if not (self.a.keys or self.b.keys):
            return True
        keys = self.structure.keys or self.structure.added
        return not (keys or self.identity or self.compared_facts or self.progress)

    def consequences(self) -> Iterator[Consequence]:
        """Yield what each difference brings about; a fact that only one side records is none."""
        yield from (fact.consequence for fact in self.identity if not fact.only)
        yield from (Consequence.DATA_ORDER for one in self.progress if one.apart)
        for rows in (self.structure.removed, self.structure.added):
            yield from (row.consequence for row in rows)
        yield from (row.consequence for row in self.structure.renamed)
        yield from (row.consequence for row in self.structure.changed)
        yield from (r.consequence for r in self.content.rows if r.verdict is Verdict.DIFFERS)

    def fails(self, threshold: Consequence | None) -> bool:
        """Tell whether a difference is at least as bad as the threshold; None means any."""
        found = self.consequences()
        if threshold is None:
            return any(True for _ in found)
        return any(one.rank <= threshold.rank for one in found)


def consequence_in(component: str) -> Consequence:
    """Say what it means that another value stands in a component."""
    if component in ("progress", "data", "rng"):
        return Consequence.DATA_ORDER
    return Consequence.UNKNOWN if component == "other" else Consequence.NUMERICS
