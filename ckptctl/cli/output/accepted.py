"""What is said of findings that a person accepted: which, why, who and when."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ckptctl.cli.output.text import Screen, plural, safe
from ckptctl.model.acceptance import Acceptance


def accepted(found: Iterable[Acceptance], screen: Screen, *, source: bool = False) -> None:
    """Print one line for each acceptance, also where it is of the ``source`` of what was made."""
    for one in found:
        screen.line(f"{'  accepted of the source:' if source else 'accepted'} {line(one)}")


def line(one: Acceptance) -> str:
    """Write an acceptance in one line."""
    where = f":{safe(one.pattern)}" if one.pattern else ""
    count = plural(len(one.findings), "finding")
    return (
        f"{safe(one.check)}{where} ({count}): {safe(one.reason)} (by {safe(one.actor)} at "
        f"{safe(one.time)})"
    )


def unmatched(wishes: Iterable[str]) -> None:
    """Warn of what was to be accepted and was not found: it may be misspelled."""
    for one in wishes:
        sys.stderr.write(
            f"ckptctl: warning: --accept {safe(one)} fits nothing that is wrong here; nothing was "
            "accepted by it\n"
        )
