"""What reading one foreign input may take: bytes, values, depth and seconds, sized from the input.

Every reader of foreign bytes is handed one budget. What asks for more than it holds ends as one
finding, ``too-large`` or ``too-deep``, and never as an exhausted machine.
"""

from __future__ import annotations

import time

from ckptctl.errors import MalformedData, RunsCode, TooDeep, TooLarge, TooMuchMemory
from ckptctl.model.checkpoint import FaultKind

MIB = 1 << 20

MAX_DEPTH = 500
"""Levels of tuples inside a key; real checkpoints have four."""

_MEMORY, _MEMORY_PER_BYTE = 208 * MIB, 4
_VALUES, _VALUES_PER_BYTE = 4_000_000, 8
_SECONDS, _SECONDS_PER_BYTE = 4.0, 0.5 / MIB


class Budget:
    """What is left of the bytes, values and seconds that one input of ``size`` bytes may take."""

    __slots__ = ("_deadline", "_memory", "_size", "_values")

    def __init__(self, size: int) -> None:
        """Set out the limits; seconds are of this thread's own work, so load does not count."""
        self._size = size
        self._memory = _MEMORY + _MEMORY_PER_BYTE * size
        self._values = _VALUES + _VALUES_PER_BYTE * size
        self._deadline = time.thread_time() + _SECONDS + _SECONDS_PER_BYTE * size

    def again(self) -> Budget:
        """Return what a second reading of the same input may take: no more time than was left."""
        other = Budget(self._size)
        other._deadline = self._deadline
        return other

    def take(self, values: int) -> None:
        """Spend values that are copied or looked at again; raise ``TooLarge`` for too many."""
        self._values -= values
        if self._values < 0:
            raise TooLarge("it makes too much out of too little: values are used again and again")

    def hold(self, memory: int) -> None:
        """Spend bytes of memory for good; raise ``TooLarge`` for too many."""
        self._memory -= memory
        if self._memory < 0:
            raise TooMuchMemory("what it describes takes far more memory than its own size")

    def fits(self, memory: int) -> None:
        """Raise ``TooLarge`` where so many bytes of memory, or the time so far, are too much."""
        if memory > self._memory:
            raise TooMuchMemory("what it describes takes far more memory than its own size")
        if time.thread_time() > self._deadline:
            raise TooLarge("reading it takes far longer than its size allows")


def fault_kind(error: MalformedData) -> FaultKind:
    """Return the kind of fault that an error is which was met in metadata."""
    if isinstance(error, TooDeep):
        return FaultKind.TOO_DEEP
    if isinstance(error, TooLarge):
        return FaultKind.TOO_LARGE
    return (
        FaultKind.UNSAFE_METADATA if isinstance(error, RunsCode) else FaultKind.UNREADABLE_METADATA
    )


def item_fault_kind(error: MalformedData) -> FaultKind:
    """Return the kind of fault that an error is which was met in an item."""
    if isinstance(error, TooDeep):
        return FaultKind.TOO_DEEP_ITEM
    if isinstance(error, TooLarge):
        return FaultKind.TOO_LARGE_ITEM
    return FaultKind.UNSAFE_ITEM if isinstance(error, RunsCode) else FaultKind.ITEM_STRUCTURE
