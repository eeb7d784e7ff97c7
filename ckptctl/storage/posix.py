"""Local and mounted file systems."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckptctl.errors import (
    Conflict,
    NotFound,
    OutcomeUnknown,
    Refused,
    ShortRead,
    StorageError,
)
from ckptctl.storage.base import Entry, Reader
from ckptctl.storage.system import RealSystem, System


class PosixReader(Reader):
    """An open file, read with ``pread`` so that threads can share it."""

    def __init__(self, path: Path) -> None:
        """Open without following anything but a regular file or a link to one."""
        self._path = path
        with _translated(path):
            # O_NONBLOCK: opening a pipe that somebody left in a checkpoint must not hang
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{path} is not a regular file")
        except BaseException:
            os.close(self._fd)
            raise
        self._size = status.st_size

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened."""
        return self._size

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``."""
        with _translated(self._path):
            data = os.pread(self._fd, stop - start, start)
        if len(data) == stop - start:
            return data
        buffer = bytearray(stop - start)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from ``start`` on."""
        done = 0
        while done < len(buffer):
            with _translated(self._path):
                count = os.preadv(self._fd, [buffer[done:]], start + done)
            if count == 0:
                raise ShortRead(
                    f"{self._path} ended at byte {start + done} while {len(buffer) - done} more "
                    "bytes were expected: it shrank while it was being read"
                )
            done += count

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_WRITE_BACK = 16 << 20
"""Bytes of an upload after which they are sent on their way to the disk."""


class PosixUpload:
    """A file written under a temporary name, which gets its own when it is whole and durable."""

    def __init__(self, final: Path, system: System) -> None:
        """Make the temporary file."""
        self._final, self._system = final, system
        self._aside = final.parent / f".ckptctl-{os.urandom(16).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self._aside, flags, 0o666)
        self._written = self._sent = 0

    def write(self, data: bytes | memoryview, /) -> object:
        """Take more bytes, all of them."""
        view = memoryview(data)
        size = len(view)
        with _writing(self._final):
            while view:
                view = view[os.write(self._fd, view) :]
        self._written += size
        if self._written - self._sent >= _WRITE_BACK:
            self._send()
        return size

    def _send(self) -> None:
        """Have what was written go to the disk while more is prepared, so that syncing is short."""
        if hasattr(os, "posix_fadvise"):  # Linux begins to write back at this advice, and goes on
            with suppress(OSError):
                length = self._written - self._sent
                os.posix_fadvise(self._fd, self._sent, length, os.POSIX_FADV_DONTNEED)
        self._sent = self._written

    def finish(self) -> None:
        """Make the content durable and give the file its name; that is not durable yet."""
        with _writing(self._final):
            os.close(self._fd)
            self._fd = -1
            self._system.sync_file(self._aside)
            if os.path.lexists(self._final):
                raise Conflict(f"{self._final} exists already")
            self._system.rename(self._aside, self._final)

    def abandon(self) -> None:
        """Remove the temporary file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(OSError):
            self._system.unlink(self._aside)


class PosixStore:
    """A directory of a local or mounted file system."""

    def __init__(self, root: str | os.PathLike[str], *, system: System | None = None) -> None:
        """Name the root; it need not exist yet. ``system`` is for tests."""
        self._text = os.fspath(root)
        self._root = Path(self._text)
        self._system = system or RealSystem()

    @property
    def url(self) -> str:
        """The root as the user typed it."""
        return self._text

    @property
    def renames(self) -> bool:
        """A file system renames in one step."""
        return True

    def entries(self, path: str = "") -> list[Entry]:
        """Return the direct children of a directory, in name order."""
        place = self._root / path if path else self._root
        prefix = f"{path}/" if path else ""
        found = []
        with _translated(place), os.scandir(place) as scan:
            for item in scan:
                target = None
                if item.is_symlink():
                    with suppress(OSError):
                        target = os.readlink(item.path)  # noqa: PTH115 - text as it stands
                try:
                    status = item.stat()
                except FileNotFoundError:
                    if target is not None:
                        found.append(Entry(prefix + item.name, "other", target=target))
                    continue  # otherwise it vanished while we looked: as if it had never been
                except OSError:
                    found.append(Entry(prefix + item.name, "other", target=target))
                    continue
                found.append(_entry(prefix + item.name, status, target))
        found.sort(key=lambda entry: entry.path)
        return found

    def stat(self, path: str = "") -> Entry:
        """Describe one object."""
        place = self._root / path if path else self._root
        with _translated(place):
            status = place.stat()
        target = os.readlink(place) if place.is_symlink() else None  # noqa: PTH115
        return _entry(path, status, target)

    def open(self, path: str) -> PosixReader:
        """Open one file for exact reads."""
        return PosixReader(self._root / path if path else self._root)

    def prove(self) -> None:
        """Raise ``Refused`` unless files can be made and linked here, or nearest above; make no directory."""
        place = self._nearest() / f".ckptctl-{os.urandom(16).hex()}.probe"
        try:
            PosixStore(place.parent, system=self._system).create(place.name, b"")
        finally:
            with suppress(OSError):
                self._system.unlink(place)

    def _nearest(self) -> Path:
        """Return the root, or what is nearest above it and there."""
        place = Path(os.path.abspath(self._root))  # noqa: PTH100 - links stay as they are
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        return place

    def create(self, path: str, data: bytes) -> None:
        """Make a file that must not exist yet: written aside, made durable, then linked."""
        final = self._root / path
        with _writing(final):
            self._make_parents(final.parent)
            aside = self._write_aside(final, data)
        try:
            with _writing(final):
                self._link(aside, final)
        finally:
            with suppress(OSError):
                self._system.unlink(aside)
        try:
            for directory in self._directories(final):
                self._system.sync_directory(directory)
        except OSError as error:
            raise OutcomeUnknown(
                f"{final} was made, but making its name durable failed: {error.strerror or error}"
            ) from error

    def upload(self, path: str, *, together: int = 1) -> PosixUpload:  # noqa: ARG002 - no buffer
        """Begin a large file that must not exist yet."""
        final = self._root / path
        if os.path.lexists(final):
            raise Conflict(f"{final} exists already")
        with _writing(final):
            self._make_parents(final.parent)
            return PosixUpload(final, self._system)

    def space(self) -> int | None:
        """Bytes that are free on the file system, for users other than root."""
        place = self._nearest()
        with _translated(place):
            status = os.statvfs(place)
        return status.f_bavail * status.f_frsize

    def put(self, path: str, data: bytes) -> None:
        """Make or replace a file: written aside, made durable, then renamed over the old one."""
        final = self._root / path
        with _writing(final):
            self._make_parents(final.parent)
            aside = self._write_aside(final, data)
            try:
                self._system.rename(aside, final)
            except OSError:
                self._system.unlink(aside)
                raise
            self._system.sync_directory(final.parent)

    def delete(self, path: str, *, durable: bool = False) -> None:
        """Remove a file if it is there."""
        place = self._root / path
        with _writing(place):
            try:
                self._system.unlink(place)
            except FileNotFoundError:
                return
            if durable:
                self._system.sync_directory(place.parent)

    def remove_directory(self, path: str) -> None:
        """Remove a directory if it is empty."""
        with suppress(OSError):
            self._system.remove_directory(self._root / path)

    def make_durable(self, paths: Iterable[str]) -> None:
        """Make files that others wrote survive a crash, with the directories they are in."""
        directories: dict[Path, None] = {}
        for path in paths:
            place = self._root / path
            with _writing(place):
                self._system.sync_file(place)
            while place != self._root and place.parent not in directories:
                place = place.parent
                directories[place] = None
        for directory in directories:
            with _writing(directory):
                self._system.sync_directory(directory)
        with suppress(OSError):
            self._system.sync_directory(self._root.parent)

    def rename_directory(self, old: str, new: str) -> None:
        """Rename a directory or a file in one step; ``Conflict`` if the new name is taken."""
        source, target = self._root / old, self._root / new
        if os.path.lexists(target):
            raise Conflict(f"{target} exists already; nothing was changed")
        with _writing(target):
            self._system.rename(source, target)
        try:
            self._system.sync_directory(target.parent)
            if source.parent != target.parent:
                self._system.sync_directory(source.parent)
        except OSError as error:
            raise OutcomeUnknown(
                f"{source} was renamed, but making that durable failed: {error.strerror or error}"
            ) from error

    def _directories(self, place: Path) -> Iterator[Path]:
        """Yield the directories from the one that holds a file up to the root."""
        while place != self._root:
            place = place.parent
            yield place

    def _make_parents(self, directory: Path) -> None:
        missing = []
        while not directory.is_dir() and directory != directory.parent:
            missing.append(directory)
            directory = directory.parent
        for place in reversed(missing):
            with suppress(FileExistsError):
                self._system.make_directory(place)
            self._system.sync_directory(place.parent)

    def _write_aside(self, final: Path, data: bytes) -> Path:
        aside = final.parent / f".ckptctl-{os.urandom(16).hex()}.tmp"
        try:
            self._system.write(aside, data)
            self._system.sync_file(aside)
        except OSError:
            with suppress(OSError):
                self._system.unlink(aside)
            raise
        return aside

    def _link(self, aside: Path, final: Path) -> None:
        try:
            self._system.link(aside, final)
        except FileExistsError:
            # over NFS the answer to our own success can get lost and the retry find our link
            if not (final.exists() and final.samefile(aside)):
                raise Conflict(f"{final} exists already") from None
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise Refused(
                    f"{final.parent} is on a file system without hard links, so that exclusive "
                    "creation cannot be had there; nothing was changed"
                ) from error
            try:
                mine = final.samefile(aside)
            except FileNotFoundError:
                mine = False
            except OSError:
                raise OutcomeUnknown(f"{final}: may or may not have been made: {error}") from error
            if not mine:
                raise


def _entry(path: str, status: os.stat_result, target: str | None) -> Entry:
    mode = status.st_mode
    kind = "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
    linked = kind == "file" and status.st_nlink > 1
    identity = (status.st_dev, status.st_ino) if linked else None
    version = f"{status.st_dev:x}:{status.st_ino:x}:{status.st_size}:{status.st_mtime_ns}"
    changed = _changed_at(status)
    return Entry(path, kind, status.st_size, status.st_mtime, target, changed, identity, version)


def _changed_at(status: os.stat_result) -> float:
    return status.st_ctime


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL byte in a name
        raise NotFound(f"{path}: {error}") from error


_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell a place where writing is not allowed from a storage that failed."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise Refused(f"{path}: {reason}; nothing was changed") from error
        raise StorageError(f"{path}: {reason}") from error
