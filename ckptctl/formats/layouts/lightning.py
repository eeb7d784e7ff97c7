"""Lightning: one ``.ckpt`` per checkpoint, a file, or a DCP directory with ``meta.pt`` beside.

``epoch=1-step=6.ckpt`` tells its step, ``last.ckpt`` tells it inside. With DeepSpeed the ``.ckpt``
is a directory with DeepSpeed's files in ``checkpoint/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ckptctl.formats.base import Claim, Folder, Layout, PointerRule, StepKind, Sure
from ckptctl.formats.claims import directory, file
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import AccompaniedDcp, Composite
from ckptctl.formats.dcp import reader
from ckptctl.formats.torch.glance import beginning, number
from ckptctl.model.checkpoint import Checkpoint, File
from ckptctl.model.companion import UPDATES, Form, Kind, Told
from ckptctl.pattern import pattern
from ckptctl.storage import Store

_META = "meta.pt"
_SUFFIX = ".ckpt"
_UNFINISHED = "-unfinished"
_NAMED = pattern(r"(?:.*[-_])?(?:epoch|step)=\d+.*\.ckpt", re.IGNORECASE)
_LAST = pattern(r"last(?:-v\d+)?\.ckpt")
_POINTERS = (PointerRule(r"last(?:-v\d+)?\.ckpt"),)
_STATE = "the step, the loops and the schedule: Lightning does not load the rest"
_OPTIMIZER = pattern(r"optimizer_\d+(?=\.)")
_SCALED = frozenset({"MixedPrecision", "FSDPPrecision", "HalfPrecision", "AMPPrecision"})
"""Under these names a scaler may be kept, which lets steps be skipped that Lightning counts."""


def _recorded(folder: Folder, name: str) -> dict[str, Any] | None:
    """Return the step and epoch that a file of Lightning's has in its beginning, else None."""
    pickle = beginning(folder.peek(name) or b"")
    if b"pytorch-lightning_version" not in pickle:
        return None
    step, epoch = number(pickle, "global_step"), number(pickle, "epoch")
    return {"step": step, "epoch": epoch, "step_is": StepKind.RECORDED}


_TOLD = (
    Told(("global_step",), exact=True),
    Told(("global_step",), scheme=UPDATES, unless=_SCALED),
)


class LightningFiles(Composite):
    """Files that Lightning's ``ModelCheckpoint`` writes."""

    name = "lightning"
    title = "Lightning"
    pointers = _POINTERS
    rules = (
        Rule(r".*\.ckpt(?:" + _UNFINISHED + ")?", Form.TORCH, "everything", told=_TOLD, prefix=()),
    )

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim each ``.ckpt`` file that is named as Lightning does or says that it is one."""
        if not any(suffix.startswith("ckpt") for suffix in folder.suffixes):
            return
        for name in sorted(folder.own_files):
            stem = name.removesuffix(_UNFINISHED)
            if not stem.endswith(_SUFFIX):
                continue
            if _NAMED.fullmatch(stem) and folder.named[name].step is not None:
                yield file(self.name, folder, name, Sure.PATTERN, **_staging(folder, name))
                continue
            found = _recorded(folder, name)
            if found is not None or _LAST.fullmatch(stem) or _NAMED.fullmatch(stem):
                told = found or {}
                sure = Sure.MARKED if found is not None else Sure.PATTERN
                yield file(self.name, folder, name, sure, **told, **_staging(folder, name))


def _staging(folder: Folder, name: str) -> dict[str, str]:
    """Say what marks a file as not final: NeMo puts an empty file with a longer name beside."""
    marker = f"{name}{_UNFINISHED}"
    return {"staging": f"{marker} lies beside it"} if marker in folder.files else {}


class LightningFolders(AccompaniedDcp):
    """Directories that Lightning's FSDP and model parallel strategies write."""

    name = "lightning-dcp"
    title = "Lightning: FSDP, model parallel"
    pointers = _POINTERS
    rules = (
        Rule(
            r"meta\.pt",
            Form.TORCH,
            _STATE,
            told=_TOLD,
        ),
    )

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with ``meta.pt``, or with shards and a name that Lightning gives."""
        text = folder.name.text
        named = bool(_NAMED.fullmatch(text) or _LAST.fullmatch(text))
        if not named and _META not in folder.files:
            return
        shards = reader.detect(folder.names)
        if (_META in folder.files) + shards + named < 2:
            return
        lacks = tuple(name for name in (".metadata", _META) if name not in folder.files)
        told: dict[str, Any] = {}
        if folder.name.step is None and _META in folder.files:
            told = _recorded(folder, _META) or {}
        yield directory(self.name, folder, Sure.MARKED, lacks=lacks, **told)

    def beside(self, store: Store, base: str, files: Mapping[str, File]) -> Mapping[str, str]:
        """Return what Lightning keeps beside the shards."""
        return {_META: _STATE}

    def tied(self, checkpoint: Checkpoint) -> frozenset[Kind]:
        """Say that the optimizer counts as the loops do, which sum up over several of them."""
        found = {m[0] for key in checkpoint.entries if (m := _OPTIMIZER.match(key))}
        return frozenset({Kind.OPTIMIZER}) if len(found) == 1 else frozenset()


class LightningDeepSpeed(Layout):
    """Directories that Lightning's DeepSpeed strategy writes."""

    name = "lightning-deepspeed"
    title = "Lightning: DeepSpeed"

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory that ends in ``.ckpt`` and holds DeepSpeed's ``checkpoint/``."""
        if _SUFFIX in folder.name.text and "latest" in folder.files:
            lacks = () if "checkpoint" in folder.folders else ("checkpoint",)
            yield directory(self.name, folder, Sure.MARKED, lacks=lacks)
