"""Times in records."""

from __future__ import annotations

import datetime


def moment(text: str) -> float | None:
    """Return a time as records have it in seconds since the epoch, None for anything else."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.timezone.utc)
    return found.timestamp()
