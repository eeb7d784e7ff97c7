"""Orbax: one directory per step with a directory for each item in it; arrays lie in OCDBT stores.

While it is written it has a name with ``.orbax-checkpoint-tmp-``; the rename makes it final.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Layout, Sure
from ckptctl.formats.claims import directory

_METADATA = "_CHECKPOINT_METADATA"
_OF_ARRAYS = ("manifest.ocdbt", "_METADATA")
_TEMPORARY = ".orbax-checkpoint-tmp"


class Orbax(Layout):
    """Directories that Orbax's ``CheckpointManager`` or ``Checkpointer`` writes."""

    name = "orbax"
    title = "Orbax"

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a step's directory, or a directory of arrays that no manager wrote."""
        if _METADATA in folder.files:
            yield directory(self.name, folder, Sure.OWN, lacks=_missing_items(folder))
        elif any(name in folder.files for name in _OF_ARRAYS):
            lacks = tuple(name for name in _OF_ARRAYS if name not in folder.files)
            yield directory(self.name, folder, Sure.MARKED, lacks=lacks)
        elif _TEMPORARY in folder.name.text:
            yield directory(self.name, folder, Sure.MARKED)
        elif folder.name.recognised and "commit_success.txt" in folder.files:
            yield directory(self.name, folder, Sure.PATTERN, lacks=(_METADATA,))


def _missing_items(folder: Folder) -> Iterator[str]:
    """Yield the items that the metadata names and that have no directory."""
    try:
        said = json.loads(folder.peek(_METADATA) or b"{}")
    except (ValueError, RecursionError):
        return
    handlers = said.get("item_handlers") if isinstance(said, dict) else None
    if isinstance(handlers, dict):
        yield from sorted(name for name in map(str, handlers) if name not in folder.folders)
