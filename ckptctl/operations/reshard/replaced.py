"""What may be replaced: a result of ``convert`` that is as it was written and that nobody uses."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl import protocol
from ckptctl.errors import MalformedData, Refused, StorageError
from ckptctl.formats.torch import reader as torchfile
from ckptctl.model.manifest import LATEST
from ckptctl.model.paths import join
from ckptctl.operations.place import RECORDS
from ckptctl.sharding.record import CONVERTED, RESHARD
from ckptctl.storage import Entry, Store, WritableStore


def may_replace_directory(store: Store, name: str, url: str, entries: Iterable[Entry]) -> None:
    """Raise ``Refused`` unless a directory holds what ``convert`` wrote, and nothing else."""
    try:
        record = protocol.read_converted(store, name)
    except MalformedData as error:
        raise Refused(f"{error}; {url} is not replaced") from None
    sizes = {file.path: file.size for file in record.files} if record is not None else {}
    # one that was killed right after it got its name still has the record of the attempt
    ours = (CONVERTED, RESHARD)
    there = {entry.name: entry for entry in entries if entry.name not in ours}
    for path in sorted(sizes.keys() | there.keys()):
        entry = there.get(path)
        if path not in sizes:
            raise Refused(
                f"{url} holds {path}, which `ckptctl convert` did not write; not replaced"
            )
        if entry is None or entry.kind != "file" or entry.size != sizes[path]:
            raise Refused(f"{url}: {path} is not as `ckptctl convert` wrote it; it is not replaced")
    _unused(store, name, url, name)


def may_replace_file(store: Store, name: str, url: str) -> None:
    """Raise ``Refused`` unless a file is one that ``convert`` wrote."""
    try:
        with store.open(name) as reader:
            ours = torchfile.is_converted(reader)
    except MalformedData:
        ours = False
    if not ours:
        raise Refused(f"{url} is not what `ckptctl convert` wrote; it is not replaced")
    _unused(store, name, url, f"{name}{RECORDS}")


def _unused(store: Store, name: str, url: str, records: str) -> None:
    if protocol.read_seal(store, records, name=name).manifest is not None:
        raise Refused(f"{url} is committed; it is not replaced")
    if any(True for _ in protocol.quarantines(store, records)):
        raise Refused(f"{url} was put into quarantine once; it is not replaced")
    for revision in protocol.revisions(store, LATEST):
        if isinstance(revision, str) or revision.target == name:
            what = revision if isinstance(revision, str) else "names it, or did once"
            raise Refused(f"{url}: pointer {LATEST}: {what}; it is not replaced")
    for entry in store.entries():
        if entry.kind == "file" and entry.size <= _POINTER and _names(store, entry, name):
            raise Refused(f"{url}: {entry.name} names it; it is not replaced")
        if entry.target is not None and entry.target.rstrip("/").rpartition("/")[2] == name:
            raise Refused(f"{url}: the link {entry.name} leads to it; it is not replaced")


_POINTER = 4096
"""Bytes of a file that may be a trainer's pointer: a name or a path and nothing else."""


def _names(store: Store, entry: Entry, name: str) -> bool:
    try:
        with store.open(entry.path) as reader:
            text = reader.read(0, reader.size).decode("utf-8", "replace")
    except StorageError:
        return False
    words = text.strip().strip("\"'").rstrip("/").replace("\\", "/").split("/")
    return words[-1] == name


def remove(store: WritableStore, aside: str) -> None:
    """Delete what was replaced, once the new one has its name."""
    try:
        if store.stat(aside).kind != "directory":
            store.delete(aside)
            return
        for entry in store.entries(aside):
            store.delete(join(aside, entry.name))
        store.remove_directory(aside)
    except (StorageError, Refused):
        return  # it has a temporary name, and does no harm
