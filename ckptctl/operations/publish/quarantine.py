"""``ckptctl quarantine`` and ``release``: mark a checkpoint as not to be used, and take that back."""

from __future__ import annotations

from ckptctl import protocol
from ckptctl.dataclass import dataclass
from ckptctl.errors import Refused
from ckptctl.model.manifest import QuarantineRecord
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.operations.place import Place
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.publish.vanished import take_back
from ckptctl.protocol.series import copy_path
from ckptctl.storage import WritableStore


@dataclass(frozen=True, slots=True)
class Marked(Answer):
    """The mark that a checkpoint carries now; ``changed`` is false where it did already."""

    name: str
    quarantined: bool
    reason: str
    revision: int
    changed: bool = True
    dry_run: bool = False


def set_mark(
    store: WritableStore,
    place: Place,
    *,
    quarantined: bool,
    reason: str,
    dry_run: bool = False,
) -> Marked:
    """Create the next quarantine record of a checkpoint.

    Raises ``Refused`` without a reason, or to release what is not quarantined, and ``Conflict``
    if somebody else marks it at the same time.
    """
    if not reason.strip():
        raise Refused("a reason is needed: whoever is on call next will ask for it")
    found = protocol.quarantine_series(store, place.records)
    last, standing = found.last, None if found.problems else found.newest
    if quarantined and standing is not None and standing.quarantined:
        store.make_durable([f"{place.records}/{standing.path}"])
        return Marked(
            place.path, quarantined=True, reason=standing.reason, revision=last, changed=False
        )
    released = not found.problems and (standing is None or not standing.quarantined)
    if not quarantined and released:
        raise Refused(f"{place.path} is not quarantined; nothing was changed")
    record = QuarantineRecord(
        revision=last + 1, quarantined=quarantined, reason=reason, time=now(), actor=actor()
    )
    if not dry_run:
        store.prove()
        protocol.mark(store, place.records, record)
        made = join(place.records, record.path)
        take_back(store, place, [made, copy_path(made)])
    return Marked(place.path, quarantined, reason, record.revision, dry_run=dry_run)
