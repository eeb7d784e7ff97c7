"""OLMo-core: ``model_and_optim/`` is a DCP directory, ``train/rankR.pt`` what each rank keeps.

It is written as ``stepN-tmp`` and renamed. OLMo-core passes over one without ``.metadata.json``,
``model_and_optim/.metadata`` or ``train/rank0.pt``, and falls back to the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptctl.formats.base import Claim, Folder, Sure
from ckptctl.formats.claims import directory
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import Composite, Part, ranks_of
from ckptctl.model.checkpoint import File
from ckptctl.model.companion import Form, Told
from ckptctl.storage import Store

_METADATA = ".metadata.json"
_PASSED_OVER = "the whole: OLMo-core passes over it and resumes from an older one"


class OlmoCore(Composite):
    """Directories that OLMo-core's ``Checkpointer`` writes."""

    name = "olmo-core"
    title = "OLMo-core"
    parts = (Part("model_and_optim", "model_and_optim", "the model and the optimizer"),)
    rules = (
        Rule(
            r"train/rank\d+\.pt",
            Form.TORCH,
            "the step, the random state and the place in the data of a rank",
            told=(Told(("global_step",), exact=True),),
        ),
        Rule(r"\.metadata\.json", Form.JSON, _PASSED_OVER, state=False),
        Rule(r"config\.json", Form.JSON, "the configuration", state=False),
    )

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with the model and the optimizer, or what is left of one."""
        parts = folder.folders & {"model_and_optim", "train"}
        if parts and (_METADATA in folder.files or len(parts) == 2 or folder.name.step is not None):
            lacks = [name for name in ("model_and_optim", "train") if name not in folder.folders]
            lacks += [] if _METADATA in folder.files else [_METADATA]
            if "model_and_optim" in parts or _METADATA in folder.files:
                yield directory(self.name, folder, Sure.OWN, lacks=lacks)

    def beside(self, store: Store, base: str, files: Mapping[str, File]) -> Mapping[str, str]:
        """Return the marker, and what each rank that wrote shards keeps."""
        found = {_METADATA: _PASSED_OVER, "train/rank0.pt": _PASSED_OVER}
        for rank in range(1, ranks_of(files)):
            found[f"train/rank{rank}.pt"] = (
                f"the random state and the place in the data of rank {rank}, which gets rank 0's"
            )
        return found
