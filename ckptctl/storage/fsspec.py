"""Object stores and everything else that fsspec reaches, for reading."""

from __future__ import annotations

import posixpath
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

import fsspec

from ckptctl.errors import NotFound, ShortRead, StorageError
from ckptctl.storage.base import Entry, Reader
from ckptctl.storage.traffic import BLOCK, LONG, TASKS
from ckptctl.storage.windows import FIRST, Shelf, Windows

_VERSIONS = ("ETag", "etag", "VersionId", "generation", "created")
"""What object stores say of the bytes under a name, that another write changes."""
_GONE = (FileNotFoundError, NotADirectoryError, KeyError)


class ObjectReader(Reader):
    """One object, read by ranges through windows; a range of their size is read exactly."""

    block = BLOCK  # bytes of one read: enough to make a request's latency small beside it

    def __init__(
        self, system: Any, key: str, url: str, size: int, windows: Windows, *, ahead: bool = True
    ) -> None:
        """Take an object whose size is known; whoever reads its end is told if that is wrong."""
        self._system, self._key, self._url, self._size = system, key, url, size
        self._windows, self._shelf = windows, Shelf(size, ahead=ahead)

    @property
    def size(self) -> int:
        """Bytes in the object when it was opened, or listed."""
        return self._size

    def keep(self, data: bytes) -> None:
        """Take the first bytes of the object, which are there already."""
        self._windows.keep(self._shelf, data)

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``."""
        if stop <= start:
            return b""
        if stop > self._size:
            raise ShortRead(
                f"{self._url}: asked for bytes {start}-{stop} of {self._size}: it is too short"
            )
        if stop - start >= LONG:
            return self._fetch(start, stop)
        return self._windows.read(self._shelf, start, stop, self._fetch)

    def _fetch(self, start: int, stop: int) -> bytes:
        """Fetch bytes by one request, at the end one more than there should be: it may have grown."""
        most = stop + (stop == self._size)
        try:
            data = _call(self._url, self._system.cat_file, self._key, start=start, end=most)
        except NotFound:
            raise
        except StorageError as error:
            # a range past the end of an object that shrank is an error of its own in each backend
            if self._shrank(stop):
                raise ShortRead(f"{self._url}: it shrank while it was being read") from error
            raise
        if len(data) > stop - start:
            raise StorageError(
                f"{self._url}: it had {self._size} bytes and has more now: somebody is writing to it"
            )
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
        stop = start + len(buffer)
        if LONG <= len(buffer) < BLOCK and stop <= self._size:  # whoever has such a buffer goes on
            buffer[:] = self._windows.read(self._shelf, start, stop, self._fetch)
        else:
            buffer[:] = self.read(start, stop)

    def close(self) -> None:
        """Let go of what was kept."""
        self._windows.close(self._shelf)


class ObjectStore:
    """A prefix of an fsspec file system."""

    def __init__(self, url: str) -> None:
        """Open by URL; listings are never taken from fsspec's cache."""
        self._url = url.rstrip("/")
        try:
            options = {"use_listings_cache": False, **_connections(self._url)}
            found: Any = fsspec.url_to_fs(self._url, **options)  # type: ignore[no-untyped-call]
            self._system, self._root = found
        except ImportError as error:
            raise StorageError(f"{url}: {error}") from error
        except Exception as error:
            raise StorageError(f"{url}: {error or type(error).__name__}") from error
        self._root = self._root.rstrip("/")
        self._windows = Windows()
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

    def below(self, path: str = "") -> list[Entry] | None:
        """Return all objects below a prefix, in name order, by one listing; directories are left out.

        None where there is no such listing: web pages tell no sizes.
        """
        if self._quoted:
            return None
        key, url = self._key(path), f"{self._url}/{path}".rstrip("/")
        self._system.invalidate_cache()
        infos = _call(url, self._system.find, key, detail=True)
        found = {}
        for name, info in infos.items():
            relative = self._relative(name)
            inside = not relative.startswith("../") and not str(name).endswith("/")
            if info.get("type") == "file" and inside:
                if info.get("size") is None:
                    info = _call(url, self._system.info, name)
                found[relative] = _entry(relative, info)
        return [found[name] for name in sorted(found, key=lambda one: one.split("/"))]

    def stat(self, path: str = "") -> Entry:
        """Describe one object or prefix."""
        self._system.invalidate_cache()
        info = _call(f"{self._url}/{path}".rstrip("/"), self._system.info, self._key(path))
        return _entry(path, info)

    def open(self, path: str) -> ObjectReader:
        """Open one object for exact reads; a small one is fetched by this and by no other request."""
        url = f"{self._url}/{path}".rstrip("/")
        try:
            data = _call(url, self._system.cat_file, self._key(path), start=0, end=FIRST)
        except NotFound:
            if _call(url, self._system.isdir, self._key(path)):
                raise StorageError(f"{url} is not an object") from None
            raise
        except StorageError:  # an empty object has no range, or there is no answer
            data = None
        if data is None or len(data) >= FIRST or not path:
            size = self._size_of(path, url)
        else:
            size = len(data)
        reader = ObjectReader(self._system, self._key(path), url, size, self._windows)
        if data and len(data) <= min(size, FIRST):
            reader.keep(bytes(data))
        return reader

    def open_listed(self, path: str, size: int, *, ahead: bool = True) -> ObjectReader:
        """Open an object that a listing showed with this size; nothing is asked before it is read.

        Whoever reads to its end is told where it has another size by then: ``ShortRead`` or
        ``StorageError``.
        """
        url = f"{self._url}/{path}".rstrip("/")
        if size <= 0:  # nothing would ever be read of it
            size = self._size_of(path, url)
        return ObjectReader(self._system, self._key(path), url, size, self._windows, ahead=ahead)

    def _size_of(self, path: str, url: str) -> int:
        entry = self.stat(path)
        if entry.kind != "file":
            raise StorageError(f"{url} is not an object")
        return entry.size


def _connections(url: str) -> dict[str, Any]:
    """Let a client open a connection for each task; S3's opens ten unless told otherwise."""
    if not url.startswith(("s3://", "s3a://")):
        return {}
    told: dict[str, Any] = {"max_pool_connections": TASKS}
    for name in ("s3", "s3a"):  # what is given here would hide what the user has configured
        told |= fsspec.config.conf.get(name, {}).get("config_kwargs", {})
    return {"config_kwargs": told}


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
