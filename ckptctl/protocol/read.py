"""Reading records: a manifest by its exact name, a series by listing its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.manifest import (
    LATEST,
    MANIFEST,
    POINTERS,
    QUARANTINE,
    Manifest,
    PointerRevision,
    QuarantineRecord,
    Receipt,
    RecordType,
)
from ckptctl.model.paths import join
from ckptctl.model.seal import Seal
from ckptctl.protocol.amendments import amended
from ckptctl.protocol.series import Series, all_of, read_record, read_series
from ckptctl.sharding.record import CONVERTED, ConvertedRecord
from ckptctl.storage import Store
from ckptctl.storage.traffic import both


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a pointer says: ``revision`` is its newest whole record, ``last`` the highest number.

    Where there are ``problems`` the two differ and ``revision`` is older than what was decided
    last: nobody may act on it in silence. ``copy`` is what the copy of the last record says.
    ``failed`` means that it was the storage that did not answer.
    """

    revision: PointerRevision | None = None
    last: int = 0
    problems: tuple[str, ...] = ()
    copy: PointerRevision | None = None
    failed: bool = False

    @property
    def decided(self) -> PointerRevision | None:
        """The revision that counts; None where there is none, or where the newest is not known."""
        return None if self.problems else self.revision


def read_manifest(store: Store, checkpoint: str) -> Manifest | None:
    """Read a checkpoint's manifest as its amendments have it, or None where it is not committed.

    Raises ``MalformedData`` for a manifest, or a newest amendment, that is torn, altered or of
    another version.
    """
    found = read_sealed(store, checkpoint)
    return None if found is None else amended(store, checkpoint, found)


def read_sealed(store: Store, checkpoint: str) -> Manifest | None:
    """Read a checkpoint's manifest as it was sealed, whatever was amended since."""
    return read_record(store, join(checkpoint, MANIFEST), Manifest)


def read_converted(store: Store, checkpoint: str) -> ConvertedRecord | None:
    """Read what ``convert`` left beside what it wrote, or None where it wrote nothing there."""
    return read_record(store, join(checkpoint, CONVERTED), ConvertedRecord)


def read_receipts(store: Store, checkpoint: str, paths: Iterable[str]) -> list[Receipt]:
    """Read the receipts that lie at these paths of a checkpoint."""
    found = (read_record(store, join(checkpoint, path), Receipt) for path in sorted(paths))
    return [receipt for receipt in found if receipt is not None]


def read_quarantine(store: Store, checkpoint: str) -> QuarantineRecord | None:
    """Read the newest quarantine record of a checkpoint, or None where it never had one.

    Raises ``MalformedData`` where the newest is damaged, has another name or is gone, and
    ``StorageError`` where it could not be read: then the checkpoint may be quarantined.
    """
    found = quarantine_series(store, checkpoint)
    if found.problems:
        raise (StorageError if found.failed else MalformedData)(found.problems[0])
    return found.newest


def quarantine_series(store: Store, checkpoint: str) -> Series[QuarantineRecord]:
    """Read what a checkpoint's quarantine records say, with the highest number that is taken."""
    return read_series(store, join(checkpoint, QUARANTINE), QuarantineRecord, _numbered)


def read_pointer(store: Store, name: str = LATEST, *, base: str = "") -> Pointer:
    """Read what a pointer says; a newest revision that cannot be used is among its problems.

    ``base`` is the directory that its targets are relative to. Raises ``StorageError`` where its revisions cannot be listed.
    """
    found = read_series(store, join(base, f"{POINTERS}/{name}"), PointerRevision, _of(name))
    return Pointer(found.newest, found.last, found.problems, found.copy, found.failed)


def revisions(store: Store, name: str = LATEST) -> Iterator[PointerRevision | str]:
    """Yield all revisions of a pointer, oldest first; a damaged one as what is wrong with it."""
    return all_of(store, f"{POINTERS}/{name}", PointerRevision, _of(name))


def quarantines(store: Store, checkpoint: str) -> Iterator[QuarantineRecord | str]:
    """Yield all quarantine records of a checkpoint, oldest first; a damaged one as what is wrong."""
    return all_of(store, join(checkpoint, QUARANTINE), QuarantineRecord, _numbered)


def _of(name: str) -> Callable[[PointerRevision, int], bool]:
    return lambda found, number: (found.name, found.revision) == (name, number)


def _numbered(found: QuarantineRecord, number: int) -> bool:
    return found.revision == number


def _or_problem(
    read: Callable[[Store, str], RecordType | None], store: Store, checkpoint: str
) -> tuple[RecordType | None, str]:
    """Read a record, or say what is wrong with it."""
    try:
        return read(store, checkpoint), ""
    except MalformedData as error:
        return None, str(error)


def read_seal(
    store: Store,
    checkpoint: str,
    *,
    name: str,
    pointers: Iterable[PointerRevision] = (),
    required: bool = False,
) -> Seal:
    """Read all records of one checkpoint; what is wrong with them is part of the answer."""
    sealed, marked = both(
        store,
        lambda: _or_problem(read_manifest, store, checkpoint),
        lambda: _or_problem(read_quarantine, store, checkpoint),
    )
    (manifest, problem), (quarantine, quarantine_problem) = sealed, marked
    mine = tuple(one for one in pointers if one.target == checkpoint)
    return Seal(manifest, problem, quarantine, quarantine_problem, mine, name, required)
