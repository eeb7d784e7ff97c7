"""Local and mounted file systems."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from ckptctl.errors import NotFound, ShortRead, StorageError
from ckptctl.storage.base import Entry


class PosixReader:
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

    def __enter__(self) -> PosixReader:
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


class PosixStore:
    """A directory of a local or mounted file system."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Name the root; it need not exist yet."""
        self._text = os.fspath(root)
        self._root = Path(self._text)

    @property
    def url(self) -> str:
        """The root as the user typed it."""
        return self._text

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


def _entry(path: str, status: os.stat_result, target: str | None) -> Entry:
    mode = status.st_mode
    kind = "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
    return Entry(path, kind, status.st_size, status.st_mtime, target)


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
