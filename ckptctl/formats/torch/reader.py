"""One ``torch.save`` file that holds a whole state: a model's weights, or everything of a run.

It is flattened as DCP flattens state dicts, so that its tensors and values are entries like those
of any other checkpoint. Legacy files (torch before 1.6, no zip) are not read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

from ckptctl.crc import crc32
from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData, TooDeep, Unsupported
from ckptctl.formats.budget import Budget, fault_kind
from ckptctl.formats.companions import LEGACY
from ckptctl.formats.pickles.tensors import TABLE as TENSOR_TABLE
from ckptctl.formats.pickles.tensors import StorageRef, Storages, TensorRef
from ckptctl.formats.pickles.unpickler import Function, Opaque, load
from ckptctl.formats.pickles.values import value_table
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    Fault,
    FaultKind,
    File,
    Items,
    ObjectEntry,
    Stored,
    TensorEntry,
)
from ckptctl.model.dtypes import item_size
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Box, Boxes, Shape
from ckptctl.storage import Reader

NAME = "torch"
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_LARGEST_PICKLE = 1 << 30
_DEEPEST = 64
_MOST_BITS = 4096
WRITER = "ckptctl"
"""A record that says who wrote the file; torch passes over it."""

Path = tuple[str | int, ...]


def read(reader: Reader, file: File) -> Checkpoint:
    """Read the directory and the pickle of one file; damage becomes a fault of the checkpoint.

    Raises ``Unsupported`` for a file of the form that torch wrote before 1.6.
    """
    try:
        return _read(reader, file)
    except Unsupported as error:
        raise Unsupported(f"{file.path}: {error}") from None
    except MalformedData as error:
        kind = fault_kind(error)
        fault = Fault(kind, str(error), Location(file=file.path))
        return Checkpoint(NAME, {file.path: file}, faults=(fault,))


def is_converted(reader: Reader) -> bool:
    """Tell whether ``convert`` wrote a file; raises ``MalformedData`` for what is no such file."""
    return WRITER in _open(reader)[1]


def state_of(reader: Reader) -> object:
    """Return the nested state of a file, objects of any class as stand-ins with all they hold.

    Raises ``MalformedData`` for damage.
    """
    pickle, _ = _open(reader)
    return unpickle(pickle, table=TENSOR_TABLE)


def unpickle(data: bytes, *, table: Mapping[tuple[str, str], object] | None = None) -> object:
    """Build what a pickle of a state or value describes, without running anything.

    ``table`` says what is built of globals: those of values without it.
    """
    known = value_table() if table is None else table
    return load(data, known, persistent=Storages())[0]


Places = dict[str, tuple[int, torchzip.Head]]


def _read(reader: Reader, file: File) -> Checkpoint:
    pickle, places = _open(reader)
    unsafe: list[str] = []
    storages = Storages()
    root = load(pickle, value_table(), persistent=storages, unsafe=unsafe)[0]
    problem = storages.problem({name: head.size for name, (_, head) in places.items()})
    if problem:
        raise MalformedData(problem)
    builder = _Builder(file, places, little=_little(reader, places))
    for path, value in flatten(root):
        builder.add(path, value)
    where = Location(file=file.path)
    faults = [Fault(FaultKind.UNSAFE_METADATA, message, where) for message in unsafe[:1]]
    return replace(builder.result(), faults=tuple(faults))


def _open(reader: Reader) -> tuple[bytes, Places]:
    if reader.size >= 2 and reader.read(0, 2) != b"PK":
        if reader.size >= len(LEGACY) and reader.read(0, len(LEGACY)) == LEGACY:
            raise Unsupported(
                "it has the form of torch.save before torch 1.6, which is not read: load it with torch "
                "and save it again"
            )
        raise MalformedData("it is no zip, and no torch.save file of the older form either")
    directory = torchzip.read_directory(reader.read, reader.size)
    places: Places = {}
    for head in directory.heads:
        header = reader.read(head.header, head.header + torchzip.LOCAL_SIZE + len(head.raw_name))
        places[head.name] = (torchzip.data_start(header, head), head)
    small = {
        name: reader.read(places[name][0], places[name][0] + min(places[name][1].size, 64))
        for name in torchzip.SETTINGS
        if name in places
    }
    problem = torchzip.problem(places.keys(), small)
    if problem:
        raise MalformedData(problem)
    start, head = places["data.pkl"]
    if head.size > _LARGEST_PICKLE:
        raise MalformedData(f"its data.pkl of {head.size} bytes is too large")
    return _record(reader, "data.pkl", start, head), places


def _record(reader: Reader, name: str, start: int, head: torchzip.Head) -> bytes:
    """Return a small record; raises ``MalformedData`` where its CRC-32 does not fit its bytes."""
    data = reader.read(start, start + head.size)
    found = crc32(data)
    if head.crc and found != head.crc:
        raise MalformedData(f"its {name}: CRC-32 is {found:08x}, {head.crc:08x} was written")
    return data


def _little(reader: Reader, places: Places) -> bool:
    if "byteorder" not in places:
        return True
    start, head = places["byteorder"]
    order = b"" if head.size > 16 else _record(reader, "byteorder", start, head)
    if order not in (b"little", b"big"):
        raise MalformedData(f"its byte order reads {order!r}")
    return order == b"little"


def flatten(
    value: object, path: Path = (), budget: Budget | None = None
) -> Iterator[tuple[Path, object]]:
    """Yield the leaves of a state with their paths, as DCP's planner takes it apart.

    Mappings are always descended, lists where they hold a tensor or a mapping, tuples never.
    Raises ``TooDeep`` for a state that nests without end, and ``TooLarge`` for one whose parts are
    used again and again.
    """
    budget = Budget(0) if budget is None else budget
    if len(path) > _DEEPEST:
        raise TooDeep(f"it nests deeper than {_DEEPEST} levels")
    if isinstance(value, dict):
        budget.take(8 + len(value))
        for key, inner in value.items():
            yield from flatten(inner, (*path, _name(key)), budget)
    elif isinstance(value, list) and _holds_more(value, 0, budget):
        for index, inner in enumerate(value):
            yield from flatten(inner, (*path, index), budget)
    else:
        yield path, value


def _name(key: object) -> str:
    """Return what a key is called in a flat state: its text, within bounds."""
    if type(key) is str:
        return key
    if isinstance(key, type | Function):
        raise MalformedData("a class or a function is a key")
    if isinstance(key, int) and key.bit_length() > _MOST_BITS:
        return f"integer of {key.bit_length()} bits"
    if isinstance(key, int | float | bytes | None):
        return str(key)
    if isinstance(key, StorageRef | TensorRef):
        raise MalformedData("a tensor or a storage is a key")
    return key.label() if isinstance(key, Opaque) else f"<{type(key).__name__}>"


def _holds_more(value: object, depth: int, budget: Budget) -> bool:
    if isinstance(value, dict | TensorRef):
        return True
    if depth > _DEEPEST:
        raise TooDeep(f"it nests deeper than {_DEEPEST} levels")
    if not isinstance(value, list):
        return False
    budget.take(8 + len(value))
    return any(_holds_more(inner, depth + 1, budget) for inner in value)


class _Builder:
    """Gathers entries and items while a state is walked."""

    def __init__(self, file: File, places: Places, *, little: bool) -> None:
        self._file, self._places, self._little = file, places, little
        self._entries: dict[str, Entry] = {}
        self._paths: dict[str, Path] = {}
        self._stored: dict[str, Stored] = {}
        self._values: dict[str, object] = {}
        self._shared: dict[str, str] = {}
        self._views: dict[object, str] = {}

    def add(self, path: Path, value: object) -> None:
        """Take one leaf."""
        fqn = ".".join(map(str, path)) or "value"
        if fqn in self._entries:
            raise MalformedData(f"two of its keys are called {fqn[:120]}")
        self._paths[fqn] = path or (fqn,)
        if not isinstance(value, TensorRef):
            self._entries[fqn] = ObjectEntry(fqn)
            self._values[fqn] = value
            return
        stored = self._locate(fqn, value)
        self._stored[fqn] = stored
        whole = Box((0,) * len(value.shape), value.shape)
        self._entries[fqn] = TensorEntry(
            fqn, value.dtype, value.shape, Boxes.of(len(value.shape), [whole])
        )
        view = (stored.start, stored.offset, value.dtype, value.shape, value.stride, value.flags)
        first = self._views.setdefault(view, fqn)
        if first != fqn and stored.size:
            self._shared[fqn] = first

    def _locate(self, fqn: str, ref: TensorRef) -> Stored:
        place = self._places.get(f"data/{ref.storage.key}")
        if place is None:
            raise MalformedData(f"{fqn[:120]}: the record of its storage is not there")
        start, head = place
        declared, width = ref.storage.byte_size, item_size(ref.dtype)
        if declared is not None and declared != head.size:
            raise MalformedData(
                f"{fqn[:120]}: its storage has {head.size} bytes, and {declared} are declared"
            )
        if width is not None and all(ref.shape):
            steps = zip(ref.shape, ref.stride, strict=True)
            reach = ref.offset + 1 + sum((n - 1) * step for n, step in steps)
            if reach * width > head.size:
                raise MalformedData(f"{fqn[:120]}: it reaches past the end of its storage")
        stored = Stored(
            ref.dtype, ref.shape, ref.stride, ref.offset, start, head.size, head.crc or None
        )
        return replace(stored, little=self._little, flags=ref.flags)

    def result(self) -> Checkpoint:
        """Put the checkpoint together."""
        fqns = list(self._stored)
        origins: list[Shape | None] = [(0,) * len(self._stored[fqn].shape) for fqn in fqns]
        items = Items(
            fqns,
            origins,
            [self._file.path] * len(fqns),
            array("q", [self._stored[fqn].start for fqn in fqns]),
            array("q", [self._stored[fqn].size for fqn in fqns]),
            stored={index: self._stored[fqn] for index, fqn in enumerate(fqns)},
        )
        return Checkpoint(
            format=NAME,
            files={self._file.path: self._file},
            sources=(self._file.path,),
            entries=self._entries,
            items=items,
            paths_in_state=self._paths,
            values=self._values,
            shared=self._shared,
        )
