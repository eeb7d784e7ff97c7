"""Text for people: each command registers how its result is rendered."""

from __future__ import annotations

import sys
from functools import singledispatch
from typing import Any

from ckptctl.cli.output.emit import Ending
from ckptctl.cli.output.text import Screen, safe
from ckptctl.exit_codes import ExitCode


@singledispatch
def render(result: Any, screen: Screen, **_: Any) -> None:
    """Print a result; commands register one function for each type of result."""
    raise TypeError(f"no text is known for a {type(result).__name__}")


def write(ending: Ending) -> None:
    """Print a result, unless it is good news that nobody wants, or complain of an error."""
    if ending.error is not None:
        complain(ending)
    elif ending.exit_code != ExitCode.DONE or not ending.quiet:
        render(ending.result, Screen(sys.stdout), **ending.options)


def complain(ending: Ending) -> None:
    """Say on standard error what went wrong, escaped, and what to type next."""
    *usage, last = ending.before.split("\n")
    # what stands before is our own; a message quotes names, whose line breaks are no line breaks
    lines = [
        *usage,
        f"{last}{ending.message}",
        *filter(None, [getattr(ending.error, "remedy", "")]),
    ]
    for line in lines:
        sys.stderr.write(f"{safe(line)}\n")
