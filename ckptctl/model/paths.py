"""Paths inside a checkpoint: joined in one way, and never leading out of it."""

from __future__ import annotations

from ckptctl.pattern import pattern

_DRIVE = pattern(r"^[A-Za-z]:")


def is_contained(path: str) -> bool:
    """Tell whether a path from metadata stays below the checkpoint's directory."""
    if not path or path.startswith("/") or "\\" in path or "\0" in path or "://" in path:
        return False
    return not _DRIVE.match(path) and all(part not in ("", ".", "..") for part in path.split("/"))


def join(base: str, path: str) -> str:
    """Return a path inside a directory as a path of the store; ``base`` is empty for its root."""
    return f"{base}/{path}" if base else path
