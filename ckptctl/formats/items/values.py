"""Looking at the numbers of one payload as its bytes stream by: NaN, infinities, magnitudes.

In every float format magnitudes are ordered as the unsigned integers of the same bits are, the
sign bit left out. So two maxima of a block, of its bits read as unsigned and as signed integers,
tell the largest magnitude, and with it almost always all there is to know. Formats: IEEE 754,
bfloat16, and for eight bits the OCP FP8 and MX specifications and, for ``fnuz``, arXiv:2206.02915.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from math import ldexp, prod
from typing import TYPE_CHECKING

from ckptctl.dataclass import dataclass
from ckptctl.model.finding import Gap, GapKind
from ckptctl.model.geometry import Shape
from ckptctl.model.observation import Payload, ValuesSeen

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 1 << 20
_NATIVE = "<" if sys.byteorder == "little" else ">"
_MOST_ELEMENTS = 1 << 62


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """One float format: ``width`` bytes, of which ``mantissa`` bits are the mantissa.

    ``beyond`` is the lowest bit pattern of a magnitude that is no finite number; it is the
    infinity where there is one. Where ``zero_is_nan``, a sign bit alone means NaN. A complex
    number has two ``parts``.
    """

    width: int
    mantissa: int
    bias: int
    beyond: int
    infinite: bool = True
    signed: bool = True
    zero_is_nan: bool = False
    parts: int = 1

    def value(self, pattern: int) -> float:
        """Return the number that a pattern of a finite magnitude stands for."""
        if not self.signed:
            return ldexp(1.0, pattern - self.bias)
        exponent, fraction = divmod(pattern, 1 << self.mantissa)
        if exponent:
            fraction += 1 << self.mantissa
        return ldexp(fraction, max(exponent, 1) - self.bias - self.mantissa)


FORMATS: dict[str, FloatFormat] = {
    "float64": FloatFormat(8, 52, 1023, 0x7FF0_0000_0000_0000),
    "float32": FloatFormat(4, 23, 127, 0x7F80_0000),
    "float16": FloatFormat(2, 10, 15, 0x7C00),
    "bfloat16": FloatFormat(2, 7, 127, 0x7F80),
    "complex128": FloatFormat(8, 52, 1023, 0x7FF0_0000_0000_0000, parts=2),
    "complex64": FloatFormat(4, 23, 127, 0x7F80_0000, parts=2),
    "complex32": FloatFormat(2, 10, 15, 0x7C00, parts=2),
    "float8_e5m2": FloatFormat(1, 2, 15, 0x7C),
    "float8_e4m3fn": FloatFormat(1, 3, 7, 0x7F, infinite=False),
    "float8_e5m2fnuz": FloatFormat(1, 2, 16, 0x80, infinite=False, zero_is_nan=True),
    "float8_e4m3fnuz": FloatFormat(1, 3, 8, 0x80, infinite=False, zero_is_nan=True),
    "float8_e8m0fnu": FloatFormat(1, 0, 127, 0xFF, infinite=False, signed=False),
}
"""Every dtype that can hold what is not a number; its names are ``model.dtypes.FLOATING``."""


@dataclass(frozen=True, slots=True)
class View:
    """The elements of a storage that a tensor shows: ``[start, start + count)``, each ``repeats`` times."""

    start: int
    count: int
    repeats: int
    shape: Shape
    stride: Shape
    row_major: bool

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate places in the storage, from ``start`` on, to row-major element numbers."""
        numbers = positions * 0
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size > 1 and stride:
                numbers += positions // stride % size * step
            step *= size
        return numbers

    def index(self, number: int) -> Shape:
        """Return the index of the element with a row-major number."""
        index = []
        for size in reversed(self.shape):
            number, place = divmod(number, size)
            index.append(place)
        return tuple(reversed(index))


@lru_cache(maxsize=4096)
def view_of(payload: Payload) -> View | None:
    """Return what a tensor shows of its storage, or None where that is not one range."""
    shape, stride = payload.shape, payload.stride
    if prod(shape) >= _MOST_ELEMENTS:
        return None
    if not all(shape):
        return View(payload.storage_offset, 0, 1, shape, stride, row_major=True)
    real = [(step, size) for size, step in zip(shape, stride, strict=True) if size > 1]
    count = 1
    for step, size in sorted(pair for pair in real if pair[0]):
        if step != count:
            return None
        count *= size
    repeats = prod(size for step, size in real if not step)
    steps = [step for step, _ in real]
    row_major = repeats == 1 and steps == sorted(steps, reverse=True)
    return View(payload.storage_offset, count, repeats, shape, stride, row_major)


class Scanner:
    """Looks at the values of one tensor; takes its record in pieces of any size, in order."""

    def __init__(self, form: FloatFormat, view: View, *, big: bool) -> None:
        """Take the bytes of a storage in big-endian order, or little-endian."""
        self._form, self._view, self.big = form, view, big
        self._sign = 1 << 8 * form.width - (1 if form.signed else 0)
        self._width = form.width * form.parts
        self._skip = view.start * self._width
        self._left = view.count * self._width
        self._rest = b""
        self._done = 0
        self._largest = -1
        self._nan = self._infinite = self._negative = 0
        self._first: int | None = None
        order = ">" if big else "<"
        self._stored = f"{order}u{form.width}" if form.width > 1 else "u1"
        self._copied = form.width > 1 and order != _NATIVE
        self._buffer: NDArray[Any] | None = None

    def feed(self, piece: bytes | memoryview) -> None:
        """Take the next bytes of the record."""
        data = memoryview(piece)
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        data = data[: self._left]
        self._left -= len(data)
        if self._rest:
            needed = self._width - len(self._rest)
            self._rest += data[:needed]
            data = data[needed:]
            if len(self._rest) < self._width:
                return
            self._block(self._rest)
            self._rest = b""
        whole = len(data) - len(data) % self._width
        if whole < len(data):
            self._rest = bytes(data[whole:])
        if whole:
            self._block(data[:whole])

    def seen(self) -> ValuesSeen | None:
        """Return what was found, or None if the record ended too early."""
        if self._left or self._rest:
            return None
        form, repeats = self._form, self._view.repeats
        return ValuesSeen(
            count=self._done * repeats,
            nan=self._nan * repeats,
            infinite=self._infinite * repeats,
            negative=self._negative * repeats,
            first=None if self._first is None else self._view.index(self._first),
            largest=form.value(self._largest) if self._largest >= 0 else 0.0,
            extreme=self._largest == form.beyond - 1,
            subnormal=form.signed and 0 < self._largest < 1 << form.mantissa,
        )

    def _block(self, data: bytes | memoryview) -> None:
        """Look at whole elements; copy them first where they lie askew or in the other order."""
        import numpy as np

        patterns = np.frombuffer(data, self._stored)
        if patterns.flags.aligned and not self._copied:
            self._look(patterns)
            return
        if self._buffer is None:
            most = min(_BLOCK // self._form.width, self._view.count * self._form.parts)
            self._buffer = np.empty(most, f"u{self._form.width}")
        for start in range(0, len(patterns), len(self._buffer)):
            piece = patterns[start : start + len(self._buffer)]
            copy = self._buffer[: len(piece)]
            copy[:] = piece
            self._look(copy)

    def _look(self, patterns: NDArray[Any]) -> None:
        import numpy as np

        form, sign = self._form, self._sign
        largest = int(np.maximum.reduce(patterns))
        strange = False
        if largest >= sign:
            # negative numbers are the largest unsigned ones, and the others the largest signed
            signed = patterns.view(f"i{form.width}")
            largest = max(largest - sign, int(np.maximum.reduce(signed)))
            strange = form.zero_is_nan and int(np.minimum.reduce(signed)) == -sign
        if strange or largest >= form.beyond:
            largest = self._look_closely(patterns)
        self._largest = max(self._largest, largest)
        self._done += len(patterns) // form.parts

    def _look_closely(self, patterns: NDArray[Any]) -> int:
        """Count what is no finite number; return the largest pattern of the others, or -1."""
        import numpy as np

        form, sign = self._form, self._sign
        magnitude = patterns & patterns.dtype.type(sign - 1)
        if form.zero_is_nan:
            bad = patterns == sign
            infinite = bad & False
        else:
            bad = magnitude >= form.beyond
            infinite = (magnitude == form.beyond) & form.infinite
        nan = bad & ~infinite
        negative = infinite & (patterns >= sign)
        finite = magnitude[~bad]
        if form.parts > 1:
            bad, nan, infinite, negative = (
                parts.reshape(-1, form.parts).any(axis=1)
                for parts in (bad, nan, infinite, negative)
            )
        self._nan += int(np.count_nonzero(nan))
        self._infinite += int(np.count_nonzero(infinite))
        self._negative += int(np.count_nonzero(negative))
        if not self._view.row_major:
            first = int(self._view.rows(np.flatnonzero(bad) + self._done).min())
            self._first = first if self._first is None else min(self._first, first)
        elif self._first is None:
            self._first = self._done + int(bad.argmax())
        return int(finite.max()) if finite.size else -1


def scanner_of(payload: Payload, record: str, *, big: bool) -> Scanner | None:
    """Return what examines a record, or None if the tensor's numbers do not lie in it."""
    form = FORMATS.get(payload.dtype)
    if payload.kind != "plain" or form is None or record != f"data/{payload.storage_key}":
        return None
    view = view_of(payload)
    return None if view is None or not view.count else Scanner(form, view, big=big)


def values_of(payload: Payload, scanner: Scanner | None, *, big: bool) -> ValuesSeen | None:
    """Say what was seen of a tensor's values, or why they were not; None if it has none to see."""
    if payload.kind != "plain":
        return ValuesSeen(gap=_gap(f"layout of {payload.kind} is not interpreted"))
    if payload.dtype not in FORMATS:
        return None
    if not all(payload.shape):
        return ValuesSeen()
    if view_of(payload) is None:
        return ValuesSeen(gap=_gap("scattered in a larger storage"))
    if scanner is None or scanner.big != big:
        return ValuesSeen(gap=_gap("their bytes come before what describes them"))
    return scanner.seen() or ValuesSeen(gap=Gap(GapKind.DAMAGED, "their record is too short"))


def _gap(reason: str) -> Gap:
    return Gap(GapKind.NOT_INTERPRETED, reason)
