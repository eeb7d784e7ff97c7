"""A checkpoint that was moved away in the very moment in which a record of it was made."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.errors import NotFound, Refused, StorageError
from ckptctl.operations.place import Place
from ckptctl.storage import WritableStore

_OURS = ("ckptctl.", ".ckptctl-")


def take_back(store: WritableStore, place: Place, records: Iterable[str]) -> None:
    """Remove records that were just made where nothing but them is left, and raise ``Refused``.

    A record alone would be taken for what is left of a checkpoint, and hold its place.
    """
    had = [entry for entry in place.entries if not entry.name.startswith(_OURS)]
    if place.members is not None or not had:
        return
    try:
        entries = store.entries(place.path)
    except NotFound:
        entries = []
    except StorageError:  # the record stands, and nobody says that it is alone
        return
    if any(not entry.name.startswith(_OURS) for entry in entries):
        return
    folders = {path.rpartition("/")[0] for path in records}
    for path in records:
        store.delete(path)
    for folder in sorted({*folders, place.path}, key=len, reverse=True):
        store.remove_directory(folder)
    raise Refused(
        f"{place.path} was moved away or deleted in the same moment, so the record of it was taken "
        "back; `ckptctl undelete` brings back what prune moved"
    )
