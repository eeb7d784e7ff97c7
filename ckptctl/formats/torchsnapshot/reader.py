"""Reading torchsnapshot's manifest: which bytes of which file are which tensor of which rank.

The manifest is JSON, a dialect of YAML. Tensors are bare row-major bytes in a range of a file, or a
``torch.save`` file each, as other objects are. Source: ``torchsnapshot/manifest.py``.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from urllib.parse import unquote

from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import MalformedData, NotFound, TooLarge
from ckptctl.formats.ranks import unite_ranks
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    Fault,
    FaultKind,
    File,
    Item,
    Items,
    ObjectEntry,
    Stored,
    TensorEntry,
)
from ckptctl.model.dtypes import NAMES, item_size
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Box, Boxes, Shape
from ckptctl.model.paths import join
from ckptctl.storage import Store

NAME = "torchsnapshot"
METADATA = ".snapshot_metadata"
_LARGEST = 256 << 20
_MOST_RANKS = 1 << 20
_MOST_DIGITS = 9
_MOST_SAID = 64
_CONTAINERS = frozenset({"dict", "OrderedDict", "list"})
_PRIMITIVES = frozenset({"int", "float", "str", "bool", "bytes", "NoneType"})


def read(store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
    """Read the manifest; damage becomes faults. Raises ``StorageError`` where it cannot be read."""
    try:
        with store.open(join(base, METADATA)) as reader:
            if reader.size > _LARGEST:
                raise MalformedData(f"{reader.size} bytes are more than is read of it")
            document = _document(reader.read(0, reader.size))
        return _assemble(document, files)
    except NotFound:
        message = "the manifest, which is written last, is not there"
        kind = FaultKind.MISSING_METADATA
    except MalformedData as error:
        message, kind = str(error), FaultKind.UNREADABLE_METADATA
    fault = Fault(kind, message, Location(file=METADATA), "everything")
    return Checkpoint(NAME, files, faults=(fault,))


def _document(data: bytes) -> dict[str, object]:
    if sum(map(data.count, (b",", b"[", b"{"))) > len(data) // 6 + 10_000:
        raise TooLarge("it holds more values than a manifest of its size does")
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise MalformedData("it is not readable as JSON") from None
    if not isinstance(found, dict):
        raise MalformedData("it is no JSON object")
    return found


def _assemble(document: Mapping[str, object], files: Mapping[str, File]) -> Checkpoint:
    size, manifest = document.get("world_size"), document.get("manifest")
    if type(size) is not int or not 0 < size <= _MOST_RANKS or not isinstance(manifest, dict):
        raise MalformedData("it has no world_size or no manifest")
    ranks: dict[int, _Rank] = {}
    for key, body in manifest.items():
        number, _, path = str(key).partition("/")
        if not _counts(number) or int(number) >= size or not isinstance(body, dict):
            raise MalformedData(f"{str(key)[:120]!r} is of no rank of {size}")
        ranks.setdefault(int(number), _Rank(files)).add(path, body)
    parts = {rank: found.checkpoint() for rank, found in sorted(ranks.items())}
    if not parts:
        return Checkpoint(NAME, files, (METADATA,))
    whole = unite_ranks(parts)
    # the number of ranks is only what a file says: no more are counted up than are named
    missing = size - len(parts)
    shown = islice((rank for rank in range(size) if rank not in parts), min(missing, _MOST_SAID))
    more = f" (and {missing - 1} more)" if missing > _MOST_SAID else ""
    absent = tuple(
        Fault(FaultKind.MISSING_RANK, f"rank {rank} of {size} has nothing in it{more}", where)
        for rank in shown
        for where in [Location(file=METADATA, rank=rank)]
    )
    return replace(whole, format=NAME, files=files, sources=(METADATA,), faults=absent)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One tensor's bytes, or a part of a tensor's, as the manifest describes them."""

    dtype: str
    box: Box
    item: Item


class _Rank:
    """What one rank saved."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files
        self._entries: dict[str, Entry] = {}
        self._paths: dict[str, tuple[str | int, ...]] = {}
        self._items: list[Item] = []
        self._values: dict[str, object] = {}
        self._lists: set[str] = set()

    def add(self, key: str, body: Mapping[str, object]) -> None:
        """Take one entry of the manifest."""
        kind = body.get("type")
        if not isinstance(kind, str):
            raise MalformedData(f"{key[:120]}: its type is not named")
        if kind == "list":
            self._lists.add(key)
        if kind in _CONTAINERS:
            return
        parts = tuple(map(unquote, key.split("/")))
        fqn = ".".join(parts)
        if fqn in self._entries:
            raise MalformedData(f"two of its keys are called {fqn[:120]}")
        self._paths[fqn] = parts
        if kind in _PRIMITIVES:
            self._entries[fqn] = ObjectEntry(fqn)
            self._values[fqn] = _primitive(kind, body.get("serialized_value"))
        elif kind == "object":
            self._entries[fqn] = ObjectEntry(fqn)
            self._items.append(self._file(fqn, body, None))
        elif kind in ("Tensor", "ShardedTensor", "ChunkedTensor", "DTensor"):
            self._tensor(fqn, list(self._pieces(fqn, body)), body)
        else:
            raise MalformedData(f"{fqn[:120]}: its type {kind[:40]!r} is not known")

    def _tensor(self, fqn: str, pieces: list[_Piece], body: Mapping[str, object]) -> None:
        if not pieces:
            raise MalformedData(f"{fqn[:120]}: no bytes are named for it")
        shape = _sizes(fqn, body["shape"]) if "shape" in body else _reach(pieces)
        boxes = Boxes.of(len(shape), [piece.box for piece in pieces])
        self._entries[fqn] = TensorEntry(fqn, pieces[0].dtype, shape, boxes)
        self._items += [piece.item for piece in pieces]

    def _pieces(self, fqn: str, body: Mapping[str, object]) -> Iterator[_Piece]:
        """Yield the one piece of a tensor, or those of a sharded one."""
        if body.get("type") == "Tensor":
            yield self._piece(fqn, body, None)
            return
        shards = body.get("shards", body.get("chunks"))
        for shard in shards if isinstance(shards, list) else ():
            inner = shard.get("tensor") if isinstance(shard, dict) else None
            if not isinstance(inner, dict):
                raise MalformedData(f"{fqn[:120]}: one of its shards holds no tensor")
            yield self._piece(fqn, inner, _sizes(fqn, shard.get("offsets")))

    def _piece(self, fqn: str, body: Mapping[str, object], origin: Shape | None) -> _Piece:
        dtype = str(body.get("dtype")).removeprefix("torch.")
        shape = _sizes(fqn, body.get("shape"))
        at = (0,) * len(shape) if origin is None else origin
        if dtype not in NAMES or len(at) != len(shape):
            raise MalformedData(f"{fqn[:120]}: its dtype or its offsets are not known")
        box = Box(at, shape)
        if body.get("serializer") == "torch_save":
            return _Piece(dtype, box, self._file(fqn, body, at))
        span, width = body.get("byte_range"), item_size(dtype) or 0
        size = box.volume * width
        start, stop = (0, size) if span is None else _span(fqn, span)
        if stop - start != size:
            raise MalformedData(f"{fqn[:120]}: {stop - start} bytes are named, and it needs {size}")
        stored = Stored.bare(dtype, shape, start, size)
        return _Piece(dtype, box, Item(fqn, at, _location(fqn, body), start, size, stored=stored))

    def _file(self, fqn: str, body: Mapping[str, object], origin: Shape | None) -> Item:
        """Describe what ``torch.save`` wrote into a file of its own, or a range of one."""
        path, span = _location(fqn, body), body.get("byte_range")
        if span is not None:
            start, stop = _span(fqn, span)
        else:
            start, stop = 0, self._files[path].size if path in self._files else 1
        return Item(fqn, origin, path, start, max(0, stop - start))

    def checkpoint(self) -> Checkpoint:
        """Put together what was taken."""
        paths = {fqn: self._numbered(path) for fqn, path in self._paths.items()}
        return Checkpoint(
            NAME,
            {},
            (METADATA,),
            self._entries,
            Items.of(self._items),
            paths_in_state=paths,
            values=self._values,
            value_files=dict.fromkeys(self._values, (METADATA,)),
        )

    def _numbered(self, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Return a path with numbers where it leads through lists."""
        found: list[str | int] = []
        for index, part in enumerate(path):
            inside = "/".join(map(str, path[:index])) in self._lists
            found.append(int(part) if inside and _counts(str(part)) else part)
        return tuple(found)


def _counts(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _span(fqn: str, value: object) -> tuple[int, int]:
    found = _sizes(fqn, value)
    if len(found) != 2:
        raise MalformedData(f"{fqn[:120]}: its range of bytes is no pair")
    return found[0], found[1]


def _location(fqn: str, body: Mapping[str, object]) -> str:
    found = body.get("location")
    if not isinstance(found, str) or not found:
        raise MalformedData(f"{fqn[:120]}: no file is named for it")
    return found


def _reach(pieces: list[_Piece]) -> Shape:
    """Return the shape that pieces reach to: the manifest keeps none for a sharded tensor."""
    ends = [piece.box.ends for piece in pieces]
    if len({len(end) for end in ends}) != 1:
        raise MalformedData("the shards of a tensor have different numbers of dimensions")
    return tuple(map(max, zip(*ends, strict=True))) if ends[0] else ()


def _sizes(fqn: str, value: object) -> Shape:
    if isinstance(value, list) and len(value) <= 64:
        sizes = [n for n in value if type(n) is int and 0 <= n < 1 << 62]
        if len(sizes) == len(value):
            return tuple(sizes)
    raise MalformedData(f"{fqn[:120]}: its shape or its place is not made of sizes")


def _primitive(kind: str, text: object) -> object:
    """Decode a small value that the manifest holds itself."""
    if kind == "NoneType":
        return None
    if not isinstance(text, str):
        raise MalformedData("a value in it has no text")
    try:
        if kind == "int":
            return int(text)
        if kind == "bool":
            return {"True": True, "False": False}[text]
        if kind == "str":
            return text
        raw = base64.b64decode(text, validate=True)
        return raw if kind == "bytes" else struct.unpack("<d", raw)[0]
    except (ValueError, KeyError, struct.error):
        raise MalformedData(f"a value in it is no {kind}") from None
