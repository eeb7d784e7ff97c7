"""Undoing what was done to an item's bytes on their way to the file (torch 2.7 and later)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import IO

from ckptctl.errors import MalformedData

_IN_MEMORY = 64 << 20


def unreadable(transforms: tuple[str, ...]) -> str:
    """Say why these transforms cannot be undone here, or return the empty string."""
    for name in transforms:
        if name != "stream.zstd/1":
            return f"its transform {name} is not known"
    if transforms:
        try:
            import zstandard  # noqa: F401
        except ImportError:
            return "it is compressed and the package zstandard is not installed"
    return ""


def decode(pieces: Iterable[bytes | memoryview], rounds: int, limit: int) -> tuple[IO[bytes], int]:
    """Decompress into a temporary file; return it with its size.

    Raises ``MalformedData`` for bytes that are no whole frame, or that give more than ``limit``
    bytes. Memory stays bounded: past 64 MiB the file moves to disk.
    """
    import zstandard

    out = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller closes it
    decoders = [zstandard.ZstdDecompressor().decompressobj() for _ in range(rounds)]
    size = 0
    try:
        for piece in pieces:
            data = bytes(piece)
            for decoder in decoders:
                data = decoder.decompress(data)
            size += len(data)
            if size > limit:
                raise MalformedData(f"it decompresses to more than the {limit} bytes it may hold")
            out.write(data)
        if not all(decoder.eof for decoder in decoders):
            raise MalformedData("its compressed frame is cut short")
    except zstandard.ZstdError as error:
        out.close()
        raise MalformedData(f"it does not decompress: {error}") from None
    except BaseException:
        out.close()
        raise
    return out, size
