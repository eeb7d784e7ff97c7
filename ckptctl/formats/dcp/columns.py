"""The fast lane for large ``.metadata``: straight from the unpickler into columns.

A million chunks are three million small objects, each with a dictionary of its own. Here those
dictionaries are handed over as they are built and emptied again after every frame of the pickle,
so that memory holds columns and not objects. It relies on what torch's own pickles look like
(each object is filled in before the next of its class is made) and proves afterwards that the
counts agree; whatever is different goes to the careful reader.
"""

from __future__ import annotations

import io
from array import array
from collections import deque
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any

from ckptctl.errors import MalformedData
from ckptctl.formats.dcp.classes import (
    FILESYSTEM,
    METADATA,
    TABLE,
    BytesRecord,
    StorageMetaRecord,
    TensorRecord,
    dtype_name,
    requires_grad,
    sound_properties,
)
from ckptctl.formats.dcp.metadata import (
    Parsed,
    describe_globals,
    parse,
    read_rest,
    root_state,
)
from ckptctl.formats.pickles.unpickler import MAX_SIZE, SCAN_LIMIT, SafeUnpickler, no_collector, run
from ckptctl.model.checkpoint import Items, ObjectEntry, TensorEntry
from ckptctl.model.geometry import Boxes
from ckptctl.storage import Reader

FAST_FROM = SCAN_LIMIT + 1
"""Bytes of metadata from which this lane is taken."""

_BUFFER = 1 << 20
_WORD = 1 << 63
_FIELDS = frozenset(
    {"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"}
)


class _Unusual(Exception):
    """The pickle is not of the usual form."""


class _Columns:
    """What the states of chunks, indices and storage infos are emptied into."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, Any]] = []
        self.indices: list[dict[str, Any]] = []
        self.places: list[dict[str, Any]] = []
        # a number that does not fit 63 bits is refused on its way in
        self.chunk_offsets, self.chunk_sizes = array("q"), array("q")
        self.offset_widths, self.size_widths = array("H"), array("H")
        self.fqns: list[Any] = []
        self.shapes: set[tuple[Any, ...]] = set()
        self.hint_types: set[type] = set()
        self.number_types: set[type] = set()
        self.origins: list[Any] = []
        self.paths: list[Any] = []
        self.offsets, self.lengths = array("q"), array("q")
        self.transforms: dict[int, Any] = {}

    def drain(self) -> None:
        """Take over all states that are complete, and empty them."""
        flat = chain.from_iterable
        if self.chunks:
            for name, numbers, widths in (
                ("offsets", self.chunk_offsets, self.offset_widths),
                ("sizes", self.chunk_sizes, self.size_widths),
            ):
                column = list(map(itemgetter(name), self.chunks))
                self.shapes.update(column)
                numbers.extend(flat(column))
                widths.extend(map(len, column))
            if set(map(len, self.chunks)) != {2}:
                raise _Unusual
        if self.indices:
            self.fqns.extend(map(itemgetter("fqn"), self.indices))
            origins = [state.get("offset") for state in self.indices]
            self.origins.extend(origins)
            self.hint_types.update(map(type, map(itemgetter("index"), self.indices)))
            # besides a name and a hint only an offset: a field of another name would be one more
            known = 3 * len(origins) - origins.count(None)
            if sum(map(len, self.indices)) != known:
                raise _Unusual
        if self.places:
            if max(map(len, self.places)) > 3:
                for number, state in enumerate(self.places, len(self.paths)):
                    if len(state) > 3:
                        self.transforms[number] = state["transform_descriptors"]
                    if len(state) > 4:
                        raise _Unusual
            self.paths.extend(map(itemgetter("relative_path"), self.places))
            for name, numbers in (("offset", self.offsets), ("length", self.lengths)):
                column = list(map(itemgetter(name), self.places))
                self.number_types.update(map(type, column))
                numbers.extend(column)
        for states in (self.chunks, self.indices, self.places):
            deque(map(dict.clear, states), maxlen=0)
            states.clear()


class _Raw(io.RawIOBase):
    """A stored object as a raw binary file."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader, self._position = reader, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._reader.size - self._position)
        self._reader.read_into(self._position, memoryview(buffer)[:count])
        self._position += count
        return count

    def tell(self) -> int:
        return self._position


class _Draining:
    """A binary file that empties the columns whenever the unpickler asks for the next frame."""

    def __init__(self, reader: Reader, drain: Callable[[], None]) -> None:
        self._file = io.BufferedReader(_Raw(reader), _BUFFER)
        self._drain = drain
        self.read_so_far = 0

    def read(self, size: int = -1) -> bytes:
        self._drain()
        data = self._file.read(size)
        self.read_so_far += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        count = self._file.readinto(buffer)
        self.read_so_far += count
        return count

    def readline(self) -> bytes:
        data = self._file.readline()
        self.read_so_far += len(data)
        return data


def _collector(states: list[dict[str, Any]]) -> type:
    """Make a class whose instances hand their pickled state to a list."""
    return type("Collected", (), {"__slots__": (), "__setstate__": states.append})


def parse_metadata(reader: Reader, source: str) -> Parsed:
    """Read one metadata file, by columns where it is large and of the usual form."""
    if FAST_FROM <= reader.size <= MAX_SIZE:
        try:
            with no_collector():
                return _parse(reader, source)
        except (_Unusual, MalformedData, ValueError, TypeError, KeyError, OverflowError):
            pass  # the careful reader says what is wrong, or finds that nothing is
    return parse(reader.read(0, min(reader.size, MAX_SIZE + 1)), source)


def _parse(reader: Reader, source: str) -> Parsed:
    columns = _Columns()
    chunk, index, place = map(_collector, (columns.chunks, columns.indices, columns.places))
    table = {
        **TABLE,
        (METADATA, "ChunkStorageMetadata"): chunk,
        (METADATA, "MetadataIndex"): index,
        (FILESYSTEM, "_StorageInfo"): place,
    }
    table["torch", "Size"] = tuple  # in C; a ceiling on memory stands guard
    file = _Draining(reader, columns.drain)
    unpickler = SafeUnpickler(file, table)
    root = run(unpickler, reader.size)
    columns.drain()
    state = root_state(root)
    if state is None or unpickler.unknown or file.read_so_far != reader.size:
        raise _Unusual
    parsed = Parsed(source)
    describe_globals(parsed, unpickler)
    mapping, storage = state["state_dict_metadata"], state.get("storage_data")
    if not isinstance(mapping, dict) or not isinstance(storage, dict):
        raise _Unusual
    planner = state.get("planner_data") or {}
    if set(state) - _FIELDS or not isinstance(planner, dict):
        raise _Unusual  # something else might have mentioned the objects before the mappings do
    if set(map(type, chain.from_iterable(planner.values()))) - {str, int}:
        raise _Unusual
    if not len(storage) == len(columns.fqns) == len(columns.paths) == len(columns.offsets):
        raise _Unusual
    if set(map(type, storage)) - {index} or set(map(type, storage.values())) - {place}:
        raise _Unusual
    storage.clear()
    old = _fill_entries(parsed, mapping, columns, chunk)
    _check_columns(columns)
    parsed.items = Items(
        columns.fqns,
        columns.origins,
        columns.paths,
        columns.offsets,
        columns.lengths,
        {i: tuple(names) for i, names in columns.transforms.items() if names},
    )
    if not isinstance(state.get("storage_meta"), StorageMetaRecord | None):
        raise _Unusual
    read_rest(parsed, state, old_properties=old)
    if parsed.faults:
        raise _Unusual
    return parsed


def _fill_entries(
    parsed: Parsed, mapping: dict[object, object], columns: _Columns, chunk: type
) -> bool:
    """Cut the chunk columns into tensors; return whether torch 2.2 or earlier wrote them."""
    used = position = 0
    kinds: set[str] = set()
    for fqn, record in mapping.items():
        if not isinstance(fqn, str):
            raise _Unusual
        if isinstance(record, BytesRecord):
            parsed.entries[fqn] = ObjectEntry(fqn)
            continue
        state = getattr(record, "state", None) if isinstance(record, TensorRecord) else None
        if not isinstance(state, dict) or len(state) != 3:
            raise _Unusual
        shape, chunks, properties = state["size"], state["chunks"], state["properties"]
        if type(shape) is not tuple or type(chunks) is not list:
            raise _Unusual
        if not sound_properties(properties):
            raise _Unusual
        if not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise _Unusual
        if set(map(type, chunks)) - {chunk}:
            raise _Unusual
        ndim, count = len(shape), len(chunks)
        if ndim > 64 or set(columns.offset_widths[used : used + count]) - {ndim}:
            raise _Unusual
        width = ndim * count
        boxes = Boxes(
            ndim,
            count,
            columns.chunk_offsets[position : position + width],
            columns.chunk_sizes[position : position + width],
        )
        used, position = used + count, position + width
        kinds.add(type(properties).__name__)
        parsed.entries[fqn] = TensorEntry(
            fqn, dtype_name(properties), shape, boxes, requires_grad(properties)
        )
    ends = {len(columns.chunk_offsets), len(columns.chunk_sizes), position}
    if used != len(columns.offset_widths) or len(ends) != 1:
        raise _Unusual
    if columns.offset_widths != columns.size_widths:
        raise _Unusual
    return "OldPropertiesRecord" in kinds


def _check_columns(columns: _Columns) -> None:
    """Accept only names, origins and transforms of the right type."""
    if set(map(type, columns.fqns)) - {str} or set(map(type, columns.paths)) - {str}:
        raise _Unusual
    if columns.hint_types - {int, type(None)} or columns.number_types - {int}:
        raise _Unusual
    if min(columns.offsets, default=0) < 0 or min(columns.lengths, default=0) < 0:
        raise _Unusual
    if set(map(type, chain.from_iterable(filter(None, columns.origins)))) - {int}:
        raise _Unusual
    # few: every tensor is cut at the same places
    for origin in columns.shapes.union(columns.origins):
        if origin is not None and not (
            type(origin) is tuple
            and len(origin) <= 64
            and all(type(n) is int and 0 <= n < _WORD for n in origin)
        ):
            raise _Unusual
    for names in columns.transforms.values():
        if names and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise _Unusual
