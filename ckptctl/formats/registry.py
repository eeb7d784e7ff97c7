"""Every layout that this release knows, in one table."""

from __future__ import annotations

from ckptctl.errors import UsageError
from ckptctl.formats.base import Layout
from ckptctl.formats.layouts.composer import Composer
from ckptctl.formats.layouts.dcp import Dcp
from ckptctl.formats.layouts.deepspeed import DeepSpeed
from ckptctl.formats.layouts.huggingface import HuggingFace, HuggingFaceFsdp
from ckptctl.formats.layouts.lightning import (
    LightningDeepSpeed,
    LightningFiles,
    LightningFolders,
)
from ckptctl.formats.layouts.megatron import Megatron, MegatronLegacy, NeMo
from ckptctl.formats.layouts.nvrx import NvrxLocal
from ckptctl.formats.layouts.olmo_core import OlmoCore
from ckptctl.formats.layouts.orbax import Orbax
from ckptctl.formats.layouts.safetensors_files import SafetensorsFiles
from ckptctl.formats.layouts.torch_checkpointing import TorchCheckpointing
from ckptctl.formats.layouts.torch_files import TorchFiles
from ckptctl.formats.layouts.torchsnapshot import TorchSnapshot
from ckptctl.formats.layouts.verl import Verl

LAYOUTS: tuple[Layout, ...] = (
    Dcp(),
    Megatron(),
    MegatronLegacy(),
    NeMo(),
    DeepSpeed(),
    HuggingFace(),
    HuggingFaceFsdp(),
    LightningFiles(),
    LightningFolders(),
    LightningDeepSpeed(),
    Composer(),
    OlmoCore(),
    Verl(),
    TorchCheckpointing(),
    NvrxLocal(),
    TorchSnapshot(),
    Orbax(),
    TorchFiles(),
    SafetensorsFiles(),
)
"""Asked in this order; of several that claim a directory the surest is taken."""


def layout(name: str) -> Layout:
    """Return a layout by its name; raises ``UsageError`` for one that there is not."""
    for one in LAYOUTS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in LAYOUTS)
    raise UsageError(f"there is no framework {name!r}; there are {known}")
