"""Deciding what goes: everything that may speak for a checkpoint is asked before."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from ckptctl import protocol
from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData, Refused, StorageError
from ckptctl.model.commit_state import State
from ckptctl.model.manifest import TRASH
from ckptctl.operations.catalog.list import Listing, list_checkpoints
from ckptctl.operations.find import find
from ckptctl.operations.place import Place, address, read_manifest
from ckptctl.operations.retention.contents import Contents, contents_of
from ckptctl.operations.retention.guards import Named, named
from ckptctl.operations.retention.keepers import WHOLE, Groups, Subject, count_keepers
from ckptctl.operations.retention.moments import moment
from ckptctl.operations.retention.policy import DAY, Fate, Plan, Policy, ago
from ckptctl.operations.retention.sharing import Shared
from ckptctl.storage import Store
from ckptctl.storage.traffic import ahead

_NEWEST = "the newest that verifies"


def plan(
    store: Store, policy: Policy, *, places: Sequence[Place] | None = None, renames: bool = True
) -> Plan:
    """Decide which checkpoints a policy gives up; nothing is changed.

    Never given up, whatever the policy: what any pointer names, what shares files with one that
    stays, the newest that verifies, anything that changed within a day, what this release cannot
    read, and quarantined ones unless they are asked for. Raises ``Refused`` where a pointer
    cannot be resolved, and where no checkpoint verifies.
    """
    found = find(store) if places is None else list(places)
    listing = list_checkpoints(store, check=True, places=found)
    speaking = named(store, found, ignored=policy.ignored)
    if speaking.unresolved:
        raise Refused(
            f"{speaking.unresolved[0]}; what it names cannot be protected, so nothing is deleted: "
            "repair it, or name it with `ignore_pointer`"
        )
    subjects = _subjects(store, listing, found)
    groups = count_keepers(store, subjects, policy)
    if not groups.newest:
        raise Refused(f"{store.url}: {_none_proven(subjects)}; nothing is deleted")
    now = time.time()
    fates = {one.row.name: _fate(store, one, policy, speaking, groups, now) for one in subjects}
    doomed = {name for name, fate in fates.items() if fate.delete}
    contents = {one.row.name: one.contents for one in subjects}
    shared = Shared(store, found, contents).kept(doomed)
    final = tuple(
        _kept(fate, shared[name]) if name in shared else fate for name, fate in fates.items()
    )
    return Plan(
        store.url,
        final,
        trash=address(store, TRASH) if renames else "",
        keepers=_keepers(subjects, fates, groups, final),
        ignored=policy.ignored,
    )


def proven(store: Store, policy: Policy) -> tuple[Fate, ...]:
    """Return the newest of each directory that is proven to be good, with what it holds."""
    found = find(store)
    if not found:
        return ()
    subjects = _subjects(store, list_checkpoints(store, check=True, places=found), found)
    groups = count_keepers(store, subjects, replace(policy, keep_last=None))
    kept = {one.row.name: _kept(_bare(one), _NEWEST) for one in groups.by_folder.values()}
    return _keepers(subjects, kept, groups, ())


def _subjects(store: Store, listing: Listing, places: Iterable[Place]) -> list[Subject]:
    by_name = {place.path or ".": place for place in places}
    found = [(row, by_name[row.name]) for row in listing.checkpoints]
    contents = ahead(store, lambda pair: _contents(store, pair[1]), found)
    return [Subject(row, place, held()) for (row, place), held in zip(found, contents, strict=True)]


def _bare(one: Subject) -> Fate:
    return Fate(one.row.name, one.row.step, one.row.state, one.row.size, delete=False, reason="")


def _contents(store: Store, place: Place) -> Contents:
    try:
        return contents_of(store, place)
    except StorageError:  # its row says why
        return Contents()


def _none_proven(subjects: Sequence[Subject]) -> str:
    """Say why not one checkpoint counts as kept."""
    for one in reversed(subjects):
        if one.problem:
            return f"no checkpoint here is proven to be good; {one.row.name} is not: {one.problem}"
    return "no checkpoint here is proven to be good"


def _fate(
    store: Store, one: Subject, policy: Policy, speaking: Named, groups: Groups, now: float
) -> Fate:
    row = one.row
    why = _keep(store, one, policy, speaking, groups, now)
    fate = Fate(row.name, row.step, row.state, row.size, not why, why, one.verified)
    if why:
        return fate
    keeper = groups.keeper(one)
    return Fate(
        row.name,
        row.step,
        row.state,
        row.size,
        delete=True,
        reason=_why(one, policy),
        keeper=keeper.row.name if keeper is not None else "",
        contents=tuple(one.contents.listed),
    )


def _kept(fate: Fate, why: str) -> Fate:
    return Fate(fate.name, fate.step, fate.state, fate.size, delete=False, reason=why)


def _keepers(
    subjects: Iterable[Subject], fates: Mapping[str, Fate], groups: Groups, final: Iterable[Fate]
) -> tuple[Fate, ...]:
    """Return those on which others depend that go, or are in the trash, with what they hold."""
    wanted = {fate.keeper for fate in final if fate.delete}
    wanted |= {one.row.name for one in groups.by_folder.values()}
    return tuple(
        Fate(
            one.row.name,
            one.row.step,
            one.row.state,
            one.row.size,
            delete=False,
            reason=fates[one.row.name].reason,
            verified=one.verified,
            contents=tuple(one.contents.listed),
        )
        for one in subjects
        if one.row.name in wanted
    )


def _keep(
    store: Store, one: Subject, policy: Policy, speaking: Named, groups: Groups, now: float
) -> str:
    """Say why a checkpoint is kept, or return the empty string."""
    row, place = one.row, one.place
    if place.path in speaking.reasons:
        return speaking.reasons[place.path]
    if row.linked:
        return "a link: what it leads to is not part of this root"
    if not place.path:
        return "it is the root itself"
    if one.contents.inner:
        return f"it holds {one.contents.inner}, which may be of another checkpoint"
    unread = one.unfinished and place.format and not place.readable
    if unread or row.state not in (*WHOLE, State.STAGING, State.INCOMPLETE, State.QUARANTINED):
        return f"{row.state.value}: {row.reason}"
    if row.state is State.QUARANTINED and not policy.include_quarantined:
        return f"quarantined {row.reason}"
    age = _age(store, one, now)
    least = policy.min_age if row.state in WHOLE else max(policy.min_age, DAY)
    if least and age < least:  # clocks differ: a record may be of a moment to come
        return f"it changed {ago(age)} ago: younger than {_span(least)}"
    if groups.keeper(one) is None:
        return "no checkpoint of its kind beside it is proven to be good"
    return "" if one.unfinished else _by_policy(one, policy, now)


def _by_policy(one: Subject, policy: Policy, now: float) -> str:
    row = one.row
    if one.counted:
        return f"one of the last {policy.keep_last}" if policy.keep_last else _NEWEST
    if one.above:
        return one.above
    if policy.keep_every and row.step is not None and row.step % policy.keep_every == 0:
        return f"its step is a multiple of {policy.keep_every}"
    saved = now - row.modified if row.modified is not None else 0.0
    if policy.older_than is not None and saved < policy.older_than:
        return "younger than `older_than`"
    if row.step is None:
        return "it has no step to order it by"
    return ""


def _why(one: Subject, policy: Policy) -> str:
    if one.unfinished:
        return f"{one.row.state.value}, and older than a day"
    if policy.keep_last is not None:
        return f"not one of the last {policy.keep_last}"
    return "older than `older_than`" if policy.older_than is not None else "not to be kept"


def _span(age: float) -> str:
    return "a day" if age == DAY else ago(age)


def _age(store: Store, one: Subject, now: float) -> float:
    """Return how long nothing has changed about it: files, directories, and what records say."""
    times = [one.contents.changed, one.row.modified, *_recorded(store, one.place)]
    known = [when for when in times if when is not None]
    return now - max(known) if known else 0.0


def _recorded(store: Store, place: Place) -> list[float | None]:
    """Return the times in our own records of a checkpoint, as far as they can be read."""
    texts = []
    try:
        manifest = read_manifest(store, place)
        texts.append(manifest.time if manifest is not None else "")
        mark = protocol.read_quarantine(store, place.records)
        texts.append(mark.time if mark is not None else "")
    except (MalformedData, StorageError):
        pass
    return [moment(text) for text in texts]
