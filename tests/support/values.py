"""Writing other numbers into stored tensors so that every checksum still fits, as a trainer would."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import damage as damage
from support.damage import Origin

Change = Callable[[bytearray], None]
"""Changes the bytes of a tensor's storage in place."""


def put(data: bytes, at: int = 0) -> Change:
    """Return a change that overwrites bytes from a place on; a negative one counts from the end."""

    def change(payload: bytearray) -> None:
        start = at % len(payload)
        payload[start : start + len(data)] = data

    return change


def fill(pattern: bytes) -> Change:
    """Return a change that repeats a pattern all over."""

    def change(payload: bytearray) -> None:
        payload[:] = pattern * (len(payload) // len(pattern))

    return change


def spoiled(item: bytes, change: Change) -> bytes:
    """Change the payload of an item and write its CRC anew, where it has one."""
    new = bytearray(item)
    spans = [s for s in damage.anatomy(item) if s.record.startswith("data/")]
    (data,) = (s for s in spans if (s.part, s.field) == ("data", "data"))
    payload = bytearray(item[data.start : data.stop])
    old = zlib.crc32(payload)
    change(payload)
    assert len(payload) == data.stop - data.start
    new[data.start : data.stop] = payload
    for span in spans:
        if span.field == "crc" and new[span.start : span.stop] == struct.pack("<I", old):
            new[span.start : span.stop] = struct.pack("<I", zlib.crc32(payload))
    return bytes(new)


def rewrite_item(
    checkpoint: Path,
    rewrite: Callable[[bytes], bytes],
    *,
    fqn: str,
    origin: Origin = None,
    metadata: str = damage.METADATA,
) -> None:
    """Replace the bytes of one item, compressed or not, and move those behind it."""
    with damage.edited(checkpoint, metadata) as described:
        place = described.storage_data[damage.key_of(described, fqn, origin)]
        path = checkpoint / place.relative_path
        whole = path.read_bytes()
        start, stop = place.offset, place.offset + place.length
        new = _through(place, whole[start:stop], rewrite)
        path.write_bytes(whole[:start] + new + whole[stop:])
        for other in described.storage_data.values():
            if other.relative_path == place.relative_path and other.offset > start:
                other.offset += len(new) - place.length
        place.length = len(new)


def _through(place: Any, data: bytes, rewrite: Callable[[bytes], bytes]) -> bytes:
    if not getattr(place, "transform_descriptors", None):
        return rewrite(data)
    import zstandard

    plain = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return zstandard.ZstdCompressor().compress(rewrite(plain))


def spoil(
    checkpoint: Path,
    change: Change,
    *,
    fqn: str,
    origin: Origin = None,
    metadata: str = damage.METADATA,
) -> None:
    """Change the numbers in one item; nothing but the numbers tells afterwards."""
    rewrite_item(
        checkpoint,
        lambda item: spoiled(item, change),
        fqn=fqn,
        origin=origin,
        metadata=metadata,
    )


def saved(tensor: Any) -> bytes:
    """Return the bytes that torch saves of a tensor."""
    import torch

    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream.getvalue()
