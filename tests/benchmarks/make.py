"""Make the data that benchmarks look at: ``python make.py KIND DIRECTORY [NUMBER ...]``.

Metadata is built by torch's own classes and functions. Plans and write results of each rank go
through a pickle round trip, as they do when ranks send them to the coordinator: strings are then
shared within a rank and not between ranks, which decides how large the file is and how its
memo works.
"""

from __future__ import annotations

import dataclasses
import gc
import io
import os
import pickle
import shutil
import sys
import uuid
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any, TypeVar

import torch
from measure import FIXTURES
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

_RUN = PosixPath("/scratch/checkpoints/pretrain-7b-run3")
_PARTS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")

Sent = TypeVar("Sent")


def names(count: int) -> list[str]:
    """Return the keys of so many weights of a model."""
    return [f"model.layers.{i // 4}.{_PARTS[i % 4]}.weight" for i in range(count)]


def shard(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"__{rank}_0.distcp"


def item(tensor: torch.Tensor) -> bytes:
    """Return the bytes of one item."""
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream.getvalue()


def describe(
    keys: int,
    ranks: int,
    rows: int,
    columns: int,
    length: int,
    dtype: torch.dtype = torch.float32,
) -> Metadata:
    """Build the metadata of tensors cut by rows, one chunk of each for every rank."""
    plans = [_sent(_plan(keys, ranks, rank, rows, columns, dtype)) for rank in range(ranks)]
    plans, metadata = create_default_global_save_plan(plans)
    metadata.planner_data = dict(ChainMap(*[plan.planner_data for plan in plans]))
    storage: dict[MetadataIndex, _StorageInfo] = {}
    for rank, plan in enumerate(plans):
        results = _sent(_write(_sent(plan), shard(rank), length))
        storage.update({result.index: result.storage_data for result in results})
    metadata.storage_data = storage
    return metadata


def _sent(value: Sent) -> Sent:
    received: Sent = pickle.loads(pickle.dumps(value))
    return received


def _plan(
    keys: int, ranks: int, rank: int, rows: int, columns: int, dtype: torch.dtype
) -> SavePlan:
    items = []
    mappings: dict[str, Any] = {}
    for fqn in names(keys):
        offsets, sizes = torch.Size((rank * rows, 0)), torch.Size((rows, columns))
        data = TensorWriteData(
            ChunkStorageMetadata(offsets, sizes),
            TensorProperties(dtype),
            torch.Size((ranks * rows, columns)),
        )
        items.append(WriteItem(MetadataIndex(fqn, offsets), WriteItemType.SHARD, None, data))
        mappings[fqn] = tuple(fqn.split(".", 1))
    return SavePlan(items, planner_data=mappings)


def _write(plan: SavePlan, path: str, length: int) -> list[WriteResult]:
    return [
        WriteResult(one.index, length, _StorageInfo(path, number * length, length))
        for number, one in enumerate(plan.items)
    ]


def save(metadata: Metadata, directory: Path, step: int) -> None:
    """Write the metadata of one step with a save id of its own."""
    metadata.version = "1.0.0"
    metadata.storage_meta = StorageMeta(_RUN / f"step-{step}", str(uuid.uuid4()))
    with (directory / ".metadata").open("wb") as file:
        pickle.dump(metadata, file)


def metadata_only(directory: Path, keys: int, ranks: int) -> None:
    """Make one large ``.metadata`` without the files it describes."""
    length = len(item(torch.zeros(64, 4096)))
    save(describe(keys, ranks, 64, 4096, length), directory, 1000)


def content(
    directory: Path, ranks: int, keys: int, rows: int, columns: int, width: int = 4
) -> None:
    """Make a whole checkpoint whose content is random, of float32 or of bfloat16."""
    dtype = {4: torch.float32, 2: torch.bfloat16}[width]
    numbers = torch.rand(rows, columns)
    length = len(item(numbers.to(dtype)))
    for rank in range(ranks):
        with (directory / shard(rank)).open("wb") as file:
            for _ in range(keys):
                numbers.add_(1 / 1024).frac_()  # no two items alike, and quicker than random ones
                file.write(item(numbers.to(dtype)))
    save(describe(keys, ranks, rows, columns, length, dtype), directory, 1000)


def sparse(directory: Path, ranks: int, keys: int, rows: int, columns: int) -> None:
    """Make a whole checkpoint of zeros; where they are many they are holes of the file."""
    tensor = torch.zeros(rows, columns)
    whole = item(tensor)
    start = whole.index(bytes(tensor.nbytes))
    tail = whole[start + tensor.nbytes :]
    for rank in range(ranks):
        with (directory / shard(rank)).open("wb") as file:
            for _ in range(keys):
                file.write(whole[:start])
                file.seek(tensor.nbytes, os.SEEK_CUR)
                file.write(tail)
    save(describe(keys, ranks, rows, columns, len(whole)), directory, 1000)


def steps_of_fixture(directory: Path, count: int) -> None:
    """Make a run of so many checkpoints that differ as those of one run do."""
    source = FIXTURES / "fsdp2" / "step-12"
    metadata = pickle.loads((source / ".metadata").read_bytes())
    first = directory / "step-100"
    first.mkdir()
    for path in source.glob("*.distcp"):
        shutil.copyfile(path, first / path.name)
    _steps(directory, metadata, count)


def steps_without_content(directory: Path, count: int, keys: int, ranks: int) -> None:
    """The same with more keys, and with files of the right length that hold nothing."""
    length = len(item(torch.zeros(64, 64)))
    first = directory / "step-100"
    first.mkdir()
    for rank in range(ranks):
        with (first / shard(rank)).open("wb") as file:
            file.truncate(keys * length)
    _steps(directory, describe(keys, ranks, 64, 64, length), count)


def steps_unlike(directory: Path, count: int) -> None:
    """Make a run in which the length of one item differs from step to step."""
    steps_of_fixture(directory, count)
    for number, step in enumerate(sorted(directory.iterdir())):
        metadata = pickle.loads((step / ".metadata").read_bytes())
        last = max(metadata.storage_data.values(), key=lambda i: (i.relative_path, i.offset))
        last.length += number
        with (step / ".metadata").open("wb") as file:
            pickle.dump(metadata, file)
        longer = step / "longer"
        shutil.copyfile(step / last.relative_path, longer)
        os.truncate(longer, last.offset + last.length)
        longer.replace(step / last.relative_path)


def steps_damaged(directory: Path, count: int) -> None:
    """Make a run in which one bit of every checkpoint is flipped."""
    steps_of_fixture(directory, count)
    for step in directory.iterdir():
        path = step / shard(0)
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.unlink()  # the others have it by hard links
        path.write_bytes(damaged)


def _steps(directory: Path, metadata: Metadata, count: int) -> None:
    """Write the metadata of each step, and link its files to those of the first."""
    first = directory / "step-100"
    for number in range(1, count + 1):
        step = directory / f"step-{number * 100}"
        if step != first:
            step.mkdir()
            for path in first.glob("*.distcp"):
                (step / path.name).hardlink_to(path)
        save(dataclasses.replace(metadata), step, number * 100)


KINDS: dict[str, Callable[..., None]] = {
    "metadata": metadata_only,
    "content": content,
    "sparse": sparse,
    "steps": steps_of_fixture,
    "steps-large": steps_without_content,
    "steps-unlike": steps_unlike,
    "steps-damaged": steps_damaged,
}


def main(arguments: list[str]) -> None:
    """Make one kind of data in a new directory."""
    kind, target, *numbers = arguments
    directory = Path(target)
    directory.mkdir()
    gc.disable()
    KINDS[kind](directory, *map(int, numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
