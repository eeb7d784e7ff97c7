"""Every layout that this release knows, in one table."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.errors import Refused, UsageError
from ckptctl.formats.base import Claim, Folder, Layout, ShardWriter
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


SHARDED: Layout = LAYOUTS[0]
"""What reshard reads and writes, and convert writes for a number of ranks."""


def sharded_writer() -> ShardWriter:
    """Return what writes the layout that reshard writes."""
    writer = SHARDED.writer
    if writer is None:
        raise Refused(f"{SHARDED.title} is not written by this release")
    return writer


class _Unclaimed(Layout):
    """A directory that is named like a checkpoint and that no layout claims."""

    name = "unknown"
    title = "of no known format"

    def claim(self, folder: Folder) -> tuple[Claim, ...]:  # noqa: ARG002
        """Claim nothing: what nobody claims is left over."""
        return ()


UNCLAIMED: Layout = _Unclaimed()
"""What lists the files of such a directory."""


def metadata_of(name: str, files: Iterable[str]) -> list[str]:
    """Return the files without which nothing can be loaded, for any layout or none."""
    found = next((one for one in LAYOUTS if one.name == name), UNCLAIMED)
    return found.metadata(files)


def layout(name: str) -> Layout:
    """Return a layout by its name; raises ``UsageError`` for one that there is not."""
    for one in LAYOUTS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in LAYOUTS)
    raise UsageError(f"there is no framework {name!r}; there are {known}")
