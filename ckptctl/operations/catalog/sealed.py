"""What records say of one checkpoint: who sealed it as what, and who amended that."""

from __future__ import annotations

from ckptctl import protocol
from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.amendment import Amendment
from ckptctl.model.manifest import Unpromised
from ckptctl.operations.place import Place
from ckptctl.storage import Store


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the manifest says by now; ``amended`` counts how often that was changed, and by whom last.

    ``accepted`` is what a person accepted in spite of a check, ``accepted_before`` says what was
    accepted so of the checkpoint that it was made from.
    """

    manifest: str
    step: int | None
    run_id: str | None
    world_size: int | None
    by: str
    time: str
    amended: int = 0
    amended_by: str = ""
    amended_at: str = ""
    reason: str = ""
    unpromised: tuple[Unpromised, ...] = ()
    accepted: tuple[Acceptance, ...] = ()
    accepted_before: tuple[str, ...] = ()


def sealed_as(store: Store, place: Place, problems: list[str]) -> Sealed | None:
    """Read what records say of a checkpoint; a record that cannot be used is among the problems."""
    try:
        found = protocol.read_manifest(store, place.records)
    except MalformedData as error:
        problems.append(str(error))
        return None
    if found is None:
        return None
    last = list(protocol.amendments(store, place.records))
    newest = last[-1] if last and isinstance(last[-1], Amendment) else None
    return Sealed(
        found.digest,
        found.step,
        found.run_id,
        found.world_size,
        found.actor,
        found.time,
        amended=newest.revision if newest else 0,
        amended_by=newest.actor if newest else "",
        amended_at=newest.time if newest else "",
        reason=newest.reason if newest else "",
        unpromised=found.unpromised,
        accepted=found.accepted,
        accepted_before=found.accepted_before,
    )
