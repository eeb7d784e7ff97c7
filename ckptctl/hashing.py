"""Hashing bytes as they stream by; a digest names its algorithm: ``xxh3-128:...``, ``sha256:...``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ckptctl.errors import UsageError

ALGORITHMS = ("xxh3-128", "sha256")
DEFAULT = "xxh3-128"


class Hash(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""


class Hasher:
    """One digest in the making."""

    def __init__(self, algorithm: str = DEFAULT) -> None:
        """Start; raises ``UsageError`` for an algorithm that is not known."""
        self._algorithm = algorithm
        self._hash: Hash
        if algorithm == "xxh3-128":
            import xxhash

            self._hash = xxhash.xxh3_128()
        elif algorithm == "sha256":
            import hashlib

            self._hash = hashlib.sha256()
        else:
            raise UsageError(f"there is no digest {algorithm!r}; there are {', '.join(ALGORITHMS)}")

    def update(self, data: bytes | memoryview) -> None:
        """Take more bytes."""
        self._hash.update(data)

    def text(self) -> str:
        """The digest with its algorithm's name."""
        return f"{self._algorithm}:{self._hash.hexdigest()}"


class Bytes(Protocol):
    """What can be read from any place on."""

    def read_into(self, start: int, buffer: memoryview, /) -> object:
        """Fill the buffer with the bytes from ``start`` on."""


def digest_of(
    source: Bytes,
    size: int,
    algorithm: str,
    *,
    block: int,
    each: Callable[[memoryview], object] | None = None,
) -> str:
    """Hash ``size`` bytes block by block; ``each`` is given every block, valid until the next."""
    hasher = Hasher(algorithm)
    buffer = memoryview(bytearray(min(block, max(1, size))))
    for start in range(0, size, len(buffer)):
        part = buffer[: min(len(buffer), size - start)]
        source.read_into(start, part)
        hasher.update(part)
        if each is not None:
            each(part)
    return hasher.text()


def algorithm_of(digest: str) -> str:
    """Return the algorithm that a digest names."""
    return digest.partition(":")[0]
