"""Writing one item of a ``.distcp`` file: the zip that ``torch.save`` makes of a tensor.

Byte for byte what torch 2.13 writes for a contiguous CPU tensor. Nothing is written twice and no
position is gone back to, so that an item can be streamed into an upload; its length follows from
dtype and shape alone. Source: ``torch/serialization.py``, ``caffe2/serialize/inline_container.cc``
and the miniz that comes with it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from ckptctl.crc import combine, crc32
from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.model.dtypes import ITEM_SIZE, STORAGE_DTYPE
from ckptctl.model.geometry import Shape

QUANTIZED = frozenset({"qint8", "quint8", "qint32"})
"""Dtypes whose scale lies in the item itself: it cannot be written from the payload alone."""

WRITABLE = frozenset(ITEM_SIZE) - QUANTIZED
"""Dtypes that an item can be written of."""

_TYPED = {dtype: name for name, dtype in STORAGE_DTYPE.items() if dtype in WRITABLE}
_ARCHIVE = b"archive/"
_ALIGNMENT = 64
_BIG = 0xFFFFFFFF
_MASK = (1 << 64) - 1
_UTF8, _DESCRIPTOR = 0x800, 0x08
_NAMES_HASH = b"15728199511854643026"
"""What libstdc++ makes of the names of a tensor's records; no reader looks at it."""


class Sink(Protocol):
    """Takes bytes in order: a file, an upload, a hash."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take more bytes, all of them."""


class _Nowhere:
    def write(self, data: bytes | memoryview, /) -> object:
        return len(data)


@dataclass(frozen=True, slots=True)
class Written:
    """One item as it was written: its bytes, and the CRC-32 of its payload."""

    length: int
    crc: int


def write_tensor(
    sink: Sink, dtype: str, shape: Shape, pieces: Iterable[bytes | memoryview]
) -> Written:
    """Write a tensor's item; ``pieces`` are its row-major bytes, cut anywhere.

    Raises ``MalformedData`` for a dtype that cannot be written, and for pieces that make up fewer
    or more bytes than the shape has: the item is then unfinished.
    """
    item = TensorItem(sink, dtype, shape)
    for piece in pieces:
        item.write(piece)
    return item.finish()


class TensorItem:
    """A tensor's item in the making, for whoever writes several of them at once."""

    def __init__(self, sink: Sink, dtype: str, shape: Shape) -> None:
        """Write what stands before the payload; raises ``MalformedData`` for other dtypes."""
        self._archive = Archive(sink)
        _begin(self._archive, tensor_pickle(dtype, shape))
        self._archive.begin(b"data/0", payload_size(dtype, shape))

    def write(self, piece: bytes | memoryview, crc: int | None = None) -> None:
        """Take more row-major bytes; ``crc`` is their CRC-32 where it is known already.

        Raises ``MalformedData`` for more bytes than the shape has.
        """
        self._archive.feed(piece, crc)

    def finish(self) -> Written:
        """Write what stands behind; raises ``MalformedData`` where bytes are missing."""
        crc = self._archive.end()
        return Written(self._archive.finish(), crc)


def write_object(sink: Sink, pickle: bytes) -> int:
    """Write the item of an object that is pickled already, by itself; return its length."""
    archive = Archive(sink)
    _begin(archive, pickle)
    return archive.finish()


def object_length(pickle: bytes) -> int:
    """Return the bytes of the item that ``write_object`` makes."""
    return write_object(_Nowhere(), pickle)


@lru_cache(maxsize=1 << 14)
def item_length(dtype: str, shape: Shape) -> int:
    """Return the bytes of the item that ``write_tensor`` makes of a tensor."""
    archive = Archive(_Nowhere())
    _begin(archive, tensor_pickle(dtype, shape))
    archive.record(b"data/0", payload_size(dtype, shape), None)
    return archive.finish()


def payload_size(dtype: str, shape: Shape) -> int:
    """Return the bytes of a tensor's elements; raises ``MalformedData`` for a dtype not written."""
    if dtype not in WRITABLE:
        raise MalformedData(f"an item of dtype {dtype} cannot be written, only copied as it is")
    return math.prod(shape) * ITEM_SIZE[dtype]


def _begin(archive: Archive, pickle: bytes) -> None:
    for name, data in (
        (b"data.pkl", pickle),
        (b".format_version", b"1"),
        (b".storage_alignment", b"%d" % _ALIGNMENT),
        (b"byteorder", b"little"),
    ):
        archive.record(name, len(data), (data,))


class Archive:
    """A zip in the making: stored records, each data begin aligned, sizes told behind the data."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._position = 0
        self._lines: list[bytes] = []
        self._content = 0
        self._open = (b"", 0, 0, 0)  # name, flags, size and header of the record being written
        self._count = self._crc = 0

    def _write(self, data: bytes | memoryview) -> None:
        self._sink.write(data)
        self._position += len(data)

    def record(self, name: bytes, size: int, pieces: Iterable[bytes | memoryview] | None) -> int:
        """Write one record and return its CRC; without ``pieces`` only its place is counted."""
        self.begin(name, size)
        if pieces is None:
            self._position += size
            self._count = size
        else:
            for piece in pieces:
                self.feed(piece)
        return self.end()

    def begin(self, name: bytes, size: int) -> None:
        """Write the header of a record of ``size`` bytes."""
        name = _ARCHIVE + name
        header = self._position
        flags = _UTF8 | _DESCRIPTOR if size else _UTF8
        # the compressed size is not known yet where the local header is written
        extra = _zip64(size, 0, header)
        start = header + 30 + len(name) + len(extra) + 4
        padding = -start % _ALIGNMENT
        extra += struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        self._write(
            struct.pack(
                "<4sHHHHHIIIHH", b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, 0, len(name), len(extra)
            )
            + name
            + extra
        )
        self._open = (name, flags, size, header)
        self._count = self._crc = 0

    def feed(self, piece: bytes | memoryview, crc: int | None = None) -> None:
        """Write bytes of the record that was begun; ``crc`` is theirs where it is known."""
        name, _, size, _ = self._open
        if self._count + len(piece) > size:
            raise _wrong(name, f"more than {size}", size)
        self._count += len(piece)
        self._crc = crc32(piece, self._crc) if crc is None else combine(self._crc, crc, len(piece))
        self._write(piece)

    def end(self) -> int:
        """Write what stands behind a record and return its CRC."""
        name, flags, size, header = self._open
        if self._count != size:
            raise _wrong(name, str(self._count), size)
        crc = self._crc
        if size:
            form = "<4sIQQ" if _zip64(size, size, header) else "<4sIII"
            self._write(struct.pack(form, b"PK\7\x08", crc, size, size))
        self._lines.append(_line(name, flags, crc, size, header))
        if size:
            mixed = crc + 0x9E3779B9 + (self._content << 6) + (self._content >> 2)
            self._content ^= mixed & _MASK
        return crc

    def finish(self) -> int:
        """Write the last records and the directory; return the bytes of the whole."""
        self.record(b"version", 2, (b"3\n",))
        identity = _NAMES_HASH + b"%020d" % self._content
        self.record(b".data/serialization_id", len(identity), (identity,))
        start, lines = self._position, b"".join(self._lines)
        count, size, end = len(self._lines), len(lines), self._position + len(lines)
        self._write(
            lines
            + struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x31E, 45, 0, 0, count, count, size, start)
            + struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
            + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, size, min(start, _BIG), 0)
        )
        return self._position


def _wrong(name: bytes, count: str, size: int) -> MalformedData:
    return MalformedData(f"record {name.decode()}: {count} bytes came where {size} were expected")


def _zip64(size: int, packed: int, header: int) -> bytes:
    """Return the extra field for what does not fit 32 bits, empty where all does."""
    values = []
    if size >= _BIG:
        values += [size, packed]
    if header >= _BIG:
        values.append(header)
    if not values:
        return b""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def _line(name: bytes, flags: int, crc: int, size: int, header: int) -> bytes:
    """Return a record's line of the directory."""
    extra = _zip64(size, size, header)
    small = min(size, _BIG)
    fixed = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        b"PK\1\2",
        *(0, 0, flags, 0, 0, 0, crc, small, small, len(name), len(extra)),
        *(0, 0, 0, 0, min(header, _BIG)),
    )
    return fixed + name + extra


class _Pickle:
    """A pickle of protocol 2 in the making, with memo numbers as Python's own pickler gives them."""

    def __init__(self) -> None:
        self.data = bytearray(b"\x80\x02")
        self._memo = 0

    def keep(self) -> None:
        self.data += b"q%c" % self._memo
        self._memo += 1

    def add(self, data: bytes) -> None:
        self.data += data

    def kept(self, data: bytes) -> None:
        self.data += data
        self.keep()

    def name(self, module: str, name: str) -> None:
        self.kept(b"c%s\n%s\n" % (module.encode(), name.encode()))

    def text(self, text: str) -> None:
        self.kept(b"X" + struct.pack("<I", len(text)) + text.encode())

    def number(self, value: int) -> None:
        self.data += number(value)

    def numbers(self, values: Shape) -> None:
        if not values:
            self.data += b")"
        elif len(values) <= 3:
            self.kept(b"".join(map(number, values)) + b"\x85\x86\x87"[len(values) - 1 :][:1])
        else:
            self.kept(b"(" + b"".join(map(number, values)) + b"t")


def number(value: int) -> bytes:
    """Return the opcode that pickles push for an integer."""
    if 0 <= value < 1 << 8:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a%c" % len(data) + data


@lru_cache(maxsize=1 << 12)
def tensor_pickle(dtype: str, shape: Shape) -> bytes:
    """Return the ``data.pkl`` of a contiguous tensor that fills its storage.

    Dtypes that torch has had from the beginning name a typed storage, which counts elements; the
    others an untyped one, which counts bytes, and their dtype behind it.
    """
    size, typed = payload_size(dtype, shape), _TYPED.get(dtype)
    pickle = _Pickle()
    pickle.name("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
    pickle.add(b"((")
    pickle.text("storage")
    pickle.name(*(("torch", typed) if typed else ("torch.storage", "UntypedStorage")))
    pickle.text("0")
    pickle.text("cpu")
    pickle.number(math.prod(shape) if typed else size)
    pickle.kept(b"t")
    pickle.add(b"Q")
    pickle.number(0)
    pickle.numbers(shape)
    pickle.numbers(strides(shape))
    pickle.add(b"\x89")
    pickle.name("collections", "OrderedDict")
    pickle.kept(b")R")
    if not typed:
        pickle.name("torch", dtype)
    pickle.kept(b"t")
    pickle.kept(b"R")
    pickle.add(b".")
    return bytes(pickle.data)


def storage_class(dtype: str) -> str | None:
    """Return the class of a dtype's typed storage, or None where torch has only an untyped one."""
    return _TYPED.get(dtype)


def strides(shape: Shape) -> Shape:
    """Return the strides of a contiguous tensor, in elements, as torch has them also where empty."""
    found, step = [], 1
    for extent in reversed(shape):
        found.append(step)
        step *= max(extent, 1)
    return tuple(reversed(found))
