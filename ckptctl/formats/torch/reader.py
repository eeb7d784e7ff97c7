"""One ``torch.save`` file that holds a whole state: a model's weights, or everything of a run.

It is flattened as DCP flattens state dicts, so that its tensors and values are entries like those
of any other checkpoint. Of a tensor that is distributed over ranks, a file holds one rank's pieces.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData
from ckptctl.formats.budget import Budget, fault_kind
from ckptctl.formats.pickles.tensors import TABLE as TENSOR_TABLE
from ckptctl.formats.pickles.tensors import Storages, TensorRef
from ckptctl.formats.pickles.unpickler import Opaque, load
from ckptctl.formats.pickles.values import value_table
from ckptctl.formats.torch import saved
from ckptctl.formats.torch.saved import Saved
from ckptctl.formats.torch.states import Path, flatten
from ckptctl.formats.torch.wrapped import Held, unwrap
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
WRITER = "ckptctl"
"""A record that says who wrote the file; torch passes over it."""

_NUMBERS = {"int64": "q", "int32": "i", "int16": "h", "uint8": "B"}


def read(reader: Reader, file: File, *, prefix: Path = (), rank: int | None = None) -> Checkpoint:
    """Read the directory and the pickle of one file; damage becomes a fault of the checkpoint.

    ``prefix`` comes before the path of each key, ``rank`` is the one that wrote the file.
    """
    try:
        return _read(reader, file, prefix, rank)
    except MalformedData as error:
        kind = fault_kind(error)
        fault = Fault(kind, str(error), Location(file=file.path))
        return Checkpoint(NAME, {file.path: file}, faults=(fault,))


def is_converted(reader: Reader) -> bool:
    """Tell whether ``convert`` wrote a file; raises ``MalformedData`` for what is no such file."""
    return WRITER in saved.open_zip(reader)[1]


def state_of(reader: Reader) -> object:
    """Return the nested state of a file, objects of any class as stand-ins with all they hold.

    Raises ``MalformedData`` for damage.
    """
    return saved.read(reader, TENSOR_TABLE).state


def unpickle(data: bytes, *, table: Mapping[tuple[str, str], object] | None = None) -> object:
    """Build what a pickle of a state or value describes, without running anything.

    ``table`` says what is built of globals: those of values without it.
    """
    known = value_table() if table is None else table
    return load(data, known, persistent=Storages())[0]


def _read(reader: Reader, file: File, prefix: Path, rank: int | None) -> Checkpoint:
    found = saved.read(reader, value_table())

    def numbers(ref: TensorRef) -> tuple[int, ...]:
        return _whole_numbers(reader, found, ref)

    def tensors(value: Opaque) -> TensorRef | Held | None:
        return unwrap(value, numbers, rank)

    builder = _Builder(file, found)
    for path, value in flatten(found.state, (), Budget(reader.size), tensors):
        builder.add((*prefix, *path), value)
    whole = builder.result()
    faults = [
        Fault(
            FaultKind.UNSAFE_METADATA,
            message,
            Location(file=file.path, fqn=_caller(whole, message)),
        )
        for message in found.unsafe[:1]
    ]
    return replace(whole, faults=tuple(faults))


def _caller(found: Checkpoint, message: str) -> str | None:
    """Return the key of the value that calls what a message names, where it is one by itself."""
    for fqn, value in found.values.items():
        if isinstance(value, Opaque) and value.label() in message:
            return fqn
    return None


def _whole_numbers(reader: Reader, found: Saved, ref: TensorRef) -> tuple[int, ...]:
    """Read the numbers of a small tensor: the ranks of a mesh."""
    code, place = _NUMBERS.get(ref.dtype), found.storages.get(ref.storage.key)
    stored = None if place is None else found.stored(ref)
    span = None if stored is None else stored.row_major
    if code is None or span is None:
        raise MalformedData("the ranks of a mesh are no plain numbers")
    data = array(code, reader.read(*span))
    return tuple(data)


class _Builder:
    """Gathers entries and items while a state is walked."""

    def __init__(self, file: File, found: Saved) -> None:
        self._file, self._saved = file, found
        self._entries: dict[str, Entry] = {}
        self._paths: dict[str, Path] = {}
        self._items: list[tuple[str, Shape, Stored]] = []
        self._values: dict[str, object] = {}
        self._shared: dict[str, str] = {}
        self._views: dict[object, str] = {}

    def add(self, path: Path, value: object) -> None:
        """Take one leaf."""
        fqn = ".".join(map(str, path)) or "value"
        if fqn in self._entries:
            raise MalformedData(f"two of its keys are called {fqn[:120]}")
        self._paths[fqn] = path or (fqn,)
        if isinstance(value, TensorRef):
            self._add_whole(fqn, value)
        elif isinstance(value, Held):
            self._add_held(fqn, value)
        else:
            self._entries[fqn] = ObjectEntry(fqn)
            self._values[fqn] = value

    def _add_whole(self, fqn: str, value: TensorRef) -> None:
        stored = self._locate(fqn, value)
        self._place(
            fqn, value.dtype, value.shape, [(Box((0,) * len(value.shape), value.shape), stored)]
        )
        view = (stored.start, stored.offset, value.dtype, value.shape, value.stride, value.flags)
        first = self._views.setdefault(view, fqn)
        if first != fqn and stored.size:
            self._shared[fqn] = first

    def _add_held(self, fqn: str, value: Held) -> None:
        pieces = [(box, self._locate(fqn, ref)) for box, ref in value.pieces]
        if value.kind != "plain":
            whole = Box((0,) * len(value.shape), value.shape)
            pieces = [
                (whole, Stored(value.dtype, value.shape, whole.offsets, 0, 0, 0, kind=value.kind))
            ]
        solid = [piece for piece in pieces if piece[0].volume] or pieces[:1]
        self._place(fqn, value.dtype, value.shape, solid)

    def _place(self, fqn: str, dtype: str, shape: Shape, pieces: list[tuple[Box, Stored]]) -> None:
        boxes = Boxes.of(len(shape), [box for box, _ in pieces])
        self._entries[fqn] = TensorEntry(fqn, dtype, shape, boxes)
        self._items.extend((fqn, box.offsets, stored) for box, stored in pieces)

    def _locate(self, fqn: str, ref: TensorRef) -> Stored:
        stored = self._saved.stored(ref)
        if stored is None:
            raise MalformedData(f"{fqn[:120]}: the record of its storage is not there")
        declared, width = ref.storage.byte_size, item_size(ref.dtype)
        if declared is not None and declared != stored.size:
            raise MalformedData(
                f"{fqn[:120]}: its storage has {stored.size} bytes, and {declared} are declared"
            )
        if width is not None and all(ref.shape):
            steps = zip(ref.shape, ref.stride, strict=True)
            reach = ref.offset + 1 + sum((n - 1) * step for n, step in steps)
            if reach * width > stored.size:
                raise MalformedData(f"{fqn[:120]}: it reaches past the end of its storage")
        return stored

    def result(self) -> Checkpoint:
        """Put the checkpoint together."""
        origins: list[Shape | None] = [origin for _, origin, _ in self._items]
        items = Items(
            [fqn for fqn, _, _ in self._items],
            origins,
            [self._file.path] * len(self._items),
            array("q", [stored.start for _, _, stored in self._items]),
            array("q", [stored.size for _, _, stored in self._items]),
            stored={index: stored for index, (_, _, stored) in enumerate(self._items)},
        )
        return Checkpoint(
            format=NAME,
            files={self._file.path: self._file},
            sources=(self._file.path,),
            entries=self._entries,
            items=items,
            paths_in_state=self._paths,
            values=self._values,
            value_files=dict.fromkeys(self._values, (self._file.path,)),
            described=frozenset((self._file.path,)),
            shared=self._shared,
        )
