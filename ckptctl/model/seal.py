"""What ckptctl's own records say of one checkpoint, for checks to compare with what is there."""

from __future__ import annotations

from ckptctl.dataclass import dataclass
from ckptctl.model.manifest import Manifest, PointerRevision, QuarantineRecord


@dataclass(frozen=True, slots=True)
class Seal:
    """The records of one checkpoint as they were found.

    ``problem`` says why a manifest that exists cannot be used; ``name`` is the directory's own
    name; ``required`` means that whoever asks does not accept a checkpoint without a manifest.
    """

    manifest: Manifest | None = None
    problem: str = ""
    quarantine: QuarantineRecord | None = None
    quarantine_problem: str = ""
    pointers: tuple[PointerRevision, ...] = ()
    name: str = ""
    required: bool = False

    @property
    def quarantined(self) -> bool:
        """True if the newest quarantine record says so; an unreadable one counts as saying so."""
        if self.quarantine_problem:
            return True
        return self.quarantine is not None and self.quarantine.quarantined
