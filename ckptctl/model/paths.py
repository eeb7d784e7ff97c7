"""Names that come out of a file and must not lead out of the checkpoint."""

from __future__ import annotations

import re

_DRIVE = re.compile(r"^[A-Za-z]:")


def is_contained(path: str) -> bool:
    """Tell whether a path from metadata stays below the checkpoint's directory."""
    if not path or path.startswith("/") or "\\" in path or "\0" in path or "://" in path:
        return False
    return not _DRIVE.match(path) and all(part not in ("", ".", "..") for part in path.split("/"))
