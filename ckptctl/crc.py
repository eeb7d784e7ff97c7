"""CRC-32, as fast as the machine can: by zlib-ng where it is installed, else by the standard library."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_POLYNOMIAL = 0xEDB88320  # reflected: the coefficient of x to the power 0 is the highest bit
_ONE = 1 << 31
_PERIOD = (1 << 32) - 1
"""The order of x modulo the polynomial: so many more bytes turn a CRC into itself."""


def _product(one: int, other: int) -> int:
    """Multiply two polynomials modulo that of CRC-32."""
    result = 0
    while other:
        if other & _ONE:
            result ^= one
        other = other << 1 & 0xFFFFFFFF
        one = one >> 1 ^ _POLYNOMIAL if one & 1 else one >> 1
    return result


@lru_cache(maxsize=1024)
def _power(size: int) -> int:
    """Return x to the power of eight times ``size``, by repeated squaring."""
    result, square = _ONE, _ONE >> 8
    while size:
        if size & 1:
            result = _product(square, result)
        square = _product(square, square)
        size >>= 1
    return result


def combine_slowly(first: int, second: int, size: int) -> int:
    """Combine as ``combine`` does, without zlib-ng.

    Source: ``crc32_combine`` of zlib since 1.2.12: the bytes that follow multiply the first CRC by a
    power of x.
    """
    return _product(_power(size), first) ^ second


_combine: Callable[[int, int, int], int]
try:
    from zlib_ng import zlib_ng
except ImportError:  # no wheel for this machine
    crc32, _combine = zlib.crc32, combine_slowly
else:
    crc32, _combine = zlib_ng.crc32, zlib_ng.crc32_combine


def combine(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two runs of bytes from those of each; ``size`` is that of the second."""
    return _combine(first, second, size % _PERIOD)


def zeros(size: int) -> int:
    """Return the CRC-32 of so many zero bytes.

    Zeros add nothing of their own, so only the ones that every CRC begins and ends with are moved.
    """
    return combine(_PERIOD, _PERIOD, size)
