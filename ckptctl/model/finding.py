"""Answers: findings, how far a question could be asked, and the report that holds them all."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from ckptctl.dataclass import dataclass, field, replace
from ckptctl.model.geometry import Box
from ckptctl.model.result.plain import INTERNAL, PATH


class Severity(enum.IntEnum):
    """How much a finding matters: a note never changes a verdict."""

    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """The name in lower case, as people read it."""
        return self.name.lower()


class Stage(enum.IntEnum):
    """The stages of verification: from cheap to dear, then what only a person can otherwise tell."""

    FILES = 1
    METADATA = 2
    ITEMS = 3
    CONTENT = 4
    VALUES = 5
    IDENTITY = 6
    AUDIT = 7

    @property
    def word(self) -> str:
        """The name in lower case, as people read it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Location:
    """Where a finding is. ``start`` and ``stop`` are bytes in the file; paths are the checkpoint's."""

    checkpoint: str = field(default="", metadata=PATH)
    file: str | None = None
    rank: int | None = None
    fqn: str | None = None
    box: Box | None = None
    start: int | None = None
    stop: int | None = None

    @property
    def sort_key(self) -> tuple[str, str, int, str, int]:
        """A total order for display."""
        return (
            self.checkpoint,
            self.file or "",
            -1 if self.start is None else self.start,
            self.fqn or "",
            -1 if self.rank is None else self.rank,
        )


@dataclass(frozen=True, slots=True)
class Touched:
    """What a finding touches: keys by name, files with all that lies in them, what has no name.

    ``unnamed`` says of something lost where it was, as nothing says which key it belonged to.
    """

    keys: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    unnamed: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        keys: Iterable[str] = (),
        *,
        files: Iterable[str] = (),
        unnamed: Iterable[str] = (),
    ) -> Touched:
        """Gather names."""
        return cls(frozenset(keys), frozenset(files), frozenset(unnamed))


@dataclass(frozen=True, slots=True)
class Accepted:
    """A person accepted a finding: why, who, when, and how bad it is without that.

    ``new`` means that it is accepted just now, and by no record yet.
    """

    reason: str
    by: str
    time: str
    severity: Severity
    new: bool = field(default=False, metadata=INTERNAL, compare=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer: what was seen against what was expected, what is lost, what to do next.

    Where it touches more, or less, than what lies at ``where``, ``touched`` says what. ``about`` is
    what it is of where no place tells: a component. One that is ``accepted`` is a note.
    """

    check: str
    severity: Severity
    message: str
    where: Location = field(default_factory=Location)
    loss: str = ""
    remedy: str = ""
    touched: Touched | None = field(default=None, metadata=INTERNAL, compare=False)
    about: str = field(default="", metadata=INTERNAL, compare=False)
    accepted: Accepted | None = None

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Worst first, then by place."""
        return (
            -self.severity,
            *self.where.sort_key,
            self.check,
            self.message,
            self.loss,
            self.remedy,
            repr(self.where),
        )


class GapKind(str, enum.Enum):
    """Why something was not looked at; decisions rest on this, never on the words of a reason."""

    UNREAD = "unread"
    LEFT_OUT = "left-out"
    COVERED = "covered"
    NO_CRC = "no-crc"
    FORM_ONLY = "form-only"
    ABSENT = "absent"
    DAMAGED = "damaged"
    UNSTABLE = "unstable"
    NOT_INTERPRETED = "not-interpreted"
    UNKNOWN = "unknown"
    SILENT = "silent"
    NOT_COMPARED = "not-compared"

    @property
    def unfinished(self) -> bool:
        """True if an answer was owed and the storage did not give it: there is no verdict."""
        return self is GapKind.UNREAD


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """What was not looked at: of which kind, why in words, and how many."""

    kind: GapKind
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far one stage could be asked: ``examined`` of ``total`` units, and why not the rest."""

    stage: Stage
    unit: str
    examined: int = 0
    total: int = 0
    bytes_read: int = 0
    gaps: tuple[Gap, ...] = ()

    @property
    def complete(self) -> bool:
        """True if nothing was left out."""
        return self.examined == self.total and not self.gaps

    def merge(self, other: Coverage) -> Coverage:
        """Add up two coverages of one stage and unit."""
        return replace(
            self,
            examined=self.examined + other.examined,
            total=self.total + other.total,
            bytes_read=self.bytes_read + other.bytes_read,
            gaps=united((*self.gaps, *other.gaps)),
        )


def united(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Add up gaps of one kind and reason, in order of their reasons."""
    counts: dict[tuple[str, GapKind], int] = {}
    for gap in gaps:
        key = gap.reason, gap.kind
        counts[key] = counts.get(key, 0) + gap.count
    return tuple(Gap(kind, reason, count) for (reason, kind), count in sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class Report:
    """Findings and coverage; merging is associative and commutative, so work may run in any order."""

    findings: tuple[Finding, ...] = ()
    coverage: tuple[Coverage, ...] = ()

    @classmethod
    def of(cls, findings: Iterable[Finding] = (), coverage: Iterable[Coverage] = ()) -> Report:
        """Build a report in canonical order."""
        return cls().merge(cls(tuple(findings), tuple(coverage)))

    @classmethod
    def all(cls, reports: Iterable[Report]) -> Report:
        """Put many reports together."""
        parts = list(reports)
        findings = (finding for part in parts for finding in part.findings)
        return cls.of(findings, (row for part in parts for row in part.coverage))

    def merge(self, other: Report) -> Report:
        """Put two reports together."""
        rows: dict[tuple[Stage, str], Coverage] = {}
        for row in (*self.coverage, *other.coverage):
            key = (row.stage, row.unit)
            rows[key] = rows[key].merge(row) if key in rows else row
        findings = sorted((*self.findings, *other.findings), key=lambda f: f.sort_key)
        return Report(tuple(findings), tuple(row for _, row in sorted(rows.items())))

    def worst(self) -> Severity | None:
        """The highest severity found, or None."""
        return max((f.severity for f in self.findings), default=None)
