"""A series of numbered records: one folder, listed once; its newest record decides, and no other.

Old records may have been cleaned away, and other files may lie in the folder. What must never
happen is that an older decision wins because the newest cannot be read, has another name or is
gone. So every name counts that may be of a record, and each record has a copy beside it.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from typing import Generic

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData, NotFound, StorageError
from ckptctl.model.belonging import deleted
from ckptctl.model.manifest import MAX_RECORD, RecordType, decode
from ckptctl.pattern import pattern
from ckptctl.storage import Store

_OWN = pattern(r"(\d{8,17})\.(json|copy)")
_ODD = pattern(r"(?<!\d)\d{8,17}(?!\d)|^\d{1,17}(?=\D)")
_ASIDE = ".ckptctl-"
"""How the names begin under which a store writes before a record gets its own."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The names in the folder of a series: numbers of records, of copies, and of odd names."""

    folder: str
    records: tuple[int, ...] = ()
    copies: frozenset[int] = frozenset()
    odd: tuple[tuple[int, str], ...] = ()
    problem: str = ""

    @property
    def last(self) -> int:
        """The highest number in any name; the next record is one above it."""
        numbers = (*self.records, *self.copies, *(number for number, _ in self.odd))
        return max(numbers, default=0)

    def record(self, number: int) -> str:
        """Where a record lies."""
        return f"{self.folder}/{number:08d}.json"

    def copy(self, number: int) -> str:
        """Where the copy of a record lies."""
        return copy_path(self.record(number))


@dataclass(frozen=True, slots=True)
class Series(Generic[RecordType]):
    """What a series says: ``newest`` is its newest whole record, ``last`` the highest number seen.

    ``problems`` say what is wrong with what is newer than ``newest``; ``copy`` is what the copy of
    the last record says. ``failed`` means that it was the storage that did not answer.
    """

    newest: RecordType | None = None
    last: int = 0
    problems: tuple[str, ...] = ()
    copy: RecordType | None = None
    failed: bool = False


def copy_path(record: str) -> str:
    """Where the copy of a record lies."""
    return f"{record.removesuffix('.json')}.copy"


def listed(store: Store, folder: str) -> Listed:
    """List the names of a series; what lies there besides is left out.

    Raises ``StorageError`` where the folder cannot be listed.
    """
    try:
        entries = store.entries(folder)
    except NotFound:
        return Listed(folder, problem=_no_folder(store, folder))
    records, copies, odd = [], set[int](), []
    for entry in entries:
        match = _OWN.fullmatch(entry.name)
        number = int(match[1]) if match else 0
        if match and number and entry.name == f"{number:08d}.{match[2]}":
            if match[2] == "json":
                records.append(number)
            else:
                copies.add(number)
        elif entry.name.startswith(_ASIDE) or deleted(entry.name):
            continue
        elif found := _ODD.search(entry.name):
            odd.append((int(found[0]), entry.name))
    return Listed(folder, tuple(sorted(records)), frozenset(copies), tuple(odd))


def _no_folder(store: Store, folder: str) -> str:
    """Say what stands where the folder should be; empty where there is nothing."""
    if "://" in store.url:
        return ""
    for path in (folder.rpartition("/")[0], folder):
        if not path.rpartition("/")[2].startswith("ckptctl.") and path != folder:
            continue
        if os.path.islink(posixpath.join(store.url, path)):  # noqa: PTH114 - of a store's path
            return f"{path} is a link that leads nowhere"
        try:
            if store.stat(path).kind != "directory":
                return f"{path} is no folder of records"
        except NotFound:
            return ""
    return ""


def read_series(
    store: Store, folder: str, kind: type[RecordType], fits: Callable[[RecordType, int], bool]
) -> Series[RecordType]:
    """Read the newest record of a series and say what is wrong with what is newer.

    ``fits`` tells whether a record is the one of its number. Raises ``StorageError`` only where
    the folder cannot be listed; a record that cannot be read is a problem.
    """
    names = listed(store, folder)
    if names.last > max(names.records, default=0):
        names = listed(store, folder)  # a record that is made while a directory is listed
    if names.problem:
        return Series(problems=(names.problem,))
    problems: list[str] = []
    newest: RecordType | None = None
    failed = False
    for number in reversed(names.records):
        try:
            newest = read_one(store, names.record(number), kind, number, fits)
            break
        except MalformedData as error:
            problems.append(str(error))
        except StorageError as error:
            problems.append(f"{names.record(number)} could not be read: {error}")
            failed = True
    top = max(names.records, default=0)
    for number, name in names.odd:
        if number > top:
            problems.append(f"{folder}/{name} may be a newer record under another name")
    gone = max(names.copies, default=0)
    if gone > top:
        problems.append(f"{names.record(gone)} is not there, and its copy is")
    copy = None
    if problems and names.last in names.copies:
        try:
            copy = read_one(store, names.copy(names.last), kind, names.last, fits)
        except (MalformedData, StorageError):
            copy = None
    return Series(newest, names.last, tuple(problems), copy, failed)


def all_of(
    store: Store, folder: str, kind: type[RecordType], fits: Callable[[RecordType, int], bool]
) -> Iterator[RecordType | str]:
    """Yield all records of a series, oldest first; a damaged or missing one as what is wrong."""
    names = listed(store, folder)
    if names.problem:
        yield names.problem
    for number in names.records:
        try:
            yield read_one(store, names.record(number), kind, number, fits)
        except MalformedData as error:
            yield str(error)
    top = max(names.records, default=0)
    for number in sorted(names.copies):
        if number > top:
            yield f"{names.record(number)}: it is not there, and its copy is"
    for number, name in names.odd:
        if number > top:
            yield f"{folder}/{name}: it may be a newer record under another name"


def read_one(
    store: Store,
    path: str,
    kind: type[RecordType],
    number: int,
    fits: Callable[[RecordType, int], bool],
) -> RecordType:
    """Read the record of a number; ``MalformedData`` names the file where it is no such record."""
    record = read_record(store, path, kind)
    if record is None:
        raise MalformedData(f"{path}: it is not there")
    if not fits(record, number):
        raise MalformedData(f"{path}: it is the record of another revision")
    return record


def read_record(store: Store, path: str, kind: type[RecordType]) -> RecordType | None:
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
