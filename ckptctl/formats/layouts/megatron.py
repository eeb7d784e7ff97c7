"""Megatron-LM: ``iter_0000006/`` below a root with a tracker file.

As ``torch_dist`` it is a DCP directory with ``metadata.json``, which is written last, and before
0.19 ``common.pt``; NeMo puts it into ``weights/``. The legacy format has a directory for each model
parallel rank. The tracker has the same file name as verl's; it names an ``iter_N`` or ``release``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ckptctl.formats.base import Claim, Folder, Layout, PointerRule, Sure, read_small
from ckptctl.formats.claims import directory
from ckptctl.formats.companions import Rule
from ckptctl.formats.composite import AccompaniedDcp, Composite, Part
from ckptctl.formats.dcp import reader
from ckptctl.formats.torch.glance import beginning, number
from ckptctl.model.belonging import foreign
from ckptctl.model.checkpoint import File
from ckptctl.model.companion import Form, Told
from ckptctl.model.paths import join
from ckptctl.pattern import pattern
from ckptctl.storage import Store

_METADATA = "metadata.json"
_NAME = pattern(r"iter_\d{7,18}|release")
_RANK = pattern(r"mp_rank_(\d{2,9})(?:_(\d{3,9}))?(?:_(\d{3,9}))?")
_COMMON = "common.pt"
_MODEL, _OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"
_MOST_RANKS = 256
_TRACKERS = ("latest_checkpointed_iteration.txt",)
_TRACKER = PointerRule(_TRACKERS[0])
_MARKER = "the whole: Megatron takes it for no distributed checkpoint"
_STATE = "the iteration, the arguments and the schedule"


def _rules(prefix: str = "") -> tuple[Rule, ...]:
    """Return what lies beside the shards, in the directory of them."""
    return (
        Rule(rf"{prefix}common\.pt", Form.TORCH, _STATE, told=(Told(("iteration",), exact=True),)),
        Rule(
            rf"{prefix}metadata\.json",
            Form.JSON,
            _MARKER,
            state=False,
            needs={"sharded_backend": (str,)},
        ),
        Rule(
            rf"{prefix}integrity\.json",
            Form.DIGESTS,
            "the digests of all other files: Megatron refuses it where it is to compare them",
            state=False,
        ),
    )


def _said(folder: Folder) -> Mapping[str, object]:
    """Return what the small file that is written last says; empty where it is not there."""
    return _json(folder.peek(_METADATA) or b"") if _METADATA in folder.files else {}


def _json(data: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _backend(said: Mapping[str, object]) -> str:
    """Return what wrote the shards; empty for a file of something else."""
    return str(said.get("sharded_backend", ""))


def _has_common(said: Mapping[str, object]) -> bool:
    """Tell whether the common state lies in a file of its own, as before 0.19."""
    return said.get("common_backend") == "torch"


class Megatron(AccompaniedDcp):
    """Distributed checkpoints of Megatron core in torch's own format."""

    name = "megatron"
    title = "Megatron torch_dist"
    pointers = (_TRACKER,)
    rules = _rules()

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with Megatron's metadata, or with what its name promises."""
        named = _NAME.fullmatch(folder.name.text) is not None
        tracked = named and not folder.beside.isdisjoint(_TRACKERS)
        if folder.files.isdisjoint((_METADATA, _COMMON)) and not tracked:
            return
        if _backend(_said(folder)) not in ("", "zarr") or (named and reader.detect(folder.names)):
            needed = [".metadata", _METADATA, *([_COMMON] if _has_common(_said(folder)) else [])]
            lacks = [name for name in needed if name not in folder.files]
            yield directory(self.name, folder, Sure.MARKED, lacks=lacks)

    def beside(self, store: Store, base: str, files: Mapping[str, File]) -> Mapping[str, str]:
        """Return the marker that is written last, and the common state where it names one."""
        found = {_METADATA: _MARKER}
        if _METADATA in files and _COMMON not in files:
            said = _json(read_small(store, join(base, _METADATA)) or b"")
            if _has_common(said):
                found[_COMMON] = _STATE
        return found


class NeMo(Composite):
    """NeMo 2 checkpoints: Megatron's in ``weights/``, beside what describes the model."""

    name = "nemo"
    title = "NeMo"
    parts = (Part("weights", "weights", "the whole state"),)
    rules = _rules("weights/")

    def belongs(self, path: str) -> bool:
        """Take all of what describes the model, which is pickled by parts."""
        return super().belongs(path) or (path.startswith("context/") and not foreign(path))

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
        elif _backend(_said(folder)) == "zarr":
            yield directory(self.name, folder, Sure.MARKED)
        elif _NAME.fullmatch(folder.name.text) and _OPTIMIZER in folder.files:
            yield directory(self.name, folder, Sure.PATTERN, lacks=("mp_rank_00/",))


def _missing(folder: Folder, ranks: list[str]) -> Iterator[str]:
    """Yield the ranks and files that are not there, by the names of the others."""
    there = {
        tuple(int(n or 0) for n in match.groups()) for r in ranks if (match := _RANK.fullmatch(r))
    }
    width = max(len(rank.split("_")) for rank in ranks)
    inside = folder.below(min(ranks))
    pickle = beginning(inside.peek(_MODEL) or b"") if inside is not None else b""
    sizes = [number(pickle, f"{kind}_model_parallel_size") or 0 for kind in ("tensor", "pipeline")]
    for tensor in range(max(sizes[0], *(rank[0] + 1 for rank in there))):
        for pipeline in range(max(sizes[1], *(rank[1] + 1 for rank in there))):
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
