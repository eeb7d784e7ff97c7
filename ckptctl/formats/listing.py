"""The files of a checkpoint: all below its directory, or the members of a set of files.

Links to directories are followed with care: what lies behind them may be all of a file system, or
the checkpoint itself once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import StorageError
from ckptctl.model.belonging import foreign
from ckptctl.model.checkpoint import File
from ckptctl.model.paths import join
from ckptctl.storage import Entry, Store, below

_DEPTH = 16  # levels of directories inside a checkpoint
_MOST_BEHIND_LINKS = 10_000


def as_file(relative: str, entry: Entry, behind: str = "", link: str = "") -> File:
    """Describe a listed entry as a file of a checkpoint; ``link`` is the text of what it is behind."""
    return File(
        relative,
        entry.size,
        entry.kind == "file",
        entry.modified,
        entry.version,
        entry.changed,
        link or entry.target or "",
        behind,
    )


def list_files(
    store: Store,
    base: str,
    members: Iterable[str] | None = None,
    is_one: Callable[[str], bool] = lambda _: False,
) -> dict[str, File]:
    """List files by path relative to ``base``: everything below it, or only ``members``.

    A link to a directory is followed, but no link behind it, and of all that lies behind such links
    so much is listed as a checkpoint may need. One that is not followed stands as no file.
    """
    prefix = f"{base}/" if base else ""
    if members is not None:
        wanted = sorted(members)
        folders = {path.rpartition("/")[0] for path in wanted}
        there = {
            entry.path.removeprefix(prefix): entry
            for folder in sorted(folders)
            for entry in store.entries(f"{prefix}{folder}".rstrip("/"))
        }
        return {path: as_file(path, there[path]) for path in wanted if path in there}
    found: dict[str, File] = {}
    listed = below(store, base)
    if listed:
        for entry in listed:
            relative = entry.path.removeprefix(prefix)
            top = relative.partition("/")[0]
            if top != relative and is_one(top):
                entry, relative = Entry(join(base, top), "directory"), top
            found[relative] = as_file(relative, entry)
        return found
    walk = _Walk(store)
    for entry in store.entries(base):
        relative = entry.path.removeprefix(prefix)
        one = is_one(relative) and entry.kind == "directory"
        for inner, link in [(entry, None)] if one else walk.below(entry, None, _DEPTH):
            name = inner.path.removeprefix(prefix)
            behind, text = (link.path, link.target or "") if link is not None else ("", "")
            found[name] = as_file(name, inner, behind.removeprefix(prefix), text)
    return found


@dataclass(slots=True)
class _Walk:
    """One walk through a checkpoint; ``left`` is how much more may be listed behind links."""

    store: Store
    left: int = field(default=_MOST_BEHIND_LINKS)

    def below(
        self, entry: Entry, behind: Entry | None, depth: int
    ) -> Iterator[tuple[Entry, Entry | None]]:
        """Yield an entry, or all files below it, with the link to a directory that they lie behind."""
        if entry.kind != "directory":
            yield entry, behind
            return
        link = entry.target is not None
        if depth <= 0 or (behind is not None and (link or self.left <= 0)):
            yield entry, behind
            return
        through = entry if link else behind
        try:
            inside = self.store.entries(entry.path)
        except StorageError:
            if through is None and not foreign(f"{entry.path}/"):
                raise
            yield entry, behind
            return
        if through is not None:
            inside = inside[: max(0, self.left)]
            self.left -= len(inside)
        for one in inside:
            yield from self.below(one, through, depth - 1)
