"""The zip that ``torch.save`` writes: one item of a ``.distcp`` file, or a whole ``.pt`` file.

Records are stored, not compressed; the central directory and the zip64 end record, always
present, are the last bytes. Offsets count from where the item begins, not from where the file
does. Format: PKWARE APPNOTE 6.3 and PyTorch's ``caffe2/serialize/inline_container.cc``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData

END_SIZE = 98  # zip64 end record 56, its locator 20, end record 22
LOCAL_SIZE = 30
_CENTRAL_SIZE = 46
_BIG = 0xFFFFFFFF
_DESCRIPTOR_FLAG = 0x08
_FOLDER = 0x10  # torch reads other bytes for a record with this attribute, in silence
_NEWEST = 10  # kMaxSupportedFileFormatVersion
_ENCRYPTED = 0x2061
_MAX_RECORDS = 1 << 20

Read: TypeAlias = Callable[[int, int], bytes]
"""Returns the bytes from one position of the item up to another."""


@dataclass(frozen=True, slots=True)
class Head:
    """One line of the central directory; ``header`` is where the local header begins."""

    name: str
    raw_name: bytes
    flags: int
    crc: int
    size: int
    header: int


@dataclass(frozen=True, slots=True)
class Directory:
    """The records in the order of their bytes, and where the directory itself begins."""

    heads: tuple[Head, ...]
    start: int


def read_directory(read: Read, length: int) -> Directory:
    """Parse the end records and the central directory of an item of ``length`` bytes.

    Raises ``MalformedData`` for whatever does not fit.
    """
    if length < END_SIZE:
        raise MalformedData(f"{length} bytes are too few for a torch.save item")
    end = read(length - END_SIZE, length)
    if end[:4] != b"PK\x06\x06" or end[56:60] != b"PK\x06\x07" or end[76:80] != b"PK\x05\x06":
        raise MalformedData("the zip end record is not where the item ends")
    record_size, _, _, disk, cd_disk, on_disk, count, cd_size, cd_start = struct.unpack_from(
        "<QHHIIQQQQ", end, 4
    )
    locator_disk, locator, disks = struct.unpack_from("<IQI", end, 60)
    d1, d2, n1, n2, size32, start32, comment = struct.unpack_from("<HHHHIIH", end, 80)
    if (
        record_size != 44
        or (disk, cd_disk, locator_disk, d1, d2, comment) != (0,) * 6
        or disks != 1
        or locator != length - END_SIZE
        or on_disk != count
        or n1 != n2
        or n1 != min(count, 0xFFFF)
        or size32 != min(cd_size, _BIG)
        or start32 != min(cd_start, _BIG)
    ):
        raise MalformedData("the copies of the zip end record contradict each other")
    if cd_start + cd_size != length - END_SIZE or count > _MAX_RECORDS:
        raise MalformedData("the zip directory does not lie right before the end record")
    return Directory(_heads(read(cd_start, cd_start + cd_size), count, cd_start), cd_start)


def _heads(data: bytes, count: int, limit: int) -> tuple[Head, ...]:
    heads: list[Head] = []
    position = 0
    for _ in range(count):
        if data[position : position + 4] != b"PK\x01\x02" or position + _CENTRAL_SIZE > len(data):
            raise MalformedData(f"line {len(heads)} of the zip directory is not readable")
        flags, method, _time, _date, crc, packed, size, names, extras, comments = (
            struct.unpack_from("<HHHHIIIHHH", data, position + 8)
        )
        disk, attributes, header = struct.unpack_from("<H2xII", data, position + 34)
        name_end = position + _CENTRAL_SIZE + names
        raw = data[position + _CENTRAL_SIZE : name_end]
        size, packed, header = _zip64(data[name_end : name_end + extras], size, packed, header)
        position = name_end + extras + comments
        if position > len(data):
            raise MalformedData(f"line {len(heads)} of the zip directory is not readable")
        if flags & _ENCRYPTED:
            raise MalformedData(
                f"record {raw[:80]!r} is encrypted or a patch, which torch cannot read"
            )
        if method != 0 or packed != size:
            raise MalformedData(f"record {raw[:80]!r} is compressed, which torch.save never does")
        if disk or attributes & _FOLDER:
            raise MalformedData(f"record {raw[:80]!r} is marked as a folder or on another disk")
        if header + LOCAL_SIZE + len(raw) + size > limit:
            raise MalformedData(f"record {raw[:80]!r} reaches past the records' end")
        heads.append(Head(_name(raw), raw, flags, crc, size, header))
    if position != len(data):
        raise MalformedData("the zip directory is longer than its lines")
    heads.sort(key=lambda head: head.header)
    # torch looks names up without regard to case, in the folder of the first record alone
    if len({head.raw_name.lower() for head in heads}) != len(heads):
        raise MalformedData("two records of the zip have the same name, or but for case")
    folders = {head.raw_name.rpartition(b"/")[0].partition(b"/")[0] for head in heads}
    if len(folders) > 1 or not all(b"/" in head.raw_name for head in heads):
        raise MalformedData("the records of the zip lie in several folders or in none")
    return tuple(heads)


def _name(raw: bytes) -> str:
    """Return a record's name without the folder that all lie in."""
    try:
        return raw.decode("utf-8").partition("/")[2]
    except UnicodeDecodeError:
        raise MalformedData(f"record {raw[:80]!r}: its name is no text") from None


def _zip64(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if position + 4 + length > len(extra):
            raise MalformedData("a field of the zip directory is cut short")
        if kind == 1:
            values = [
                v for (v,) in struct.iter_unpack("<Q", extra[position + 4 :][: length // 8 * 8])
            ]
            try:
                if size == _BIG:
                    size = values.pop(0)
                if packed == _BIG:
                    packed = values.pop(0)
                if header == _BIG:
                    header = values.pop(0)
            except IndexError:
                raise MalformedData("a zip64 field is missing from the directory") from None
        position += 4 + length
    return size, packed, header


def data_start(header: bytes, head: Head) -> int:
    """Check a local header (its first 30 bytes and the name); return where the data begins."""
    signature, _version, flags, method, _time, _date, crc, packed, size, names, extras = (
        struct.unpack_from("<IHHHHHIIIHH", header)
    )
    if signature != 0x04034B50:
        raise MalformedData(f"record {head.name}: its local header is damaged")
    if names != len(head.raw_name) or header[LOCAL_SIZE : LOCAL_SIZE + names] != head.raw_name:
        raise MalformedData(f"record {head.name}: its local header has another name")
    if flags != head.flags or method != 0:
        raise MalformedData(f"record {head.name}: local header and directory disagree on its form")
    if flags & _DESCRIPTOR_FLAG:
        expected: tuple[tuple[int, int, int], ...] = (
            (0, 0, 0),
            (0, _BIG, _BIG),
            (head.crc, min(head.size, _BIG), min(head.size, _BIG)),
        )
    else:
        expected = ((head.crc, min(head.size, _BIG), min(head.size, _BIG)),)
    if (crc, packed, size) not in expected:
        raise MalformedData(f"record {head.name}: local header and directory disagree on its size")
    return int(head.header + LOCAL_SIZE + names + extras)


_ID = ".data/serialization_id"
SETTINGS = (
    "version",
    ".data/version",
    "byteorder",
    ".format_version",
    ".storage_alignment",
    _ID,
)
"""Records that torch reads before or after it reads the pickle."""


def problem(names: Collection[str], small: Mapping[str, bytes]) -> str:
    """Say why torch does not load a zip of these records, or return the empty string.

    ``small`` holds the bytes of those of ``SETTINGS`` that are there.
    """
    if "data.pkl" not in names:
        return "it has no data.pkl"
    for name in names:
        if name not in SETTINGS and name.lower() in SETTINGS:
            return f"its record {name} is spelled in another case, which torch does not mind"
    if "constants.pkl" in names:
        return "it is an archive of TorchScript, which is code"
    version = small.get(".data/version", small.get("version"))
    if version is None:
        return "it has no version"
    if not version.strip().isdigit() or not 1 <= int(version[:8]) <= _NEWEST:
        return f"its version reads {version[:16]!r}"
    if small.get("byteorder", b"little") not in (b"little", b"big"):
        return f"its byte order reads {small['byteorder'][:16]!r}"
    try:
        small.get(_ID, b"").decode("utf-8")
    except UnicodeDecodeError:
        return f"its {_ID} is no text"
    if not small.get(".storage_alignment", b"64").strip().isdigit():
        return f"its alignment reads {small['.storage_alignment'][:16]!r}"
    return ""


def trailer_size(head: Head) -> int:
    """Bytes of the data descriptor behind a record."""
    if not head.flags & _DESCRIPTOR_FLAG or head.size == 0:
        return 0
    return 24 if head.size >= _BIG or head.header >= _BIG else 16


def trailer_crc(trailer: bytes, head: Head) -> int | None:
    """Check a data descriptor; return the CRC it holds, or None where the record has none."""
    if not trailer:
        return None
    signature, crc = struct.unpack_from("<II", trailer)
    packed, size = struct.unpack_from("<QQ" if len(trailer) == 24 else "<II", trailer, 8)
    if signature != 0x08074B50 or packed != head.size or size != head.size:
        raise MalformedData(f"record {head.name}: the descriptor behind its data is damaged")
    return int(crc)
