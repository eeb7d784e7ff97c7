"""``ckptctl quarantine`` and ``release``: mark a checkpoint as not to be used, and take that back."""

from __future__ import annotations

from dataclasses import dataclass

from ckptctl import protocol
from ckptctl.errors import MalformedData, Refused
from ckptctl.model.manifest import QuarantineRecord, quarantine_path
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.operations.place import Place
from ckptctl.operations.publish.actor import actor, now
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
    last, standing = _last(store, place)
    if quarantined and standing is not None and standing.quarantined:
        store.make_durable([f"{place.records}/{standing.path}"])
        return Marked(
            place.path, quarantined=True, reason=standing.reason, revision=last, changed=False
        )
    if not quarantined and (last == 0 or (standing is not None and not standing.quarantined)):
        raise Refused(f"{place.path} is not quarantined; nothing was changed")
    record = QuarantineRecord(
        revision=last + 1, quarantined=quarantined, reason=reason, time=now(), actor=actor()
    )
    if not dry_run:
        store.prove()
        protocol.mark(store, place.records, record)
    return Marked(place.path, quarantined, reason, record.revision, dry_run=dry_run)


def _last(store: WritableStore, place: Place) -> tuple[int, QuarantineRecord | None]:
    """Return the number of the newest record, and the record where it can be read."""
    number = protocol.newest(
        lambda n: protocol.exists(store, join(place.records, quarantine_path(n)))
    )
    try:
        return number, protocol.read_quarantine(store, place.records)
    except MalformedData:
        return number, None
