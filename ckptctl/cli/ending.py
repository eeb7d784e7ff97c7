"""What ends a command before its result, and must not be taken for something else on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Ended(BaseException):
    """Carries an ending past typer, which would end the process in a way of its own."""


def finished(act: Callable[[], Result]) -> Result:
    """Return what a command returns, once all that it printed is out."""
    try:
        result = act()
        sys.stdout.flush()
    except (KeyboardInterrupt, BrokenPipeError) as error:
        raise Ended from error
    return result
