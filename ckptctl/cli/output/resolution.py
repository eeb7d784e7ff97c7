"""What is said on standard error of a choice: which checkpoint, why, and what was passed over."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ckptctl.cli.output.text import plural, safe, said, span
from ckptctl.results import Resolution, Skipped

_MOST = 8


def summary(found: Resolution) -> str:
    """Say which checkpoint was chosen, why, and how it was checked."""
    step = "no step" if found.step is None else f"step {found.step}"
    return f"{safe(found.name)} ({step}): {said(found.how)}; {said(found.proof)}"


def loss(found: Resolution) -> str:
    """Say how far the answer is behind the newest that was not taken."""
    lost = found.lost
    steps = "an unknown number of steps" if lost.steps is None else plural(lost.steps, "step")
    time = "an unknown time" if lost.seconds is None else span(lost.seconds)
    which = safe(lost.newest)
    if lost.count > 1:
        which += f", the newest of {lost.count} that were not taken"
    return f"LOST by resuming from {safe(found.name)}: {steps} and {time}, up to {which}"


def explain(notes: Iterable[str], skipped: Iterable[Skipped], *, quiet: bool = False) -> None:
    """Say what was noticed and what was passed over, and why; of many newer ones the newest."""
    if quiet:
        return
    for note in notes:
        sys.stderr.write(f"ckptctl: note: {said(note)}\n")
    newer = [skip for skip in skipped if skip.newer]
    for skip in [*newer[:_MOST], *(skip for skip in skipped if not skip.newer)]:
        name = safe(skip.name or ".")
        sys.stderr.write(f"ckptctl: passed over {name}: {said(skip.reason)}\n")
    if len(newer) > _MOST:
        rest = len(newer) - _MOST
        sys.stderr.write(f"ckptctl: and {rest} more that are newer; --json names all of them\n")
