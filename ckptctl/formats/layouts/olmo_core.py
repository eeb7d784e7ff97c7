"""OLMo-core: ``model_and_optim/`` is a DCP directory, ``train/rankR.pt`` what each rank keeps.

It is written as ``stepN-tmp`` and renamed. OLMo-core passes over one without ``.metadata.json``,
``model_and_optim/.metadata`` or ``train/rank0.pt``, and falls back to the one before.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Sure
from ckptctl.formats.claims import directory
from ckptctl.formats.composite import Composite, Part

_METADATA = ".metadata.json"


class OlmoCore(Composite):
    """Directories that OLMo-core's ``Checkpointer`` writes."""

    name = "olmo-core"
    title = "OLMo-core"
    parts = (Part("model_and_optim", "model_and_optim", "the model and the optimizer"),)
    companions = (_METADATA, "train/rank0.pt")
    per_rank = ("train/rank{}.pt",)

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with the model and the optimizer, or what is left of one."""
        parts = folder.folders & {"model_and_optim", "train"}
        if parts and (_METADATA in folder.files or len(parts) == 2 or folder.name.step is not None):
            lacks = [name for name in ("model_and_optim", "train") if name not in folder.folders]
            lacks += [] if _METADATA in folder.files else [_METADATA]
            if "model_and_optim" in parts or _METADATA in folder.files:
                yield directory(self.name, folder, Sure.OWN, lacks=lacks)
