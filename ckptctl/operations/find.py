"""Finding checkpoints below a root: what layouts claim, from the top down, each one once."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ckptctl.dataclass import replace
from ckptctl.errors import NotFound, NothingThere, RootMissing, StorageError
from ckptctl.formats import registry
from ckptctl.formats.base import Claim, Folder, Layout, Sure
from ckptctl.model.manifest import MANIFEST, POINTERS
from ckptctl.model.names import CheckpointName, parse_name, steps_of
from ckptctl.operations.place import (
    RECORDS,
    UNKNOWN,
    Place,
    address,
    name_of_root,
    split,
)
from ckptctl.sharding.record import RESHARD, temporary
from ckptctl.storage import Entry, Store
from ckptctl.storage.traffic import ahead

UNFINISHED = "a reshard or a conversion that was not finished"

DEPTH = 4
"""Levels of directories below a root in which checkpoints are looked for."""


def find(store: Store, framework: str = "", *, depth: int = DEPTH) -> list[Place]:
    """Find every checkpoint below the store's root, in numeric order of their steps.

    The root itself may be one. A directory that is named like a checkpoint and that no layout
    claims is listed too: it may be what is left of one. ``framework`` is the one layout to ask.
    Raises ``RootMissing`` if the root does not exist, ``StorageError`` if it cannot be listed.
    """
    return sorted(_Walk(store, framework).places(depth), key=lambda place: place.order)


class _Walk:
    """One walk over a root, from the top down; what is claimed is not descended into."""

    def __init__(self, store: Store, framework: str) -> None:
        self._store = store
        self._layouts = (registry.layout(framework),) if framework else registry.LAYOUTS
        self._forced = bool(framework)
        self._links: list[tuple[Entry, CheckpointName]] = []

    def places(self, depth: int) -> list[Place]:
        """Walk the root, then the linked directories that lead to no place found so far."""
        try:
            entries = self._store.entries()
        except NotFound:
            raise RootMissing(f"{self._store.url}: no such directory") from None
        root = Folder(self._store, "", name_of_root(self._store), tuple(entries))
        found = list(self._walk(root, depth))
        known = {self._real(place.path) for place in found} if self._links else set()
        for entry, name in sorted(self._links, key=lambda one: not one[1].recognised):
            real = self._real(entry.path)
            if real in known or self._real("").startswith(f"{real}/") or real == self._real(""):
                continue  # another name of a place in this root, or a loop
            try:
                inside = tuple(self._store.entries(entry.path))
            except StorageError as error:
                if name.recognised:
                    found.append(Place(entry.path, name, (), problem=str(error)))
                continue
            linked = list(self._walk(Folder(self._store, entry.path, name, inside), 0))
            found.extend(replace(place, linked=True) for place in linked)
            known |= {self._real(place.path) for place in linked}
        return found

    def _real(self, path: str) -> str:
        url = self._store.url
        return path if "://" in url else os.path.realpath(posixpath.join(url, path))

    def _walk(self, folder: Folder, depth: int) -> Iterator[Place]:
        claims, ties = _surest(one for layout in self._layouts for one in layout.claim(folder))
        whole = claims.pop(folder.path, None)
        if whole is not None and (whole.members is not None or self._is_root(folder, whole)):
            if whole.members is not None:
                claims[folder.path] = whole
            whole = None
        if whole is not None:
            yield _place(folder, whole, ties.get(folder.path, ""))
            return
        for path, claim in claims.items():
            yield _place(folder, claim, ties.get(path, ""))
        taken = {m.partition("/")[0] for c in claims.values() for m in c.members or ()}
        below = list(self._below(folder, depth, taken))
        if not claims and not any(place.format not in ("", UNKNOWN) for place in below):
            remains = _remains(folder)
            if remains is not None:
                yield remains
                return
        yield from below

    def _below(self, folder: Folder, depth: int, taken: set[str]) -> Iterator[Place]:
        wanted = [
            entry
            for entry in folder.entries
            if entry.kind == "directory" and depth > 0 and entry.name not in taken
        ]
        followed = [entry for entry in wanted if not _ours(entry.name) and entry.target is None]
        listings = ahead(self._store, self._inside, followed)
        for entry in wanted:
            if temporary(entry.name):
                yield from self._unfinished(entry)
            if _ours(entry.name):
                continue
            own = folder.named[entry.name]
            if folder.name.recognised and own.step is None:
                # a directory inside one that is named for a step belongs to that step
                own = replace(
                    own,
                    step=folder.name.step,
                    epoch=folder.name.epoch,
                    staging=folder.name.staging or own.staging,
                )
            if entry.target is not None:
                self._links.append((entry, own))
                continue
            try:
                inside = next(listings)()
            except NotFound:
                continue
            except StorageError as error:
                yield Place(entry.path, own, (), problem=str(error))
                continue
            below = Folder(self._store, entry.path, own, inside, folder.names)
            yield from self._walk(below, depth - 1)

    def _inside(self, entry: Entry) -> tuple[Entry, ...]:
        return tuple(self._store.entries(entry.path))

    def _unfinished(self, entry: Entry) -> Iterator[Place]:
        """Yield what a reshard or a conversion left that was stopped: no checkpoint, but not nothing."""
        try:
            inside = tuple(self._store.entries(entry.path))
        except StorageError:
            return
        if any(one.name == RESHARD for one in inside):
            name = CheckpointName(entry.name, staging=True)
            yield Place(entry.path, name, inside, UNKNOWN, staging=UNFINISHED)

    def _is_root(self, folder: Folder, claim: Claim) -> bool:
        """Tell whether a claimed directory holds checkpoints, so that it is none itself."""
        if self._forced:
            return False
        if POINTERS in folder.folders:
            return True
        links = {one.name for one in folder.entries if one.target is not None}
        stray = claim.sure <= Sure.PATTERN and not folder.name.recognised
        stray = stray and not registry.layout(claim.layout).metadata(folder.files)
        for name in folder.folders:
            if _ours(name) or (name in links and self._leads_away(folder, name)):
                continue
            inside = folder.below(name)
            if inside is None:
                continue
            if MANIFEST in inside.files:
                return True
            # what its framework marks, under a checkpoint's name, may hold tags of its own
            own = claim.sure >= Sure.MARKED and folder.name.recognised
            if own or not (folder.named[name].recognised or stray):
                continue
            claims = [one for layout in self._layouts for one in layout.claim(inside)]
            mine = [one for one in claims if one.path == inside.path]
            if folder.named[name].recognised and mine:
                return True
            if stray and any(one.layout == claim.layout for one in mine):
                return True  # such as best/: what lies above it cannot be loaded anyway
        return False

    def _leads_away(self, folder: Folder, name: str) -> bool:
        """Tell whether a link in a checkpoint is to something that is none below it.

        It may be to an older checkpoint, or to one that this very directory lies in.
        """
        own, real = self._real(folder.path), self._real(folder.join(name))
        return folder.name.recognised or f"{own}/".startswith(f"{real.rstrip('/')}/")


def _ours(name: str) -> bool:
    """Tell whether a name is of our own records, of a file server's snapshots, or the system's."""
    return name.startswith(("ckptctl.", ".")) or name.endswith(RECORDS) or name == "lost+found"


def _surest(claims: Iterable[Claim]) -> tuple[dict[str, Claim], dict[str, str]]:
    """Choose the surest claim of each path; say where two layouts are equally sure of one."""
    best: dict[str, Claim] = {}
    ties: dict[str, str] = {}
    for claim in claims:
        before = best.get(claim.path)
        if before is None or claim.sure > before.sure:
            best[claim.path] = claim
            ties.pop(claim.path, None)
        elif claim.sure == before.sure and claim.layout != before.layout:
            ties[claim.path] = (
                f"it may be of {before.layout} or of {claim.layout}: choose one by framework"
            )
    return best, ties


def _place(folder: Folder, claim: Claim, problem: str) -> Place:
    if claim.path == folder.path and claim.members is None:
        name, entries = folder.name, folder.entries
    else:
        text = claim.path.rpartition("/")[2]
        name = folder.named.get(text) or parse_name(text)
        wanted = {member.partition("/")[0] for member in claim.members or ()}
        entries = tuple(one for one in folder.entries if one.name in wanted)
        records = folder.below(f"{text}{RECORDS}")
        entries += records.entries if records is not None else ()
    name = replace(name, step=claim.step, epoch=claim.epoch, staging=bool(claim.staging))
    return Place(
        claim.path,
        name,
        entries,
        claim.layout,
        problem,
        claim.members,
        claim.lacks,
        claim.staging,
        claim.number,
        claim.resume,
    )


def _remains(folder: Folder) -> Place | None:
    """Return a directory that is named like a checkpoint and that no layout claims."""
    text = folder.path.rpartition("/")[2] if folder.path else folder.name.text
    known = parse_name(text)
    strange = any(not name.startswith("ckptctl.") for name in folder.names)
    if not known.recognised or (text.isdigit() and not strange):
        return None
    staging = "under a temporary name" if folder.name.staging else ""
    return Place(
        folder.path, folder.name, folder.entries, UNKNOWN if strange else "", staging=staging
    )


def place_at(store: Store, path: str, layout: Layout) -> Place | None:
    """Return the checkpoint that a directory is by one layout, or None."""
    name = parse_name(path.rpartition("/")[2]) if path else name_of_root(store)
    folder = Folder(store, path, name, tuple(store.entries(path)))
    for claim in layout.claim(folder):
        if claim.path == path and claim.members is None:
            return _place(folder, claim, "")
    return None


def place_of_file(store: Store, name: str, framework: str = "") -> Place | None:
    """Return the file of a store's root that a user named, as a checkpoint by itself.

    None where it is a directory. Raises ``NotFound`` where it is not there, ``NothingThere`` where
    no layout takes such a file for one.
    """
    entry = store.stat(name)
    if entry.kind == "directory":
        return None
    folder = Folder(store, "", name_of_root(store), (entry,), asked=name)
    layouts = (registry.layout(framework),) if framework else registry.LAYOUTS
    claims, ties = _surest(one for layout in layouts for one in layout.claim(folder))
    for path, claim in claims.items():
        if name in (claim.members or ()):
            return _place(folder, claim, ties.get(path, ""))
    raise NothingThere(f"{address(store, name)}: no layout takes such a file for a checkpoint")


AnyStore = TypeVar("AnyStore", bound=Store)


def locate(
    url: str, opener: Callable[[str], AnyStore], framework: str = ""
) -> tuple[AnyStore, list[Place]]:
    """Open what a user named: a root with all its checkpoints, or the root that holds the one named.

    A checkpoint is opened through the directory it lies in, where its pointers are.
    Raises ``NothingThere`` where there is neither.
    """
    store = opener(url)
    places = find(store, framework)
    if not places:
        raise NothingThere(f"{url}: no checkpoint here or below")
    if len(places) > 1 or places[0].path:
        return store, places
    parent, name = split(url)
    if not parent or not name:
        return store, places
    place, above = places[0], opener(parent)
    moved = tuple(replace(entry, path=f"{name}/{entry.name}") for entry in place.entries)
    said = place.name
    if said.step is None and place.number is None:
        said = replace(said, step=_step_beside(above, name))
    place = _as_beside(above, name, replace(place, path=name, entries=moved, name=said), framework)
    return above, [place]


def _as_beside(store: Store, name: str, place: Place, framework: str) -> Place:
    """Let layouts see what lies beside a directory too: a tracker, or the mark of an unfinished save."""
    try:
        names = frozenset(entry.name for entry in store.entries())
    except StorageError:
        return place
    folder = Folder(store, name, parse_name(name), place.entries, names)
    layouts = (registry.layout(framework),) if framework else registry.LAYOUTS
    claims, ties = _surest(one for layout in layouts for one in layout.claim(folder))
    claim = claims.get(name)
    if claim is None or claim.members is not None or name in ties:
        return place
    staging = place.staging or claim.staging
    return replace(place, format=claim.layout, lacks=claim.lacks, staging=staging)


def _step_beside(store: Store, name: str) -> int | None:
    """Return the step that a directory's name says beside its siblings."""
    try:
        names = [entry.name for entry in store.entries() if entry.kind == "directory"]
    except StorageError:
        return None
    return next((one.step for one in steps_of(names) if one.text == name), None)
