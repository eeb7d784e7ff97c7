"""The contract of every store: fresh listings and exact reads below one root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol

from ckptctl.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a listing; ``path`` is relative to the store's root, with ``/`` between parts.

    ``kind`` is ``file``, ``directory`` or ``other`` (sockets, devices, dangling links). A link is
    described as what it points to; ``target`` keeps the link's own text. ``modified`` is in
    seconds since the epoch, None where the store does not tell; ``changed`` is when the file system
    last changed anything about it, which no program can set back. ``identity`` is equal for two
    names of one file, None where it has only this one. ``version`` differs where the bytes were
    replaced or written to, as far as the store tells; it is empty where it tells nothing.
    """

    path: str
    kind: str
    size: int = 0
    modified: float | None = None
    target: str | None = None
    changed: float | None = None
    identity: tuple[int, int] | None = None
    version: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Reader(Protocol):
    """One open object; reads are exact and may come from several threads at once."""

    @property
    def size(self) -> int:
        """Bytes in the object when it was opened."""

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``, or raise ``ShortRead``."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from ``start`` on, or raise ``ShortRead``."""

    def close(self) -> None:
        """Let go of the object."""

    def __enter__(self) -> Reader:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


class Store(Protocol):
    """A tree of named bytes below one root.

    Paths are relative to the root, use ``/`` and never leave it. Every listing is fresh: nothing
    is remembered between calls. Failures are ``NotFound`` or another ``StorageError``.
    """

    @property
    def url(self) -> str:
        """The root as a user would type it."""

    def entries(self, path: str = "") -> list[Entry]:
        """Return the direct children of a directory, in name order."""

    def stat(self, path: str = "") -> Entry:
        """Describe one object, or raise ``NotFound``."""

    def open(self, path: str) -> Reader:
        """Open one object for exact reads, or raise ``NotFound``."""


def open_listed(store: Store, path: str, size: int | None, *, ahead: bool = True) -> Reader:
    """Open an object that a listing showed with this size, without asking for it where that costs.

    A store that has ``open_listed`` takes the size from here, and tells whoever reads to the end
    where it has changed; all others are asked as ever. Raises ``NotFound`` at once or at the first
    read. Without ``ahead`` only single places of it will be read.
    """
    opener = getattr(store, "open_listed", None) if size is not None else None
    reader: Reader = store.open(path) if opener is None else opener(path, size, ahead=ahead)
    return reader


class Upload(Protocol):
    """One object being written piece by piece; it is there once ``finish`` has returned."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take more bytes, all of them."""

    def finish(self) -> None:
        """Make the object appear, its content durable; ``Conflict`` if the name is taken by now."""

    def abandon(self) -> None:
        """Forget what was written; does nothing after ``finish``."""


class WritableStore(Store, Protocol):
    """A store that can publish: everything it writes appears whole or not at all."""

    @property
    def renames(self) -> bool:
        """True if a name can be changed in one step."""

    def upload(self, path: str, *, together: int = 1) -> Upload:
        """Begin a large object that must not exist yet; ``Conflict`` where it does.

        ``together`` is how many are written at the same time: their buffers share the memory.
        """

    def prove(self) -> None:
        """Raise ``Refused`` unless ``create`` is known to be exclusive and writing is allowed."""

    def create(self, path: str, data: bytes) -> None:
        """Make an object that must not exist yet, durable before this returns.

        Raises ``Conflict`` if it exists with other content, ``OutcomeUnknown`` if it may or may
        not have been made, ``StorageError`` or ``Refused`` if it certainly was not.
        """

    def space(self) -> int | None:
        """Bytes that new objects may take, None where the store does not tell."""

    def put(self, path: str, data: bytes) -> None:
        """Make or replace an object; readers see the old one or the new one."""

    def delete(self, path: str, *, durable: bool = False) -> None:
        """Remove an object if it is there; with ``durable`` it stays removed after a crash."""

    def remove_directory(self, path: str) -> None:
        """Remove a directory if it is empty."""

    def make_durable(self, paths: Iterable[str]) -> None:
        """Make objects that others wrote survive a crash, with the directories they are in."""

    def rename_directory(self, old: str, new: str) -> None:
        """Rename a directory or a file in one step, durably; raises ``Refused`` where it cannot."""


def below(store: Store, path: str) -> list[Entry] | None:
    """List all objects below a prefix by one listing, where a store has one; else None.

    Such a store has no links, and no directories but in names.
    """
    listing = getattr(store, "below", None)
    found: list[Entry] | None = None if listing is None else listing(path)
    return found


def walk(store: Store, path: str = "", *, depth: int = 8) -> Iterator[Entry]:
    """Yield everything below ``path`` that is not a directory, down to ``depth`` levels."""
    for entry in store.entries(path):
        if entry.kind == "directory" and depth > 0:
            yield from walk(store, entry.path, depth=depth - 1)
        elif entry.kind != "directory":
            yield entry
