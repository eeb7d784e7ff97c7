"""Where a result is written: under a temporary name beside its own, until it is proven.

On a store that renames, everything lies in a directory whose name no trainer and no command takes
for a checkpoint, and gets its own name in one step. Elsewhere it lies where it will be, with the
record of an unfinished one beside it, and what makes it whole is written last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import (
    CkptctlError,
    Conflict,
    Interrupted,
    NotFound,
    OutcomeUnknown,
    Refused,
    StorageError,
    UsageError,
)
from ckptctl.model.manifest import MANIFEST
from ckptctl.model.paths import join
from ckptctl.operations.place import RECORDS, split
from ckptctl.operations.reshard import replaced
from ckptctl.sharding.record import CONVERTED, RESHARD, staging_name, temporary
from ckptctl.storage import Entry, Store, WritableStore, open_writable


@dataclass(frozen=True, slots=True)
class Destination:
    """A result in the making: ``name`` in a store, and the directory ``place`` it is written in.

    ``single`` is a result that is one file, which lies in ``place`` under its own name. ``entries``
    are what an earlier attempt left there, ``replaces`` means that what has the name now goes
    once the new one is proven, and ``alone`` that the directory it is to lie in is not there yet.
    """

    store: WritableStore
    name: str
    url: str
    place: str
    single: bool = False
    entries: tuple[Entry, ...] = ()
    replaces: bool = False
    alone: bool = False

    @property
    def renamed(self) -> bool:
        """True if it is written under another name than its own."""
        return self.place != self.name

    @property
    def base(self) -> str:
        """The directory that the paths of its files are relative to."""
        if self.single and not self.renamed:
            return ""
        return self.place

    @property
    def notes(self) -> str:
        """The directory of the record of an unfinished one."""
        return f"{self.name}{RECORDS}" if self.single and not self.renamed else self.place

    @property
    def written(self) -> str:
        """Where it is until it is proven, as a user would type it."""
        return self.beside(join(self.place, self.name) if self.single else self.place)

    def beside(self, path: str) -> str:
        """Return a path in the store as a user would type it."""
        if not self.renamed and path in (self.name, join(self.place, self.name)):
            return self.url
        root = self.store.url.rstrip("/")
        return f"{root}/{path}" if root or self.store.url else path


def look(
    url: str, *, resume: bool = False, overwrite: bool = False, single: bool = False
) -> Destination:
    """Look at a destination; raises ``Refused`` where it is occupied.

    With ``resume`` what an unfinished attempt left may be there, with ``overwrite`` also what
    ``convert`` wrote and nobody has committed, pointed at or changed.
    """
    if resume and overwrite:
        raise UsageError("`resume` goes on and `overwrite` begins again: choose one")
    parent, name = split(url)
    if not name:
        raise UsageError(f"{url!r} is no name of something to be made")
    store = open_writable(parent or ".")
    place = staging_name(name) if store.renames else name
    alone = store.renames and _there(store, "") is None
    found = Destination(store, name, url, place, single, alone=alone)
    found = _at_its_name(found, resume=resume, overwrite=overwrite)
    entries = _entries(store, found.notes)
    if entries is None:
        raise Refused(f"{found.beside(found.notes)} is not a directory; nothing was written")
    ours = not found.renamed and not single  # looked at already
    if entries and not ours and not (resume or overwrite):
        raise Refused(
            f"{url}: what an unfinished attempt wrote is in {found.beside(found.notes)}: `resume` "
            "goes on, `overwrite` begins again; nothing was written"
        )
    return replace(found, entries=tuple(entries))


def _at_its_name(found: Destination, *, resume: bool, overwrite: bool) -> Destination:
    """Look at what has the name now."""
    store, name, url = found.store, found.name, found.url
    try:
        there = store.stat(name)
    except NotFound:
        return found
    kind = there.kind
    if there.target is not None:
        raise Refused(f"{url} is a link; name the place that it leads to; nothing was written")
    hint = "; `overwrite` replaces what `ckptctl convert` wrote" if not overwrite else ""
    if kind != "directory":
        begun = found.single and not found.renamed and _begun(found)
        if begun and (resume or overwrite):
            return found  # nothing has proven it yet
        if found.single and overwrite:
            replaced.may_replace_file(store, name, url)
            return _replacing(found)
        if not found.single:
            raise Refused(f"{url} is not a directory; nothing was written")
        raise Refused(f"{url} exists already; nothing was written{hint}")
    entries = store.entries(name)
    names = {entry.name for entry in entries}
    if MANIFEST in names:
        raise Refused(f"{url} holds a committed checkpoint; nothing was written")
    if not names:
        return found
    if found.single:
        raise Refused(f"{url} is a directory; nothing was written")
    if CONVERTED in names:
        if not overwrite:
            raise Refused(f"{url} exists already and is not empty; nothing was written{hint}")
        replaced.may_replace_directory(store, name, url, entries)
        return _replacing(found)
    begun = not found.renamed and (resume or overwrite) and all(map(temporary, names))
    if RESHARD in names or begun:
        if not (resume or overwrite):
            raise Refused(
                f"{url} exists already and is not empty; nothing was written; `resume` finishes "
                "what is there, `overwrite` begins again"
            )
        return replace(found, place=name)  # of a store that does not rename, or an older release
    raise Refused(
        f"{url} holds files that ckptctl did not write there; nothing was written"
        if resume or overwrite
        else f"{url} exists already and is not empty; nothing was written"
    )


def _begun(found: Destination) -> bool:
    """Tell whether the record of an unfinished attempt is there."""
    return any(entry.name == RESHARD for entry in _entries(found.store, found.notes) or ())


def _replacing(found: Destination) -> Destination:
    if not found.renamed:
        raise Refused(
            f"{found.url}: this storage cannot put one result in place of another in one step; "
            "choose another destination"
        )
    return replace(found, replaces=True)


def _entries(store: Store, path: str) -> list[Entry] | None:
    """List a directory; nothing where it is not there, None where it is none."""
    try:
        return store.entries(path) if store.stat(path).kind == "directory" else None
    except NotFound:
        return []


def _there(store: Store, path: str) -> Entry | None:
    """Describe what has a name; None where nothing has it."""
    try:
        return store.stat(path)
    except NotFound:
        return None


def need_space(store: WritableStore, size: int) -> None:
    """Raise ``Refused`` where a store says that it has no room for so many bytes."""
    free = store.space()
    if free is not None and free < size:
        raise Refused(
            f"{store.url}: {size:,} bytes are to be written and {free:,} are free; nothing was "
            "written"
        )


@contextmanager
def kept_on_interrupt(found: Destination, *, damaged: bool = False) -> Iterator[None]:
    """Say what is left where writing ends early.

    Where something is wrong with the bytes nothing is left, unless ``damaged`` keeps what was
    written, so that another attempt need write only what is not as it should be.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"{str(stop) or 'interrupted'}: nothing was made of {found.url}; what is written so far is "
            f"in {found.beside(found.notes)}: `resume` goes on, `overwrite` begins again",
            stop,
            left=True,
        ) from None
    except (Conflict, OutcomeUnknown):
        raise
    except StorageError as error:
        text = (
            f"{error}; nothing was made of {found.url}; what is written so far is in "
            f"{found.beside(found.notes)}: `resume` goes on, `overwrite` begins again"
        )
        raise type(error)(text) from error
    except CkptctlError:
        if not damaged:
            discard(found)
        raise


def discard(found: Destination) -> None:
    """Remove an attempt that came to nothing, the record of it last."""
    try:
        if found.single and not found.renamed:
            found.store.delete(found.name)
        entries = found.store.entries(found.notes)
        for entry in sorted(entries, key=lambda entry: entry.name == RESHARD):
            if entry.kind != "directory":
                found.store.delete(join(found.notes, entry.name))
        found.store.remove_directory(found.notes)
        if found.alone:
            found.store.remove_directory("")
    except CkptctlError:
        return  # what is left has a temporary name, or the record of an unfinished attempt


def publish(found: Destination) -> None:
    """Give what is proven its own name, in one step where the store can, and forget the attempt.

    Raises ``Conflict`` where somebody else has taken the name meanwhile.
    """
    store = found.store
    if not found.renamed:
        store.delete(join(found.notes, RESHARD))
        if found.single:
            store.remove_directory(found.notes)
        return
    aside = staging_name(found.name, "replaced")
    if found.replaces:
        store.rename_directory(found.name, aside)
    elif not found.single:
        store.remove_directory(found.name)
    source = join(found.place, found.name) if found.single else found.place
    try:
        store.rename_directory(source, found.name)
    except BaseException:
        if found.replaces and _there(store, found.name) is None:
            store.rename_directory(aside, found.name)
        raise
    store.delete(join(found.place if found.single else found.name, RESHARD))
    if found.single:
        store.remove_directory(found.place)
    replaced.remove(store, aside)  # also what an attempt that was killed right here has left
