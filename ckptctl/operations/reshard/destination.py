"""Where a result is written: a place that must be free, with room enough."""

from __future__ import annotations

from ckptctl.errors import NotFound, Refused
from ckptctl.operations.place import split
from ckptctl.storage import Store, WritableStore, open_writable


def open_directory(url: str) -> WritableStore:
    """Open a directory to be made; raises ``Refused`` where it exists and is not empty."""
    store = open_writable(url)
    if occupied(store):
        raise Refused(f"{url} exists already and is not empty; nothing was written")
    return store


def occupied(store: Store) -> bool:
    """Tell whether anything is at a store's root."""
    try:
        if store.stat().kind != "directory":
            return True
        return bool(store.entries())
    except NotFound:
        return False


def open_file(url: str) -> tuple[WritableStore, str]:
    """Open the directory of a file to be made; raises ``Refused`` where the file exists."""
    parent, name = split(url)
    store = open_writable(parent or ".")
    try:
        store.stat(name)
    except NotFound:
        return store, name
    raise Refused(f"{url} exists already; nothing was written")


def need_space(store: WritableStore, size: int) -> None:
    """Raise ``Refused`` where a store says that it has no room for so many bytes."""
    free = store.space()
    if free is not None and free < size:
        raise Refused(
            f"{store.url}: {size:,} bytes are to be written and {free:,} are free; nothing was "
            "written"
        )
