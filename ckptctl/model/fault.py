"""What a reader met in a checkpoint and could not accept."""

from __future__ import annotations

import enum

from ckptctl.dataclass import dataclass, field
from ckptctl.model.finding import Location


class FaultKind(str, enum.Enum):
    """What a reader could not accept; the value is the id of the check that reports it."""

    MISSING_METADATA = "missing-metadata"
    UNCOMMITTED_METADATA = "uncommitted-metadata"
    UNREADABLE_METADATA = "unreadable-metadata"
    UNSAFE_METADATA = "unsafe-metadata"
    TRAILING_METADATA = "trailing-metadata"
    TOO_LARGE = "too-large"
    TOO_DEEP = "too-deep"
    MISSING_RANK = "missing-rank"
    MISSING_FILE = "missing-file"
    NOT_A_FILE = "not-a-file"
    UNREFERENCED_FILE = "unreferenced-file"
    LEFTOVER_FILE = "leftover-file"
    FOREIGN_FILE = "foreign-file"
    MALFORMED_COMPANION = "malformed-companion"
    MALFORMED_ENTRY = "malformed-entry"
    MISSING_ENTRY = "missing-entry"
    ITEM_STRUCTURE = "item-structure"
    UNSAFE_ITEM = "unsafe-item"
    TOO_LARGE_ITEM = "too-large-item"
    TOO_DEEP_ITEM = "too-deep-item"
    UNSTABLE_READ = "unstable-read"
    ALTERED_FILE = "altered-file"
    REWRITTEN_FILE = "rewritten-file"
    UNSTABLE_FILE = "unstable-file"

    @property
    def harmless(self) -> bool:
        """True if all that there is to load was understood all the same."""
        return self in _HARMLESS


_HARMLESS = frozenset(
    {
        FaultKind.UNCOMMITTED_METADATA,
        FaultKind.UNREFERENCED_FILE,
        FaultKind.LEFTOVER_FILE,
        FaultKind.FOREIGN_FILE,
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something a reader met and could not accept: what was seen, where, what is lost with it.

    ``remedy`` says what to do next where that is not what the check of this kind says anyway.
    """

    kind: FaultKind
    message: str
    where: Location = field(default_factory=Location)
    loss: str = ""
    remedy: str = ""
