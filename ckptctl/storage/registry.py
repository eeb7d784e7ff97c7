"""From what a user types to a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckptctl.pattern import pattern
from ckptctl.storage.posix import PosixStore

if TYPE_CHECKING:
    from ckptctl.storage.base import Store, WritableStore

_URL = pattern(r"^([A-Za-z][A-Za-z0-9+.-]*)://|^[A-Za-z][A-Za-z0-9+.-]*::")


def open_store(location: str | os.PathLike[str]) -> Store:
    """Open a path or URL for reading; nothing is contacted that the scheme does not need.

    Plain paths and ``file://`` are the POSIX store; every other scheme goes through fsspec, which
    is imported only then.
    """
    text = os.fspath(location)
    match = _URL.match(text) if ":" in text else None
    if match is None:
        return PosixStore(text)
    if match[1] in ("file", "local"):
        return PosixStore(text[match.end() :])
    from ckptctl.storage.fsspec import ObjectStore

    return ObjectStore(text)


def open_writable(location: str | os.PathLike[str]) -> WritableStore:
    """Open a path or URL for publishing; raises ``Refused`` where the store cannot do it safely.

    That it really can is proven by ``prove``, which every writing command calls first.
    """
    store = open_store(location)
    if isinstance(store, PosixStore):
        return store
    from ckptctl.storage.fsspec_writer import ConditionalStore

    return ConditionalStore(store.url)
