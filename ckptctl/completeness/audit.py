"""Completeness: what of a training state a checkpoint holds, for which ranks, and what is not there."""

from __future__ import annotations

import enum

from ckptctl.completeness.world_size import World
from ckptctl.dataclass import dataclass

PROFILES: dict[str, tuple[str, ...]] = {
    "resume": ("model", "optimizer", "scheduler", "progress", "data", "rng"),
    "weights": ("model",),
    "serve": ("model",),
}
"""What a checkpoint must hold to be used: for an exact resume, for its weights, for serving."""

COSTS: dict[str, str] = {
    "model": "the weights",
    "optimizer": "moments and step counts: the next updates are not those of an uninterrupted run",
    "scheduler": "the position of the learning rate's schedule, which would start over",
    "scaler": "the scale of mixed precision's gradients",
    "progress": "the counts of steps, epochs and samples, which would begin at zero",
    "data": "the position in the data: samples repeat or are skipped after a resume",
    "rng": "the state of random generators: dropout and shuffling go on differently",
    "other": "what it was",
}
"""What is lost with each component."""


class Presence(str, enum.Enum):
    """How much of a component is there; ``duplicated`` means a whole copy for several ranks."""

    PRESENT = "present"
    EMPTY = "empty"
    PARTIAL = "partial"
    DUPLICATED = "duplicated"
    ABSENT = "absent"


class Lack(str, enum.Enum):
    """How something falls short."""

    EMPTY = "empty"
    RANKS = "missing-ranks"
    PARTS = "missing-parts-of-a-rank"
    LATER_RANKS = "no-later-ranks"
    SHARED = "one-for-all-ranks"
    MOMENTS = "missing-moments"
    STATELESS = "stateless-parameters"
    GONE = "stateless-among-its-like"
    ORPHANS = "missing-parameters"
    UNCERTAIN_ORPHANS = "renamed-parameters"


@dataclass(frozen=True, slots=True)
class Gap:
    """One way in which a component falls short; ``names`` are the first of ``count``."""

    lack: Lack
    message: str
    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    count: int = 0

    @property
    def harmless(self) -> bool:
        """True for what may well be meant: what is frozen has no optimizer state."""
        return self.lack in (Lack.STATELESS, Lack.GONE, Lack.UNCERTAIN_ORPHANS)


@dataclass(frozen=True, slots=True)
class Part:
    """One component: ``ranks`` that have their own, ``sources`` that hold it but were not opened."""

    name: str
    presence: Presence
    keys: int = 0
    ranks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """All components in the order of ``NAMES``, the world size, and keys that nothing identified."""

    parts: tuple[Part, ...]
    world: World
    keys: int
    unknown: int = 0
    unknown_names: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Part:
        """Return one component."""
        return next(part for part in self.parts if part.name == name)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user requires: a profile (or none), what may be missing, and names for odd keys."""

    profile: str = ""
    allowed: frozenset[str] = frozenset()
    mapping: tuple[tuple[str, str], ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """The components that the profile requires, also those that may be missing."""
        return PROFILES.get(self.profile, ())
