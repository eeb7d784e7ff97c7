"""What ``torch.save`` wrote: the pickle of a state, and where the bytes of its storages lie.

A zip since torch 1.6, with a CRC for each record. Before that, and today with
``_use_new_zipfile_serialization=False``, a row of pickles and then the storages, each behind its
number of elements, without any CRC. Source: ``torch/serialization.py`` (``_legacy_save``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ckptctl.crc import crc32
from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData
from ckptctl.formats.companions import LEGACY
from ckptctl.formats.pickles.tensors import StorageRef, Storages, TensorRef
from ckptctl.formats.pickles.unpickler import load
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import Stored
from ckptctl.model.dtypes import item_size
from ckptctl.storage import Reader

_LARGEST_PICKLE = 1 << 30
_FIRST_READ, _LAST_READ = 1 << 20, 64 << 20
"""Bytes of a legacy file among which its pickles are looked for: they come first."""

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_PICKLES = 5
"""Magic number, version, machine, state, and the keys of the storages in their order."""

_COUNT = struct.Struct("<q")

Table = Mapping[tuple[str, str], object]
Places = dict[str, tuple[int, torchzip.Head]]


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a storage; ``crc`` is None where none was recorded."""

    start: int
    size: int
    crc: int | None = None


def start(place: Place) -> int:
    """Return where a storage begins."""
    return place.start


@dataclass(frozen=True, slots=True)
class Saved:
    """A state as it was pickled, with the places of its storages by key."""

    state: object
    storages: Mapping[str, Place]
    little: bool = True
    legacy: bool = False
    unsafe: list[str] = field(default_factory=list)

    def stored(self, ref: TensorRef) -> Stored | None:
        """Describe where a tensor lies, or return None where its storage is not there."""
        place = self.storages.get(ref.storage.key)
        if place is None:
            return None
        return Stored(
            ref.dtype,
            ref.shape,
            ref.stride,
            ref.offset,
            place.start,
            place.size,
            place.crc,
            little=self.little,
            flags=ref.flags,
        )


def read(reader: Reader, table: Table) -> Saved:
    """Read what a file holds, without its storages' bytes and without running anything.

    ``table`` says what is built of globals. Raises ``MalformedData`` for damage.
    """
    start = reader.read(0, min(reader.size, len(LEGACY)))
    if start == LEGACY:
        return _read_legacy(reader, table)
    return _read_zip(reader, table)


def _read_zip(reader: Reader, table: Table) -> Saved:
    pickle, places = open_zip(reader)
    unsafe: list[str] = []
    storages = Storages()
    state = load(pickle, table, persistent=storages, unsafe=unsafe)[0]
    problem = storages.problem({name: head.size for name, (_, head) in places.items()})
    if problem:
        raise MalformedData(problem)
    found = {
        name.removeprefix("data/"): Place(start, head.size, head.crc or None)
        for name, (start, head) in places.items()
        if name.startswith("data/")
    }
    return Saved(state, found, _little(reader, places), unsafe=unsafe)


def open_zip(reader: Reader) -> tuple[bytes, Places]:
    """Return the pickle and the records of a zip; raises ``MalformedData`` for what is none."""
    if reader.size >= 2 and reader.read(0, 2) != b"PK":
        raise MalformedData("torch.save wrote no such file: it is neither a zip nor a legacy one")
    directory = torchzip.read_directory(reader.read, reader.size)
    places: Places = {}
    for head in directory.heads:
        header = reader.read(head.header, head.header + torchzip.LOCAL_SIZE + len(head.raw_name))
        places[head.name] = (torchzip.data_start(header, head), head)
    small = {
        name: reader.read(places[name][0], places[name][0] + min(places[name][1].size, 64))
        for name in torchzip.SETTINGS
        if name in places
    }
    problem = torchzip.problem(places.keys(), small)
    if problem:
        raise MalformedData(problem)
    start, head = places["data.pkl"]
    if head.size > _LARGEST_PICKLE:
        raise MalformedData(f"its data.pkl of {head.size} bytes is too large")
    return _record(reader, "data.pkl", start, head), places


def _record(reader: Reader, name: str, start: int, head: torchzip.Head) -> bytes:
    """Return a small record; raises ``MalformedData`` where its CRC-32 does not fit its bytes."""
    data = reader.read(start, start + head.size)
    found = crc32(data)
    if head.crc and found != head.crc:
        raise MalformedData(f"its {name}: CRC-32 is {found:08x}, {head.crc:08x} was written")
    return data


def _little(reader: Reader, places: Places) -> bool:
    if "byteorder" not in places:
        return True
    start, head = places["byteorder"]
    order = b"" if head.size > 16 else _record(reader, "byteorder", start, head)
    if order not in (b"little", b"big"):
        raise MalformedData(f"its byte order reads {order!r}")
    return order == b"little"


class _LegacyStorages(Storages):
    """Resolves persistent ids of a legacy file, which end in how one storage views another."""

    def __call__(self, pid: object) -> StorageRef:
        """Resolve ``('storage', class, key, location, count, None)``."""
        if type(pid) is not tuple or len(pid) != 6:
            raise MalformedData("a persistent id does not name a storage")
        if pid[5] is not None:
            raise MalformedData("a storage is a view of another, as before torch 0.4")
        return super().__call__(pid[:5])

    def widths(self) -> dict[str, int]:
        """Return the bytes of one element of each storage that was named."""
        found = {}
        for key, one in self._known.items():
            width = 1 if one.dtype is None else item_size(one.dtype)
            if width is None:
                raise MalformedData(f"a legacy file has no storage of {one.dtype}")
            found[key] = width
        return found


def _read_legacy(reader: Reader, table: Table) -> Saved:
    """Read the pickles at the beginning, then find each storage behind them."""
    size = _FIRST_READ
    while True:
        data = reader.read(0, min(reader.size, size))
        storages, unsafe = _LegacyStorages(), list[str]()
        at, parts = 0, list[object]()
        try:
            for _ in range(_PICKLES):
                one, _machine, end = load(data[at:], table, persistent=storages, unsafe=unsafe)
                parts.append(one)
                at += end
            break
        except MalformedData:  # perhaps only because not enough was read
            if len(data) == reader.size or size >= _LAST_READ:
                raise
            size *= 8
    magic, version, machine, state, keys = parts
    if magic != _MAGIC or version != _PROTOCOL or not isinstance(machine, dict):
        raise MalformedData("it is a legacy torch.save file of no known version")
    widths = storages.widths()
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(widths):
        raise MalformedData("the storages that a legacy file lists are not those that it names")
    places = _legacy_places(reader, at, [(str(key), widths[str(key)]) for key in keys])
    problem = storages.problem({f"data/{key}": one.size for key, one in places.items()})
    if problem:
        raise MalformedData(problem)
    # torch writes numbers the lower byte first on any machine, and asks no legacy file which it was
    return Saved(state, places, little=True, legacy=True, unsafe=unsafe)


def _legacy_places(reader: Reader, at: int, widths: list[tuple[str, int]]) -> dict[str, Place]:
    """Find the storages, each behind its number of elements, up to the end of the file."""
    places: dict[str, Place] = {}
    for key, width in widths:
        if at + _COUNT.size > reader.size:
            raise MalformedData(f"it ends where the storage {key[:40]} should begin")
        (count,) = _COUNT.unpack(reader.read(at, at + _COUNT.size))
        place = Place(at + _COUNT.size, count * width)
        at = place.start + place.size
        if count < 0 or at > reader.size:
            raise MalformedData(f"it ends inside the storage {key[:40]}")
        places[key] = place
    if at != reader.size:
        raise MalformedData(f"{reader.size - at} bytes follow its last storage")
    return places
