"""``ckptctl list``: every checkpoint below a root, cheaply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence

from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import MalformedData, NothingThere, StorageError
from ckptctl.model.checkpoint import File, rank_of
from ckptctl.model.commit_state import State
from ckptctl.model.manifest import LATEST, QUARANTINE
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH, TIME
from ckptctl.operations.decision import decide
from ckptctl.operations.find import find
from ckptctl.operations.place import Order, Place, address, not_read, read_manifest
from ckptctl.operations.pointers import Pointer, pointers, recorded
from ckptctl.protocol import read_quarantine
from ckptctl.storage import Store
from ckptctl.storage.traffic import ahead


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint in a listing; ``name`` is its path below the root, ``size`` in bytes, ``modified`` in seconds since the epoch.

    ``accepted`` are the checks of which a person accepted what they found.
    """

    name: str
    path: str = field(metadata=PATH)
    step: int | None
    epoch: int | None
    state: State
    format: str
    ranks: int | None = None
    files: int = 0
    size: int = 0
    modified: float | None = field(default=None, metadata=TIME)
    pointers: tuple[str, ...] = ()
    reason: str = ""
    linked: bool = False
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of one checkpoint, why, how many ranks wrote it, and what its manifest says."""

    state: State
    reason: str = ""
    ranks: int | None = None
    step: int | None = None
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing(Answer):
    """All checkpoints of a root in numeric order, and pointers that name none of them.

    ``undecided`` says why it is not known what our own pointer names, where that is so.
    """

    root: str = field(metadata=PATH)
    checkpoints: tuple[Row, ...]
    dangling: tuple[Pointer, ...] = ()
    undecided: str = ""


def list_checkpoints(
    store: Store,
    *,
    check: bool = False,
    states: Iterable[State] = (),
    limit: int | None = None,
    places: Sequence[Place] | None = None,
    whole: bool = True,
) -> Listing:
    """List the checkpoints below a root, or the one given.

    Sizes and metadata are looked at, payloads are not. With ``check`` also large metadata is
    parsed. ``limit`` keeps the last so many. One that cannot be read is a row with its reason.
    ``places`` are those of the root where they are known; not ``whole``, they are some of them.
    Raises ``RootMissing`` for a root that is not there, ``NothingThere`` for one without a checkpoint.
    """
    places = find(store) if places is None else list(places)
    if not places:
        raise NothingThere(f"{store.url}: no checkpoint here or below")
    named = [*pointers(store, places), *recorded(store, places)]
    paths = {place.path for place in places}
    wanted = frozenset(states)
    told = all(place.name.step is not None for place in places)
    early = limit is not None and not wanted and told
    if early:  # what is cut off is not even looked at
        places = places[-(limit or 0) :]
    known: MutableMapping[object, object] = {}
    decision = decide(
        store, paths, newest=next((one.path for one in reversed(places) if one.committed), None)
    )
    promoted = decision.revision.target if decision.revision is not None else None

    def row_of(place: Place) -> Row:
        return _row(store, place, named, promoted, known, check=check)

    rows = [row_of(place) for place in places[:1]]  # the others may be like it
    rows += [told_of() for told_of in ahead(store, row_of, places[1:])]
    if not told:  # their manifests may tell
        orders = {place.path or ".": place.order for place in places}
        rows.sort(key=lambda row: order_by(row.step, orders[row.name]))
    if wanted:
        rows = [row for row in rows if row.state in wanted]
    if limit is not None and not early:
        rows = rows[-limit:]
    if not whole:
        return Listing(store.url, tuple(rows), undecided=decision.problem and decision.said)
    dangling = tuple(pointer for pointer in named if pointer.target is None)
    if promoted is not None and promoted not in paths:
        dangling = (Pointer(LATEST, promoted), *(one for one in dangling if one.name != LATEST))
    return Listing(store.url, tuple(rows), dangling, decision.problem and decision.said)


def _row(
    store: Store,
    place: Place,
    named: list[Pointer],
    promoted: str | None,
    known: MutableMapping[object, object],
    *,
    check: bool,
) -> Row:
    files: dict[str, File] = {}
    try:
        files = place.files(store)
        seen = _state(store, place, files, known, check=check)
    except StorageError as error:
        seen = Seen(State.UNREADABLE, str(error))
    state = seen.state
    names = [pointer.name for pointer in named if place.path in pointer.targets]
    if promoted == place.path:
        names = [LATEST, *(name for name in names if name != LATEST)]
        state = State.PROMOTED if state is State.COMMITTED else state
    times = [file.modified for file in files.values() if file.modified is not None]
    return Row(
        name=place.path or ".",
        path=address(store, place.path),
        step=seen.step if place.name.step is None else place.name.step,
        epoch=place.name.epoch,
        state=state,
        format=place.format or "unknown",
        ranks=seen.ranks,
        files=len(files),
        size=sum(file.size for file in files.values()),
        modified=max(times, default=None),
        pointers=tuple(names),
        reason=seen.reason,
        linked=place.linked,
        accepted=seen.accepted,
    )


def order_by(step: int | None, order: Order) -> Order:
    """Return where a checkpoint stands in numeric order, its step known by now."""
    return order if step is None else (True, step, *order[2:])


def state_of(store: Store, place: Place, *, check: bool = True) -> Seen:
    """Tell the state of one checkpoint; with ``check`` its metadata is parsed however large it is."""
    try:
        return _state(store, place, place.files(store), {}, check=check)
    except StorageError as error:
        return Seen(State.UNREADABLE, str(error))


def _state(
    store: Store,
    place: Place,
    files: dict[str, File],
    known: MutableMapping[object, object],
    *,
    check: bool,
) -> Seen:
    sealed = _sealed_state(store, place, files)
    if sealed is not None:
        return replace(sealed, ranks=_ranks(files))
    if place.problem:
        return Seen(State.UNREADABLE, place.problem)
    if not place.format:
        what = "it holds only records of ckptctl" if files else "the directory is empty"
        return Seen(State.INCOMPLETE, what)
    if place.lacks:
        more = f" (and {len(place.lacks) - 1} more)" if len(place.lacks) > 1 else ""
        state = State.STAGING if place.staging else State.INCOMPLETE
        return Seen(state, f"{place.lacks[0]} is not there{more}", _ranks(files))
    if not place.readable:
        if place.staging:
            return Seen(State.STAGING, place.staging)
        return Seen(State.NOT_EXAMINED, not_read(place))
    seen = place.layout.state(store, place.base, files, known, check=check)
    if place.staging and seen.state is State.COMPLETE:
        return Seen(State.STAGING, f"whole inside, {place.staging}", _ranks(files))
    if place.staging and not place.layout.metadata(files):
        return Seen(State.STAGING, seen.reason, _ranks(files))
    return Seen(seen.state, seen.reason, _ranks(files))


def _ranks(files: Iterable[str]) -> int:
    return len({rank for rank in map(rank_of, files) if rank is not None})


def _sealed_state(store: Store, place: Place, files: Mapping[str, File]) -> Seen | None:
    """Tell the state by ckptctl's own records, or None where there are none."""
    if any(entry.name == QUARANTINE for entry in place.entries):
        try:
            record = read_quarantine(store, place.records)
        except MalformedData as error:
            why = f"its newest quarantine record cannot be read: {error}"
            return Seen(State.QUARANTINED, why)
        if record is not None and record.quarantined:
            why = f"by {record.actor} at {record.time}: {record.reason}"
            return Seen(State.QUARANTINED, why)
    if not place.committed:
        return None
    try:
        manifest = read_manifest(store, place)
    except MalformedData as error:
        return Seen(State.UNREADABLE, str(error))
    if manifest is None:
        return None
    for promised in manifest.files:
        file = files.get(promised.path)
        if file is None:
            why = f"committed, but {promised.path} is not there"
            return Seen(State.INCOMPLETE, why, step=manifest.step)
        if file.size != promised.size:
            why = f"committed, but {promised.path} has {file.size} of {promised.size} bytes"
            return Seen(State.INCOMPLETE, why, step=manifest.step)
    accepted = tuple(dict.fromkeys(one.check for one in manifest.accepted))
    return Seen(State.COMMITTED, step=manifest.step, accepted=accepted)
