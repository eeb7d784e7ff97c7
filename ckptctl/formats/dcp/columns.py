"""The fast lane for large ``.metadata``: straight from Python's own unpickler into columns.

A million chunks are three million small objects, each with a dictionary of its own. Here those
dictionaries are taken over and emptied as they are built, so that memory holds columns and not
objects. Objects are told apart by identity: what the mappings hold, in their order, must be
exactly what was built, so that an index is paired with the place that its mapping gives it.
Whatever is different is ``Unusual`` and goes to the careful reader. C code cannot be bounded from
within: this runs in a process of its own (``apart``).
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_
from typing import IO, Any, NoReturn

from ckptctl.errors import MalformedData
from ckptctl.formats.dcp.classes import (
    FILESYSTEM,
    METADATA,
    OLMO_FILESYSTEM,
    TABLE,
    BytesRecord,
    Record,
    TensorRecord,
    dtype_name,
    is_stock,
    requires_grad,
    sound_properties,
)
from ckptctl.formats.dcp.metadata import Parsed, read_rest, root_state
from ckptctl.formats.pickles.allowed import may_make
from ckptctl.formats.pickles.stand_ins import DtypeName, Function, Opaque, Sealed, opaque_class
from ckptctl.model.checkpoint import Items, ObjectEntry, TensorEntry
from ckptctl.model.dtypes import NAMES, canonical
from ckptctl.model.geometry import Boxes

_WORD = 1 << 63
_MOST_UNKNOWN = 100


class Unusual(Exception):
    """The pickle is not of the usual form."""


class _Columns:
    """What the states of chunks, indices and storage infos are emptied into."""

    def __init__(self) -> None:
        self.chunks: list[object] = []
        self.indices: list[object] = []
        self.places: list[object] = []
        self.new_shapes: list[Any] = []
        self.new_offsets: list[Any] = []
        self.new_sizes: list[Any] = []
        # a number that does not fit 63 bits is refused on its way in
        self.chunk_offsets, self.chunk_sizes = array("q"), array("q")
        self.offset_widths, self.size_widths = array("H"), array("H")
        self.fqns: list[Any] = []
        self.shapes: set[tuple[Any, ...]] = set()
        self.hint_types: set[type] = set()
        self.number_types: set[type] = set()
        self.origins: list[Any] = []
        self.paths: list[Any] = []
        self.new_starts: list[Any] = []
        self.new_lengths: list[Any] = []
        self.offsets, self.lengths = array("q"), array("q")
        self.transforms: dict[int, Any] = {}

    def chunk_class(self) -> type:
        """Make the class whose instances give up the boxes of chunks."""

        def take(
            chunk: object,
            state: dict[str, Any],
            known: Callable[[object], None] = self.chunks.append,
            offsets: Callable[[Any], None] = self.new_offsets.append,
            sizes: Callable[[Any], None] = self.new_sizes.append,
        ) -> None:
            known(chunk)
            offsets(state["offsets"])
            sizes(state["sizes"])
            if len(state) != 2:
                raise Unusual
            state.clear()

        return _filled_by(take, __hash__=None)

    def size_function(self) -> Function:
        """Make what stands for ``torch.Size``; what it is given is looked at before the end."""

        def size(numbers: Any, known: Callable[[Any], None] = self.new_shapes.append) -> Any:
            known(numbers)
            return numbers

        return Function(size)

    def index_class(self) -> type:
        """Make the class whose instances give up the names and origins of items."""

        def take(
            index: object,
            state: dict[str, Any],
            known: Callable[[object], None] = self.indices.append,
            names: Callable[[Any], None] = self.fqns.append,
            origins: Callable[[Any], None] = self.origins.append,
            hints: Callable[[type], None] = self.hint_types.add,
        ) -> None:
            known(index)
            names(state["fqn"])
            origin = state.get("offset")
            origins(origin)
            hints(type(state["index"]))
            if len(state) != (2 if origin is None else 3):
                raise Unusual  # besides name and hint only an offset
            state.clear()

        return _filled_by(take)

    def place_class(self) -> type:
        """Make the class whose instances give up where items lie."""

        def take(
            place: object,
            state: dict[str, Any],
            known: Callable[[object], None] = self.places.append,
            paths: Callable[[Any], None] = self.paths.append,
            starts: Callable[[Any], None] = self.new_starts.append,
            lengths: Callable[[Any], None] = self.new_lengths.append,
        ) -> None:
            if len(state) != 3:
                if len(state) != 4:
                    raise Unusual
                self.transforms[len(self.paths)] = state["transform_descriptors"]
            known(place)
            paths(state["relative_path"])
            starts(state["offset"])
            lengths(state["length"])
            state.clear()

        return _filled_by(take, __hash__=None)

    def drain(self) -> None:
        """Take over all numbers that have come."""
        if set(map(type, self.new_shapes)) - {tuple}:
            raise Unusual
        if set(map(type, chain.from_iterable(self.new_shapes))) - {int}:
            raise Unusual
        self.new_shapes.clear()
        for column, numbers, widths in (
            (self.new_offsets, self.chunk_offsets, self.offset_widths),
            (self.new_sizes, self.chunk_sizes, self.size_widths),
        ):
            self.shapes.update(column)
            numbers.extend(chain.from_iterable(column))
            widths.extend(map(len, column))
            column.clear()
        for column, numbers in ((self.new_starts, self.offsets), (self.new_lengths, self.lengths)):
            self.number_types.update(map(type, column))
            numbers.extend(column)
            column.clear()


def _filled_by(take: Callable[..., None], **more: object) -> type:
    return _NotCalled("Collected", (), {"__slots__": (), "__setstate__": take, **more})


class Draining:
    """A binary file of known size that calls a function whenever the next frame is asked for."""

    def __init__(self, file: IO[bytes], size: int, drain: Callable[[], None]) -> None:
        """Wrap a file from its beginning."""
        self._file, self._drain = file, drain
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; refuse to ask for more than there are."""
        self._drain()
        if size > self.left:
            raise Unusual
        data = self._file.read(size)
        self.left -= len(data)
        return data

    def readline(self) -> bytes:
        """Return the rest of a line."""
        data = self._file.readline()
        self.left -= len(data)
        return data


class _NotCalled(Sealed):
    """A class of classes that are made by ``NEWOBJ`` and never called."""

    def __call__(self, *_: object) -> NoReturn:
        """Refuse."""
        raise Unusual


def _filled(kind: type) -> type:
    """Derive a class that Python's own unpickler fills in by way of ``take_state``."""

    def make(cls: type) -> object:
        if issubclass(kind, Opaque) and not may_make(kind.module, kind.name, ()):
            raise Unusual
        made: object = object.__new__(cls)
        kind.__init__(made)  # type: ignore[misc]
        return made

    def set_state(self: Any, state: object) -> None:
        self.take_state(state)

    names = {"__slots__": (), "__new__": make, "__setstate__": set_state}
    return _NotCalled(kind.__name__, (kind,), names)


class _Unpickler(pickle.Unpickler):
    """Python's own unpickler, which finds only what metadata usually names."""

    def __init__(self, file: Any, table: dict[tuple[str, str], Any]) -> None:
        super().__init__(file, encoding="ASCII")
        self._table = table
        self.unknown: dict[tuple[str, str], type[Opaque]] = {}

    def find_class(self, module: str, name: str) -> Any:
        key = (module, name)
        found = self._table.get(key)
        if found is None and module == "torch" and name in NAMES:
            found = DtypeName(canonical(name))
        if found is None:
            found = self.unknown.get(key)
        if found is None:
            if len(self.unknown) >= _MOST_UNKNOWN or is_stock(module):
                raise Unusual
            found = self.unknown[key] = _filled(opaque_class(module, name))
        return found

    def persistent_load(self, _pid: object) -> NoReturn:
        raise Unusual


def parse_columns(stream: IO[bytes], size: int, source: str) -> Parsed:
    """Read metadata of the usual form.

    Raises ``Unusual`` for any other. Memory and time of hostile bytes are not bounded.
    """
    try:
        return _parse(stream, size, source)
    except (MalformedData, pickle.UnpicklingError, EOFError, RecursionError, ArithmeticError):
        raise Unusual from None
    except (ValueError, TypeError, LookupError, AttributeError, ImportError):
        raise Unusual from None


def _parse(stream: IO[bytes], size: int, source: str) -> Parsed:
    columns = _Columns()
    chunk, index, place = columns.chunk_class(), columns.index_class(), columns.place_class()
    table = {
        key: _filled(found) if isinstance(found, type) and issubclass(found, Record) else found
        for key, found in TABLE.items()
        if key != ("builtins", "getattr")
    }
    table |= {
        (METADATA, "ChunkStorageMetadata"): chunk,
        (METADATA, "MetadataIndex"): index,
        (FILESYSTEM, "_StorageInfo"): place,
        (OLMO_FILESYSTEM, "_StorageInfo"): place,
        ("torch", "Size"): columns.size_function(),
    }
    file = Draining(stream, size, columns.drain)
    unpickler = _Unpickler(file, table)
    root = unpickler.load()
    columns.drain()
    state = root_state(root)
    if state is None or file.left:
        raise Unusual
    parsed = Parsed(source)
    parsed.opaque_classes = tuple(sorted(f"{m}.{n}" for m, n in unpickler.unknown))
    mapping, storage = state["state_dict_metadata"], state.get("storage_data")
    if type(mapping) is not dict or type(storage) is not dict:
        raise Unusual
    _same(storage, columns.indices)
    _same(storage.values(), columns.places)
    storage.clear()
    old = _fill_entries(parsed, mapping, columns)
    _check_columns(columns)
    parsed.items = Items(
        columns.fqns,
        columns.origins,
        columns.paths,
        columns.offsets,
        columns.lengths,
        {i: tuple(names) for i, names in columns.transforms.items() if names},
    )
    read_rest(parsed, state, old_properties=old)
    if parsed.faults:
        raise Unusual
    return parsed


def _same(found: Iterable[object], made: list[object]) -> None:
    """Accept only the very objects that were built, each once and in that order."""
    objects = list(found)
    if len(objects) != len(made) or not all(map(is_, objects, made)):
        raise Unusual
    if len(set(map(id, made))) != len(made):  # filled in twice, it has what came last
        raise Unusual


def _fill_entries(parsed: Parsed, mapping: dict[object, object], columns: _Columns) -> bool:
    """Cut the chunk columns into tensors; return whether torch 2.2 or earlier wrote them."""
    held: list[object] = []
    used = position = 0
    kinds: set[str] = set()
    for fqn, record in mapping.items():
        if type(fqn) is not str:
            raise Unusual
        if isinstance(record, BytesRecord):
            parsed.entries[fqn] = ObjectEntry(fqn)
            continue
        state = getattr(record, "state", None) if isinstance(record, TensorRecord) else None
        if not isinstance(state, dict) or len(state) != 3:
            raise Unusual
        shape, chunks, properties = state["size"], state["chunks"], state["properties"]
        if type(shape) is not tuple or type(chunks) is not list:
            raise Unusual
        if not sound_properties(properties):
            raise Unusual
        if not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise Unusual
        held.extend(chunks)
        ndim, count = len(shape), len(chunks)
        if ndim > 64 or set(columns.offset_widths[used : used + count]) - {ndim}:
            raise Unusual
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
    _same(held, columns.chunks)
    ends = {len(columns.chunk_offsets), len(columns.chunk_sizes), position}
    if used != len(columns.offset_widths) or len(ends) != 1:
        raise Unusual
    if columns.offset_widths != columns.size_widths:
        raise Unusual
    return "OldPropertiesRecord" in kinds


def _check_columns(columns: _Columns) -> None:
    """Accept only names, origins and transforms of the right type."""
    if set(map(type, columns.fqns)) - {str} or set(map(type, columns.paths)) - {str}:
        raise Unusual
    if columns.hint_types - {int, type(None)} or columns.number_types - {int}:
        raise Unusual
    if min(columns.offsets, default=0) < 0 or min(columns.lengths, default=0) < 0:
        raise Unusual
    if set(map(type, chain.from_iterable(filter(None, columns.origins)))) - {int}:
        raise Unusual
    # few: every tensor is cut at the same places
    for origin in columns.shapes.union(columns.origins):
        if origin is not None and not (
            type(origin) is tuple
            and len(origin) <= 64
            and all(type(n) is int and 0 <= n < _WORD for n in origin)
        ):
            raise Unusual
    for names in columns.transforms.values():
        if names and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise Unusual
