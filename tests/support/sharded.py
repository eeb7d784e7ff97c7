"""Checkpoints of any tensors in any cut, each item as ``torch.save`` writes it; and counted reads."""

from __future__ import annotations

import io
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from ckptctl.formats.dcp.metadata_writer import encode_metadata
from ckptctl.model.checkpoint import Entry, Items, TensorEntry
from ckptctl.model.geometry import Box, Boxes
from ckptctl.storage.posix import PosixReader, PosixStore, PosixUpload

Tensors = Mapping[str, tuple[Any, Sequence[Box]]]


def same(part: Any) -> Any:
    """Store a part as ``torch.distributed.checkpoint`` does: its own elements in a row."""
    return part.clone().contiguous()


def save(directory: Path, tensors: Tensors, *, stored: Callable[[Any], Any] = same) -> None:
    """Write tensors, each cut into boxes, one file for each box number."""
    import torch

    directory.mkdir(parents=True)
    items, files, entries = Items(), dict[str, bytearray](), dict[str, Entry]()
    offsets, lengths = array("q"), array("q")
    for fqn, (tensor, boxes) in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        entries[fqn] = TensorEntry(fqn, dtype, shape, Boxes.of(len(shape), boxes))
    ranks = max(len(boxes) for _, boxes in tensors.values())
    for number, (fqn, (tensor, boxes)) in itertools.product(range(ranks), tensors.items()):
        if number >= len(boxes):
            continue
        box, path = boxes[number], f"__{number}_0.distcp"
        part = tensor[tuple(slice(o, e) for o, e in zip(box.offsets, box.ends, strict=True))]
        data = io.BytesIO()
        torch.save(stored(part), data)
        body = files.setdefault(path, bytearray())
        items.fqns.append(fqn)
        items.origins.append(box.offsets)
        items.paths.append(path)
        offsets.append(len(body))
        lengths.append(len(data.getvalue()))
        body += data.getvalue()
    for path, body in files.items():
        (directory / path).write_bytes(body)
    items = Items(items.fqns, items.origins, items.paths, offsets, lengths)
    pieces = encode_metadata(entries, items, {}, save_id="s-1", checkpoint_id=str(directory))
    (directory / ".metadata").write_bytes(b"".join(pieces))


class Counted:
    """Bytes that went through the local store, by the directory that the file lies in."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Count from now on, until the patch is undone."""
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        lock = Lock()

        def add(to: Counter[str], path: Path, count: int) -> None:
            with lock:
                to[str(path.parent)] += count

        counted = self

        class Reader(PosixReader):
            def read(self, start: int, stop: int) -> bytes:
                add(counted.read, self._path, stop - start)
                return super().read(start, stop)

            def read_into(self, start: int, buffer: memoryview) -> None:
                add(counted.read, self._path, len(buffer))
                super().read_into(start, buffer)

        write = PosixUpload.write

        def writing(upload: PosixUpload, data: bytes | memoryview) -> object:
            add(counted.written, upload._final, len(data))
            return write(upload, data)

        patch.setattr(
            PosixStore, "open", lambda self, path: Reader(self._root / path if path else self._root)
        )
        patch.setattr(PosixUpload, "write", writing)
