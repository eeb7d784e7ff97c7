"""DeepSpeed: one directory per tag, with a file of optimizer state for each rank.

ZeRO 0 to 3, pipelines (a file for each layer) and universal checkpoints (a folder for each
parameter below ``zero/``). How many files there should be is told by the ranks in the names of the
others, and by the sizes that files of model states hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptctl.formats.base import Claim, Folder, Layout, PointerRule, Sure
from ckptctl.formats.claims import directory, missing, numbered
from ckptctl.formats.torch.glance import beginning, number
from ckptctl.pattern import pattern

_OPTIMIZER = pattern(r"(?:\w+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_SHARDED = pattern(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_MODEL = pattern(r"mp_rank_(\d+)_model_states\.pt")
_LAYER = pattern(r"layer_(\d+)-(?:model_\d+-)?model_states\.pt")
_EXPERT = pattern(r"(?:layer_\d+_expert_\d+|expp_rank_\d+)_mp_rank_\d+_(?:model|optim)_states\.pt")
_OWN = (_MODEL, _SHARDED, _OPTIMIZER, _LAYER, _EXPERT)


class DeepSpeed(Layout):
    """Directories that ``engine.save_checkpoint`` writes."""

    name = "deepspeed"
    title = "DeepSpeed"
    pointers = (PointerRule("latest"), PointerRule("latest_universal"))

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with files of model or optimizer states."""
        if "pt" not in folder.suffixes:
            return
        states = (name for name in folder.files if name.endswith("_states.pt"))
        if any(one.fullmatch(name) for name in states for one in _OWN):
            above, _, tag = folder.path.rpartition("/")
            resume = f"load_dir={above or '.'} tag={tag}" if tag else ""
            lacks = missing_parts(folder)
            yield directory(self.name, folder, Sure.MARKED, lacks=lacks, resume=resume)


def missing_parts(folder: Folder) -> Iterator[str]:
    """Yield the files that the names of the others tell of and that are not there."""
    optimizer = [match for name in folder.files if (match := _OPTIMIZER.fullmatch(name))]
    sharded = numbered_pairs(folder, _SHARDED)
    pairs = {(int(match[1]), int(match[2])) for match in optimizer}
    models = numbered(folder.files, _MODEL)
    parallel = {mp for _, mp in pairs | sharded} | models
    ranks = max((rank for rank, _ in pairs | sharded), default=-1) + 1
    universal = "zero" in folder.folders
    size, parallel_size = _sizes(folder)
    ranks = max(ranks, size) if ranks else 0
    for mp in range(max(parallel_size, *(at + 1 for at in parallel), 0)):
        if sharded:
            own = {rank for rank, at in sharded if at == mp}
            yield from missing(own, f"zero_pp_rank_{{}}_mp_rank_{mp:02d}_model_states.pt", ranks)
        elif mp not in models:
            yield f"mp_rank_{mp:02d}_model_states.pt"
        if (pairs or sharded) and not universal:
            bf16 = "bf16_" if any(match[0].startswith("bf16_") for match in optimizer) else ""
            own = {rank for rank, at in pairs if at == mp}
            form = f"{bf16}zero_pp_rank_{{}}_mp_rank_{mp:02d}_optim_states.pt"
            yield from missing(own, form, ranks)
    yield from missing(numbered(folder.files, _LAYER), "layer_{:02d}-model_states.pt")
    if folder.name.text.endswith("_universal") and not universal:
        yield "zero"


def _sizes(folder: Folder) -> tuple[int, int]:
    """Return the data and model parallel sizes that a file of model states has near its beginning."""
    states = sorted(n for n in folder.files if _MODEL.fullmatch(n) or _SHARDED.fullmatch(n))
    pickle = beginning(folder.peek(states[0]) or b"") if states else b""
    return number(pickle, "dp_world_size") or 0, number(pickle, "mp_world_size") or 0


def numbered_pairs(folder: Folder, pattern: re.Pattern[str]) -> set[tuple[int, int]]:
    """Return the two numbers in all file names that match."""
    found = (pattern.fullmatch(name) for name in folder.files)
    return {(int(match[1]), int(match[2])) for match in found if match}
