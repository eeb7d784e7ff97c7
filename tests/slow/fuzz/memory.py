"""A store that lies in memory: a mapping of paths to bytes."""

from __future__ import annotations

from collections.abc import Mapping

from ckptctl.errors import NotFound, ShortRead
from ckptctl.storage import Entry, Reader


class Bytes:
    """Bytes, open for exact reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, stop: int) -> bytes:
        if not 0 <= start <= stop <= self.size:
            raise ShortRead(f"bytes {start} to {stop} of {self.size}")
        return self._data[start:stop]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Bytes:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""


class MemoryStore:
    """A tree of files that nobody else sees; ``modified`` is when all of them were written."""

    url = "/memory/run"
    modified = 1_700_000_000.0

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self._folders: dict[str, set[str]] = {"": set()}
        for path in self.files:
            while path:
                folder, _, name = path.rpartition("/")
                self._folders.setdefault(folder, set()).add(name)
                path = folder

    def entries(self, path: str = "") -> list[Entry]:
        if path not in self._folders:
            raise NotFound(f"{path}: no such directory")
        prefix = f"{path}/" if path else ""
        return [self.stat(prefix + name) for name in sorted(self._folders[path])]

    def stat(self, path: str = "") -> Entry:
        if path in self.files:
            return Entry(path, "file", len(self.files[path]), self.modified, changed=self.modified)
        if path in self._folders:
            return Entry(path, "directory", 0, self.modified, changed=self.modified)
        raise NotFound(f"{path}: no such file")

    def open(self, path: str) -> Reader:
        if path not in self.files:
            raise NotFound(f"{path}: no such file")
        return Bytes(self.files[path])
