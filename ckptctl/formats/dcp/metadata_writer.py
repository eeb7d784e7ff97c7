"""Writing ``.metadata`` without torch: the opcodes of the pickle, one frame after the other.

The fields are those of torch 2.9 and later, which earlier releases back to 2.4 read as well. What
recurs (names, classes, sizes) is written once and referred to, so that a million boxes stay small.
Source of the classes: ``torch/distributed/checkpoint/{metadata,filesystem}.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from ckptctl.errors import MalformedData
from ckptctl.formats.dcp.classes import FILESYSTEM, METADATA
from ckptctl.formats.torch.zip_writer import number
from ckptctl.model.checkpoint import Entry, Item, Items, TensorEntry
from ckptctl.model.dtypes import ALIASES, NAMES
from ckptctl.model.geometry import Box, Shape

VERSION = "1.0.0"
"""What torch 2.9 to 2.13 write into the field ``version``."""

_FRAME = 64 << 10
_BATCH = 1000  # how many members Python's own pickler adds at a time
_MEMOIZE = b"\x94"
_T = TypeVar("_T")


def encode_metadata(
    entries: Mapping[str, Entry],
    items: Items,
    paths_in_state: Mapping[str, tuple[str | int, ...]],
    *,
    save_id: str,
    checkpoint_id: str,
) -> Iterator[bytes]:
    """Yield the bytes of ``.metadata`` for a checkpoint, in pieces of about 64 KiB.

    Raises ``MalformedData`` for a dtype that torch does not have and for an item of a key or a box
    that ``entries`` do not hold.
    """
    pickle = _Pickle()
    pickle.data += b"\x80\x04"
    yield pickle.cut()
    pickle.make(METADATA, "Metadata")
    pickle.data += b"}("
    pickle.text("state_dict_metadata")
    yield from pickle.mapping(entries.values(), _write_entry)
    pickle.text("planner_data")
    if paths_in_state:
        yield from pickle.mapping(paths_in_state.items(), _write_path)
    else:
        pickle.data += b"N"
    pickle.text("storage_data")
    yield from pickle.mapping(_numbered(entries, items), _write_item)
    pickle.text("storage_meta")
    pickle.make(METADATA, "StorageMeta")
    pickle.data += b"}("
    for name, value in (("checkpoint_id", checkpoint_id), ("save_id", save_id)):
        pickle.text(name)
        pickle.text(value)
    pickle.text("load_id")
    pickle.data += b"N"
    pickle.text("modules")
    pickle.data += b"]ub"
    pickle.text("version")
    pickle.text(VERSION)
    pickle.data += b"ub."
    yield pickle.frame()


class _Pickle:
    """A pickle of protocol 4 in the making."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._memo: dict[object, bytes] = {}

    def cut(self) -> bytes:
        """Return what there is, without a frame around it."""
        data, self.data = bytes(self.data), bytearray()
        return data

    def frame(self) -> bytes:
        """Return what there is as one frame."""
        data = self.cut()
        return b"\x95" + struct.pack("<Q", len(data)) + data

    def known(self, key: object) -> bool:
        """Refer to what was written before under this key, if anything was."""
        found = self._memo.get(key)
        if found is None:
            return False
        self.data += found
        return True

    def keep(self, key: object) -> None:
        """Remember what was just written."""
        index = len(self._memo)
        self._memo[key] = b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index)
        self.data += _MEMOIZE

    def text(self, text: str) -> None:
        """Write a string."""
        if self.known(text):
            return
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) < 256:
            self.data += b"\x8c%c" % len(encoded)
        else:
            self.data += b"X" + struct.pack("<I", len(encoded))
        self.data += encoded
        self.keep(text)

    def name(self, module: str, name: str) -> None:
        """Write a global."""
        key = (module, name)
        if self.known(key):
            return
        self.text(module)
        self.text(name)
        self.data += b"\x93"
        self.keep(key)

    def make(self, module: str, name: str) -> None:
        """Write a new object without state."""
        self.name(module, name)
        self.data += b")\x81"

    def call(self, module: str, name: str, argument: bytes) -> None:
        """Write what a function returns for one argument; always the same object."""
        key = (module, name, argument)
        if self.known(key):
            return
        self.name(module, name)
        self.data += argument + b"\x85R"
        self.keep(key)

    def size(self, numbers: Shape) -> None:
        """Write a ``torch.Size``."""
        self.call("torch", "Size", b"(" + b"".join(map(number, numbers)) + b"t")

    def mapping(
        self, members: Iterable[_T], write: Callable[[_Pickle, _T], None]
    ) -> Iterator[bytes]:
        """Write a dictionary whose pairs ``write`` adds, and yield frames as they fill."""
        self.data += b"}"
        source = iter(members)
        while batch := list(islice(source, _BATCH)):
            self.data += b"("
            for member in batch:
                write(self, member)
                if len(self.data) >= _FRAME:
                    yield self.frame()
            self.data += b"u"


def _write_entry(pickle: _Pickle, entry: Entry) -> None:
    pickle.text(entry.fqn)
    if not isinstance(entry, TensorEntry):
        pickle.make(METADATA, "BytesStorageMetadata")
        return
    if entry.dtype not in NAMES or entry.dtype in ALIASES:
        raise MalformedData(f"{entry.fqn}: torch has no dtype {entry.dtype}")
    pickle.make(METADATA, "TensorStorageMetadata")
    pickle.data += b"}("
    pickle.text("properties")
    pickle.make(METADATA, "TensorProperties")
    pickle.data += b"("
    pickle.name("torch", entry.dtype)
    pickle.call("torch.serialization", "_get_layout", b"\x8c\x0dtorch.strided")
    pickle.data += b"\x88" if entry.requires_grad else b"\x89"
    pickle.call(METADATA, "_MEM_FORMAT_ENCODING", number(0))
    pickle.data += b"\x89tb"
    pickle.text("size")
    pickle.size(entry.shape)
    pickle.text("chunks")
    pickle.data += b"]"
    boxes = iter(entry.boxes)
    while batch := list(islice(boxes, _BATCH)):
        pickle.data += b"("
        for box in batch:
            _write_box(pickle, box)
        pickle.data += b"e"
    pickle.data += b"ub"


def _write_box(pickle: _Pickle, box: Box) -> None:
    pickle.make(METADATA, "ChunkStorageMetadata")
    pickle.data += b"}("
    pickle.text("offsets")
    pickle.size(box.offsets)
    pickle.text("sizes")
    pickle.size(box.sizes)
    pickle.data += b"ub"


def _write_path(pickle: _Pickle, member: tuple[str, tuple[str | int, ...]]) -> None:
    fqn, path = member
    pickle.text(fqn)
    pickle.data += b"("
    for element in path:
        if isinstance(element, str):
            pickle.text(element)
        else:
            pickle.data += number(element)
    pickle.data += b"t"


def _numbered(entries: Mapping[str, Entry], items: Items) -> Iterator[tuple[Item, int | None]]:
    """Pair each item with the number of its box, None for an object."""
    numbers: dict[str, dict[Shape, int]] = {}
    for item in items:
        entry = entries.get(item.fqn)
        if isinstance(entry, TensorEntry) and item.offsets is not None:
            known = numbers.get(item.fqn)
            if known is None:
                known = {box.offsets: i for i, box in enumerate(entry.boxes)}
                numbers[item.fqn] = known
            found = known.get(item.offsets)
            if found is None:
                raise MalformedData(f"{item.fqn}: no box of it begins at {list(item.offsets)}")
            yield item, found
        elif entry is not None and not isinstance(entry, TensorEntry) and item.offsets is None:
            yield item, None
        else:
            raise MalformedData(f"{item.fqn}: an item of a key that is not described so")


def _write_item(pickle: _Pickle, member: tuple[Item, int | None]) -> None:
    item, hint = member
    pickle.make(METADATA, "MetadataIndex")
    pickle.data += b"}("
    pickle.text("fqn")
    pickle.text(item.fqn)
    pickle.text("index")
    pickle.data += b"N" if hint is None else number(hint)
    if item.offsets is not None:
        pickle.text("offset")
        pickle.size(item.offsets)
    pickle.data += b"ub"
    pickle.make(FILESYSTEM, "_StorageInfo")
    pickle.data += b"}("
    pickle.text("relative_path")
    pickle.text(item.path)
    pickle.text("offset")
    pickle.data += number(item.offset)
    pickle.text("length")
    pickle.data += number(item.length)
    if item.transforms:
        pickle.text("transform_descriptors")
        pickle.data += b"]("
        for name in item.transforms:
            pickle.text(name)
        pickle.data += b"e"
    pickle.data += b"ub"
