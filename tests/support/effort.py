"""What an action costs, counted and not timed, so that no other load on a machine changes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

PATIENCE = 1800.0
"""Seconds after which whatever is waited for counts as hung; nothing that works comes near it."""

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
