"""The pointers that trainers leave beside their checkpoints: small text files and links."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from ckptctl.dataclass import dataclass
from ckptctl.errors import StorageError
from ckptctl.formats import registry
from ckptctl.formats.base import read_small
from ckptctl.operations.place import Place
from ckptctl.storage import Entry, Store

_LIMIT = 4096
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Pointer:
    """A name that trainers leave for the newest checkpoint; ``target`` is its path if it is there.

    ``others`` may be meant as well: a number is the step of more than one.
    """

    name: str
    text: str
    target: str | None = None
    others: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """All that may be meant."""
        return () if self.target is None else (self.target, *self.others)


def pointers(store: Store, places: Iterable[Place]) -> list[Pointer]:
    """Read the pointers that lie in a root and beside each checkpoint below it."""
    found: list[Pointer] = []
    known = Known(store, places)
    above = (place.path.rpartition("/")[0] for place in known.places)
    folders = {"": None, **dict.fromkeys(above)}
    for folder in folders:
        try:
            entries = store.entries(folder)
        except StorageError:
            continue
        beside = Beside(store, folder, known)
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


class Known:
    """The checkpoints of a root, by path, by their files and by where all of that really lies."""

    def __init__(self, store: Store, places: Iterable[Place]) -> None:
        self._store = store
        self.places = list(places)
        self.paths = {place.path: place.path for place in self.places}
        self.members = {
            posixpath.join(place.base, member): place.path
            for place in self.places
            for member in place.members or ()
        }

    @cached_property
    def real(self) -> dict[str, str]:
        """Checkpoints by where they and their files really lie; asked only where there are links."""
        found = {self.resolved(path): whole for path, whole in self.members.items()}
        return found | {self.resolved(path): path for path in self.paths}

    def resolved(self, path: str) -> str:
        """Return where a path below the root really leads."""
        url = self._store.url
        if "://" in url or "\0" in path:  # which no file's name has
            return path
        return os.path.realpath(posixpath.join(url, path))

    def led_to(self, path: str) -> str | None:
        """Return the checkpoint that a path leads to, or into, by whatever links."""
        return self._inside(self.resolved(path), self.real)

    def led_through(self, path: str) -> list[str]:
        """Return the checkpoints through which a link leads, and the last that it leads to."""
        if "://" in self._store.url:
            return []
        found: list[str] = []
        place = posixpath.join(self._store.url, path)
        for _ in range(_MOST_LINKS):
            above, name = posixpath.split(os.path.abspath(place))  # noqa: PTH100 - of a link itself
            place = posixpath.join(os.path.realpath(above), name)
            inside = self._inside(place, self.real)
            if inside is not None and inside != path and inside not in found:
                found.append(inside)
            if not os.path.islink(place):  # noqa: PTH114
                break
            place = posixpath.join(os.path.realpath(above), os.readlink(place))  # noqa: PTH115
        return found

    def named(self, folder: str, line: str) -> str | None:
        """Return the checkpoint that a path names, by its last parts where nothing else fits."""
        path = posixpath.normpath(posixpath.join(folder, line))
        found = self._inside(path, {**self.members, **self.paths})
        if found is None and "://" not in self._store.url:
            found = self.led_to(path)
        return found or self.by_last_parts(folder, line)

    def by_last_parts(self, folder: str, line: str) -> str | None:
        """Return the checkpoint here whose path is how another one ends: seen from another mount."""
        parts = [part for part in line.split("/") if part]
        ends = ["/".join(parts[n:]) for n in range(len(parts))]
        paths = (posixpath.join(folder, end) for end in [*ends, *reversed(parts)])
        return next((path for path in paths if path in self.paths), None)

    @staticmethod
    def _inside(path: str, known: Mapping[str, str]) -> str | None:
        """Return the known checkpoint that a path is, or lies in."""
        while path and path not in (".", "/"):
            if path in known:
                return known[path]
            above = posixpath.dirname(path)
            if above == path:  # two slashes in front stay two
                return None
            path = above
        return None


class Beside:
    """One directory, and what the pointers in it may name."""

    def __init__(self, store: Store, folder: str, known: Known) -> None:
        self._store, self._folder, self._known = store, folder, known
        self._steps: dict[int, list[str]] = {}
        for place in known.places:
            step = place.name.step
            here = place.path.rpartition("/")[0] == folder
            if here and step is not None and not place.name.staging:
                self._steps.setdefault(step, []).append(place.path)

    def read(self, entry: Entry) -> Pointer | None:
        """Read an entry as a pointer; None where it is none."""
        name = entry.path
        if name in self._known.paths:
            return None
        if entry.target is not None:
            target = self._leads_to(entry)
            if target is not None or entry.kind == "other":  # which dangles
                return Pointer(name, entry.target, target)
            return None
        if entry.kind != "file" or not is_pointer(entry.name):
            return None
        text = in_text(read_small(self._store, entry.path, _LIMIT) or b"")
        target = self.named(text)
        alike = self._of_step(in_one_line(text))
        others = tuple(path for path in alike if path != target) if target in alike else ()
        return Pointer(name, text, target, others)

    def named(self, text: str) -> str | None:
        """Return the checkpoint that a text names, by its step or its path."""
        exact = posixpath.join(self._folder, text)
        if exact in self._known.paths:  # however strange the name is
            return exact
        line = in_one_line(text)
        alike = self._of_step(line)
        if alike:
            return alike[0]
        return self._known.named(self._folder, line) if line else None

    def _of_step(self, line: str) -> list[str]:
        """Return the checkpoints whose step a text is, unless it is also the name of one."""
        if posixpath.join(self._folder, line) in self._known.paths:
            return []
        return self._steps.get(int(line), []) if line.isdigit() and len(line) < 19 else []

    def _leads_to(self, entry: Entry) -> str | None:
        """Return the checkpoint that a link leads to, or into, by whatever way."""
        found = self._known.led_to(entry.path)
        if found is None and entry.kind in ("other", "directory"):
            found = self._known.by_last_parts(self._folder, in_one_line(entry.target or ""))
        return found


def is_pointer(name: str) -> bool:
    """Tell whether a framework gives this name to what names its newest checkpoint."""
    return any(
        re.fullmatch(rf"(?:{rule.pattern})(?:\.txt)?", name, re.IGNORECASE)
        for layout in registry.LAYOUTS
        for rule in layout.pointers
        if not rule.key
    )


def in_text(data: bytes) -> str:
    """Decode a small text file, whatever its byte order mark says."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, "replace").strip()


def in_one_line(text: str) -> str:
    """Return the first line of a pointer's text without quotes, backslashes or a slash at its end."""
    line = next((line for line in text.lstrip("\ufeff").splitlines() if line.strip()), "")
    line = line.strip().strip("\"'").strip().replace("\\", "/")
    return line.rstrip("/") or line
