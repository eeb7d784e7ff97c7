"""What a reshard is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping

from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import Refused
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.catalog.resolution import Resolution
from ckptctl.operations.content.proof import ProofBy
from ckptctl.operations.reshard.plan import Request
from ckptctl.operations.verify.accepting import Accepting
from ckptctl.sharding.continuity import Aspect
from ckptctl.sharding.rank_policy import Outcome
from ckptctl.storage.traffic import processors


@dataclass(frozen=True, slots=True)
class ReshardOptions:
    """What is asked for, and how; ``force`` leaves damaged keys out instead of refusing.

    ``resume`` finishes what the same reshard left unfinished, ``overwrite`` begins again instead.
    ``proof`` is what the result is compared by; None chooses.
    """

    request: Request
    dry_run: bool = False
    resume: bool = False
    overwrite: bool = False
    force: bool = False
    framework: str = ""
    accepting: Accepting = field(default_factory=Accepting)
    proof: ProofBy | None = None
    # a worker that waits for a disk to sync leaves a processor to another
    workers: int = field(default_factory=lambda: max(4, processors()))

    def with_workers(self, workers: int) -> ReshardOptions:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file of the result: bytes, and how many items are copied and written."""

    path: str
    size: int
    copied: int
    written: int


@dataclass(frozen=True, slots=True)
class Resharding(Answer):
    """What was done, or with ``dry_run`` would be; sizes in bytes.

    ``refusals`` say why it cannot be done as asked, ``aspects`` what goes on as before and what
    does not. ``unchecked`` are keys and files for which
    the source keeps no checksum. ``manifest`` is that of the committed result, ``suggested`` policies with which it
    can be done, and ``chosen`` says why this checkpoint of a root. ``accepted`` is what a person
    accepted of the source in spite of a check, ``unmatched`` what was to be and fits no finding.
    ``proven_by`` is the proof that was given, and ``covers`` what it is over; of a dry run it is the
    one that would be given.
    """

    source: str = field(metadata=PATH)
    destination: str = field(metadata=PATH)
    step: int | None
    ranks_before: int | None
    ranks: int
    mesh: str
    plan: str
    policies: Mapping[str, str]
    keys: int
    copied: int
    written: int
    bytes_read: int
    bytes_written: int
    memory: int
    files: tuple[FileRow, ...]
    aspects: tuple[Aspect, ...]
    outcomes: tuple[Outcome, ...] = ()
    refusals: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    reused: int = 0
    manifest: str = ""
    tensors_digest: str = ""
    tensors: int = 0
    objects: int = 0
    unchecked: tuple[str, ...] = ()
    proven_by: str = ""
    covers: str = ""
    dry_run: bool = False
    suggested: Mapping[str, str] = field(default_factory=dict)
    chosen: Resolution | None = None
    accepted: tuple[Acceptance, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Refused where a decision is needed first."""
        return Verdict.REFUSED if self.refusals else Verdict.OK


class DecisionNeeded(Refused):
    """State that each rank has its own of needs a decision; ``resharding`` says which could be made."""

    def __init__(self, result: Resharding) -> None:
        """Keep what is known of the reshard that was asked for."""
        super().__init__("; ".join(result.refusals) + "; nothing was written")
        self.result = self.resharding = result
