"""The zips of ``torch.save``, taken apart and put together again with any part of them changed."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass, field, replace

from slow.fuzz.mutate import NUMBERS, flipped

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_DESCRIPTOR = 0x08


@dataclass(frozen=True)
class Record:
    """One record; ``local`` and ``central`` are header fields that are set whatever is right."""

    name: bytes
    data: bytes
    flags: int
    extra: bytes = b""
    trailer: bool = False
    crc: int | None = None
    local: dict[int, int] = field(default_factory=dict)
    central: dict[int, int] = field(default_factory=dict)
    local_name: bytes | None = None
    central_extra: bytes = b""


def take_apart(data: bytes) -> tuple[Record, ...]:
    """Split a healthy zip of torch's writer."""
    count, size, start = struct.unpack_from("<QQQ", data, len(data) - 98 + 32)
    records = []
    at = start
    for _ in range(count):
        fields = _CENTRAL.unpack_from(data, at)
        flags, crc, length = fields[3], fields[7], fields[9]
        names, extras, comments, header = fields[10], fields[11], fields[12], fields[16]
        name = data[at + 46 : at + 46 + names]
        extra_at = at + 46 + names
        local = _LOCAL.unpack_from(data, header)
        begin = header + 30 + local[9] + local[10]
        records.append(
            Record(
                name,
                data[begin : begin + length],
                flags,
                data[header + 30 + local[9] : begin],
                bool(flags & _DESCRIPTOR and length),
                None if crc else 0,
                central_extra=data[extra_at : extra_at + extras],
            )
        )
        at += 46 + names + extras + comments
    assert at == start + size
    return tuple(records)


def put_together(
    records: tuple[Record, ...], end: dict[int, int] | None = None, junk: bytes = b""
) -> bytes:
    """Write a zip as torch does; ``end`` sets numbers in its end record."""
    out, central = bytearray(), bytearray()
    for one in records:
        crc = zlib.crc32(one.data) if one.crc is None else one.crc
        size = len(one.data)
        header = len(out)
        name = one.name if one.local_name is None else one.local_name
        later = bool(one.flags & _DESCRIPTOR)
        shown = (0, 0, 0) if later else (crc, size, size)
        fields = [0x04034B50, 0, one.flags, 0, 0, 0, *shown, len(name), len(one.extra)]
        for place, value in one.local.items():
            fields[place] = value
        out += _LOCAL.pack(*fields) + name + one.extra + one.data
        if one.trailer:
            out += struct.pack("<IIII", 0x08074B50, crc, size, size)
        extra = one.central_extra
        fields = [0x02014B50, 0, 0, one.flags, 0, 0, 0, crc, size, size, len(one.name), len(extra)]
        fields += [0, 0, 0, 0, header]
        for place, value in one.central.items():
            fields[place] = value
        central += _CENTRAL.pack(*fields) + one.name + extra
    out += junk
    start, count = len(out), len(records)
    out += central
    tail = [count, count, len(central), start, len(out)]
    for place, value in (end or {}).items():
        tail[place] = value & (1 << 64) - 1
    on_disk, count, size, start, at = tail
    out += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x031E, 45, 0, 0, on_disk, count, size, start)
    out += struct.pack("<IIQI", 0x07064B50, 0, at, 1)
    short = (min(on_disk, 0xFFFF), min(count, 0xFFFF), min(size, 0xFFFFFFFF))
    out += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, *short, min(start, 0xFFFFFFFF), 0)
    return bytes(out)


def with_record(records: tuple[Record, ...], suffix: bytes, data: bytes) -> tuple[Record, ...]:
    """Replace the content of the record whose name ends so; its CRC fits."""
    return tuple(
        replace(one, data=data, crc=None) if one.name.endswith(suffix) else one for one in records
    )


def changed(rng: random.Random, records: tuple[Record, ...]) -> bytes:
    """Return the zip with a few of its records, headers or end fields changed."""
    found = list(records)
    end: dict[int, int] = {}
    junk = b""
    for _ in range(1 + (rng.random() < 0.4) * rng.randrange(3)):
        at = rng.randrange(len(found))
        one = found[at]
        how = rng.randrange(17)
        value = rng.choice(NUMBERS[:26])
        if how == 0:
            found[at] = replace(one, name=_name(rng, one.name))
        elif how == 1:
            found[at] = replace(one, local_name=_name(rng, one.name))
        elif how == 2:
            again = replace(one, data=flipped(rng, one.data), name=_name(rng, one.name))
            found.insert(rng.randrange(len(found) + 1), again)
        elif how == 3:
            found.insert(rng.randrange(len(found) + 1), replace(one, data=flipped(rng, one.data)))
        elif how == 4 and len(found) > 1:
            del found[at]
        elif how == 5:
            other = rng.randrange(len(found))
            found[at], found[other] = found[other], found[at]
        elif how == 6:
            found[at] = replace(one, data=flipped(rng, one.data), crc=rng.choice((None, 0, 1)))
        elif how == 7:
            place = rng.choice((1, 2, 3, 6, 7, 8))
            found[at] = replace(one, local={**one.local, place: _fit(value, place, (1, 2, 3))})
        elif how in (8, 9):
            place = rng.choice((1, 2, 3, 4, 7, 8, 9, 12, 13, 14, 15, 16))
            short = (1, 2, 3, 4, 12, 13, 14)
            found[at] = replace(one, central={**one.central, place: _fit(value, place, short)})
        elif how == 10:
            extra = _extra(rng, len(one.data))
            found[at] = replace(one, central_extra=extra, central=_zip64(rng, one, extra))
        elif how == 11:
            found[at] = replace(
                one, extra=rng.choice((b"", one.extra + b"\0" * 8, b"FB\x04\0ZZZZ"))
            )
        elif how == 12:
            found[at] = replace(one, flags=one.flags ^ (1 << rng.randrange(12)))
        elif how == 13:
            place = rng.randrange(5)
            end[place] = rng.choice((value, len(found) - 1, len(found) + 1))
        elif how == 14:
            junk = rng.randbytes(rng.randrange(1, 65))
        elif how == 15:
            found[at] = replace(one, trailer=not one.trailer)
        elif one.name.endswith(b"byteorder"):
            found[at] = replace(one, data=rng.choice((b"big", b"LITTLE", b"", b"little\n", b"b")))
        else:
            found[at] = replace(one, data=one.data + b"\0" * rng.randrange(1, 9))
    try:
        return put_together(tuple(found), end, junk)
    except struct.error:  # a number that no field holds
        return put_together(records)


def _fit(value: int, place: int, short: tuple[int, ...]) -> int:
    return value & (0xFFFF if place in short else 0xFFFFFFFF)


def _name(rng: random.Random, name: bytes) -> bytes:
    folder, _, rest = name.partition(b"/")
    return rng.choice(
        (
            name.swapcase(),
            folder + b"/" + rest.swapcase(),
            folder + b"/" + rest.upper(),
            folder + b"x/" + rest,
            rest,
            folder + b"//" + rest,
            folder + b"/./" + rest,
            name + b"\0",
            name + b"\0x",
            name.replace(b"/", b"\\"),
            folder + b"/data/1",
            folder + b"/data/0",
            folder + b"/DATA/0",
            folder + b"/data.pkl",
            folder + b"/Data.pkl",
            folder + b"/constants.pkl",
            folder + b"/byteorder",
            folder + b"/.format_version",
            folder + b"/.storage_alignment",
            folder + b"/version",
            folder + b"/.data/version",
            flipped(rng, name),
            b"",
        )
    )


def _extra(rng: random.Random, size: int) -> bytes:
    values = [rng.choice((size, size + 1, 0, 1 << 62, (1 << 64) - 1)) for _ in range(3)]
    some = values[: rng.randrange(4)]
    length = rng.choice((8 * len(some), 8 * len(some) + 1, 7, 0, 65535))
    return struct.pack("<HH", rng.choice((1, 1, 1, 0x4246)), length) + b"".join(
        struct.pack("<Q", one) for one in some
    )


def _zip64(rng: random.Random, one: Record, extra: bytes) -> dict[int, int]:
    places = rng.sample((8, 9, 16), rng.randrange(4))
    return {**one.central, **dict.fromkeys(places, 0xFFFFFFFF)}
