"""What names a checkpoint, so that it must stay: pointers of ours and of frameworks, and links."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Iterator

from ckptctl import protocol
from ckptctl.dataclass import dataclass, field
from ckptctl.errors import NotFound, StorageError
from ckptctl.formats.base import read_small
from ckptctl.model.manifest import LATEST, POINTERS
from ckptctl.operations.find import DEPTH
from ckptctl.operations.place import Place, split
from ckptctl.operations.pointers import Beside, Known, in_one_line, in_text, is_pointer, recorded
from ckptctl.storage import Entry, Store, open_store

_LIMIT = 4096


@dataclass(slots=True)
class Named:
    """Why checkpoints must stay, by their paths, and what could not be found out."""

    reasons: dict[str, str] = field(default_factory=dict)
    unresolved: list[str] = field(default_factory=list)

    def add(self, path: str, reason: str) -> None:
        """Keep the first reason of a checkpoint."""
        self.reasons.setdefault(path, reason)


def named(
    store: Store,
    places: Iterable[Place],
    *,
    ignored: Collection[str] = (),
    everywhere: bool = True,
) -> Named:
    """Ask everything below a root, and what lies beside it, which checkpoints it names.

    Not ``everywhere``, it is the root and the directories with checkpoints in them. Raises
    ``StorageError`` where they cannot be listed or read.
    """
    return _Search(store, list(places), ignored).search(everywhere=everywhere)


class _Search:
    """One search for names and links, in every directory that is no checkpoint."""

    def __init__(self, store: Store, places: list[Place], ignored: Collection[str]) -> None:
        self._store, self._places, self._ignored = store, places, ignored
        self._known, self._found = Known(store, places), Named()
        self._folders = {"", *(place.path.rpartition("/")[0] for place in places)}
        self._claimed = set(self._known.members) | {place.records for place in places}

    def search(self, *, everywhere: bool) -> Named:
        for folder in [""] if everywhere else sorted(self._folders):
            try:
                self._walk(folder, DEPTH if everywhere else 0)
            except NotFound:
                if not folder:  # others may have gone with the last checkpoint in them
                    raise
        for place in self._places:
            name = place.path.rpartition("/")[2]
            if is_pointer(name) and not {name, place.path} & set(self._ignored):
                self._found.add(place.path, f"trainers resume from what is called {name}")
        for pointer in recorded(self._store, self._places):
            for target in pointer.targets:
                self._found.add(target, f"{pointer.name} names it")
        for entry in _beside_root(self._store):
            for target in self._led(entry):
                self._found.add(target, f"the link {entry.name} beside this root leads to it")
            written = self._written(entry) if entry.target is None else None
            if written is not None:
                self._found.add(written, f"{entry.name} beside this root names it")
        return self._found

    def _written(self, entry: Entry) -> str | None:
        """Return what a small file beside the root names, by a path that leads there and no other."""
        try:
            data = read_small(self._store, entry.path, _LIMIT)
        except StorageError:
            return None
        text = in_text(data or b"")
        if len(text.splitlines()) != 1:
            return None
        return self._known.led_to(posixpath.join(posixpath.dirname(entry.path), in_one_line(text)))

    def _walk(self, folder: str, depth: int) -> None:
        if folder in self._known.paths and folder not in self._known.members:
            if folder:
                return
            depth = 0
        entries = self._store.entries(folder)
        ours = POINTERS in {entry.name for entry in entries}
        beside = Beside(self._store, folder, self._known)
        for entry in entries:
            if entry.name == POINTERS and entry.kind == "directory":
                self._own(entry.path, folder)
            elif entry.name == POINTERS:
                self._found.unresolved.append(f"{entry.path} is no folder of records")
            elif entry.name.startswith("ckptctl.") or entry.path in self._claimed:
                continue
            elif entry.target is not None or entry.kind == "file":
                self._ask(beside, entry, ours=ours)
            elif entry.kind == "directory" and depth > 0 and not _systems(entry.name):
                try:
                    self._walk(entry.path, depth - 1)
                except NotFound:
                    continue

    def _ask(self, beside: Beside, entry: Entry, *, ours: bool) -> None:
        """Ask one file or link that is part of no checkpoint."""
        targets = self._led(entry)
        for target in targets:
            self._found.add(target, f"the link {entry.path} leads to it")
        if targets:
            return
        pointer = beside.read(entry)
        for target in pointer.targets if pointer is not None else ():
            self._found.add(target, f"{entry.path} names it")
        if pointer is not None and pointer.target is None:
            courtesy = entry.name == LATEST and ours  # never trusted where the pointer is
            if is_pointer(entry.name) and not courtesy and not self._is_ignored(entry):
                said = pointer.text.splitlines()[0][:80] if pointer.text else "nothing"
                self._found.unresolved.append(f"{entry.path} names {said}, which is not here")
        elif (
            pointer is None
            and entry.kind == "file"
            and entry.path.rpartition("/")[0] in self._folders
        ):
            self._words(beside, entry)

    def _words(self, beside: Beside, entry: Entry) -> None:
        """Take a small file with one line, whatever its name, for a pointer if it names one here."""
        if not 0 < entry.size <= _LIMIT:
            return
        text = in_text(read_small(self._store, entry.path, _LIMIT) or b"")
        if len(text.splitlines()) == 1 and not text.isdigit():
            target = beside.named(text)
            if target is not None:
                self._found.add(target, f"{entry.path} names it")

    def _is_ignored(self, entry: Entry) -> bool:
        return entry.name in self._ignored or entry.path in self._ignored

    def _led(self, entry: Entry) -> list[str]:
        return self._known.led_through(entry.path) if entry.target is not None else []

    def _own(self, folder: str, base: str) -> None:
        """Read the newest revision of each of our own pointers; a damaged one hides what it names."""
        for series in self._store.entries(folder):
            if series.kind != "directory":
                continue
            found = protocol.read_pointer(self._store, series.name, base=base)
            if found.problems and series.name not in self._ignored:
                self._found.unresolved.append(
                    f"{found.problems[0]}; promote a checkpoint first, so that there is a newer one"
                )
            for revision in (found.revision, found.copy):
                if revision is not None:
                    target = posixpath.join(base, revision.target)
                    self._found.add(target, f"pointer {revision.name} names it")


def _systems(name: str) -> bool:
    """Tell whether a directory is the system's or a file server's, which need not be listable."""
    return name.startswith(".") or name == "lost+found"


def _beside_root(store: Store) -> Iterator[Entry]:
    """Yield the links and small files that lie beside the root; they may lead into it."""
    parent, name = split(store.url)
    if not parent or not name or "://" in parent:
        return
    try:
        entries = open_store(parent).entries()
    except StorageError:  # what is above a root need not be listable
        return
    for entry in entries:
        if entry.target is not None or (entry.kind == "file" and 0 < entry.size <= _LIMIT):
            path = os.path.relpath(posixpath.join(parent, entry.name), store.url)
            yield Entry(path, entry.kind, entry.size, entry.modified, entry.target)
