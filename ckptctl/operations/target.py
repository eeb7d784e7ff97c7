"""From what a user names to a root and its checkpoints: one way for every command.

A target is a root, a checkpoint, a file inside one, a pointer, ``ROOT@NAME`` for what a pointer
names, ``ROOT@STEP``, or nothing at all: then it is ``CKPTCTL_ROOT`` or the current directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ckptctl.dataclass import dataclass
from ckptctl.errors import (
    Findings,
    NotFound,
    NothingThere,
    Refused,
    RootMissing,
    StorageError,
    UsageError,
)
from ckptctl.model.manifest import LATEST
from ckptctl.operations.find import DEPTH, find, locate, place_of_file
from ckptctl.operations.place import ALONE, UNKNOWN, Place, address, not_read, split
from ckptctl.pattern import pattern
from ckptctl.storage import Entry, Store, WritableStore, open_store, open_writable
from ckptctl.words import listed

if TYPE_CHECKING:
    from ckptctl.operations.pointers import Pointer

Named = str | os.PathLike[str] | None
"""A path or URL; None is ``CKPTCTL_ROOT``, or the current directory where that is not set."""
ROOT = "CKPTCTL_ROOT"
_SELECTOR = pattern(r"[\w.-]+")
_ONE_SLASH = pattern(
    r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)|(?:s3|gs|gcs|az|abfss?|hf|https?|file):(?!//)", re.IGNORECASE
)
"""A URL with a slash too few. One letter is a drive of Windows."""
_BARE = pattern(r"(?!(?:file|local|memory):)[a-z][a-z0-9+.-]*://(?:/|$)|[a-z]+://$", re.IGNORECASE)
"""A URL without a bucket or a host, or without anything."""
_MOST_NAMED = 4

AnyStore = TypeVar("AnyStore", bound=Store)


@dataclass(frozen=True, slots=True)
class Target(Generic[AnyStore]):
    """What was named: ``store`` is the root, ``places`` the checkpoints meant, ``url`` as typed.

    ``single`` is true where one checkpoint was named, and not the root that holds it.
    """

    url: str
    store: AnyStore
    places: tuple[Place, ...]
    single: bool

    def one(self) -> Place:
        """Return the one checkpoint; raises ``UsageError`` where a root holds several."""
        if len(self.places) == 1:
            return self.places[0]
        raise UsageError(
            f"{self.url} holds {len(self.places)} checkpoints ({_few(self.places)}): name one of "
            f"them; `ckptctl list {self.url}` shows all"
        )

    def readable(self) -> Place:
        """Return the one checkpoint; raises ``Refused`` where its format is not read."""
        place = self.one()
        if not place.readable:
            raise Refused(f"{self.url}: {not_read(place)}")
        return place


def open_target(named: Named, framework: str = "") -> Target[Store]:
    """Open what a user named for reading; ``framework`` is the one layout to ask.

    Raises ``UsageError`` for an empty path, ``RootMissing`` where it is not there, ``NothingThere``
    where no checkpoint is in it, ``Findings`` where what is in it may be left of one, ``NotFound`` for a pointer or a step that a root does not have, and
    ``StorageError`` where any of that could not be found out.
    """
    return _Finder(open_store, framework).open(named)


def checkpoint_of(named: Named, framework: str = "") -> str:
    """Return the path or URL of the one checkpoint, or file of tensors, that is named."""
    url = text_of(named)
    if url.endswith(ALONE):
        return url
    target = open_target(named, framework)
    return address(target.store, target.one().path)


def open_for_records(
    named: Named, framework: str = "", *, unread: bool = False
) -> tuple[WritableStore, Place]:
    """Open the one checkpoint that is named for writing records, which need its root.

    With ``unread`` it may be one whose contents are not read. Raises ``UsageError`` where there
    are several, ``Refused`` where its format is not read.
    """
    target = _Finder(open_writable, framework).open(named)
    place = target.one() if unread else target.readable()
    if not place.path:
        raise UsageError(f"{target.url} lies in no directory, where records of it could be")
    return target.store, place


def open_root(
    named: Named, framework: str = "", *, missing: bool = False
) -> tuple[Store, Sequence[Place]]:
    """Open a root for commands that are about all of it; from inside a checkpoint it is the root.

    A checkpoint that is named itself is meant alone. A root may hold nothing at all. Raises
    ``UsageError`` for an empty path, ``RootMissing`` where it is not there; with ``missing`` such a
    root is one of a run that has not begun: ``NothingThere``.
    """
    try:
        target = open_target(named, framework)
    except RootMissing as error:
        if missing and _can_be_made(text_of(named)):
            raise NothingThere(f"{error}, which is accepted: the run has not begun") from None
        raise
    except (NothingThere, Findings):
        store = open_store(text_of(named))
        return store, find(store, framework)
    if not target.single:
        return target.store, target.places
    store, place = target.store, target.one()
    if named is not None and place.members is None:
        store = open_store(address(store, place.path))
    return store, find(store, framework)


def open_for_pruning(named: Named, framework: str = "") -> tuple[WritableStore, Sequence[Place]]:
    """Open a root from which checkpoints are deleted; raises ``UsageError`` for a checkpoint."""
    target = _Finder(open_writable, framework).open(named)
    if target.single:
        raise UsageError(
            f"{target.url} is one checkpoint; name the root that holds it: {target.store.url}"
        )
    return target.store, target.places


def open_for_trash(named: Named) -> WritableStore:
    """Open a root for what was moved aside in it; it may hold no checkpoint any more.

    Raises ``RootMissing`` where it is not there.
    """
    store = open_writable(text_of(named))
    try:
        store.entries()
    except NotFound:
        raise RootMissing(f"{store.url}: no such directory") from None
    return store


def text_of(named: Named) -> str:
    """Return a target as text; raises ``UsageError`` for what an unset variable leaves of one."""
    text = os.environ.get(ROOT, ".") if named is None else os.fspath(named)
    if not text:
        said = f"{ROOT} is empty" if named is None else "the path is empty"
        raise UsageError(f"{said}: a path or URL is needed; is a variable not set?")
    if not text.strip():
        raise UsageError(f"the path is blank, {text!r}: a path or URL is needed")
    if ":" not in text:
        return text
    if _ONE_SLASH.match(text) and not os.path.lexists(text):
        scheme, _, rest = text.partition(":")
        right = f"{scheme}://{rest.lstrip('/')}"
        raise UsageError(f"{text} is neither a path that is there nor a URL: {right} would be one")
    if _BARE.match(text):
        raise UsageError(f"{text} names no bucket and no path; is a variable not set?")
    return text


def _can_be_made(url: str) -> bool:
    """Tell whether a root that is not there may be of a run that has not begun.

    Its bucket must be there, or the nearest thing above it must be a directory, and no file and no
    link that leads nowhere. A bucket that may not be listed is taken for one that is there.
    """
    scheme, sign, rest = url.partition("://")
    if not sign or scheme in ("file", "local"):
        place = Path(rest if sign else url).absolute()
        while not os.path.lexists(place):
            place = place.parent
        return place.is_dir()
    if scheme == "memory":
        return True
    try:
        open_store(f"{scheme}://{rest.partition('/')[0]}").entries()
    except NotFound:
        return False
    except StorageError:
        return True
    return True


@dataclass(frozen=True, slots=True)
class _Finder(Generic[AnyStore]):
    """Finds what is named, in stores that it opens, by the layouts that may be asked."""

    opener: Callable[[str], AnyStore]
    framework: str

    def open(self, named: Named) -> Target[AnyStore]:
        """Find what a user named."""
        url = text_of(named)
        root, selector = self._selected(url)
        if selector:
            above = self.open(root)
            store, places = above.store, above.places
            if above.single:
                places = tuple(find(store, self.framework))
            return Target(url, store, (_choose(root, store, places, selector),), single=True)
        entry = self._entry(url)
        if entry is not None and entry.kind == "file":
            return self._of_file(url)
        inside = _linked(url, entry)
        try:
            store, found = locate(inside, self.opener, self.framework)
        except NothingThere:
            around = self._around(url) if entry is not None else None
            if around is None:
                from ckptctl.operations.vacancy import nothing_here

                raise nothing_here(self.opener(inside)) from None
            return around
        single = not found[0].path or store.url != self.opener(inside).url
        if named is None and single:  # from within a part, the whole is meant
            around = self._around(url)
            if around is not None:
                return around
        return Target(url, store, tuple(found), single)

    def _entry(self, url: str) -> Entry | None:
        """Describe what has this name in the directory it lies in; None if that cannot be told."""
        parent, name = split(url)
        if not parent or not name:
            return None
        try:
            return self.opener(parent).stat(name)
        except (StorageError, Refused):
            return None

    def _of_file(self, url: str) -> Target[AnyStore]:
        """Return the checkpoint that a file is, that it is a part of, or that it names."""
        around = self._around(url)
        if around is not None:
            return around
        from ckptctl.operations.pointers import pointers

        parent, name = split(url)
        store = self.opener(parent)
        places = find(store, self.framework)
        for pointer in pointers(store, places):
            if pointer.name == name:
                _refuse_two(pointer)
                place = next((one for one in places if one.path == pointer.target), None)
                if place is None:
                    text = pointer.text or "nothing"
                    raise NotFound(f"{url} is a pointer and names {text}, which is not here")
                return Target(url, store, (place,), single=True)
        try:
            alone = place_of_file(store, name, self.framework)
        except NothingThere:
            alone = None
        if alone is None:
            raise NotFound(f"{url} is a file; it is no checkpoint, and not in one")
        return Target(url, store, (alone,), single=True)

    def _around(self, url: str) -> Target[AnyStore] | None:
        """Walk up from a place inside a checkpoint to the checkpoint and its root."""
        above = url
        for _ in range(DEPTH):
            above, child = split(above)
            if not above:
                break
            store = self.opener(above)
            try:
                places = find(store, self.framework, depth=0)
            except (NothingThere, StorageError):  # a directory above need not be listable
                continue
            for place in places:
                if child in (place.members or ()):
                    return Target(url, store, (place,), single=True)
                if not place.path and place.format not in ("", UNKNOWN):
                    store, found = locate(above, self.opener, self.framework)
                    return Target(above, store, tuple(found), single=True)
        return None

    def _selected(self, url: str) -> tuple[str, str]:
        """Split ``ROOT@NAME``; a path that is there as it is written means itself."""
        root, sign, selector = url.rpartition("@")
        if not sign or not _SELECTOR.fullmatch(selector) or self._entry(url) is not None:
            return url, ""
        return root or text_of(None), selector


def _linked(url: str, entry: Entry | None) -> str:
    """Follow a link to a neighbour, whose name says more than the link's: ``latest -> step-12``."""
    parent, _ = split(url)
    if entry is None or entry.target is None:
        return url
    target = os.path.relpath(os.path.realpath(url), os.path.realpath(parent))
    return url if target.startswith("..") else f"{parent.rstrip('/')}/{target}"


def _choose(root: str, store: Store, places: Sequence[Place], selector: str) -> Place:
    """Return the checkpoint of a step, or the one that a pointer names."""
    if selector.isdigit():
        number = int(selector)
        found = [one for one in places if one.name.step == number and not one.name.staging]
        if len(found) > 1:
            raise UsageError(
                f"{root} holds {len(found)} checkpoints of step {number} ({_few(found)}): name one "
                "of them by its path"
            )
        if not found:
            raise NotFound(f"{root} holds no checkpoint of step {number}; {_steps(places)}")
        return found[0]
    name = LATEST if selector == "latest" else selector
    target, known = _pointed(store, places, name)
    if target is None:
        there = f"; there are {', '.join(known)}" if known else ""
        raise NotFound(f"{root} has no pointer {name}{there}")
    place = next((one for one in places if one.path == target), None)
    if place is None:
        raise NotFound(f"{root}: pointer {name} names {target}, which is not here")
    return place


def _refuse_two(pointer: Pointer) -> None:
    """Raise ``UsageError`` where a pointer may mean several."""
    if pointer.others:
        raise UsageError(
            f"pointer {pointer.name} says {pointer.text}, which is the step of "
            f"{' and of '.join(pointer.targets)}: name one of them by its path"
        )


def _pointed(store: Store, places: Sequence[Place], name: str) -> tuple[str | None, list[str]]:
    """Return what a pointer names, and the names of all pointers."""
    from ckptctl.operations.decision import decide
    from ckptctl.operations.pointers import pointers

    there = pointers(store, list(places))
    found = {one.name: one.target or one.text for one in there}
    for one in there:
        if one.name == name:
            _refuse_two(one)
    newest = next((one.path for one in reversed(places) if one.committed), None)
    ours = decide(store, {place.path for place in places}, newest=newest)
    if ours.problem and name == LATEST:
        raise StorageError(f"{ours.said}; name the checkpoint itself")
    if ours.revision is not None:
        found[LATEST] = ours.revision.target
    return found.get(name), sorted(found)


def _few(places: Sequence[Place]) -> str:
    names = [place.path or "." for place in places]
    return listed(names, _MOST_NAMED)


def _steps(places: Sequence[Place]) -> str:
    steps = [place.name.step for place in places if place.name.step is not None]
    if not steps:
        return "none has a step"
    return f"its steps are {', '.join(map(str, steps[:_MOST_NAMED]))}" + (
        f" ... {steps[-1]}" if len(steps) > _MOST_NAMED else ""
    )
