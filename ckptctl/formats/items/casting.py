"""Casting float data as it streams by, with what the cast loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptctl.dataclass import dataclass
from ckptctl.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CASTABLE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Dtypes that can be cast from and to, with bytes of an element."""


@dataclass(slots=True)
class Loss:
    """What a cast has lost: the largest absolute error, and finite values that became infinite.

    ``error`` leaves the overflowed values out, and values that were not finite before.
    """

    error: float = 0.0
    overflowed: int = 0


def castable(dtype: str, target: str) -> bool:
    """Tell whether data of one dtype are cast to another: floats are, integers stay as they are."""
    return dtype != target and dtype in CASTABLE


def cast(blocks: Iterator[memoryview], dtype: str, target: str, loss: Loss) -> Iterator[memoryview]:
    """Yield blocks cast from one float dtype to another, rounded to nearest, ties to even.

    Blocks hold whole elements. Raises ``UsageError`` for a dtype that is not cast.
    """
    import numpy as np

    if dtype not in CASTABLE or target not in CASTABLE:
        raise UsageError(f"{dtype} is not cast to {target}; {', '.join(CASTABLE)} are")
    for block in blocks:
        before = _decoded(np.frombuffer(block, _raw(dtype)), dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            encoded = _encoded(before, target)
            after = _decoded(encoded, target).astype(before.dtype, copy=False)
            finite = np.isfinite(before)
            lost = finite & ~np.isfinite(after)
            loss.overflowed += int(np.count_nonzero(lost))
            error = np.abs(after - before)
        kept = error[finite & ~lost]
        if kept.size:
            loss.error = max(loss.error, float(kept.max()))
        yield np.ascontiguousarray(encoded).view(np.uint8).data


def widened(data: bytes, dtype: str) -> NDArray[np.float64]:
    """Return numbers of a castable dtype as float64."""
    import numpy as np

    return _decoded(np.frombuffer(data, _raw(dtype)), dtype).astype(np.float64)


def _raw(dtype: str) -> str:
    return {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}[dtype]


def _decoded(data: NDArray[np.generic], dtype: str) -> NDArray[np.floating]:
    """Return the values in a dtype that computes exactly with them."""
    import numpy as np

    if dtype == "bfloat16":
        wide: NDArray[np.uint32] = data.astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    if dtype == "float64":
        return data.astype(np.float64, copy=False)
    return data.astype(np.float32, copy=False)


def _encoded(values: NDArray[np.floating], target: str) -> NDArray[np.generic]:
    import numpy as np

    if target != "bfloat16":
        return values.astype(_raw(target))
    if values.dtype == np.float64:
        # through float32 as torch does it, which rounds twice
        values = values.astype(np.float32)
    bits = values.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    rounded = np.where(np.isnan(values), np.uint32(0x7FC00000), rounded)
    narrow: NDArray[np.generic] = (rounded >> np.uint32(16)).astype("<u2")
    return narrow
