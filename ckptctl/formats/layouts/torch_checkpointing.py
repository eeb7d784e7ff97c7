"""torch_checkpointing: a directory per step with one file for each item and rank.

It is written as ``tmp_step-N`` and renamed. ``metadata.pkl`` is there only in the first of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Sure
from ckptctl.formats.claims import directory, matches, missing
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import Composite
from ckptctl.model.companion import Form
from ckptctl.pattern import pattern

_FILE = pattern(r"([A-Za-z]\w*?)_(\d{1,6})\.pt")
_METADATA = "metadata.pkl"


class TorchCheckpointing(Composite):
    """Directories that the ``CheckpointManager`` of torch_checkpointing writes."""

    name = "torch-checkpointing"
    title = "torch_checkpointing"
    rules = (
        Rule(
            r"(?P<item>[A-Za-z]\w*?)_(?P<rank>\d{1,6})\.pt",
            Form.TORCH,
            "what one rank keeps of an item",
            prefix=("{item}",),
        ),
    )

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a step's directory that holds nothing but items of ranks."""
        if folder.name.step is None or "pt" not in folder.suffixes:
            return
        found = matches(folder.files, _FILE)
        items: dict[str, set[int]] = {}
        for match in found:
            items.setdefault(match[1], set()).add(int(match[2]))
        others = folder.files - {match[0] for match in found} - {_METADATA}
        if any(name.endswith(".pt") for name in others):
            return
        if "model" not in items or (len(items) < 2 and _METADATA not in folder.files):
            return
        count = max(max(ranks) for ranks in items.values()) + 1
        lacks = [
            name for item in sorted(items) for name in missing(items[item], item + "_{}.pt", count)
        ]
        sure = Sure.MARKED if _METADATA in folder.files else Sure.PATTERN
        yield directory(self.name, folder, sure, lacks=lacks)
