"""The trash: checkpoints that were moved aside, each with a record, until somebody empties it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import Conflict, MalformedData, NotFound, Refused, StorageError, UsageError
from ckptctl.formats.base import read_small
from ckptctl.model.manifest import MAX_RECORD, TRASH, TrashRecord, decode, trash_path
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.place import RECORDS, Place, address
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.retention.policy import Fate
from ckptctl.storage import Entry, Store, WritableStore

_RECORD = trash_path(0).rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Undeleted(Answer):
    """A checkpoint that was brought back, with who had moved it into the trash, when and why."""

    name: str
    path: str = field(metadata=PATH)
    step: int | None
    time: str
    actor: str
    reason: str
    dry_run: bool = False


def into_trash(store: WritableStore, place: Place, fate: Fate) -> TrashRecord:
    """Move a checkpoint aside: first its record, then all of it; a directory goes in one step."""
    above = place.path.rpartition("/")[0]
    start = len(above) + 1 if above else 0
    contents = {one.path[start:]: one.size for one in fate.contents}
    record = _record(store, place, fate, contents)
    if place.members is None:
        moved = [place.path]
    else:  # what promises first, so that no manifest outlives a file of it
        members = sorted({member.partition("/")[0] for member in place.members})
        moved = [place.records, *(join(place.base, member) for member in members)]
    done = False
    try:
        for path in moved:
            name = path.rpartition("/")[2]
            if len(moved) > 1 and not _exists(store, path):
                continue
            store.rename_directory(path, f"{record.folder}/{name}")
            done = True
    finally:
        if not done:
            store.delete(record.record)
            store.remove_directory(record.folder)
    return record


def _record(
    store: WritableStore, place: Place, fate: Fate, contents: dict[str, int]
) -> TrashRecord:
    number = max((one.number for one in numbered(store)), default=0)
    while True:
        number += 1
        record = TrashRecord(
            number=number,
            path=place.path,
            step=fate.step,
            state=fate.state.value,
            contents=contents,
            reason=fate.reason,
            time=now(),
            actor=actor(),
        )
        try:
            store.create(record.record, record.encode())
        except Conflict:  # somebody else has taken this number
            continue
        return record


@dataclass(frozen=True, slots=True)
class Bin:
    """One directory of the trash."""

    number: int
    path: str


def numbered(store: Store) -> Iterator[Bin]:
    try:
        entries = store.entries(TRASH)
    except NotFound:
        return
    for entry in entries:
        if entry.kind == "directory" and entry.target is None and entry.name.isdigit():
            yield Bin(int(entry.name), entry.path)


def read(store: Store, one: Bin) -> TrashRecord:
    """Read the record of one directory; raises ``MalformedData`` where there is none to trust."""
    data = read_small(store, f"{one.path}/{_RECORD}", MAX_RECORD)
    if data is None:
        raise MalformedData(f"{one.path}: it has no record")
    record = decode(TrashRecord, data)
    if record.number != one.number or record.folder != one.path:
        raise MalformedData(f"{one.path}: its record is of another one")
    return record


def trashed(store: Store) -> Iterator[TrashRecord | str]:
    """Yield the record of everything in the trash, or what is wrong with it."""
    for one in numbered(store):
        try:
            yield read(store, one)
        except MalformedData as error:
            yield str(error)


def _below(store: Store, path: str) -> Iterator[Entry]:
    """Yield files and links below a directory; links are not followed."""
    for entry in store.entries(path):
        if entry.kind == "directory" and entry.target is None:
            yield from _below(store, entry.path)
        else:
            yield entry


def there(store: Store, one: Bin) -> dict[str, Entry]:
    """List what lies in one directory of the trash, as its record names it."""
    found = {entry.path[len(one.path) + 1 :]: entry for entry in _below(store, one.path)}
    found.pop(_RECORD, None)
    return found


def different(store: Store, record: TrashRecord) -> str:
    """Say what in the trash is not as it was planned, or return the empty string."""
    now = {
        path: entry.size for path, entry in there(store, Bin(record.number, record.folder)).items()
    }
    for path in sorted({*now, *record.contents}):
        if path not in record.contents:
            return f"{path} was not there when this was planned"
        if path not in now:
            return f"{path} is gone since this was planned"
    return ""


def remove_folders(store: WritableStore, path: str) -> None:
    """Remove a directory and those in it as far as they are empty."""
    try:
        entries = store.entries(path)
    except NotFound:
        return
    for entry in entries:
        if entry.kind == "directory" and entry.target is None:
            remove_folders(store, entry.path)
    store.remove_directory(path)


def undelete(store: WritableStore, name: str = "", *, dry_run: bool = False) -> Undeleted:
    """Bring a checkpoint back from the trash, by its path or last name; of several the newest.

    Raises ``NotFound`` where the trash does not have it, ``UsageError`` where none is named and
    there are several, ``Conflict`` where its place is taken, ``Refused`` where a part is missing.
    """
    one, record = _wanted(store, name.rstrip("/"))
    inside = there(store, one)
    tops = [entry for entry in store.entries(one.path) if entry.name != _RECORD]
    above = record.path.rpartition("/")[0]
    back = {entry.path: join(above, entry.name) for entry in tops}
    at_home = {path for path in record.contents if _exists(store, join(above, path))}
    for path in back.values():
        if _exists(store, path):
            raise Conflict(f"{address(store, path)} is there already; nothing was changed")
    for path, size in record.contents.items():
        gone = path not in inside and path not in at_home
        if gone or (path in inside and inside[path].kind == "file" and inside[path].size != size):
            raise Refused(f"{path} is missing in {one.path}, or not whole: it was being emptied")
    if not dry_run:
        _bring_back(store, record, back)
    return Undeleted(
        record.path,
        address(store, record.path),
        record.step,
        record.time,
        record.actor,
        record.reason,
        dry_run,
    )


def put_back(store: WritableStore, record: TrashRecord) -> None:
    """Bring back what was just moved; ``Conflict`` where its place is taken by now."""
    above = record.path.rpartition("/")[0]
    tops = [entry for entry in store.entries(record.folder) if entry.name != _RECORD]
    _bring_back(store, record, {entry.path: join(above, entry.name) for entry in tops})


def _bring_back(store: WritableStore, record: TrashRecord, back: Mapping[str, str]) -> None:
    # a manifest promises, so records of a set of files come back after the files
    for path in sorted(back, key=lambda path: path.endswith(RECORDS)):
        store.rename_directory(path, back[path])
    store.delete(record.record, durable=True)
    store.remove_directory(record.folder)


def _wanted(store: Store, name: str) -> tuple[Bin, TrashRecord]:
    """Return the newest directory of the trash that a name fits and that still holds something."""
    found: dict[str, tuple[Bin, TrashRecord]] = {}
    problem = ""
    for one in numbered(store):
        try:
            record = read(store, one)
        except (MalformedData, StorageError) as error:
            problem = str(error)
            continue
        if len(store.entries(one.path)) > 1 and name in ("", record.path, _last(record.path)):
            found[record.path] = one, record
    if not found:
        what = name or "a checkpoint"
        raise NotFound(f"{store.url}: there is no {what} in {TRASH}" + (problem and f"; {problem}"))
    if not name and len(found) > 1:
        raise UsageError(f"{TRASH} holds {', '.join(sorted(found))}: name one of them")
    return max(found.values(), key=lambda both: both[0].number)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _exists(store: Store, path: str) -> bool:
    """Tell whether a name is taken, also by a link that leads nowhere."""
    folder = path.rpartition("/")[0]
    try:
        return any(entry.path == path for entry in store.entries(folder))
    except NotFound:
        return False
