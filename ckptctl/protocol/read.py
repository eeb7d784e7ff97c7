"""Reading records: exact names only, never a listing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ckptctl.errors import MalformedData, NotFound, StorageError
from ckptctl.model.manifest import (
    LATEST,
    MANIFEST,
    MAX_RECORD,
    Manifest,
    PointerRevision,
    QuarantineRecord,
    Receipt,
    RecordType,
    decode,
    pointer_path,
    quarantine_path,
)
from ckptctl.model.paths import join
from ckptctl.model.seal import Seal
from ckptctl.storage import Store


@dataclass(frozen=True, slots=True)
class Pointer:
    """The newest readable revision of a pointer; ``last`` is the number of the newest there is.

    The two differ where the newest record is damaged; ``problems`` say how.
    """

    revision: PointerRevision | None = None
    last: int = 0
    problems: tuple[str, ...] = ()


def _read(store: Store, path: str, kind: type[RecordType]) -> RecordType | None:
    """Read one record, or None where there is none; ``MalformedData`` names the file."""
    try:
        with store.open(path) as reader:
            if reader.size > MAX_RECORD:
                raise MalformedData(f"{path}: {reader.size} bytes are too many for a record")
            data = reader.read(0, reader.size)
    except NotFound:
        return None
    try:
        return decode(kind, data)
    except MalformedData as error:
        raise MalformedData(f"{path}: {error}") from None


def read_manifest(store: Store, checkpoint: str) -> Manifest | None:
    """Read a checkpoint's manifest, or None where it is not committed.

    Raises ``MalformedData`` for a manifest that is torn, altered or of another version.
    """
    return _read(store, join(checkpoint, MANIFEST), Manifest)


def read_receipts(store: Store, checkpoint: str, paths: Iterable[str]) -> list[Receipt]:
    """Read the receipts that lie at these paths of a checkpoint."""
    found = (_read(store, join(checkpoint, path), Receipt) for path in sorted(paths))
    return [receipt for receipt in found if receipt is not None]


def read_quarantine(store: Store, checkpoint: str) -> QuarantineRecord | None:
    """Read the newest quarantine record of a checkpoint, or None where it never had one."""
    last = newest(lambda number: exists(store, join(checkpoint, quarantine_path(number))))
    if not last:
        return None
    path = join(checkpoint, quarantine_path(last))
    record = _read(store, path, QuarantineRecord)
    if record is None or record.revision != last:
        raise MalformedData(f"{path}: it is the record of another revision")
    return record


def read_pointer(store: Store, name: str = LATEST, *, tolerant: bool = False) -> Pointer:
    """Find the newest revision of a pointer, skipping damaged records, which it names.

    With ``tolerant`` a record that the storage does not give is skipped like a damaged one.
    """
    last = newest(lambda number: exists(store, pointer_path(name, number)))
    problems: list[str] = []
    for number in range(last, 0, -1):
        try:
            revision = _read(store, pointer_path(name, number), PointerRevision)
        except MalformedData as error:
            problems.append(str(error))
            continue
        except StorageError as error:
            if not tolerant:
                raise
            problems.append(f"{pointer_path(name, number)} could not be read: {error}")
            continue
        if revision is None or (revision.name, revision.revision) != (name, number):
            problems.append(f"{pointer_path(name, number)}: it is the record of another revision")
            continue
        return Pointer(revision, last, tuple(problems))
    return Pointer(None, last, tuple(problems))


def revisions(store: Store, name: str = LATEST) -> Iterator[PointerRevision | str]:
    """Yield all revisions of a pointer, oldest first; a damaged one as what is wrong with it."""
    last = newest(lambda number: exists(store, pointer_path(name, number)))
    for number in range(1, last + 1):
        try:
            found = _read(store, pointer_path(name, number), PointerRevision)
        except MalformedData as error:
            yield str(error)
            continue
        yield found if found is not None else f"{pointer_path(name, number)}: it is not there"


def quarantines(store: Store, checkpoint: str) -> Iterator[QuarantineRecord | str]:
    """Yield all quarantine records of a checkpoint, oldest first; a damaged one as what is wrong."""
    last = newest(lambda number: exists(store, join(checkpoint, quarantine_path(number))))
    for number in range(1, last + 1):
        path = join(checkpoint, quarantine_path(number))
        try:
            found = _read(store, path, QuarantineRecord)
        except MalformedData as error:
            yield str(error)
            continue
        yield found if found is not None else f"{path}: it is not there"


def read_seal(
    store: Store,
    checkpoint: str,
    *,
    name: str,
    pointers: Iterable[PointerRevision] = (),
    required: bool = False,
) -> Seal:
    """Read all records of one checkpoint; what is wrong with them is part of the answer."""
    manifest, problem = None, ""
    try:
        manifest = read_manifest(store, checkpoint)
    except MalformedData as error:
        problem = str(error)
    quarantine, quarantine_problem = None, ""
    try:
        quarantine = read_quarantine(store, checkpoint)
    except MalformedData as error:
        quarantine_problem = str(error)
    mine = tuple(one for one in pointers if one.target == checkpoint)
    return Seal(manifest, problem, quarantine, quarantine_problem, mine, name, required)


def exists(store: Store, path: str) -> bool:
    """Tell whether an object is there."""
    try:
        store.stat(path)
    except NotFound:
        return False
    return True


def newest(exists: Callable[[int], bool]) -> int:
    """Find the highest number of a series without gaps that begins at 1, in O(log n) questions."""
    if not exists(1):
        return 0
    low, high = 1, 2
    while exists(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low
