"""Items: a tensor or an object as one ``torch.save`` file inside a shard, against ``torch.load``."""

from __future__ import annotations

import collections
import pickle
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import zstandard
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

from ckptctl.errors import CkptctlError, MalformedData
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.pickles.values import decode_item
from ckptctl.model.checkpoint import Checkpoint, File, Item, Items, TensorEntry
from ckptctl.model.finding import Severity
from ckptctl.model.geometry import Box, Boxes
from ckptctl.model.observation import ItemSeen
from ckptctl.operations.content.tensors import TensorSource
from slow.fuzz import pickling, zips
from slow.fuzz.cases import (
    MOST,
    Difference,
    Target,
    booleans,
    gaps,
    numbers_of,
    objections,
    refusal,
    same,
    torch_loads,
    verified,
)
from slow.fuzz.guard import Guard, is_function
from slow.fuzz.memory import Bytes, MemoryStore
from slow.fuzz.metadata import FOLDER, SAVE_ID, SHARD, saved

KEY = "w"
DESCRIPTOR = "stream.zstd/1"
ZSTD = "zstd-"
"""What the names of seeds begin with whose bytes are compressed on their way to the file."""


def hand_made() -> Iterator[tuple[str, bytes]]:
    """Yield files of tensors that few writers make and every reader takes."""
    rows = torch.arange(12.0).reshape(3, 4)
    yield "plain", saved(rows[0].clone())
    yield "strided", saved(rows.t())
    yield "view", saved(rows[1:, 1:3])
    yield "bfloat16", saved(torch.arange(3).bfloat16())
    yield "empty", saved(torch.empty(0, 3))
    yield "scalar", saved(torch.tensor(7, dtype=torch.int64))
    yield "expanded", saved(torch.ones(1).expand(4))
    yield "conj", saved(torch.tensor([1 + 2j, 3j]).conj())
    yield "neg", saved(torch.tensor([1 + 2j, 3j]).conj().imag)
    yield "bool", saved(torch.tensor([True, False]))
    yield "parameter", saved(torch.nn.Parameter(torch.ones(2)))
    records = zips.take_apart(saved(rows[0].clone()))
    big = [r for r in records if not r.name.endswith((b"byteorder", b"/data/0"))]
    for one in records:
        if one.name.endswith(b"byteorder"):
            big.append(zips.replace(one, data=b"big", crc=None))
        elif one.name.endswith(b"/data/0"):
            big.append(zips.replace(one, data=struct.pack(">4f", 0, 1, 2, 3), crc=None))
    yield "big-endian", zips.put_together(tuple(big))
    tied = torch.arange(4.0)
    view = tied.untyped_storage()
    yield "untyped", saved(torch.empty(0, dtype=torch.uint8).set_(view, 0, (16,), (1,)))


def objects() -> Iterator[tuple[str, bytes]]:
    """Yield files of values that trainers keep."""
    ordered = collections.OrderedDict(a=1, b=[2.5, None])
    yield "number", saved(12)
    yield "state", saved({"step": 12, "lr": [0.1, 1e-8], "on": True, 3: "x", "t": (1, "é", b"\0")})
    yield "ordered", saved(ordered)
    yield "tensors", saved({"rng": torch.arange(4, dtype=torch.uint8), "n": torch.tensor(3)})
    yield "sets", saved({"s": {1, 2}, "d": collections.deque([1], maxlen=3), "z": torch.Size([2])})
    yield "counter", saved(collections.Counter("aab"))
    yield "dtype", saved([torch.bfloat16, torch.device("cpu"), complex(1, 2), 1 << 70])


class ZipTarget(Target):
    """Files of ``torch.save``: the pickle in them is changed, or the zip around it, or any bytes."""

    def __init__(self, seeds: Iterator[tuple[str, bytes]]) -> None:
        self.seeds: list[tuple[str, tuple[zips.Record, ...], pickling.Pickle]] = []
        for name, data in seeds:
            records = zips.take_apart(data)
            found = next(one.data for one in records if one.name.endswith(b"/data.pkl"))
            self.seeds.append((name, records, pickling.take_apart(found)))
        self.pool = pickling.Pool.of([seed for _, _, seed in self.seeds])

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        slot, records, seed = rng.choice(self.seeds)
        how = rng.random()
        if how < 0.62:
            body = pickling.changed(rng, seed, self.pool)
            return slot, zips.put_together(zips.with_record(records, b"/data.pkl", body))
        if how < 0.9:
            return slot, zips.changed(rng, records)
        return slot, zips.flipped(rng, zips.put_together(records))

    def pieces(self, data: bytes) -> tuple[list[bytes], Any]:
        with suppress(Exception):
            records = zips.take_apart(data)
            body = next(one.data for one in records if one.name.endswith(b"/data.pkl"))
            ops = list(pickling.take_apart(body).ops)

            def join(some: Any) -> bytes:
                return zips.put_together(zips.with_record(records, b"/data.pkl", b"".join(some)))

            if join(ops) == data:
                return ops, join
        return super().pieces(data)


class ItemTarget(ZipTarget):
    """A tensor of a shard, whose metadata says the dtype and shape that the item itself says."""

    name = "items"

    def __init__(self) -> None:
        super().__init__(hand_made())

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        slot, data = super().make(rng)
        if rng.random() < 0.95:
            return slot, data
        packed = zstandard.ZstdCompressor(level=1, write_checksum=rng.random() < 0.5).compress(data)
        return ZSTD + slot, zips.flipped(rng, packed) if rng.random() < 0.5 else packed

    def judge(self, slot: str, data: bytes) -> str:
        packed = slot.startswith(ZSTD)
        seen = scanned(data, tensor=True, packed=packed)
        if seen.damage:
            return "reported"
        payload = seen.payload
        if payload is None or seen.unread:
            return self._unsure(data, "gap" if seen.unread else "nothing said", packed=packed)
        if payload.kind != "plain":
            return self._unsure(data, "opaque", packed=packed)
        entry = TensorEntry(
            KEY,
            payload.dtype,
            payload.shape,
            Boxes.of(len(payload.shape), [Box((0,) * len(payload.shape), payload.shape)]),
        )
        ours = read(data, entry, packed=packed)
        theirs: Any = None
        try:
            plain = unpacked(data) if packed else data
            theirs, _ = torch_loads(plain, weights_only=True)
        except MemoryError:
            raise
        except Exception as error:
            said = objections(verified(tree(data, entry, packed=packed)))
            if said:
                return "reported by verify"
            raise refusal(error) from None
        if not isinstance(theirs, torch.Tensor):
            difference = f"torch gives a {type(theirs).__name__}"
        elif str(theirs.dtype) != f"torch.{payload.dtype}":
            difference = "another dtype"
        elif tuple(theirs.shape) != payload.shape:
            difference = "another shape"
        elif isinstance(ours, bytes) and numbers_of(theirs) not in (None, ours):
            difference = "other values"
        elif isinstance(ours, str):
            return "refused when it is read" if ours else "too large to compare"
        else:
            return "equal"
        if objections(verified(tree(data, entry, packed=packed))):
            if difference == "other values":
                raise Difference("other values in a digest, which verify reports", f"{ours!r}")
            return "reported by verify"
        raise Difference(difference, f"{payload} {ours!r} and torch {theirs}"[:500])

    def _unsure(self, data: bytes, how: str, *, packed: bool) -> str:
        """Where nothing was read of it, the verification must say so."""
        found = verified(tree(data, None, packed=packed))
        if objections(found, Severity.NOTE) or gaps(found):
            return f"not examined, and said ({how})"
        raise Difference(f"not examined, and not said ({how})")


def unpacked(data: bytes) -> bytes:
    """Decompress an item as torch does, up to more than it may hold."""
    return zstandard.ZstdDecompressor().stream_reader(data).read(4 * MOST)


def scanned(data: bytes, *, tensor: bool, packed: bool = False) -> ItemSeen:
    """Look at an item as a verification does."""
    transforms = (DESCRIPTOR,) if packed else ()
    item = Item(KEY, (0,) if tensor else None, SHARD, 0, len(data), transforms)
    (seen,) = scan_items(
        Bytes(data),
        [item],
        content=True,
        is_tensor=lambda _: tensor,
        expected_bytes=lambda _: MOST if packed else None,
        values=True,
    )
    return seen


def read(data: bytes, entry: TensorEntry, *, packed: bool) -> bytes | str:
    """Return the values as digest reads them; else why not, which is empty for too many of them."""
    if entry.numel > MOST:
        return ""
    transforms = (DESCRIPTOR,) if packed else ()
    item = Item(KEY, (0,) * len(entry.shape), SHARD, 0, len(data), transforms)
    checkpoint = Checkpoint(
        "dcp", {SHARD: File(SHARD, len(data))}, (".metadata",), {KEY: entry}, Items.of([item])
    )
    try:
        with TensorSource(MemoryStore({SHARD: data}), "", checkpoint) as source:
            return booleans(b"".join(map(bytes, source.read(KEY))), entry.dtype)
    except CkptctlError as error:
        return str(error) or "no reason"


def tree(
    data: bytes, entry: TensorEntry | None, *, tensor: bool = True, packed: bool = False
) -> dict[str, bytes]:
    """Return a checkpoint that has the item and nothing else."""
    state: dict[str, Any] = {KEY: BytesStorageMetadata()}
    index = MetadataIndex(KEY)
    if tensor:
        shape = torch.Size(entry.shape if entry is not None else (4,))
        origin = torch.Size((0,) * len(shape))
        dtype = getattr(torch, entry.dtype if entry is not None else "float32", torch.float32)
        dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
        index = MetadataIndex(KEY, origin, 0)
        state[KEY] = TensorStorageMetadata(
            TensorProperties(dtype=dtype), shape, [ChunkStorageMetadata(origin, shape)]
        )
    place = _StorageInfo(SHARD, 0, len(data), [DESCRIPTOR] if packed else None)
    meta = StorageMeta(save_id=SAVE_ID)
    found = pickle.dumps(Metadata(state, {KEY: (KEY,)}, {index: place}, meta), 4)
    return {f"{FOLDER}/.metadata": found, f"{FOLDER}/{SHARD}": data}


class ObjectTarget(ZipTarget):
    """An object of a shard, of which the tool shows the value."""

    name = "objects"

    def __init__(self) -> None:
        super().__init__(objects())

    def judge(self, slot: str, data: bytes) -> str:
        seen = scanned(data, tensor=False)
        shown: object = None
        problem = ""
        try:
            shown = decode_item(data)
        except MalformedData as error:
            problem = str(error) or "malformed"
        if seen.damage:
            return "reported"
        try:
            theirs, guard = torch_loads(data, weights_only=False)
        except MemoryError:
            raise
        except Exception as error:
            return self._refused(data, shown, problem, error)
        loud = called(guard)
        if loud and not objections(verified(tree(data, None, tensor=False))):
            raise Difference("a call that is not reported", loud)
        if problem:
            return "not shown"
        if not same(shown, theirs):
            raise Difference("another value", f"{shown!r} and torch {theirs!r}"[:500])
        return "equal"

    def _refused(self, data: bytes, shown: object, problem: str, error: Exception) -> str:
        found = verified(tree(data, None, tensor=False))
        if objections(found, Severity.NOTE) or gaps(found):
            return "reported by verify"
        if problem:
            raise Difference("torch refuses, and only show says so", f"{error}"[:200])
        if "Described" in repr(type(shown)) or "<" in repr(shown):
            return "torch refuses what is only described"
        raise refusal(error)


def called(guard: Guard | None) -> str:
    """Return a function that would have been called; what may be a class is another matter."""
    names = sorted(guard.called) if guard is not None else []
    return next((f"{m}.{n}" for m, n in names if is_function(m, n)), "")
