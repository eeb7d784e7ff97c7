"""What an action costs, counted and not timed, so that no other load on a machine changes it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

PATIENCE = 1800.0
"""Seconds after which whatever is waited for counts as hung; nothing that works comes near it."""

PROCESSOR = 60.0
"""Seconds of processor time that nothing small takes, and what never ends does."""

Answer = TypeVar("Answer")


def calls(action: Callable[[], Answer]) -> tuple[int, Answer]:
    """Return how many functions an action calls, in Python and in C, and what it returns."""
    count, before = 0, sys.getprofile()

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        answer = action()
    finally:
        sys.setprofile(before)
    return count, answer


@contextmanager
def ends() -> Iterator[None]:
    """Raise where what is done takes the processor for far longer than anything that ends."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it ran for {PROCESSOR} seconds of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
