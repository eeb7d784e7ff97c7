"""Object stores that can create an object only if it is absent: S3, Google Cloud Storage, Azure.

The condition is sent with the request (``If-None-Match: *`` on S3). A server may ignore it in
silence, so the first thing every writing command does is to try it out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ckptctl.errors import Conflict, NotFound, OutcomeUnknown, Refused, StorageError
from ckptctl.storage.fsspec import ObjectStore

_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
_ATTEMPTS = 3
_PART = 16 << 20
_SMALLEST_PART = 5 << 20
"""Bytes that S3 asks for in each part but the last."""

_PARTS = 128 << 20
"""Bytes of the parts of all objects that are written at the same time."""

_DENIED_CODES = frozenset({"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"})


class ObjectUpload:
    """An object sent in parts; readers see it once the upload is completed."""

    def __init__(self, system: Any, key: str, url: str, part: int = _PART) -> None:
        """Begin the upload; ``part`` is bytes that are sent at once."""
        self._url = url
        self._file: Any = None

        def begin() -> None:
            self._file = system.open(key, "wb", block_size=part)

        _send(url, begin)

    def write(self, data: bytes | memoryview, /) -> object:
        """Take more bytes, all of them."""
        _send(self._url, self._file.write, data)
        return len(data)

    def finish(self) -> None:
        """Complete the upload."""
        _send(self._url, self._file.close)
        self._file = None

    def abandon(self) -> None:
        """Give the upload up."""
        if self._file is not None:
            with suppress(Exception):  # what was sent never becomes an object
                self._file.discard()
            self._file.closed = True
            self._file = None


class ConditionalStore(ObjectStore):
    """A prefix of an object store, for publishing."""

    def __init__(self, url: str) -> None:
        """Open by URL; raises ``Refused`` for a scheme without conditional creation."""
        scheme = url.partition("://")[0]
        if scheme not in _SCHEMES:
            raise Refused(f"{url}: publishing needs a file system, S3, GCS or Azure, not {scheme}")
        super().__init__(url)
        self._proven = False

    @property
    def renames(self) -> bool:
        """Renaming a prefix is a copy and a delete of every object."""
        return False

    def prove(self) -> None:
        """Create one small object twice; raises ``Refused`` if the second time succeeds too."""
        if self._proven:
            return
        path, first = f"ckptctl.probe/{uuid.uuid4().hex}", uuid.uuid4().hex.encode()
        self.create(path, first)
        try:
            try:
                self.create(path, uuid.uuid4().hex.encode())
            except Conflict:
                self._proven = self._get(path) == first
            if not self._proven:
                raise Refused(
                    f"{self.url}: this server ignores the condition If-None-Match and overwrites, "
                    "so that two commits could both win; nothing was changed"
                )
        finally:
            self.delete(path)

    def create(self, path: str, data: bytes) -> None:
        """Make an object that must not exist yet; a lost answer is settled by reading back."""
        key, url = self._key(path), f"{self.url}/{path}"
        problem: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._system.pipe_file(key, data, mode="create")
            except Exception as error:  # each backend has its own tree of errors
                problem = error
                codes = _codes(error)
                if codes & _DENIED_CODES or isinstance(error, PermissionError):
                    raise Refused(f"{url}: {error}; nothing was changed") from error
                try:
                    found = self._get(path)
                except NotFound:
                    continue  # it is not there: the condition makes another attempt safe
                except StorageError:
                    raise OutcomeUnknown(
                        f"{url}: the answer to its creation never came, and reading it back "
                        f"failed; look at it before trying again ({error})"
                    ) from error
                if found != data:
                    raise Conflict(f"{url} exists already") from error
                return
            else:
                return
        if problem is not None and isinstance(problem, TimeoutError | ConnectionError):
            raise OutcomeUnknown(
                f"{url}: no answer to {_ATTEMPTS} attempts to create it; it is not there now"
            ) from problem
        raise StorageError(f"{url}: {problem}") from problem

    def upload(self, path: str, *, together: int = 1) -> ObjectUpload:
        """Begin a large object; that none is there is asked before and not part of the request."""
        part = max(_SMALLEST_PART, min(_PART, _PARTS // together))
        try:
            self.stat(path)
        except NotFound:
            return ObjectUpload(self._system, self._key(path), f"{self.url}/{path}", part)
        raise Conflict(f"{self.url}/{path} exists already")

    def _get(self, path: str) -> bytes:
        self._system.invalidate_cache()
        with self.open(path) as reader:
            return reader.read(0, reader.size)

    def space(self) -> int | None:
        """Object stores do not fill up."""
        return None

    def put(self, path: str, data: bytes) -> None:
        """Make or replace an object."""
        self._write(path, self._system.pipe_file, self._key(path), data)

    def delete(self, path: str, *, durable: bool = False) -> None:  # noqa: ARG002 - always is
        """Remove an object if it is there."""
        try:
            self._write(path, self._system.rm_file, self._key(path))
        except NotFound:
            return

    def remove_directory(self, path: str) -> None:
        """Nothing to do: prefixes vanish with their last object."""

    def make_durable(self, paths: Iterable[str]) -> None:
        """Nothing to do: an object is durable once its upload has succeeded."""

    def rename_directory(self, old: str, new: str) -> None:
        """Refuse: renaming a prefix is a copy and a delete of every object."""
        raise Refused(
            f"{self.url}: an object store cannot rename {old} to {new} in one step; save under the "
            "final name and let the manifest be the commit"
        )

    def _write(self, path: str, function: Any, *args: Any) -> None:
        _send(f"{self.url}/{path}", function, *args)


def _send(url: str, function: Any, *args: Any) -> None:
    try:
        function(*args)
    except FileNotFoundError as error:
        raise NotFound(f"{url}: not there") from error
    except PermissionError as error:
        raise Refused(f"{url}: {error}; nothing was changed") from error
    except Exception as error:  # each backend has its own tree of errors
        raise StorageError(f"{url}: {str(error) or type(error).__name__}") from error


def _codes(error: BaseException) -> frozenset[str]:
    """Collect the codes that a backend hung on an error or on what caused it."""
    found: set[str] = set()
    current: BaseException | None = error
    for _ in range(5):
        if current is None:
            break
        response = getattr(current, "response", None)
        if isinstance(response, dict):
            details = response.get("Error")
            if isinstance(details, dict):
                found.add(str(details.get("Code")))
            meta = response.get("ResponseMetadata")
            if isinstance(meta, dict):
                found.add(str(meta.get("HTTPStatusCode")))
        for name in ("code", "status", "status_code"):
            value = getattr(current, name, None)
            if isinstance(value, int | str):
                found.add(str(value))
        current = current.__cause__
    return frozenset(found)
