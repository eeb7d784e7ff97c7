"""Megatron-LM: ``iter_0000006/`` below a root with a tracker file.

As ``torch_dist`` it is a DCP directory with ``metadata.json``, which is written last, and before
0.19 ``common.pt``; NeMo puts it into ``weights/``. The legacy format has a directory for each model
parallel rank. The tracker has the same file name as verl's; it names an ``iter_N`` or ``release``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Layout, PointerRule, Sure
from ckptctl.formats.claims import directory
from ckptctl.formats.composite import Composite, Part
from ckptctl.formats.dcp import reader
from ckptctl.formats.layouts.dcp import Dcp

_METADATA = "metadata.json"
_NAME = re.compile(r"iter_\d{7,18}|release")
_RANK = re.compile(r"mp_rank_(\d{2,9})(?:_(\d{3,9}))?(?:_(\d{3,9}))?")
_MODEL, _OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"
_MOST_RANKS = 256
_TRACKER = PointerRule("latest_checkpointed_iteration.txt")


def _is_megatron(folder: Folder) -> bool:
    """Tell by the small file that is written last, or by what only Megatron puts there."""
    return _backend(folder) not in ("", "zarr")


def _backend(folder: Folder) -> str:
    """Return what wrote the shards, as the metadata says; empty for files of something else."""
    if _METADATA not in folder.files:
        return ""
    try:
        said = json.loads(folder.peek(_METADATA) or b"")
    except ValueError:
        return "damaged" if "common.pt" in folder.files else ""
    return str(said.get("sharded_backend", "")) if isinstance(said, dict) else ""


class Megatron(Dcp):
    """Distributed checkpoints of Megatron core in torch's own format."""

    name = "megatron"
    title = "Megatron torch_dist"
    pointers = (_TRACKER,)

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with Megatron's metadata, or with what its name promises."""
        if folder.files.isdisjoint((_METADATA, "common.pt")):
            return
        if _is_megatron(folder) or ("common.pt" in folder.files and reader.detect(folder.names)):
            lacks = tuple(n for n in (".metadata", _METADATA) if n not in folder.files)
            yield directory(self.name, folder, Sure.MARKED, lacks=lacks)


class NeMo(Composite):
    """NeMo 2 checkpoints: Megatron's in ``weights/``, beside what describes the model."""

    name = "nemo"
    title = "NeMo"
    parts = (Part("weights", "weights", "the whole state"),)

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with ``weights/`` and ``context/``."""
        if not {"weights", "context"} <= folder.folders:
            return
        marker = f"{folder.name.text}-unfinished"
        staging = f"{marker} lies beside it" if marker in folder.beside else ""
        more = {"staging": staging} if staging else {}
        yield directory(self.name, folder, Sure.MARKED, **more)


class MegatronLegacy(Layout):
    """Checkpoints of Megatron's older formats: a directory per model parallel rank, or zarr."""

    name = "megatron-legacy"
    title = "Megatron legacy"
    pointers = (_TRACKER,)

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with one for each model parallel rank."""
        ranks = [name for name in folder.folders if _RANK.fullmatch(name)]
        if ranks:
            yield directory(self.name, folder, Sure.MARKED, lacks=_missing(folder, ranks))
        elif _backend(folder) == "zarr":
            yield directory(self.name, folder, Sure.MARKED)
        elif _NAME.fullmatch(folder.name.text) and _OPTIMIZER in folder.files:
            yield directory(self.name, folder, Sure.PATTERN, lacks=("mp_rank_00/",))


def _missing(folder: Folder, ranks: list[str]) -> Iterator[str]:
    """Yield the ranks and files that are not there, by the names of the others."""
    there = {
        tuple(int(n or 0) for n in match.groups()) for r in ranks if (match := _RANK.fullmatch(r))
    }
    width = max(len(rank.split("_")) for rank in ranks)
    for tensor in range(max(rank[0] for rank in there) + 1):
        for pipeline in range(max(rank[1] for rank in there) + 1):
            if not any(rank[:2] == (tensor, pipeline) for rank in there):
                yield f"mp_rank_{tensor:02d}{f'_{pipeline:03d}' if width > 3 else ''}/"
    files = {rank: _files(folder, rank) for rank in sorted(ranks)[:_MOST_RANKS]}
    separate = any(_OPTIMIZER in names for names in files.values())
    for rank, names in files.items():
        for wanted in (_MODEL, _OPTIMIZER) if separate else (_MODEL,):
            if wanted not in names:
                yield f"{rank}/{wanted}"


def _files(folder: Folder, name: str) -> frozenset[str]:
    inside = folder.below(name)
    return inside.files if inside is not None else frozenset()
