"""The pointers that trainers leave beside their checkpoints: small text files and links."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ckptctl.errors import StorageError
from ckptctl.formats import registry
from ckptctl.formats.base import read_small
from ckptctl.operations.place import Place
from ckptctl.storage import Entry, Store

_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Pointer:
    """A name that trainers leave for the newest checkpoint; ``target`` is its path if it is there."""

    name: str
    text: str
    target: str | None = None


def pointers(store: Store, places: Iterable[Place]) -> list[Pointer]:
    """Read the pointers that lie in a root and beside each checkpoint below it."""
    found: list[Pointer] = []
    known = list(places)
    folders = {"": None, **dict.fromkeys(place.path.rpartition("/")[0] for place in known)}
    for folder in folders:
        try:
            entries = store.entries(folder)
        except StorageError:
            continue
        beside = _Beside(store, folder, [p for p in known if p.path.rpartition("/")[0] == folder])
        found.extend(one for entry in entries if (one := beside.read(entry)) is not None)
    return found


def recorded(store: Store, places: Iterable[Place]) -> list[Pointer]:
    """Read which others the newest checkpoint of each layout records, such as the best one.

    They are no pointers to the newest; one whose target is not there is left out.
    """
    newest: dict[tuple[str, str], Place] = {}
    paths = set()
    for place in places:
        paths.add(place.path)
        if not place.staging:
            newest[place.format, place.path.rpartition("/")[0]] = place
    found: list[Pointer] = []
    rules = [(one.name, rule) for one in registry.LAYOUTS for rule in one.pointers if rule.key]
    for (name, folder), place in newest.items():
        for rule in (rule for layout, rule in rules if layout == name):
            text = _recorded(store, f"{place.path}/{rule.pattern}", rule.key)
            target = posixpath.join(folder, text.rstrip("/").rpartition("/")[2])
            if text and target in paths:
                found.append(Pointer(rule.key, text, target))
    return found


def _recorded(store: Store, path: str, key: str) -> str:
    """Return the text that a JSON file has under a key near its beginning."""
    try:
        with store.open(path) as reader:
            data = reader.read(0, min(reader.size, _LIMIT)).decode("utf-8", "replace")
        match = re.search(rf'"{key}": *("(?:[^"\\]|\\.)*")', data)
        return str(json.loads(match[1])) if match else ""
    except (StorageError, ValueError):
        return ""


class _Beside:
    """One directory with checkpoints in it, and what its pointers may name."""

    def __init__(self, store: Store, folder: str, places: list[Place]) -> None:
        self._store, self._folder = store, folder
        self._paths = {place.path for place in places}
        self._members = {
            posixpath.join(folder, member): place.path
            for place in places
            for member in place.members or ()
        }
        self._steps = {
            place.name.step: place.path
            for place in places
            if place.name.step is not None and not place.name.staging
        }

    def read(self, entry: Entry) -> Pointer | None:
        """Read an entry as a pointer; None where it is none."""
        name = entry.path
        if name in self._paths:
            return None
        if entry.target is not None:
            target = self._real.get(self._resolved(entry.path))
            if target is not None:
                return Pointer(name, entry.target, target)
            return Pointer(name, entry.target) if entry.kind == "other" else None  # it dangles
        if entry.kind != "file" or not any(
            re.fullmatch(rule.pattern, entry.name)
            for layout in registry.LAYOUTS
            for rule in layout.pointers
            if not rule.key
        ):
            return None
        data = read_small(self._store, entry.path, _LIMIT)
        text = (data or b"").decode("utf-8", "replace").strip()
        return Pointer(name, text, self._named(text))

    def _named(self, text: str) -> str | None:
        path = posixpath.join(self._folder, text)
        if path in self._paths:
            return path
        if text.isdigit() and len(text) < 19:
            return self._steps.get(int(text))
        return None

    @cached_property
    def _real(self) -> dict[str, str]:
        """Checkpoints by where they and their files really lie; asked only where there are links."""
        found = {self._resolved(path): whole for path, whole in self._members.items()}
        return found | {self._resolved(path): path for path in self._paths}

    def _resolved(self, path: str) -> str:
        """Return where a path really leads."""
        url = self._store.url
        return path if "://" in url else os.path.realpath(posixpath.join(url, path))
