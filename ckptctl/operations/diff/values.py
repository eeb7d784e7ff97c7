"""How the numbers of two tensors differ: one pass over both, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ckptctl.comparison.difference import Statistics
from ckptctl.dataclass import dataclass
from ckptctl.formats.items.values import FORMATS
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.dtypes import item_size
from ckptctl.model.geometry import Shape
from ckptctl.operations.content.tensors import TensorSource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PLAIN = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "complex128": "<c16",
    "complex64": "<c8",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "u1",
    "bool": "u1",
}


@dataclass(frozen=True, slots=True)
class Interpreted:
    """What one pass over two tensors showed; ``identical`` means that all bytes are equal."""

    identical: bool
    statistics: Statistics


def compare_values(
    source_a: TensorSource,
    a: TensorEntry,
    source_b: TensorSource,
    b: TensorEntry,
    tick: Callable[[int], None],
) -> Interpreted | None:
    """Compare two tensors of one shape element by element, each in float64 (or complex128).

    Elements that are NaN on both sides are equal. None for dtypes that are not interpreted.
    Raises what reading raises: ``MalformedData``, ``Refused``, ``StorageError``.
    """
    widths = item_size(a.dtype), item_size(b.dtype)
    if widths[0] is None or widths[1] is None or not (_readable(a.dtype) and _readable(b.dtype)):
        return None
    tally = _Tally(a.shape)
    identical = a.dtype == b.dtype
    blocks = _aligned(source_a.read(a.fqn), widths[0], source_b.read(b.fqn), widths[1])
    for one, other in blocks:
        tick(len(one) + len(other))
        if identical and one == other:
            tally.add_equal(numbers(one, a.dtype))
            continue
        identical = False
        tally.add(numbers(one, a.dtype), numbers(other, b.dtype))
    return Interpreted(identical, tally.statistics())


def _readable(dtype: str) -> bool:
    return dtype in _PLAIN or dtype in FORMATS


def numbers(data: memoryview, dtype: str) -> NDArray[Any]:
    """Return the numbers in the bytes of a tensor, as float64 or complex128."""
    import numpy as np

    found: NDArray[Any]
    with np.errstate(invalid="ignore"):  # widening a signalling NaN makes it a quiet one
        if dtype in _PLAIN:
            kind = "c16" if dtype.startswith("complex") else "f8"
            return np.frombuffer(data, _PLAIN[dtype]).astype(kind)
        if dtype == "bfloat16":
            wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            return wide.view(np.float32).astype("f8")
        if dtype == "complex32":
            return np.frombuffer(data, "<f2").astype("f8").view(np.complex128)
    found = _table(dtype)[np.frombuffer(data, "u1")]
    return found


@lru_cache
def _table(dtype: str) -> NDArray[np.float64]:
    """Return the number that each byte stands for in an 8-bit float format."""
    import numpy as np

    form = FORMATS[dtype]
    out = np.empty(256)
    for pattern in range(256):
        magnitude = pattern & 0x7F if form.signed else pattern
        negative = form.signed and pattern >= 0x80
        if form.zero_is_nan and pattern == 0x80:
            value = math.nan
        elif magnitude < form.beyond:
            value = form.value(magnitude)
        elif form.infinite and magnitude == form.beyond:
            value = math.inf
        else:
            value = math.nan
        out[pattern] = -value if negative else value
    return out


def _aligned(
    left: Iterator[memoryview], width_a: int, right: Iterator[memoryview], width_b: int
) -> Iterator[tuple[memoryview, memoryview]]:
    """Cut two streams of bytes into blocks of as many elements each."""
    a = b = memoryview(b"")
    while True:
        if not a:
            a = next(left, a)
        if not b:
            b = next(right, b)
        if not a or not b:
            return
        a, b = a.cast("B"), b.cast("B")
        count = min(len(a) // width_a, len(b) // width_b)
        yield a[: count * width_a], b[: count * width_b]
        a, b = a[count * width_a :], b[count * width_b :]


class _Tally:
    """The statistics of a tensor so far."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._seen = self._differing = 0
        self._largest = self._relative = 0.0
        self._squares_a = self._squares_b = self._squares = 0.0
        self._nan, self._infinite = [0, 0], [0, 0]
        self._first: int | None = None

    def add_equal(self, a: NDArray[Any]) -> None:
        """Take a block that both sides have."""
        import numpy as np

        finite = np.isfinite(a)
        for side in (0, 1):
            self._count(side, a)
        with np.errstate(over="ignore"):
            squares = float(np.sum(np.square(np.abs(a[finite]))))
        self._squares_a += squares
        self._squares_b += squares
        self._seen += a.size

    def add(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Take a block of each side."""
        import numpy as np

        self._count(0, a)
        self._count(1, b)
        unequal = (a != b) & ~(np.isnan(a) & np.isnan(b))
        count = int(np.count_nonzero(unequal))
        if count and self._first is None:
            self._first = self._seen + int(np.argmax(unequal))
        self._differing += count
        finite = np.isfinite(a) & np.isfinite(b)
        x, y = a[finite], b[finite]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            apart, size_x, size_y = np.abs(x - y), np.abs(x), np.abs(y)
            self._squares_a += float(np.sum(np.square(size_x)))
            self._squares_b += float(np.sum(np.square(size_y)))
            self._squares += float(np.sum(np.square(apart)))
            if apart.size:
                self._largest = max(self._largest, float(apart.max()))
                larger = np.maximum(size_x, size_y)
                some = larger > 0
                if some.any():
                    self._relative = max(self._relative, float((apart[some] / larger[some]).max()))
        self._seen += a.size

    def _count(self, side: int, a: NDArray[Any]) -> None:
        import numpy as np

        self._nan[side] += int(np.count_nonzero(np.isnan(a)))
        self._infinite[side] += int(np.count_nonzero(np.isinf(a)))

    def statistics(self) -> Statistics:
        """Sum up."""
        norm_a, norm = math.sqrt(self._squares_a), math.sqrt(self._squares)
        return Statistics(
            self._seen,
            self._differing,
            self._largest,
            self._relative,
            norm_a,
            math.sqrt(self._squares_b),
            norm,
            norm / norm_a if norm_a else math.inf if norm else 0.0,
            (self._nan[0], self._nan[1]),
            (self._infinite[0], self._infinite[1]),
            None if self._first is None else self._index(self._first),
        )

    def _index(self, number: int) -> Shape:
        index = []
        for size in reversed(self._shape):
            number, place = divmod(number, size)
            index.append(place)
        return tuple(reversed(index))
