"""Everything that a checkpoint is made of, as it lies there: files, links, records, change times."""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import NotFound
from ckptctl.formats import registry
from ckptctl.model.manifest import MANIFEST, POINTERS, QUARANTINE
from ckptctl.model.names import parse_name
from ckptctl.operations.place import UNKNOWN, Place
from ckptctl.operations.retention.policy import Listed
from ckptctl.storage import Entry, Store

_RECORDS = (MANIFEST, POINTERS, QUARANTINE)


@dataclass(slots=True)
class Contents:
    """What was listed; nothing behind a link was.

    ``changed`` is the newest time of anything in it, None where the store tells none. ``inner`` is
    a path in it that may be another checkpoint, or a record of one. ``identities`` are of files
    that have other names too, ``links`` the paths of links.
    """

    listed: list[Listed] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    identities: dict[tuple[int, int], str] = field(default_factory=dict)
    changed: float | None = None
    inner: str = ""

    def add(self, entry: Entry) -> None:
        """Take one entry."""
        times = [one for one in (entry.modified, entry.changed, self.changed) if one is not None]
        self.changed = max(times, default=None)
        if entry.kind == "directory" and entry.target is None:
            self.folders.append(entry.path)
            return
        size = entry.size if entry.kind == "file" else 0
        self.listed.append(Listed(entry.path, size, entry.modified, entry.target))
        if entry.target is not None:
            self.links.append(entry.path)
        elif entry.identity is not None:
            self.identities[entry.identity] = entry.path


def contents_of(store: Store, place: Place) -> Contents:
    """List all that belongs to a checkpoint, its records too; raises ``StorageError``."""
    found = Contents()
    if place.members is None:
        if place.path:
            found.add(store.stat(place.path))
            found.folders.clear()
        for entry in _below(store, place.path):
            found.add(entry)
        found.inner = _inner(place, found)
    else:
        wanted = {member.partition("/")[0] for member in place.members}
        for entry in store.entries(place.base):
            if entry.name not in wanted and entry.path != place.records:
                continue
            found.add(entry)
            if entry.kind == "directory" and entry.target is None:
                for inner in _below(store, entry.path):
                    found.add(inner)
    found.listed.sort(key=lambda one: one.path)
    return found


def _below(store: Store, path: str) -> Iterator[Entry]:
    """Yield all below a directory, directories before what is in them; links are not followed."""
    try:
        entries = store.entries(path)
    except NotFound:
        return
    for entry in entries:
        yield entry
        if entry.kind == "directory" and entry.target is None:
            yield from _below(store, entry.path)


def _inner(place: Place, found: Contents) -> str:
    """Return what in a directory may be another checkpoint, or a record of one."""
    start = len(place.path) + 1 if place.path else 0
    flat = place.format in ("", UNKNOWN, registry.SHARDED.name)
    for path in (*found.folders, *(one.path for one in found.listed)):
        folder, _, name = path[start:].rpartition("/")
        if name in _RECORDS and (folder or name == POINTERS):
            return path
        if flat and folder and registry.metadata_of(registry.SHARDED.name, [name]):
            return path
    if flat:
        return next((p for p in found.folders if parse_name(p.rpartition("/")[2]).recognised), "")
    return ""
