"""``ckptctl history``: who committed, moved and marked what, when, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ckptctl import protocol
from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, NothingThere
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.amendment import AMENDMENTS
from ckptctl.model.manifest import LATEST, MANIFEST, QUARANTINE, TRASH
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.retention.trash import trashed
from ckptctl.storage import Store
from ckptctl.storage.traffic import ahead


@dataclass(frozen=True, slots=True)
class Event:
    """One record; ``what`` says what was done, or that the record is damaged."""

    time: str
    what: str
    name: str
    step: int | None = None
    actor: str = ""
    reason: str = ""
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class History(Answer):
    """Every record below a root, in the order of their times."""

    root: str = field(metadata=PATH)
    events: tuple[Event, ...]


def history(store: Store, *, places: Sequence[Place] | None = None) -> History:
    """Read every record below a root, in the order of their times.

    Raises ``NothingThere`` for a root without a checkpoint and without records.
    """
    events = [*_moves(store), *_trashings(store)]
    places = find(store) if places is None else list(places)
    if not places and not events:
        raise NothingThere(f"{store.url}: no checkpoint and no record of one")
    sealed = [place for place in places if place.committed]
    manifests = ahead(store, lambda place: protocol.read_sealed(store, place.records), sealed)
    for place in places:
        names = {entry.name for entry in place.entries}
        accepted = set[Acceptance]()
        if MANIFEST in names:
            try:
                manifest = next(manifests)()
            except MalformedData as error:
                events.append(Event("", "damaged", place.path, place.name.step, reason=str(error)))
                manifest = None
            if manifest is not None:
                events.append(
                    Event(manifest.time, "committed", place.path, manifest.step, manifest.actor)
                )
                events.extend(_acceptances(place, manifest.step, manifest.accepted, manifest.time))
                accepted.update(manifest.accepted)
        if AMENDMENTS in names:
            events.extend(_amendments(store, place, accepted))
        if QUARANTINE in names:
            for record in protocol.quarantines(store, place.records):
                if isinstance(record, str):
                    events.append(Event("", "damaged", place.path, place.name.step, reason=record))
                    continue
                what = "quarantined" if record.quarantined else "released"
                events.append(
                    Event(
                        record.time, what, place.path, place.name.step, record.actor, record.reason
                    )
                )
    events.sort(key=lambda event: (event.time, event.revision or 0))
    return History(store.url, tuple(events))


def _trashings(store: Store) -> Iterator[Event]:
    for found in trashed(store):
        if isinstance(found, str):
            yield Event("", "damaged", TRASH, reason=found)
            continue
        what = "moved to the trash"
        yield Event(found.time, what, found.path, found.step, found.actor, found.reason)


def _acceptances(
    place: Place, step: int | None, found: Iterable[Acceptance], time: str
) -> Iterator[Event]:
    """Yield what was accepted; it counts from the ``time`` of the record that says so."""
    for one in found:
        what = f"accepted {one.check}" + (f":{one.pattern}" if one.pattern else "")
        yield Event(time, what, place.path, step, one.actor, one.reason)


def _amendments(store: Store, place: Place, accepted: set[Acceptance]) -> Iterator[Event]:
    """Yield what was amended; ``accepted`` was so before, and each acceptance is told once."""
    for found in protocol.amendments(store, place.records):
        if isinstance(found, str):
            yield Event("", "damaged", place.path, place.name.step, reason=found)
            continue
        yield Event(
            found.time, "amended", place.path, found.step, found.actor, found.reason, found.revision
        )
        new = [one for one in found.accepted if one not in accepted]
        yield from _acceptances(place, found.step, new, found.time)
        accepted.update(new)


def _moves(store: Store) -> list[Event]:
    events = []
    for found in protocol.revisions(store):
        if isinstance(found, str):
            events.append(Event("", "damaged", LATEST, reason=found))
            continue
        what = "rolled back" if found.rollback else "promoted"
        events.append(
            Event(
                found.time,
                what,
                found.target,
                found.step,
                found.actor,
                found.reason,
                found.revision,
            )
        )
    return events
