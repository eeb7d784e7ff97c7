"""Emptying the trash: for good, and only where something beside it is proven to be good."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.manifest import TrashRecord
from ckptctl.model.names import parse_name
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.retention.execute import no_keeper
from ckptctl.operations.retention.guards import named
from ckptctl.operations.retention.moments import moment
from ckptctl.operations.retention.policy import Fate, Policy, Trashed
from ckptctl.operations.retention.trash import Bin, numbered, read, remove_folders, there
from ckptctl.storage import WritableStore


def empty(
    store: WritableStore, policy: Policy, keepers: Sequence[Fate], *, dry_run: bool = False
) -> tuple[Trashed, ...]:
    """Delete for good what was moved aside longer ago than the policy says.

    Only files that its record names, one by one. What stays is said: where there is another file,
    where a pointer names what was moved, and where none of ``keepers`` lies beside where it was.
    """
    found, ready = [], []
    for one in numbered(store):
        try:
            record = read(store, one)
        except (MalformedData, StorageError) as error:
            found.append(Trashed(one.number, one.path, 0, problem=str(error)))
            continue
        when, age = moment(record.time), policy.trash_older_than
        if age and (when is None or time.time() - when < age):
            continue
        ready.append((one, record))
    records = [record for _, record in ready]
    spoken = _spoken_for(store, policy, records, everywhere=True)
    for one, record in ready:
        why = spoken.get(record.path, "") or _without_keeper(store, record, keepers)
        if not why and not dry_run:  # once more, now that it comes to it
            why = _spoken_for(store, policy, records, everywhere=False).get(record.path, "")
        found.append(_empty(store, one, record, why, dry_run=dry_run))
    return tuple(sorted(found, key=lambda one: one.number))


def _spoken_for(
    store: WritableStore, policy: Policy, records: Iterable[TrashRecord], *, everywhere: bool
) -> dict[str, str]:
    """Say of what was moved aside which pointer names it, or may name it."""
    places = find(store)
    here = {place.path for place in places}
    gone = {record.path for record in records} - here
    aside = [Place(path, parse_name(path.rpartition("/")[2]), ()) for path in sorted(gone)]
    if not aside:
        return {}
    speaking = named(store, [*places, *aside], ignored=policy.ignored, everywhere=everywhere)
    if speaking.unresolved:
        return dict.fromkeys(gone, speaking.unresolved[0])
    return {path: speaking.reasons[path] for path in gone if path in speaking.reasons}


def _without_keeper(store: WritableStore, record: TrashRecord, keepers: Iterable[Fate]) -> str:
    """Say why what was moved aside may be the last that is good."""
    folder = record.path.rpartition("/")[0]
    beside = [one for one in keepers if one.name.rpartition("/")[0] == folder]
    if not beside:
        return "no checkpoint beside where it was is proven to be good"
    places = {place.path or ".": place for place in find(store)}
    reasons = [no_keeper(store, places, one, one.name) for one in beside]
    return "" if "" in reasons else reasons[0]


def _empty(
    store: WritableStore, one: Bin, record: TrashRecord, why: str, *, dry_run: bool
) -> Trashed:
    inside = there(store, one)
    strange = [path for path in inside if path not in record.contents]
    size = sum(entry.size for path, entry in inside.items() if path in record.contents)
    problem = f"{strange[0]} was not there when it was moved aside" if strange else why
    if not dry_run and not problem:
        for entry in inside.values():
            store.delete(entry.path)
        for entry in store.entries(one.path):
            if entry.kind == "directory" and entry.target is None:
                remove_folders(store, entry.path)
        store.delete(record.record)
        store.remove_directory(one.path)
    return Trashed(record.number, record.path, size, record.time, record.actor, problem)
