"""The encodings that layouts are made of: each gives every byte of a file a region.

A region has the CRC-32 that was recorded for its bytes, or none. What has none cannot be proven
without a manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.base import Encoding, Region
from ckptctl.formats.companions import LEGACY
from ckptctl.formats.pickles.values import value_table
from ckptctl.formats.safetensors.reader import SUFFIX, read_header
from ckptctl.formats.torch import saved
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import Item
from ckptctl.storage import Reader


class TorchZip(Encoding):
    """A file that ``torch.save`` writes: records of a zip, each with a CRC of its own."""

    name = "torch"

    def regions(self, reader: Reader, path: str) -> Iterator[Region]:
        """Yield headers, records and the directory; of a legacy file the pickles and the storages."""
        if reader.read(0, min(reader.size, len(LEGACY))) == LEGACY:
            yield from _legacy(reader, path)
        else:
            yield from _zip(reader, path, 0, reader.size)


class Safetensors(Encoding):
    """A safetensors file: a header, and tensors without holes and without any CRC."""

    name = "safetensors"

    def regions(self, reader: Reader, path: str) -> Iterator[Region]:
        """Yield the header and each tensor."""
        end = 0
        for tensor in read_header(reader).tensors:
            if not end:
                yield Region(path, 0, tensor.start, "header")
            end = tensor.stop
            if tensor.start < tensor.stop:
                yield Region(path, tensor.start, tensor.stop, "payload")
        if not end and reader.size:
            yield Region(path, 0, reader.size, "header")


class Opaque(Encoding):
    """A file of which nothing is known: JSON, text, what this release does not read."""

    name = "opaque"

    def regions(self, reader: Reader, path: str) -> Iterator[Region]:
        """Yield the whole file."""
        if reader.size:
            yield Region(path, 0, reader.size, "record")


@dataclass(frozen=True, slots=True)
class Shard(Encoding):
    """A file whose items the metadata places: zips one behind the other, or bare bytes."""

    items: Sequence[Item]
    name: str = "shard"

    def regions(self, reader: Reader, path: str) -> Iterator[Region]:
        """Yield what the items hold, and as padding what lies between and behind them."""
        end = 0
        for item in sorted(self.items, key=lambda one: (one.offset, one.length)):
            if item.offset < end or item.end > reader.size:
                raise MalformedData(f"{path}: bytes {item.offset}-{item.end} of {item.fqn} overlap")
            if item.offset > end:
                yield Region(path, end, item.offset, "padding")
            end = item.end
            if item.offset == item.end:
                continue
            if item.stored is not None:
                yield Region(path, item.offset, item.end, "payload", item.stored.crc)
            elif item.transforms:
                yield Region(path, item.offset, item.end, "payload")
            else:
                yield from _zip(reader, path, item.offset, item.end)
        if end < reader.size:
            yield Region(path, end, reader.size, "padding")


def _zip(reader: Reader, path: str, start: int, stop: int) -> Iterator[Region]:
    def read(low: int, high: int) -> bytes:
        return reader.read(start + low, start + high)

    directory = torchzip.read_directory(read, stop - start)
    end = 0
    for head in directory.heads:
        local = read(head.header, head.header + torchzip.LOCAL_SIZE + len(head.raw_name))
        data = torchzip.data_start(local, head)
        if head.header < end:
            raise MalformedData(f"{path}: the records of its zip overlap")
        yield Region(path, start + end, start + data, "header")
        end = data + head.size
        kind = "payload" if head.name.startswith("data/") else "record"
        if head.size:  # a CRC of 0 over data means that none was recorded
            yield Region(path, start + data, start + end, kind, head.crc or None)
    yield Region(path, start + end, stop, "header")


def _legacy(reader: Reader, path: str) -> Iterator[Region]:
    end = 0
    for place in sorted(saved.read(reader, value_table()).storages.values(), key=saved.start):
        yield Region(path, end, place.start, "header")
        end = place.start + place.size
        if place.size:
            yield Region(path, place.start, end, "payload")
    if end < reader.size:
        yield Region(path, end, reader.size, "header")


def encoding_of(path: str, items: Sequence[Item] = ()) -> Encoding:
    """Return the encoding of a file by its name and the items that the metadata places in it."""
    if items:
        return Shard(items)
    if path.endswith(SUFFIX):
        return Safetensors()
    if path.endswith((".pt", ".pth", ".bin", ".ckpt", ".pkl")):
        return TorchZip()
    return Opaque()
