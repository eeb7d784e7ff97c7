"""Carrying out a plan: what was listed and nothing else, once everything was asked again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptctl import protocol
from ckptctl.dataclass import replace
from ckptctl.errors import Conflict, MalformedData, NotFound
from ckptctl.formats import registry
from ckptctl.model.commit_state import State
from ckptctl.model.manifest import MANIFEST, TrashRecord
from ckptctl.model.paths import join
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.retention.contents import contents_of
from ckptctl.operations.retention.guards import Named, named
from ckptctl.operations.retention.policy import Fate, Listed, Plan
from ckptctl.operations.retention.sharing import Shared
from ckptctl.operations.retention.trash import different, into_trash, put_back, remove_folders
from ckptctl.storage import WritableStore


def carry_out(store: WritableStore, chosen: Plan) -> Iterator[Fate]:
    """Move what a plan gives up into the trash, or delete it where a store cannot rename.

    Yields each fate as it came out: a checkpoint that something has come to speak for since the
    plan was made stays, with the reason, and so does one in which a file is not as it was listed.
    Raises ``RootMissing`` where the root is not there any more.
    """
    if not chosen.doomed:
        return
    places = {place.path or ".": place for place in find(store)}
    contents = {name: contents_of(store, place) for name, place in places.items()}
    shared = Shared(store, places.values(), contents)
    speaking = named(store, places.values(), ignored=chosen.ignored)
    fates = {fate.name: fate for fate in chosen.doomed}
    going = set(fates)  # what has gone leads nowhere any more
    for name in shared.in_order(fates):
        fate, place = fates[name], places.get(name)
        if place is None:
            yield replace(fate, delete=False, reason="it is not there any more")
            continue
        why = (
            _spoken_for(place, speaking)
            or shared.kept(going).get(name)
            or _objection(store, chosen, fate, places)
        )
        if why:
            going.discard(name)
            yield replace(fate, delete=False, reason=why)
            continue
        if store.renames:
            record = into_trash(store, place, fate)
            why = _regret(store, chosen, fate, places, record)
            if why and _is_back(store, record):
                going.discard(name)
                yield replace(fate, delete=False, reason=why)
                continue
        else:
            _delete(store, place, fate)
        del places[name]
        yield replace(fate, reason=why) if why else fate


def _objection(store: WritableStore, chosen: Plan, fate: Fate, places: Mapping[str, Place]) -> str:
    """Ask pointers, marks and manifests again; say what speaks for a checkpoint by now."""
    place = places[fate.name]
    speaking = named(store, places.values(), ignored=chosen.ignored, everywhere=False)
    why = _spoken_for(place, speaking)
    if why:
        return why
    why = _without_keeper(store, chosen, fate, places)
    if why:
        return why
    if fate.state is not State.QUARANTINED and _quarantined(store, place):
        return "it is quarantined by now"
    return _difference(store, place, fate.contents)


def _regret(
    store: WritableStore,
    chosen: Plan,
    fate: Fate,
    places: Mapping[str, Place],
    record: TrashRecord,
) -> str:
    """Say what came to speak for a checkpoint in the very moment in which it was moved.

    Whoever promotes it looks again afterwards too, so that one of both sees what the other did.
    """
    speaking = named(store, places.values(), ignored=chosen.ignored, everywhere=False)
    return (
        _spoken_for(places[fate.name], speaking)
        or _without_keeper(store, chosen, fate, places)
        or different(store, record)
    )


def _is_back(store: WritableStore, record: TrashRecord) -> bool:
    """Put back what was moved; False where its place is taken, so that it stays in the trash."""
    try:
        put_back(store, record)
    except Conflict:
        return False
    return True


def _without_keeper(
    store: WritableStore, chosen: Plan, fate: Fate, places: Mapping[str, Place]
) -> str:
    keeper = next((one for one in chosen.keepers if one.name == fate.keeper), None)
    return no_keeper(store, places, keeper, fate.keeper)


def no_keeper(
    store: WritableStore, places: Mapping[str, Place], keeper: Fate | None, name: str
) -> str:
    """Say why what was proven to be good does not count any more; empty where it still does."""
    if keeper is None or keeper.name not in places:
        return f"{name or 'what was to be kept'} is not there any more"
    if _quarantined(store, places[keeper.name]):
        return f"{keeper.name}, which was to be kept instead, is quarantined by now"
    changed = _difference(store, places[keeper.name], keeper.contents)
    return f"{keeper.name}, which was to be kept instead, has changed: {changed}" if changed else ""


def _spoken_for(place: Place, speaking: Named) -> str:
    if speaking.unresolved:
        return speaking.unresolved[0]
    return f"{speaking.reasons[place.path]} by now" if place.path in speaking.reasons else ""


def _quarantined(store: WritableStore, place: Place) -> bool:
    try:
        record = protocol.read_quarantine(store, place.records)
    except MalformedData:
        return True
    return record is not None and record.quarantined


def _difference(store: WritableStore, place: Place, planned: tuple[Listed, ...]) -> str:
    """Say what is not as it was listed, or return the empty string."""
    try:
        now = {one.path: one for one in contents_of(store, place).listed}
    except NotFound:
        return "it is not there any more"
    before = {one.path: one for one in planned}
    for path in sorted({*now, *before}):
        if path not in before:
            return f"{path} was not there when this was planned"
        if path not in now:
            return f"{path} is gone since this was planned"
        if now[path] != before[path]:
            return f"{path} was changed since this was planned"
    return ""


def order(place: Place, listed: tuple[Listed, ...]) -> list[str]:
    """Return what is deleted, in order: the promise first, then what loads it, our marks last."""
    start = len(place.base) + 1 if place.base else 0
    paths = {one.path[start:]: one.path for one in listed}
    metadata = [paths[name] for name in registry.metadata_of(place.format, paths) if name in paths]
    manifest = join(place.records, MANIFEST)
    first = {manifest: 0, **dict.fromkeys(metadata, 1)}

    def rank(path: str) -> tuple[int, str]:
        ours = path.startswith(f"{place.records}/ckptctl.")
        return first.get(path, 3 if ours else 2), path

    return sorted((one.path for one in listed), key=rank)


def _delete(store: WritableStore, place: Place, fate: Fate) -> None:
    """Delete file by file, so that at no moment a manifest promises what is gone already."""
    for number, path in enumerate(order(place, fate.contents)):
        store.delete(path, durable=number == 0)
    remove_folders(store, place.records)
    if place.members is None:
        remove_folders(store, place.path)
