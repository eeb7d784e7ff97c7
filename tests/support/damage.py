"""Ways to damage a copied checkpoint, each at an exact place, and a way to verify it afterwards.

Every damage is a function of the checkpoint's directory and keyword arguments, so that a table can
hold it as a ``partial``. ``anatomy`` names every byte of a stored item, which serves both to aim at
a field and to say which one a random flip has hit.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ckptctl.model.finding import Finding, Severity
from ckptctl.operations.find import find
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verification, verify
from ckptctl.storage import open_store

METADATA = ".metadata"
Damage: TypeAlias = Callable[[Path], None]
Origin: TypeAlias = tuple[int, ...] | None

# ---------------------------------------------------------------------------------- verifying


def run(path: Path) -> Verification:
    """Verify the one checkpoint at a path, with a single worker."""
    store = open_store(path)
    (place,) = find(store)
    return verify(store, place, options=Options(workers=1))


def accusations(result: Verification) -> list[Finding]:
    """Return the findings that may change a verdict."""
    return [f for f in result.report.findings if f.severity >= Severity.WARNING]


def accused(result: Verification) -> set[str]:
    """Return the ids of the checks that found something worse than a note."""
    return {finding.check for finding in accusations(result)}


# ---------------------------------------------------------------------------------- whole files


def truncate(checkpoint: Path, *, file: str, size: int) -> None:
    """Cut a file; a negative size counts from its end."""
    path = checkpoint / file
    data = path.read_bytes()
    path.write_bytes(data[:size])


def remove(checkpoint: Path, *, file: str) -> None:
    """Delete a file."""
    (checkpoint / file).unlink()


def fill(checkpoint: Path, *, file: str, start: int = 0, stop: int | None = None) -> None:
    """Overwrite a byte range with zeros; a negative or absent end counts from the file's."""
    path = checkpoint / file
    data = bytearray(path.read_bytes())
    low, high, _ = slice(start, stop).indices(len(data))
    data[low:high] = bytes(high - low)
    path.write_bytes(data)


def fill_half(checkpoint: Path, *, file: str) -> None:
    """Overwrite the second half of a file with zeros."""
    fill(checkpoint, file=file, start=(checkpoint / file).stat().st_size // 2)


def rewrite(checkpoint: Path, *, file: str, data: bytes) -> None:
    """Give a file other bytes, or make a new one."""
    (checkpoint / file).write_bytes(data)


def append(checkpoint: Path, *, file: str, data: bytes) -> None:
    """Add bytes at the end of a file."""
    with (checkpoint / file).open("ab") as stream:
        stream.write(data)


def garble(checkpoint: Path, *, file: str) -> None:
    """Replace a file by as many bytes that have no meaning."""
    path = checkpoint / file
    path.write_bytes(bytes(i * 37 % 251 for i in range(path.stat().st_size)))


def rename(checkpoint: Path, *, file: str, to: str) -> None:
    """Rename a file."""
    (checkpoint / file).rename(checkpoint / to)


def swap(checkpoint: Path, *, file: str, other: str) -> None:
    """Exchange the names of two files."""
    rename(checkpoint, file=file, to="aside")
    rename(checkpoint, file=other, to=file)
    rename(checkpoint, file="aside", to=other)


def replace_by_directory(checkpoint: Path, *, file: str) -> None:
    """Put a directory where a file was."""
    remove(checkpoint, file=file)
    (checkpoint / file).mkdir()


def replace_by_dangling_link(checkpoint: Path, *, file: str) -> None:
    """Put a link to nowhere where a file was."""
    remove(checkpoint, file=file)
    (checkpoint / file).symlink_to("gone")


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Turn over one bit of a file in place; its times stay, as they do where a medium decays."""
    status = path.stat()
    with path.open("r+b") as stream:
        stream.seek(position)
        (byte,) = stream.read(1)
        stream.seek(position)
        stream.write(bytes([byte ^ 1 << bit]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip_byte(checkpoint: Path, *, file: str, at: int, bit: int = 0) -> None:
    """Turn over one bit of a file; a negative position counts from its end."""
    path = checkpoint / file
    flip(path, at % path.stat().st_size, bit)


# ---------------------------------------------------------------------------------- the zip of an item

_LOCAL = (
    ("signature", 4),
    ("version needed", 2),
    ("flags", 2),
    ("method", 2),
    ("time", 4),
    ("crc", 4),
    ("packed size", 4),
    ("size", 4),
    ("name length", 2),
    ("extra length", 2),
)
_DESCRIPTOR = (("signature", 4), ("crc", 4), ("packed size", 4), ("size", 4))
_CENTRAL = (
    ("signature", 4),
    ("version made by", 2),
    *_LOCAL[1:],
    ("comment length", 2),
    ("disk", 2),
    ("internal attributes", 2),
    ("attributes", 4),
    ("header offset", 4),
)
_END = (
    ("signature", 4),
    ("record size", 8),
    ("version made by", 2),
    ("version needed", 2),
    ("disks", 8),
    ("counts", 16),
    ("directory size", 8),
    ("directory start", 8),
    ("locator signature", 4),
    ("locator disk", 4),
    ("locator offset", 8),
    ("locator disks", 4),
    ("end signature", 4),
    ("end disks", 4),
    ("end counts", 4),
    ("end directory size", 4),
    ("end directory start", 4),
    ("comment length", 2),
)


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring bytes with one meaning; ``record`` is empty for the end of the zip."""

    start: int
    stop: int
    record: str
    part: str
    field: str


def _fields(start: int, record: str, part: str, table: tuple[tuple[str, int], ...]) -> list[Span]:
    spans = []
    for field, size in table:
        spans.append(Span(start, start + size, record, part, field))
        start += size
    return spans


def anatomy(item: bytes) -> list[Span]:
    """Name every byte of a ``torch.save`` zip, in spans that follow one upon another."""
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        infos, position = archive.infolist(), archive.start_dir
    spans: list[Span] = []
    for info in infos:
        record = info.filename.partition("/")[2]
        names, extras = struct.unpack_from("<HH", item, info.header_offset + 26)
        table = (*_LOCAL, ("name", names), ("padding", extras))
        spans += _fields(info.header_offset, record, "local header", table)
        spans += _fields(spans[-1].stop, record, "data", (("data", info.file_size),))
        if info.flag_bits & 8:
            spans += _fields(spans[-1].stop, record, "descriptor", _DESCRIPTOR)
    for info in infos:
        tail = (("name", len(info.filename)), ("extra", len(info.extra)))
        record = info.filename.partition("/")[2]
        spans += _fields(position, record, "directory", (*_CENTRAL, *tail))
        position = spans[-1].stop
    return spans + _fields(len(item) - 98, "", "end record", _END)


# ---------------------------------------------------------------------------------- metadata


def metadata_of(checkpoint: Path, name: str = METADATA) -> Any:
    """Unpickle metadata as torch's own objects."""
    return pickle.loads((checkpoint / name).read_bytes())


def write_metadata(checkpoint: Path, metadata: Any, name: str = METADATA) -> None:
    """Pickle metadata as torch does."""
    (checkpoint / name).write_bytes(pickle.dumps(metadata))


@contextmanager
def edited(checkpoint: Path, name: str = METADATA) -> Iterator[Any]:
    """Unpickle metadata, let the caller change it, and write it back."""
    metadata = metadata_of(checkpoint, name)
    yield metadata
    write_metadata(checkpoint, metadata, name)


def key_of(metadata: Any, fqn: str, origin: Origin = None) -> Any:
    """Return the one storage key of an entry, or of its chunk at ``origin``."""
    (key,) = (
        key
        for key in metadata.storage_data
        if key.fqn == fqn and (origin is None or tuple(key.offset) == origin)
    )
    return key


def chunk_of(metadata: Any, fqn: str, origin: Origin) -> Any:
    """Return the chunk of a tensor that begins at ``origin``."""
    chunks = metadata.state_dict_metadata[fqn].chunks
    (chunk,) = (chunk for chunk in chunks if tuple(chunk.offsets) == origin)
    return chunk


def size(*numbers: int) -> Any:
    """Make a ``torch.Size``."""
    import torch

    return torch.Size(numbers)


def drop_chunk(checkpoint: Path, *, fqn: str, origin: Origin) -> None:
    """Take a chunk off a tensor's list; where its bytes lie stays recorded."""
    with edited(checkpoint) as metadata:
        metadata.state_dict_metadata[fqn].chunks.remove(chunk_of(metadata, fqn, origin))


def repeat_chunk(checkpoint: Path, *, fqn: str, origin: Origin) -> None:
    """List a chunk of a tensor twice."""
    with edited(checkpoint) as metadata:
        chunk = chunk_of(metadata, fqn, origin)
        metadata.state_dict_metadata[fqn].chunks.append(chunk)


def change_chunk(
    checkpoint: Path,
    *,
    fqn: str,
    origin: Origin,
    offsets: tuple[int, ...] | None = None,
    sizes: tuple[int, ...] | None = None,
) -> None:
    """Give a chunk another place or another extent."""
    with edited(checkpoint) as metadata:
        chunk = chunk_of(metadata, fqn, origin)
        chunk.offsets = chunk.offsets if offsets is None else size(*offsets)
        chunk.sizes = chunk.sizes if sizes is None else size(*sizes)


def change_tensor(
    checkpoint: Path, *, fqn: str, dtype: str = "", shape: tuple[int, ...] | None = None
) -> None:
    """Give a tensor another dtype or another shape."""
    import torch

    with edited(checkpoint) as metadata:
        entry = metadata.state_dict_metadata[fqn]
        entry.size = entry.size if shape is None else size(*shape)
        if dtype:
            entry.properties.dtype = getattr(torch, dtype)


def rename_key(checkpoint: Path, *, fqn: str, to: str) -> None:
    """Rename a key where the state dict is described, and nowhere else."""
    with edited(checkpoint) as metadata:
        metadata.state_dict_metadata = {
            to if name == fqn else name: entry
            for name, entry in metadata.state_dict_metadata.items()
        }


def drop_keys(checkpoint: Path, *, prefix: str) -> None:
    """Forget all keys that begin like this, and where their bytes lie."""
    with edited(checkpoint) as metadata:
        for name in [n for n in metadata.state_dict_metadata if n.startswith(prefix)]:
            del metadata.state_dict_metadata[name]
        for key in [k for k in metadata.storage_data if k.fqn.startswith(prefix)]:
            del metadata.storage_data[key]


def drop_storage(checkpoint: Path, *, fqn: str, origin: Origin = None) -> None:
    """Forget where the bytes of an entry lie."""
    with edited(checkpoint) as metadata:
        del metadata.storage_data[key_of(metadata, fqn, origin)]


def forget_origin(checkpoint: Path, *, fqn: str) -> None:
    """Record the bytes of a tensor of one chunk as those of an object are: by its name alone."""
    with edited(checkpoint) as metadata:
        places = metadata.storage_data
        metadata.storage_data = {
            type(key)(key.fqn) if key.fqn == fqn else key: place for key, place in places.items()
        }


def repeat_storage(checkpoint: Path, *, fqn: str, origin: Origin = None, to: str) -> None:
    """Record the bytes of an entry under a second key."""
    with edited(checkpoint) as metadata:
        key = key_of(metadata, fqn, origin)
        metadata.storage_data[replace(key, fqn=to)] = metadata.storage_data[key]


def move_storage(
    checkpoint: Path,
    *,
    fqn: str,
    origin: Origin = None,
    offset: int = 0,
    length: int = 0,
    path: str | None = None,
) -> None:
    """Record other bytes for an entry: add to offset and length, or name another file."""
    with edited(checkpoint) as metadata:
        place = metadata.storage_data[key_of(metadata, fqn, origin)]
        place.offset += offset
        place.length += length
        place.relative_path = place.relative_path if path is None else path


def redirect(checkpoint: Path, *, file: str, to: str) -> None:
    """Make the metadata speak of another path wherever it speaks of a file."""
    with edited(checkpoint) as metadata:
        for place in metadata.storage_data.values():
            if place.relative_path == file:
                place.relative_path = to


def exchange_storage(
    checkpoint: Path, *, first: tuple[str, Origin], second: tuple[str, Origin]
) -> None:
    """Exchange the places recorded for two entries."""
    with edited(checkpoint) as metadata:
        one, two = key_of(metadata, *first), key_of(metadata, *second)
        places = metadata.storage_data
        places[one], places[two] = places[two], places[one]


def flip_number(checkpoint: Path, *, value: int, bit: int = 0) -> None:
    """Turn over one bit of a two-byte number in the pickle of the metadata."""
    path = checkpoint / METADATA
    opcode = b"M" + struct.pack("<H", value)
    flip(path, path.read_bytes().index(opcode) + 1 + bit // 8, bit % 8)


def flip_text(checkpoint: Path, *, text: str, at: int = 0, bit: int = 0) -> None:
    """Turn over one bit of a text where the pickle of the metadata first spells it."""
    path = checkpoint / METADATA
    spelled = b"\x8c" + bytes([len(text)]) + text.encode()
    flip(path, path.read_bytes().index(spelled) + 2 + at, bit)


def without_empty_chunks(checkpoint: Path) -> None:
    """Leave out chunks of no elements, and their bytes, as a writer may that never made them."""
    with edited(checkpoint) as metadata:
        empty = {
            (fqn, tuple(chunk.offsets))
            for fqn, entry in metadata.state_dict_metadata.items()
            for chunk in getattr(entry, "chunks", ())
            if 0 in chunk.sizes
        }
        for fqn, origin in empty:
            chunks = metadata.state_dict_metadata[fqn].chunks
            chunks.remove(chunk_of(metadata, fqn, origin))
            cut_out(checkpoint, metadata, metadata.storage_data.pop(key_of(metadata, fqn, origin)))


def cut_out(checkpoint: Path, metadata: Any, place: Any) -> None:
    """Remove the bytes of a place from its file, and record where what follows lies now."""
    path = checkpoint / place.relative_path
    data = path.read_bytes()
    path.write_bytes(data[: place.offset] + data[place.offset + place.length :])
    for other in metadata.storage_data.values():
        if other.relative_path == place.relative_path and other.offset > place.offset:
            other.offset -= place.length


# ---------------------------------------------------------------------------------- inside an item


def span_of(
    checkpoint: Path,
    *,
    fqn: str,
    origin: Origin = None,
    record: str = "data/0",
    part: str = "data",
    field: str = "data",
) -> tuple[Path, Span]:
    """Find a field of a stored item: its file, and its bytes in that file."""
    metadata = metadata_of(checkpoint)
    place = metadata.storage_data[key_of(metadata, fqn, origin)]
    path = checkpoint / place.relative_path
    item = path.read_bytes()[place.offset : place.offset + place.length]
    (span,) = (s for s in anatomy(item) if (s.record, s.part, s.field) == (record, part, field))
    return path, replace(span, start=place.offset + span.start, stop=place.offset + span.stop)


def flip_field(checkpoint: Path, *, at: int = 0, bit: int = 0, **where: Any) -> None:
    """Turn over one bit of a field of an item."""
    path, span = span_of(checkpoint, **where)
    flip(path, span.start + at, bit)


def fill_field(checkpoint: Path, *, start: int = 0, count: int, **where: Any) -> None:
    """Overwrite bytes of a field of an item with zeros."""
    path, span = span_of(checkpoint, **where)
    low = span.start + start
    fill(checkpoint, file=path.name, start=low, stop=min(low + count, span.stop))


def write_field(checkpoint: Path, *, data: bytes, at: int = 0, **where: Any) -> None:
    """Overwrite bytes of a field of an item."""
    path, span = span_of(checkpoint, **where)
    with path.open("r+b") as stream:
        stream.seek(span.start + at)
        stream.write(data)


# ---------------------------------------------------------------------------------- torch's own word


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Keep torch from warning about a single process and from logging each call."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def load_with_torch(checkpoint: Path) -> dict[str, Any]:
    """Load every key that the metadata names with torch itself, in one process."""
    import torch
    import torch.distributed.checkpoint as dcp

    state = {
        fqn: torch.full(entry.size, 7, dtype=entry.properties.dtype)
        if hasattr(entry, "chunks")
        else None
        for fqn, entry in metadata_of(checkpoint).state_dict_metadata.items()
    }
    with _quiet_torch():
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return state


def save_with_torch(
    checkpoint: Path, state: dict[str, Any], planner: Any = None, *, files: int = 1
) -> None:
    """Save a state dict with torch from one process."""
    import torch.distributed.checkpoint as dcp

    writer = dcp.FileSystemWriter(checkpoint, thread_count=files)
    with _quiet_torch():
        dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)


def fingerprint(state: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Describe loaded values so that equal descriptions mean equal bits, shapes and dtypes."""
    import torch

    found = {}
    for fqn, value in state.items():
        if isinstance(value, torch.Tensor):
            form = f"{value.dtype} {tuple(value.shape)}"
            data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found[fqn] = (form, data)
        else:
            found[fqn] = (type(value).__name__, pickle.dumps(value))
    return found
