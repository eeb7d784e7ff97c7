"""Safetensors files: one, or several with or without the index that Hugging Face puts beside them.

A file is an 8-byte little-endian length, that many bytes of JSON, and the tensors' row-major bytes
without holes. Source: the format's README in huggingface/safetensors. Pieces of a sharded tensor
(torch's ``HuggingFaceStorageWriter``) carry their offsets in the header's ``__metadata__``.
"""

from __future__ import annotations

import json
import math
import re
import struct
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, StorageError
from ckptctl.formats.safetensors.sets import need_one, sets_of
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    Fault,
    FaultKind,
    File,
    Items,
    Stored,
    TensorEntry,
)
from ckptctl.model.dtypes import ITEM_SIZE
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Box, Boxes, Shape
from ckptctl.model.paths import join
from ckptctl.storage import Reader, Store, open_listed

NAME = "safetensors"
SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
_LONE = re.compile("[\ud800-\udfff]")
_LARGEST_HEADER = 100_000_000  # the reference implementation's own limit
_LARGEST_INDEX = 256 << 20

DTYPES: dict[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}
"""The format's names of dtypes, and torch's."""


@dataclass(frozen=True, slots=True)
class TensorInFile:
    """One tensor of one file: bytes ``[start, stop)`` of the file."""

    name: str
    dtype: str
    shape: Shape
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says it holds; ``saved_offsets`` places pieces of tensors in the whole."""

    tensors: tuple[TensorInFile, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    saved_offsets: Mapping[str, Shape] = field(default_factory=dict)


def read_header(reader: Reader) -> Header:
    """Read and check the header of one file; raises ``MalformedData`` for whatever does not fit."""
    if reader.size < 8:
        raise MalformedData(f"{reader.size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", reader.read(0, 8))
    if length > min(_LARGEST_HEADER, reader.size - 8):
        raise MalformedData(
            f"its header claims {length} bytes of {reader.size}: cut short, or no safetensors file"
        )
    document = _json(reader.read(8, 8 + length), "its header")
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise MalformedData("its __metadata__ does not map names to text")
    data = 8 + length
    tensors = [_tensor(name, body, data) for name, body in document.items()]
    tensors.sort(key=lambda one: (one.start, one.stop))
    end = data
    for one in tensors:
        if one.start != end:
            raise MalformedData(f"the bytes of {one.name} do not begin where the ones before end")
        end = one.stop
    if end != reader.size:
        raise MalformedData(f"its tensors end at byte {end}, and the file has {reader.size}")
    return Header(tuple(tensors), metadata, _offsets(metadata, tensors))


def _json(data: bytes, what: str) -> dict[str, Any]:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise MalformedData(f"{what} names something twice")
        return dict(found)

    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError):  # also a surrogate, and a number of very many digits
        raise MalformedData(f"{what} is no JSON") from None
    if not isinstance(document, dict):
        raise MalformedData(f"{what} is no JSON object")
    if b"\\u" in data and _LONE.search(json.dumps(document, ensure_ascii=False)):
        raise MalformedData(f"{what} holds half a character")
    return document


def _tensor(name: str, body: object, data: int) -> TensorInFile:
    fields = body if isinstance(body, dict) else {}
    dtype, shape, span = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise MalformedData(f"{name[:80]}: dtype {str(dtype)[:20]} is not known")
    if not _sizes(shape) or not _sizes(span) or len(span) != 2:
        raise MalformedData(f"{name[:80]}: its shape or its place is not made of sizes")
    width = ITEM_SIZE[DTYPES[dtype]]
    if span[1] - span[0] != math.prod(shape) * width:
        raise MalformedData(
            f"{name[:80]}: {span[1] - span[0]} bytes for {dtype} {list(shape)}, which needs "
            f"{math.prod(shape) * width}"
        )
    return TensorInFile(name, DTYPES[dtype], tuple(shape), data + span[0], data + span[1])


def _sizes(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(n) is int and 0 <= n < 1 << 62 for n in value)
    )


def _offsets(metadata: Mapping[str, str], tensors: Iterable[TensorInFile]) -> dict[str, Shape]:
    text = metadata.get("DCP_SHARDING_INFO")
    if text is None:
        return {}
    found = {}
    document = _json(text.encode("utf-8", "surrogatepass"), "its DCP_SHARDING_INFO")
    for one in tensors:
        body = document.get(one.name)
        origin = body.get("saved_offsets") if isinstance(body, dict) else None
        if origin is None:
            continue
        if not _sizes(origin) or len(origin) != len(one.shape):
            raise MalformedData(f"{one.name[:80]}: its saved offsets are not made of sizes")
        found[one.name] = tuple(origin)
    return found


def detect(names: Iterable[str]) -> bool:
    """Tell by the names in a directory whether it holds safetensors files."""
    return any(name.endswith((SUFFIX, f"{SUFFIX}.index.json")) for name in names)


def read(store: Store, path: str, files: Mapping[str, File]) -> Checkpoint:
    """Read the headers of all safetensors files of a directory; damage becomes faults.

    ``files`` are relative to ``path``. Raises ``StorageError`` where the storage does not answer,
    and ``Refused`` where files of several sets lie there: they are never merged.
    """
    faults: list[Fault] = []
    headers: dict[str, Header] = {}
    for name in sorted(files):
        if not name.endswith(SUFFIX) or "/" in name:
            continue
        try:
            with open_listed(store, join(path, name), files[name].size) as reader:
                headers[name] = read_header(reader)
        except MalformedData as error:
            faults.append(Fault(FaultKind.UNREADABLE_METADATA, str(error), Location(file=name)))
    indexes = {
        name: weights(store, join(path, name))
        for name in files
        if name.endswith(f"{SUFFIX}.index.json") and "/" not in name
    }
    tops = [name for name in files if name.endswith(SUFFIX) and "/" not in name]
    named = {
        name: {str(file) for file in found.values()}
        for name, found in indexes.items()
        if isinstance(found, dict)
    }
    need_one(
        sets_of(tops, named),
        "/".join(part for part in (store.url.rstrip("/"), path) if part),
        _twice(headers),
    )
    for found in indexes.values():
        faults.extend(_index_faults(found, files, headers))
    if named and len(named) == len(indexes):
        unnamed = set(headers).difference(*named.values())
        text = "no index names it, so that what it holds is not loaded"
        faults.extend(
            Fault(FaultKind.UNREFERENCED_FILE, text, Location(file=file))
            for file in sorted(unnamed)
        )
    return _assemble(files, headers, faults)


def sets_in(store: Store, path: str, files: Mapping[str, File]) -> dict[str, list[str]]:
    """Group the files of a directory into sets, an index with the files it names.

    Raises ``StorageError`` where the storage does not answer.
    """
    indexes = {
        name: weights(store, join(path, name))
        for name in files
        if name.endswith(f"{SUFFIX}.index.json")
    }
    named = {
        name: {str(file) for file in found.values()} if isinstance(found, dict) else set()
        for name, found in indexes.items()
    }
    tops = [name for name in files if name.endswith(SUFFIX)]
    return {
        name: [*members, name] if name in indexes else members
        for name, members in sets_of(tops, named).items()
    }


def _assemble(
    files: Mapping[str, File], headers: Mapping[str, Header], faults: list[Fault]
) -> Checkpoint:
    pieces: dict[str, list[tuple[str, TensorInFile, Shape]]] = {}
    for name, header in headers.items():
        for one in header.tensors:
            origin = header.saved_offsets.get(one.name, (0,) * len(one.shape))
            pieces.setdefault(one.name, []).append((name, one, origin))
    entries: dict[str, Entry] = {}
    fqns: list[str] = []
    origins: list[Shape | None] = []
    paths: list[str] = []
    offsets, lengths = array("q"), array("q")
    stored: dict[int, Stored] = {}
    for fqn, found in pieces.items():
        first = found[0][1]
        if any((p.dtype, len(p.shape)) != (first.dtype, len(first.shape)) for _, p, _ in found):
            where = Location(file=found[1][0], fqn=fqn)
            faults.append(
                Fault(FaultKind.MALFORMED_ENTRY, "its pieces are of several kinds", where)
            )
            continue
        # the format does not record the whole shape: it is where the farthest pieces end
        ends = [[o + n for o, n in zip(at, p.shape, strict=True)] for _, p, at in found]
        shape = tuple(map(max, zip(*ends, strict=True))) if first.shape else ()
        boxes = Boxes.of(len(shape), (Box(at, p.shape) for _, p, at in found))
        entries[fqn] = TensorEntry(fqn, first.dtype, shape, boxes)
        for name, one, at in found:
            size = one.stop - one.start
            stored[len(fqns)] = Stored.bare(one.dtype, one.shape, one.start, size)
            fqns.append(fqn)
            origins.append(at)
            paths.append(name)
            offsets.append(one.start)
            lengths.append(size)
    return Checkpoint(
        format=NAME,
        files=files,
        sources=tuple(headers),
        entries=entries,
        items=Items(fqns, origins, paths, offsets, lengths, stored=stored),
        faults=tuple(faults),
        described=frozenset(headers),
    )


def _twice(headers: Mapping[str, Header]) -> set[str]:
    """Name the tensors that several files hold whole, so that they are no pieces of one."""
    seen: dict[tuple[str, Shape], int] = {}
    for header in headers.values():
        for one in header.tensors:
            place = (one.name, header.saved_offsets.get(one.name, ()))
            seen[place] = seen.get(place, 0) + 1
    return {name for (name, _), count in seen.items() if count > 1}


def weights(store: Store, path: str) -> dict[str, Any] | Fault:
    """Read which file an index names for each tensor, or say what is wrong with it."""
    where = Location(file=path.rpartition("/")[2])
    try:
        with store.open(path) as reader:
            if reader.size > _LARGEST_INDEX:
                raise MalformedData(f"{reader.size} bytes are too many for an index")
            weights = _json(reader.read(0, reader.size), "the index").get("weight_map")
        if not isinstance(weights, dict):
            raise MalformedData("it has no weight_map")
        if not all(isinstance(file, str) for file in weights.values()):
            raise MalformedData("its weight_map does not map names to files")
        if not weights:
            raise MalformedData("its weight_map names no tensor")
    except MalformedData as error:
        return Fault(FaultKind.MALFORMED_ENTRY, str(error), where)
    except StorageError as error:
        return Fault(FaultKind.MISSING_METADATA, str(error), where)
    return weights


def _index_faults(
    weights: dict[str, Any] | Fault,
    files: Mapping[str, File],
    headers: Mapping[str, Header],
) -> list[Fault]:
    """Compare an index with the files; ``weights`` maps tensors to files, or says what is wrong."""
    if isinstance(weights, Fault):
        return [weights]
    held = {one.name: file for file, header in headers.items() for one in header.tensors}
    faults = []
    for file in sorted({str(one) for one in weights.values()} - set(files)):
        lost = sum(one == file for one in weights.values())
        found = all(fqn in held for fqn, one in weights.items() if one == file)
        text = (
            "the index names it and it is not there, but other files hold all its tensors: the "
            "index is stale"
            if found
            else f"the index names it and it is not there; {lost} tensors are lost"
        )
        faults.append(Fault(FaultKind.MISSING_FILE, text, Location(file=file)))
    faults.extend(
        Fault(
            FaultKind.MISSING_ENTRY,
            f"{file} does not hold it, as the index says",
            Location(fqn=fqn),
        )
        for fqn, file in weights.items()
        if file in headers and held.get(fqn) is None
    )
    return faults
