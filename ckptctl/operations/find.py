"""Finding checkpoints below a root, and the pointers that name them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ckptctl.errors import NotFound, NothingThere, StorageError
from ckptctl.formats.dcp import reader as dcp
from ckptctl.model.names import CheckpointName, parse_name
from ckptctl.storage import Entry, Store

DEPTH = 4
"""Levels of directories below a root in which checkpoints are looked for."""

_POINTER_FILES = (
    "latest",
    "latest_checkpointed_iteration.txt",
    "latest_committed",
    "latest_universal",
    "last_checkpoint",
)
_POINTER_LIMIT = 4096
_OTHER_FORMATS = (
    ("safetensors", re.compile(r".*\.safetensors(\.index\.json)?")),
    ("deepspeed", re.compile(r".*(model|optim)_states\.pt")),
    ("orbax", re.compile(r"_CHECKPOINT_METADATA|manifest\.ocdbt")),
    ("torchsnapshot", re.compile(r"\.snapshot_metadata")),
    ("torch", re.compile(r".*\.(pt|pth|ckpt|bin)")),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint is: its path below the root and what its directory holds.

    ``format`` is empty where no known layout was recognised; ``problem`` says why its directory
    could not be listed.
    """

    path: str
    name: CheckpointName
    entries: tuple[Entry, ...]
    format: str = ""
    problem: str = ""

    @property
    def readable(self) -> bool:
        """True if this release reads the format."""
        return self.format == dcp.NAME

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """Numeric step order; what has no step comes first, never by text or time."""
        number = self.name.step if self.name.step is not None else self.name.epoch
        return (number is not None, number or 0, self.name.epoch or 0, self.path)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A name that trainers leave for the newest checkpoint; ``target`` is its path if it is there."""

    name: str
    text: str
    target: str | None = None


def find(store: Store) -> list[Place]:
    """Find every checkpoint below the store's root, in numeric order of their steps.

    The root itself may be one. A directory that is named like a checkpoint but holds none of a
    known format is listed too: it may be what is left of one.
    Raises ``NothingThere`` if the root does not exist, ``StorageError`` if it cannot be listed.
    """
    try:
        entries = store.entries()
    except NotFound:
        raise NothingThere(f"{store.url}: no such directory") from None
    found = list(_find(store, "", entries, DEPTH, _name_of_root(store)))
    return sorted(found, key=lambda place: place.order)


def _name_of_root(store: Store) -> CheckpointName:
    url = store.url.rstrip("/")
    if "://" not in url:
        url = posixpath.abspath(url)
    return parse_name(posixpath.basename(url))


def _find(
    store: Store, path: str, entries: list[Entry], depth: int, name: CheckpointName
) -> Iterator[Place]:
    names = [entry.name for entry in entries]
    if dcp.detect(names):
        yield Place(path, name, tuple(entries), dcp.NAME)
        return
    below: list[Place] = []
    deeper: list[str] = []
    for entry in entries:
        if entry.kind != "directory" or entry.target is not None or depth == 0:
            continue
        if entry.name.startswith(("ckptctl.", ".")) or entry.name == "lost+found":
            continue  # our own records, snapshots of file servers, and what is the system's
        own = parse_name(entry.name)
        if name.recognised and own.step is None:
            # parts of one checkpoint (an optimizer's directory, a model's) belong to its step
            own = CheckpointName(own.text, name.step, name.epoch, name.staging or own.staging)
        try:
            inside = store.entries(entry.path)
        except NotFound:
            continue
        except StorageError as error:
            below.append(Place(entry.path, own, (), problem=str(error)))
            continue
        deeper += [inner.name for inner in inside]
        below.extend(_find(store, entry.path, inside, depth - 1, own))
    other = _other_format(names) or _other_format(deeper)
    if not other and any(name not in dcp.COMPANIONS for name in names):
        other = "unknown"
    own_text = path.rpartition("/")[2] if path else name.text
    remains = parse_name(own_text).recognised and bool(other or not own_text.isdigit())
    if any(place.readable for place in below) or not remains:
        yield from below
    else:
        yield Place(path, name, tuple(entries), other)


def _other_format(names: list[str]) -> str:
    for format_name, pattern in _OTHER_FORMATS:
        if any(pattern.fullmatch(name) for name in names):
            return format_name
    return ""


def open_place(store: Store) -> Place:
    """Return the one checkpoint that a store's root is; ``NothingThere`` where it is none."""
    try:
        entries = store.entries()
    except NotFound:
        raise NothingThere(f"{store.url}: no such directory") from None
    if dcp.detect(entry.name for entry in entries):
        return Place("", _name_of_root(store), tuple(entries), dcp.NAME)
    raise NothingThere(
        f"{store.url}: no checkpoint here; `ckptctl list {store.url}` shows what lies below"
    )


def not_read(place: Place) -> str:
    """Say that a checkpoint's format is not one that this release reads."""
    if place.format == "unknown":
        return "of no format that this release knows"
    return f"{place.format} is not read by this release"


def address(store: Store, path: str) -> str:
    """Return a path below a store's root as a user would type it."""
    root = store.url.rstrip("/")
    if not path:
        return store.url
    return path if root == "." else f"{root}/{path}"


AnyStore = TypeVar("AnyStore", bound=Store)


def locate(url: str, opener: Callable[[str], AnyStore]) -> tuple[AnyStore, list[Place]]:
    """Open what a user named: a root with all its checkpoints, or the root that holds the one named.

    A checkpoint is opened through the directory it lies in, where its pointers are.
    Raises ``NothingThere`` where there is neither.
    """
    store = opener(url)
    places = find(store)
    if not places:
        raise NothingThere(f"{url}: no checkpoint here or below")
    if len(places) > 1 or places[0].path:
        return store, places
    parent, name = split(url)
    if not parent or not name:
        return store, places
    place = places[0]
    moved = tuple(replace(entry, path=f"{name}/{entry.name}") for entry in place.entries)
    return opener(parent), [replace(place, path=name, entries=moved)]


def split(url: str) -> tuple[str, str]:
    """Split a path or URL into the directory that holds it and its own name, either may be empty."""
    if "://" not in url:
        parent, _, name = posixpath.abspath(url).rpartition("/")
        shown = url.rstrip("/").rpartition("/")[0] or "."
        return (shown if posixpath.abspath(shown) == parent else parent or "/"), name
    scheme, _, rest = url.partition("://")
    parent, _, name = rest.rstrip("/").rpartition("/")
    return (f"{scheme}://{parent}" if parent else ""), name


def pointers(store: Store, places: list[Place]) -> list[Pointer]:
    """Read the pointers that trainers leave in a root: small text files and symbolic links."""
    found: list[Pointer] = []
    paths = {place.path for place in places}
    steps: Mapping[int, str] = {
        place.name.step: place.path
        for place in places
        if place.name.step is not None and not place.name.staging and "/" not in place.path
    }
    try:
        entries = store.entries()
    except StorageError:
        return []
    for entry in entries:
        if entry.target is not None:
            target: str | None = _inside(store, entry.target)
            if target in paths:
                found.append(Pointer(entry.name, entry.target, target))
            elif entry.kind == "other":  # dangling, or a loop
                found.append(Pointer(entry.name, entry.target))
        elif entry.kind == "file" and entry.name in _POINTER_FILES:
            text = _text(store, entry)
            target = text if text in paths else None
            if target is None and text.isdigit() and len(text) < 19:
                target = steps.get(int(text))
            found.append(Pointer(entry.name, text, target))
    return found


def _inside(store: Store, link: str) -> str:
    """Return a link's target as a path below the root, or as it leads out of it."""
    if not posixpath.isabs(link):
        return posixpath.normpath(link)
    return posixpath.relpath(os.path.realpath(link), os.path.realpath(store.url))


def _text(store: Store, entry: Entry) -> str:
    try:
        with store.open(entry.path) as reader:
            data = reader.read(0, min(reader.size, _POINTER_LIMIT))
    except StorageError:
        return ""
    return data.decode("utf-8", "replace").strip()
