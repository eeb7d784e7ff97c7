"""The files of one checkpoint, opened for reading by several threads, and what was found in them."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Lock

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData
from ckptctl.formats.items.storage import locate_tensor
from ckptctl.formats.items.templates import Templates
from ckptctl.model.checkpoint import Item, Stored
from ckptctl.model.paths import is_contained, join
from ckptctl.operations.content.checked import Storages
from ckptctl.storage import Reader, Store, open_listed

_MOST_OPEN = 128
_MOST_KNOWN = 1 << 15
"""Items whose place is remembered; where there are more, what is read of each is little."""


@dataclass(slots=True)
class OpenFiles:
    """Files that stay open where there is room; safe to use from several threads.

    ``storages`` are those that were read whole, ``templates`` what many items have in common.
    """

    store: Store
    base: str
    storages: Storages = field(default_factory=Storages)
    templates: Templates = field(default_factory=Templates)
    _readers: dict[str, Reader] = field(default_factory=dict)
    _known: dict[tuple[str, int], Stored] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def reader(self, path: str, stack: ExitStack, size: int | None = None) -> Reader:
        """Return a file of the checkpoint opened for reading, kept open where there is room.

        ``size`` is what a listing told of it.
        """
        if not is_contained(path):
            raise MalformedData(f"{path!r} lies outside the checkpoint")
        with self._lock:  # so that several threads share one reader, and what it has fetched
            found = self._readers.get(path)
            if found is None and len(self._readers) < _MOST_OPEN:
                found = self._readers[path] = open_listed(self.store, join(self.base, path), size)
        if found is None:
            found = stack.enter_context(open_listed(self.store, join(self.base, path), size))
        return found

    def locate(self, reader: Reader, item: Item) -> Stored:
        """Find the storage of an item that is not compressed, reading its ends once."""
        key = (item.path, item.offset)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = locate_tensor(reader, item, self.templates)
            with self._lock:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = known
        return known

    def close(self) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
