"""Every layout that this release knows, in one table."""

from __future__ import annotations

from ckptctl.errors import UsageError
from ckptctl.formats.base import Layout
from ckptctl.formats.layouts.dcp import Dcp

LAYOUTS: tuple[Layout, ...] = (Dcp(),)
"""Asked in this order; of several that claim a directory the surest is taken."""


def layout(name: str) -> Layout:
    """Return a layout by its name; raises ``UsageError`` for one that there is not."""
    for one in LAYOUTS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in LAYOUTS)
    raise UsageError(f"there is no framework {name!r}; there are {known}")
