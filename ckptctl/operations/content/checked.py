"""What the bytes of a stored tensor are checked against, settled before any of them is handed out.

A CRC-32 that covers just these bytes is checked as they stream by. One that covers more, because
the tensor is a view of a larger storage, is checked first, over the whole storage. Where none was
recorded the bytes cannot be proven, and whoever vouches for them has to say so.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import TypeAlias

from ckptctl.crc import crc32
from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData
from ckptctl.formats.items.bytes import RUN
from ckptctl.model.checkpoint import Item, Stored
from ckptctl.storage import Reader


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Nothing was recorded that these bytes could be checked against."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A CRC-32 over just these bytes: whoever reads all of them in order knows."""

    crc: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The storage that these bytes lie in was read whole, and it fits the CRC-32 that it has."""


Check: TypeAlias = Unrecorded | Recorded | Checked


def crc_of(reader: Reader, start: int, size: int) -> int:
    """Return the CRC-32 of bytes of a file, read through one buffer."""
    found = 0
    buffer = memoryview(bytearray(min(RUN, max(1, size))))
    for position in range(start, start + size, len(buffer)):
        part = buffer[: min(len(buffer), start + size - position)]
        reader.read_into(position, part)
        found = crc32(part, found)
    return found


def complain(item: Item, found: int, recorded: int) -> None:
    """Raise ``MalformedData`` unless a CRC-32 is the recorded one."""
    if found != recorded:
        raise MalformedData(
            f"{item.path}: {item.fqn}: CRC-32 is {found:08x}, {recorded:08x} was written"
        )


@dataclass(slots=True)
class Storages:
    """The storages that were read whole: each once, however many tensors view it."""

    _found: dict[Hashable, int] = field(default_factory=dict)
    _locks: dict[Hashable, Lock] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def check(self, reader: Reader, item: Item, stored: Stored) -> Check:
        """Check a storage that is larger than what is to be read of it.

        Raises ``MalformedData`` where it is not what was written.
        """
        if stored.crc is None:
            return Unrecorded()
        # what is decoded has positions of its own in every item
        key = (item.path, item.offset, item.transforms, stored.start, stored.size)
        with self._lock:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._found:
                self._found[key] = crc_of(reader, stored.start, stored.size)
        complain(item, self._found[key], stored.crc)
        return Checked()
