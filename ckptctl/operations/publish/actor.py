"""Who does something and when, for records."""

from __future__ import annotations

import datetime
import os


def now() -> str:
    """Return the time in UTC as records have it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def actor() -> str:
    """Return who acts, for records: ``CKPTCTL_ACTOR`` or user and host."""
    named = os.environ.get("CKPTCTL_ACTOR")
    if named:
        return named
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
