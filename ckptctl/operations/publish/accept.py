"""What is accepted of a checkpoint that is sealed already: an amendment of its manifest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ckptctl import protocol
from ckptctl.dataclass import dataclass
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.amendment import Amendment
from ckptctl.model.finding import Finding
from ckptctl.model.manifest import Manifest
from ckptctl.operations.place import Place
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.verify.accepting import Accepting
from ckptctl.storage import WritableStore


@dataclass(frozen=True, slots=True)
class Fresh:
    """What is accepted just now: ``after`` is the number of the amendment before it."""

    accepted: tuple[Acceptance, ...] = ()
    unmatched: tuple[str, ...] = ()
    after: int = 0

    @classmethod
    def of(cls, accepting: Accepting, findings: Iterable[Finding], *, after: int) -> Fresh:
        """Gather what was accepted among findings, and what was to be and is not there."""
        found = list(findings)
        return cls(accepting.acceptances(found), accepting.unmatched(found), after)

    def told(self) -> dict[str, Any]:
        """Return it as a result says it."""
        amendment = self.after + 1 if self.accepted else 0
        return {
            "accepted": self.accepted,
            "amendment": amendment,
            "unmatched": self.unmatched,
        }

    def record(self, store: WritableStore, place: Place, manifest: Manifest, reason: str) -> None:
        """Create the amendment, if there is anything to record; all else stays what it was.

        Raises ``Conflict`` where somebody else amended the checkpoint meanwhile.
        """
        if not self.accepted:
            return
        record = Amendment(
            revision=self.after + 1,
            manifest=manifest.digest,
            step=manifest.step,
            run_id=manifest.run_id,
            world_size=manifest.world_size,
            identity=manifest.identity,
            progress=manifest.progress,
            accepted=(*manifest.accepted, *self.accepted),
            time=now(),
            actor=actor(),
            reason=reason,
        )
        protocol.amend(store, place.records, record)

    def kept(self, message: str) -> str:
        """Say of a pointer that did not move that what was accepted is recorded all the same."""
        if not self.accepted:
            return message
        return message.replace(
            "nothing was changed", "it was not moved; what was accepted is recorded"
        )
