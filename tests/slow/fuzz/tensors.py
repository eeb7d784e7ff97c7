"""Safetensors files and their indices, against the safetensors library."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import safetensors
import torch
from safetensors.torch import save

from ckptctl.errors import CkptctlError
from ckptctl.formats.safetensors.reader import DTYPES, INDEX
from ckptctl.formats.safetensors.reader import read as read_folder
from ckptctl.model.checkpoint import Checkpoint, File, TensorEntry
from ckptctl.operations.content.tensors import TensorSource
from slow.fuzz.cases import MOST, Difference, Target
from slow.fuzz.memory import MemoryStore
from slow.fuzz.mutate import NUMBERS, document, flipped, spelled

NAME = "model.safetensors"
PIECES = json.dumps(
    {"w": {"saved_offsets": [0, 0]}, "b": {"saved_offsets": [2]}}, separators=(",", ":")
)


def _seeds() -> list[tuple[str, bytes]]:
    rows = torch.arange(6.0).reshape(2, 3)
    found = {
        "plain": save({"w": rows, "b": torch.ones(2, dtype=torch.bfloat16)}),
        "metadata": save({"w": rows.to(torch.int8)}, {"format": "pt", "x": "é"}),
        "scalar": save({"n": torch.tensor(3), "e": torch.empty(0, 2), "t": torch.tensor([True])}),
        "pieces": save({"w": rows, "b": torch.ones(2)}, {"DCP_SHARDING_INFO": PIECES}),
        "empty": save({}),
    }
    return list(found.items())


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a healthy file and what follows it."""
    (length,) = struct.unpack_from("<Q", data)
    found: dict[str, Any] = json.loads(data[8 : 8 + length])
    return found, data[8 + length :]


def _files(data: dict[str, bytes]) -> dict[str, File]:
    return {name: File(name, len(body)) for name, body in data.items()}


def _values(found: Checkpoint, files: dict[str, bytes]) -> dict[str, bytes | str]:
    read: dict[str, bytes | str] = {}
    with TensorSource(MemoryStore(files), "", found) as source:
        for fqn, entry in found.entries.items():
            if isinstance(entry, TensorEntry):
                try:
                    small = entry.numel <= MOST
                    read[fqn] = b"".join(map(bytes, source.read(fqn))) if small else ""
                except CkptctlError as error:
                    read[fqn] = str(error) or "no reason"
    return read


def _library(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = {}
    for name, body in safetensors.deserialize(data):
        dtype = DTYPES.get(body["dtype"], body["dtype"])
        found[name] = (dtype, tuple(body["shape"]), bytes(body["data"]))
    return found


class SafetensorsTarget(Target):
    """One file: its header, its length, its offsets, its bytes."""

    name = "safetensors"

    def __init__(self) -> None:
        self.seeds = _seeds()

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        slot, data = rng.choice(self.seeds)
        if rng.random() < 0.25:
            return slot, flipped(rng, data)
        header, body = header_of(data)
        head = spelled(rng, document(rng, header))
        if rng.random() < 0.5:
            head += b" " * (-len(head) % 8)
        length = len(head)
        if rng.random() < 0.06:
            length = rng.choice((*NUMBERS[:34], length - 1, length + 1)) & (1 << 64) - 1
        if rng.random() < 0.08:
            body = flipped(rng, body)
        return slot, struct.pack("<Q", length) + head + body

    def judge(self, slot: str, data: bytes) -> str:
        files = {NAME: data}
        found = read_folder(MemoryStore(files), "", _files(files))
        if found.problems:
            return "reported"
        ours = _values(found, files)
        try:
            theirs = _library(data)
        except safetensors.SafetensorError as error:
            if any(isinstance(one, str) and one for one in ours.values()):
                return "refused when it is read"
            raise Difference("the library refuses", str(error)) from None
        if set(theirs) != set(found.entries):
            raise Difference("other keys", f"{sorted(found.entries)} and {sorted(theirs)}")
        placed = slot == "pieces" or b"DCP_SHARDING_INFO" in data
        outcome = "equal"
        for fqn, (dtype, shape, body) in theirs.items():
            entry = found.entries[fqn]
            if not isinstance(entry, TensorEntry) or entry.dtype != dtype:
                raise Difference("another dtype", f"{entry} and {dtype}")
            (box,) = entry.boxes
            if box.sizes != shape or (not placed and entry.shape != shape):
                raise Difference("another shape", f"{entry} and {shape}")
            mine = ours[fqn]
            if isinstance(mine, str):
                outcome = "refused when it is read"
            elif mine != body:
                raise Difference("other values", f"{mine!r} and {body!r}")
        return outcome


class IndexTarget(Target):
    """The index beside two files that stay as they are, read as transformers reads it."""

    name = "indices"

    def __init__(self) -> None:
        rows = torch.arange(6.0).reshape(2, 3)
        self.files = {
            "model-00001-of-00002.safetensors": save({"a": rows, "b": rows[0].clone()}),
            "model-00002-of-00002.safetensors": save({"c": rows.to(torch.int64)}),
        }
        first, second = self.files
        self.seed: dict[str, Any] = {
            "metadata": {"total_size": 84},
            "weight_map": {"a": first, "b": first, "c": second},
        }

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        if rng.random() < 0.15:
            return "index", flipped(rng, json.dumps(self.seed, indent=2).encode())
        return "index", spelled(rng, document(rng, self.seed))

    def judge(self, slot: str, data: bytes) -> str:
        files = {**self.files, INDEX: data}
        found = read_folder(MemoryStore(files), "", _files(files))
        if found.faults:
            return "reported"
        try:
            weights = json.loads(data)["weight_map"]
            named = sorted(set(weights.values()))
            theirs = {key: file for file in named for key in _library(self.files[file])}
        except Exception as error:
            raise Difference("transformers refuses", f"{type(error).__name__}: {error}") from None
        if set(found.entries) != set(theirs):
            raise Difference("other keys", f"{sorted(found.entries)} and {sorted(theirs)}")
        if set(weights) - set(theirs):
            raise Difference("keys that no file has", f"{sorted(set(weights) - set(theirs))}")
        return "equal"
