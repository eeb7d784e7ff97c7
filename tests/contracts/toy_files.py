"""Making checkpoints of the toy layout, as its framework would: raw rows of numbers per rank."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

RANKS = 2


def tensors_at(step: int) -> dict[str, Any]:
    """Return the whole tensors of a run at one step."""
    make = np.random.default_rng(step).standard_normal
    return {
        "model.weight": make((4, 3)).astype("float32"),
        "model.bias": make((4,)).astype("float32"),
        "optimizer.state.model.weight.exp_avg": make((4, 3)).astype("float32"),
        "optimizer.state.model.weight.exp_avg_sq": make((4, 3)).astype("float32") ** 2,
        "optimizer.state.model.bias.exp_avg": make((4,)).astype("float32"),
        "optimizer.state.model.bias.exp_avg_sq": make((4,)).astype("float32") ** 2,
    }


def write_toy(path: Path, step: int, *, crcs: bool = True) -> dict[str, Any]:
    """Write one checkpoint cut by rows over two ranks; return its tensors."""
    path.mkdir(parents=True)
    tensors = tensors_at(step)
    ends = [0] * RANKS
    index: dict[str, Any] = {}
    files = [bytearray() for _ in range(RANKS)]
    for fqn, whole in tensors.items():
        pieces = []
        for rank, part in enumerate(np.split(whole, RANKS)):
            data = part.tobytes()
            origin = [rank * part.shape[0], *[0] * (part.ndim - 1)]
            crc = zlib.crc32(data) if crcs else None
            pieces.append([f"rank{rank}.raw", ends[rank], len(data), crc, origin, list(part.shape)])
            files[rank] += data
            ends[rank] += len(data)
        index[fqn] = {"dtype": "float32", "shape": list(whole.shape), "pieces": pieces}
    for rank, data in enumerate(files):
        (path / f"rank{rank}.raw").write_bytes(data)
    values = {
        "train_state.step": step,
        "lr_scheduler.last_epoch": step,
        "rng.rank_0": "a",
        "rng.rank_1": "b",
        "dataloader.rank_0": step * 4,
        "dataloader.rank_1": step * 4,
    }
    (path / "toy.json").write_text(json.dumps({"tensors": index, "values": values}))
    return tensors
