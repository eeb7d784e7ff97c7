"""Object stores and everything else that fsspec reaches, for reading."""

from __future__ import annotations

import posixpath
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

import fsspec

from ckptctl.errors import NotFound, ShortRead, StorageError
from ckptctl.storage.base import Entry, Reader

_VERSIONS = ("ETag", "etag", "VersionId", "generation", "created")
"""What object stores say of the bytes under a name, that another write changes."""
_GONE = (FileNotFoundError, NotADirectoryError, KeyError)


class ObjectReader(Reader):
    """One object, read by ranges; no state is shared between reads."""

    block = 8 << 20  # bytes of one read: enough to make a request's latency small beside it

    def __init__(self, system: Any, key: str, url: str, size: int) -> None:
        """Take an object whose size is known."""
        self._system, self._key, self._url, self._size = system, key, url, size

    @property
    def size(self) -> int:
        """Bytes in the object when it was opened."""
        return self._size

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``."""
        if stop <= start:
            return b""
        try:
            data = _call(self._url, self._system.cat_file, self._key, start=start, end=stop)
        except NotFound:
            raise
        except StorageError as error:
            # a range past the end of an object that shrank is an error of its own in each backend
            if self._shrank(stop):
                raise ShortRead(f"{self._url}: it shrank while it was being read") from error
            raise
        if len(data) != stop - start:
            raise ShortRead(
                f"{self._url}: asked for bytes {start}-{stop}, got {len(data)} of {stop - start}"
            )
        return bytes(data)

    def _shrank(self, stop: int) -> bool:
        self._system.invalidate_cache()
        try:
            info = _call(self._url, self._system.info, self._key)
        except StorageError:
            return False
        return isinstance(info.get("size"), int) and info["size"] < stop

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from ``start`` on."""
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None:
        """Nothing is held open."""


class ObjectStore:
    """A prefix of an fsspec file system."""

    def __init__(self, url: str) -> None:
        """Open by URL; listings are never taken from fsspec's cache."""
        self._url = url.rstrip("/")
        try:
            found: Any = fsspec.url_to_fs(self._url, use_listings_cache=False)  # type: ignore[no-untyped-call]
            self._system, self._root = found
        except ImportError as error:
            raise StorageError(f"{url}: {error}") from error
        except Exception as error:
            raise StorageError(f"{url}: {error or type(error).__name__}") from error
        self._root = self._root.rstrip("/")
        self._quoted = self._url.startswith(("http://", "https://"))

    @property
    def url(self) -> str:
        """The root as the user typed it."""
        return self._url

    def _key(self, path: str) -> str:
        return f"{self._root}/{quote(path) if self._quoted else path}" if path else self._root

    def _relative(self, name: str) -> str:
        name = self._system._strip_protocol(name)  # noqa: SLF001 - fsspec's own way to compare names
        relative = posixpath.relpath(name.rstrip("/"), self._root or "/")
        return unquote(relative) if self._quoted else relative

    def entries(self, path: str = "") -> list[Entry]:
        """Return the direct children of a prefix, in name order."""
        key, url = self._key(path), f"{self._url}/{path}".rstrip("/")
        self._system.invalidate_cache()
        infos = _call(url, self._system.ls, key, detail=True)
        found = {}
        for info in infos:
            relative = self._relative(info["name"])
            if relative in (".", "..", path) or relative.startswith("../"):
                continue  # some stores list the prefix itself
            if info.get("size") is None and info.get("type") == "file":
                info = _call(url, self._system.info, info["name"])  # HTTP listings have no sizes
            found[relative] = _entry(relative, info)
        return [found[name] for name in sorted(found)]

    def stat(self, path: str = "") -> Entry:
        """Describe one object or prefix."""
        self._system.invalidate_cache()
        info = _call(f"{self._url}/{path}".rstrip("/"), self._system.info, self._key(path))
        return _entry(path, info)

    def open(self, path: str) -> ObjectReader:
        """Open one object for exact reads."""
        entry = self.stat(path)
        url = f"{self._url}/{path}".rstrip("/")
        if entry.kind != "file":
            raise StorageError(f"{url} is not an object")
        return ObjectReader(self._system, self._key(path), url, entry.size)


def _entry(path: str, info: dict[str, Any]) -> Entry:
    kind = {"file": "file", "directory": "directory"}.get(info.get("type", "file"), "other")
    when = next(
        (info[k] for k in ("mtime", "LastModified", "updated", "last_modified") if info.get(k)),
        None,
    )
    if isinstance(when, datetime):
        when = when.timestamp()
    modified = float(when) if isinstance(when, int | float) else None
    told = [str(info[key]) for key in _VERSIONS if info.get(key)]
    return Entry(path, kind, int(info.get("size") or 0), modified, version=":".join(told))


def _call(url: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except _GONE as error:
        raise NotFound(f"{url}: not there") from error
    except Exception as error:  # each backend has its own tree of errors
        text = str(error) or type(error).__name__
        raise StorageError(f"{url}: {text}") from error
