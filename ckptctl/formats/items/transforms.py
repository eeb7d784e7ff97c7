"""Undoing what was done to an item's bytes on their way to the file (torch 2.7 and later)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

from ckptctl.errors import MalformedData

_IN_MEMORY = 64 << 20
_MOST = 4
_WINDOW = 1 << 27  # the largest that zstd takes by itself
_SLICE = 4 << 10
"""Bytes that are decompressed at once: at most 32 times 4 MiB come of them."""


def unreadable(transforms: tuple[str, ...]) -> str:
    """Say why these transforms cannot be undone here, or return the empty string."""
    if len(transforms) > _MOST:
        return f"it was transformed {len(transforms)} times"
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
    import tempfile

    import zstandard

    if rounds > _MOST:
        raise MalformedData(f"it was transformed {rounds} times")
    out = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller closes it
    for _ in range(rounds):
        pieces = _decompressed(pieces, limit)
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            out.write(piece)
    except zstandard.ZstdError as error:
        out.close()
        raise MalformedData(f"it does not decompress: {error}") from None
    except BaseException:
        out.close()
        raise
    return out, size


def _decompressed(pieces: Iterable[bytes | memoryview], limit: int) -> Iterator[bytes]:
    """Undo one round, a little at a time: a few bytes may hold very many."""
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), _SLICE):
            if decoder.eof:
                raise MalformedData("bytes follow its compressed frame")
            data = decoder.decompress(bytes(piece[start : start + _SLICE]))
            size += len(data)
            if size > limit:
                raise MalformedData(f"it decompresses to more than the {limit} bytes it may hold")
            yield data
    if not decoder.eof:
        raise MalformedData("its compressed frame is cut short")
