"""What is said on standard error of a choice: which checkpoint, why, and what was passed over."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ckptctl.cli.output.text import safe, said
from ckptctl.results import Resolution, Skipped


def summary(found: Resolution) -> str:
    """Say which checkpoint was chosen, why, and how it was checked."""
    step = "no step" if found.step is None else f"step {found.step}"
    return f"{safe(found.name)} ({step}): {said(found.how)}; {said(found.proof)}"


def explain(notes: Iterable[str], skipped: Iterable[Skipped], *, quiet: bool = False) -> None:
    """Say what was noticed and what was passed over, and why."""
    if quiet:
        return
    for note in notes:
        sys.stderr.write(f"ckptctl: note: {said(note)}\n")
    for skip in skipped:
        sys.stderr.write(f"ckptctl: passed over {safe(skip.name)}: {said(skip.reason)}\n")
