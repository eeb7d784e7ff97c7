"""Are bytes that no entry speaks of whole items, one behind the other? Then it is the entries that are gone."""

from __future__ import annotations

from collections.abc import Callable

from ckptctl.errors import MalformedData
from ckptctl.formats.torch.zip import END_SIZE, read_directory
from ckptctl.storage import Reader

_MOST_ITEMS = 4096
_LARGEST = 16 << 20
"""Bytes of one directory that are read: an item of torch has a few records."""


def filled(reader: Reader, start: int, stop: int) -> int:
    """Count the items of ``torch.save`` that fill a range; 0 where anything else lies in it.

    Each item's end says how long it is. No payload is read.
    """
    end, count = stop, 0
    while end > start:
        if count == _MOST_ITEMS or end - start < END_SIZE:
            return 0
        tail = reader.read(end - END_SIZE, end)
        length = int.from_bytes(tail[64:72], "little") + END_SIZE
        low = end - length
        if low < start:
            return 0
        try:
            directory = read_directory(_within(reader, low), length)
            first = directory.heads[0].header if directory.heads else -1
            if first != 0 or reader.read(low, low + 4) != b"PK\x03\x04":
                return 0
        except MalformedData:
            return 0
        end, count = low, count + 1
    return count


def _within(reader: Reader, low: int) -> Callable[[int, int], bytes]:
    def read(start: int, stop: int) -> bytes:
        if stop - start > _LARGEST:
            raise MalformedData("its directory is larger than that of any item")
        return reader.read(low + start, low + stop)

    return read
