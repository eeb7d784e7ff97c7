"""Writing one ``torch.save`` file of a whole state, streamed: tensors, and values as they were."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.torch.reader import WRITER
from ckptctl.formats.torch.zip_writer import (
    Archive,
    Sink,
    number,
    payload_size,
    storage_class,
    strides,
)
from ckptctl.model.geometry import Shape


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor of the state; those with one ``storage`` share its bytes."""

    dtype: str
    shape: Shape
    storage: int


@dataclass(frozen=True, slots=True)
class ValueLeaf:
    """A value of the state as opcodes that leave it on the stack."""

    opcodes: bytes


Leaf = TensorLeaf | ValueLeaf
Tree = Mapping[object, object]


def nest(leaves: Iterable[tuple[Sequence[str | int], Leaf]]) -> dict[object, object]:
    """Build the nested state from paths; where all keys of a level count up from 0 it is a list.

    A list of which members were left out becomes a mapping from their numbers.

    Raises ``MalformedData`` where one path leads through another's leaf.
    """
    root: dict[object, object] = {}
    for path, leaf in leaves:
        place = root
        for element in path[:-1]:
            inner = place.setdefault(element, {})
            if not isinstance(inner, dict):
                raise MalformedData(f"{'.'.join(map(str, path))}: its parent is a value")
            place = inner
        if path[-1] in place:
            raise MalformedData(f"{'.'.join(map(str, path))}: it is there twice")
        place[path[-1]] = leaf
    return root


def pickle_of(tree: Tree) -> bytes:
    """Return the ``data.pkl`` of a nested state."""
    out = bytearray(b"\x80\x02")
    _emit(tree, out)
    return bytes(out + b".")


def _emit(value: object, out: bytearray) -> None:
    if isinstance(value, dict):
        if (
            value
            and all(type(key) is int for key in value)
            and sorted(value) == [*range(len(value))]
        ):
            out += b"]("
            for index in range(len(value)):
                _emit(value[index], out)
            out += b"e"
            return
        out += b"}("
        for key, inner in value.items():
            _text(str(key), out)
            _emit(inner, out)
        out += b"u"
    elif isinstance(value, ValueLeaf):
        out += value.opcodes
    elif isinstance(value, TensorLeaf):
        _tensor(value, out)
    else:
        raise MalformedData(f"a {type(value).__name__} cannot be written")


def _text(text: str, out: bytearray) -> None:
    data = text.encode("utf-8", "surrogatepass")
    out += b"X" + len(data).to_bytes(4, "little") + data


def _name(module: str, name: str, out: bytearray) -> None:
    out += b"c%s\n%s\n" % (module.encode(), name.encode())


def _numbers(values: Shape, out: bytearray) -> None:
    out += b"(" + b"".join(map(number, values)) + b"t"


def _tensor(leaf: TensorLeaf, out: bytearray) -> None:
    size, typed = payload_size(leaf.dtype, leaf.shape), storage_class(leaf.dtype)
    _name("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3", out)
    out += b"(("
    _text("storage", out)
    _name(*(("torch", typed) if typed else ("torch.storage", "UntypedStorage")), out)
    _text(str(leaf.storage), out)
    _text("cpu", out)
    out += number(math.prod(leaf.shape) if typed else size) + b"tQ" + number(0)
    _numbers(leaf.shape, out)
    _numbers(strides(leaf.shape), out)
    out += b"\x89"
    _name("collections", "OrderedDict", out)
    out += b")R"
    if not typed:
        _name("torch", leaf.dtype, out)
    out += b"tR"


def write(sink: Sink, tree: Tree, storages: Iterable[tuple[int, int, Iterator[memoryview]]]) -> int:
    """Write the file; ``storages`` gives number, bytes and content of each. Return its bytes."""
    archive = Archive(sink)
    data = pickle_of(tree)
    for name, record in (
        (b"data.pkl", data),
        (b".format_version", b"1"),
        (b".storage_alignment", b"64"),
        (b"byteorder", b"little"),
        (WRITER.encode(), b"convert"),
    ):
        archive.record(name, len(record), (record,))
    for storage, size, pieces in storages:
        archive.record(b"data/%d" % storage, size, pieces)
    return archive.finish()
