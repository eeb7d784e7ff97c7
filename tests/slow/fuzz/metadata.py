"""The ``.metadata`` pickle, against Python's own unpickler over torch's own classes."""

from __future__ import annotations

import io
import pickle
import random
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ckptctl.formats.dcp.apart import parse_metadata
from ckptctl.formats.dcp.metadata import Parsed
from ckptctl.model.checkpoint import FaultKind, TensorEntry
from conftest import FIXTURES
from slow.fuzz import pickling
from slow.fuzz.cases import Difference, Target, looked_at, objections, refusal, verified
from slow.fuzz.guard import Guard, exists, is_function, metadata_of
from slow.fuzz.memory import Bytes
from support.lanes import carefully, read_here

FOLDER = "step-12"
SHARD = "__0_0.distcp"
SAVE_ID = "0f6a3c1e-5d0b-4f7e-9a41-1c2d3e4f5a6b"


def saved(value: object) -> bytes:
    """Return what ``torch.save`` writes."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def described(items: dict[str, Any], where: str = "run/step-12") -> tuple[Metadata, bytes]:
    """Return metadata and shard of a state of tensors, of lists of their rows, and of objects."""
    state: dict[str, Any] = {}
    storage: dict[Any, Any] = {}
    shard = b""
    for number, (fqn, value) in enumerate(items.items()):
        pieces = value if isinstance(value, list) else [value]
        if isinstance(pieces[0], torch.Tensor):
            row, chunks = 0, []
            shape = pieces[0].shape
            if len(pieces) > 1:
                shape = torch.Size((sum(len(one) for one in pieces), *shape[1:]))
            for one in pieces:
                origin = torch.Size([row, *[0] * (one.dim() - 1)][: one.dim()])
                chunks.append(ChunkStorageMetadata(origin, one.shape))
                body = saved(one)
                index = MetadataIndex(fqn, origin, len(chunks) - 1)
                storage[index] = _StorageInfo(SHARD, len(shard), len(body))
                shard += body
                row += len(one) if one.dim() else 0
            properties = TensorProperties(dtype=pieces[0].dtype, requires_grad=number % 2 == 1)
            state[fqn] = TensorStorageMetadata(properties, shape, chunks)
        else:
            body = saved(value)
            state[fqn] = BytesStorageMetadata()
            storage[MetadataIndex(fqn)] = _StorageInfo(SHARD, len(shard), len(body))
            shard += body
    paths = {fqn: tuple(fqn.split(".")) for fqn in items}
    meta = StorageMeta(checkpoint_id=Path(where), save_id=SAVE_ID)
    return Metadata(state, paths, storage, meta), shard


def written(folder: Path, found: Metadata, shard: bytes) -> None:
    """Write a checkpoint as torch would."""
    folder.mkdir(parents=True)
    (folder / SHARD).write_bytes(shard)
    (folder / ".metadata").write_bytes(pickle.dumps(found, 4))


def _states() -> dict[str, dict[str, Any]]:
    rows = torch.arange(12.0).reshape(4, 3)
    return {
        "plain": {"model.w": rows[:2].clone(), "step": 12},
        "sharded": {"w": [rows[:2].clone(), rows[2:].clone()], "b": torch.ones(2).bfloat16()},
        "many": {
            **{f"w.{n}": [rows[:2].clone(), rows[2:].clone()] for n in range(4)},
            **{f"o.{n}": n for n in range(3)},
            **{f"s.{n}": torch.tensor(float(n)) for n in range(3)},
        },
        "scalar": {"n": torch.tensor(3, dtype=torch.int64), "lr": 0.1, "e": torch.empty(0, 3)},
    }


def _explicit(data: bytes) -> bytes:
    """Spell what is remembered by number, so that taking an opcode away moves no other."""
    ops = pickling.take_apart(data).ops
    count = 0
    out = []
    for op in ops:
        if op == b"\x94":
            op = b"r" + count.to_bytes(4, "little")
            count += 1
        out.append(op)
    return b"".join(out)


class MetadataTarget(Target):
    """The metadata of a small checkpoint whose shards stay as they are."""

    name = "metadata"

    def __init__(self) -> None:
        self.shards: dict[str, bytes] = {}
        self.seeds: list[tuple[str, pickling.Pickle]] = []
        for name, state in _states().items():
            found, self.shards[name] = described(state)
            for protocol in (2, 4):
                data = pickle.dumps(found, protocol)
                self.seeds.append((name, pickling.take_apart(data)))
                if protocol == 4:
                    self.seeds.append((name, pickling.take_apart(_explicit(data))))
        for path in sorted((FIXTURES / "old_metadata").glob("*.metadata")):
            self.seeds.append(("old", pickling.take_apart(path.read_bytes())))
        self.shards["old"] = b""
        self.pool = pickling.Pool.of([seed for _, seed in self.seeds])

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        slot, seed = rng.choice(self.seeds)
        return slot, pickling.changed(rng, seed, self.pool)

    def pieces(self, data: bytes) -> tuple[list[bytes], Any]:
        with suppress(Exception):
            return list(pickling.take_apart(data).ops), b"".join
        return super().pieces(data)

    def _tree(self, slot: str, data: bytes) -> dict[str, bytes]:
        return {f"{FOLDER}/.metadata": data, f"{FOLDER}/{SHARD}": self.shards[slot]}

    def judge(self, slot: str, data: bytes) -> str:
        parsed = parse_metadata(Bytes(data), ".metadata")
        if not parsed.faults and not _alike(parsed, carefully(data)):
            raise Difference("the shortcuts differ")
        # what asks for too much is read in a process with limits, and would take this one along
        large = any(one.kind in (FaultKind.TOO_LARGE, FaultKind.TOO_DEEP) for one in parsed.faults)
        if not parsed.faults or (not large and zlib.crc32(data) % 8 == 0):
            in_columns = read_here(Bytes(data), ".metadata")
            if in_columns is not None and parsed.faults:
                return self._careful_alone(data, in_columns)
            if in_columns is not None and not _alike(parsed, in_columns):
                raise Difference("the two lanes differ")
        if parsed.faults:
            if zlib.crc32(data) % 16 == 0:
                looked_at(self._tree(slot, data))
            return "reported"
        try:
            theirs, guard = metadata_of(data)
            difference = _difference(parsed, theirs)
        except MemoryError:
            raise
        except Exception as error:
            difference = str(refusal(error))
            guard = None
        if not difference:
            difference = _loads(theirs)
        loud = self._unsaid(parsed, guard) if guard is not None else ""
        if not difference and not loud:
            if zlib.crc32(data) % 8 == 0:
                looked_at(self._tree(slot, data))
            return "equal"
        said = objections(verified(self._tree(slot, data)))
        if said:
            return "reported by verify"
        words = difference or loud
        kind = words.partition(": ")[0] if not words.startswith("torch") else words[:90]
        raise Difference(kind, words)

    def _careful_alone(self, data: bytes, in_columns: Parsed) -> str:
        """Where only one lane refuses, what the other one says must at least be torch's."""
        try:
            difference = _difference(in_columns, metadata_of(data)[0])
        except MemoryError:
            raise
        except Exception as error:
            difference = str(refusal(error))
        if difference:
            raise Difference("the lane for large metadata is less careful", difference)
        return "reported in one lane"

    def _unsaid(self, parsed: Parsed, guard: Guard) -> str:
        """Return what would be called or is not there at all, and nobody said."""
        for module, name in sorted(guard.called):
            if is_function(module, name) or f"{module}.{name}" not in parsed.opaque_classes:
                return f"a call that is not reported: {module}.{name}"
        for module, name in sorted(guard.stand_ins):
            if module in ("builtins", "__builtin__"):
                continue  # a value like any other, as long as it is not called
            if f"{module}.{name}" not in parsed.opaque_classes:
                return f"a name that is not said: {module}.{name}"
            if exists(module, name) is False:
                return f"torch refuses: there is no {module}.{name}"
        return ""


def _alike(a: Parsed, b: Parsed) -> bool:
    return (
        _entries_of(a) == _entries_of(b)
        and list(a.items) == list(b.items)
        and a.paths_in_state == b.paths_in_state
        and a.identity == b.identity
    )


def _entries_of(parsed: Parsed) -> dict[str, Any]:
    return {
        fqn: (
            entry.dtype,
            entry.shape,
            tuple((box.offsets, box.sizes) for box in entry.boxes),
            entry.requires_grad,
        )
        if isinstance(entry, TensorEntry)
        else None
        for fqn, entry in parsed.entries.items()
    }


def _difference(parsed: Parsed, theirs: Any) -> str:
    """Return where torch's metadata is not what the tool says."""
    if not isinstance(theirs, Metadata):
        return f"torch refuses: it is a {type(theirs).__name__}"
    expected: dict[str, Any] = {}
    for fqn, one in theirs.state_dict_metadata.items():
        if isinstance(one, TensorStorageMetadata):
            chunks = tuple((tuple(c.offsets), tuple(c.sizes)) for c in one.chunks)
            dtype = str(one.properties.dtype).removeprefix("torch.")
            grad = one.properties.requires_grad
            expected[fqn] = (dtype, tuple(one.size), chunks, grad)
        elif isinstance(one, BytesStorageMetadata):
            expected[fqn] = None
        else:
            return f"other entries: {fqn!r} is a {type(one).__name__}"
    if _entries_of(parsed) != expected:
        return f"other entries: {str(_entries_of(parsed))[:300]} and torch {str(expected)[:300]}"
    places = {
        (index.fqn, None if index.offset is None else tuple(index.offset)): (
            info.relative_path,
            info.offset,
            info.length,
            tuple(info.transform_descriptors or ()),
        )
        for index, info in theirs.storage_data.items()
    }
    ours = {
        (one.fqn, one.offsets): (one.path, one.offset, one.length, one.transforms)
        for one in parsed.items
    }
    if ours != places:
        return f"other places: {str(ours)[:300]} and torch {str(places)[:300]}"
    planner = theirs.planner_data if isinstance(theirs.planner_data, dict) else {}
    for fqn, path in parsed.paths_in_state.items():
        if planner.get(fqn) != path:
            return f"other paths: {fqn!r} {path!r}"
    meta = getattr(theirs, "storage_meta", None)
    if parsed.identity.save_id not in (None, getattr(meta, "save_id", None)):
        return f"another save: {parsed.identity.save_id!r}"
    return ""


def _loads(theirs: Any) -> str:
    """Plan a load as torch does: every key of the metadata into tensors of the same shape."""
    try:
        state: dict[str, Any] = {}
        for fqn, one in theirs.state_dict_metadata.items():
            if isinstance(one, TensorStorageMetadata):
                state[fqn] = torch.empty(one.size, dtype=one.properties.dtype, device="meta")
            else:
                state[fqn] = 0
        plan = create_default_local_load_plan(state, theirs)
        # those of the guard are of classes of its own, which are equal to none of torch's
        places = {MetadataIndex(k.fqn, k.offset): one for k, one in theirs.storage_data.items()}
        for item in plan.items:
            place = places[item.storage_index]
            if place.offset < 0 or place.length < 0 or not place.relative_path + "":
                return "torch refuses: no place"
    except Exception as error:
        return f"torch refuses: planning: {type(error).__name__}: {str(error)[:120]}"
    return ""
