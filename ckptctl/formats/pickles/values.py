"""Decoding the small values of a checkpoint: ints, strings, schedules, RNG states.

Nothing of the file is run. Numbers, strings and plain containers come back as themselves; tensors,
arrays and objects of other classes as a ``Described`` that says what they are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ckptctl.errors import MalformedData
from ckptctl.formats.pickles.built import MAX_VALUE, Array, Described, Stream, value_table
from ckptctl.formats.pickles.tensors import StorageRef, Storages, TensorRef
from ckptctl.formats.pickles.unpickler import (
    Opaque,
    attributes_of,
    load,
)
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import Stored

__all__ = [
    "MAX_VALUE",
    "Described",
    "decode_item",
    "decode_number",
    "decode_pickle",
    "named_in",
    "value_table",
]

_NUMBERS = {
    "float64": "d",
    "float32": "f",
    "float16": "e",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint64": "Q",
    "uint32": "I",
    "uint16": "H",
    "uint8": "B",
    "bool": "?",
}


_MOST_VALUES, _DEEPEST, _WIDEST = 200_000, 50, 4096
_CONTAINERS = (dict, list, tuple, set, frozenset)


def named_in(data: bytes, sizes: Mapping[str, int] | None = None) -> list[str]:
    """List the globals that a pickle of values names and this tool does not know.

    ``sizes`` holds the bytes of the records beside it: storages must be among them. Raises
    ``MalformedData`` where it cannot be read, ``RunsCode`` where it calls what it must not.
    """
    storages = Storages()
    _, machine, _ = load(data, value_table(), persistent=storages)
    problem = storages.problem(sizes) if sizes is not None else ""
    if problem:
        raise MalformedData(problem)
    return [f"{module}.{name}" for module, name in machine.unknown]


def decode_item(data: bytes, *, attributes: bool = False) -> object:
    """Decode a whole item, tensor or object, from its bytes.

    With ``attributes`` an object of an unknown class comes back as the attributes and members it
    was pickled with, an enum's member as its value. Raises ``MalformedData`` where it is damaged.
    """

    def read(start: int, stop: int) -> bytes:
        return data[start:stop]

    directory = torchzip.read_directory(read, len(data))
    places: dict[str, tuple[int, int]] = {}
    for head in directory.heads:
        header = data[head.header : head.header + torchzip.LOCAL_SIZE + len(head.raw_name)]
        if len(header) < torchzip.LOCAL_SIZE + len(head.raw_name):
            raise MalformedData(f"record {head.name}: its local header is cut short")
        start = torchzip.data_start(header, head)
        places[head.name] = (start, start + head.size)
    if "data.pkl" not in places:
        raise MalformedData("it has no data.pkl")
    value, _, _ = load(data[slice(*places["data.pkl"])], value_table(), persistent=Storages())
    storages = {name: data[slice(*place)] for name, place in places.items()}
    little = storages.get("byteorder", b"little") != b"big"
    return _Plainer(storages, little=little, attributes=attributes).plain(value, 0)


def decode_pickle(data: bytes) -> object:
    """Decode a bare pickle of values, as data loaders put one inside another.

    Raises ``MalformedData`` where it is damaged.
    """
    value, _, _ = load(data, value_table(), persistent=Storages())
    return _Plainer({}, little=True, attributes=False).plain(value, 0)


class _Plainer:
    """Turns what an unpickler built into values to show, within bounds."""

    def __init__(self, storages: dict[str, bytes], *, little: bool, attributes: bool) -> None:
        self._storages, self._little = storages, little
        self._attributes = attributes
        self._left = _MOST_VALUES

    def plain(self, value: object, depth: int) -> object:
        """Return one value in plain form."""
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            return Described("too much to show")
        if self._attributes and isinstance(value, Opaque):
            held = attributes_of(value)
            return self._leaf(value) if held is value else self.plain(held, depth + 1)
        return (
            self._container(value, depth) if isinstance(value, _CONTAINERS) else self._leaf(value)
        )

    def _container(self, value: object, depth: int) -> object:
        def inner(one: object) -> object:
            return self.plain(one, depth + 1)

        if isinstance(value, dict):
            return {_key(inner(k)): inner(v) for k, v in value.items()}
        if isinstance(value, list):
            return [inner(one) for one in value]
        if isinstance(value, tuple):
            return tuple(inner(one) for one in value)
        if isinstance(value, set | frozenset):
            return {_key(inner(one)) for one in value}
        return Described(type(value).__name__)

    def _leaf(self, value: object) -> object:
        if isinstance(value, TensorRef):
            return _tensor(
                value, self._storages.get(f"data/{value.storage.key}", b""), little=self._little
            )
        if isinstance(value, Opaque):
            return Described(f"opaque {value.label()}")
        if isinstance(value, type) and issubclass(value, Opaque):
            return Described(f"class {value.label()}")
        if isinstance(value, Array | Stream):
            return Described(value.text)
        if isinstance(value, int) and value.bit_length() > _WIDEST:
            return Described(f"integer of {value.bit_length()} bits")
        if isinstance(value, str | bytes | int | float | complex | bool | Described | None):
            return value
        return Described(type(value).__name__)


def _key(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return Described("unhashable key")
    return value


def decode_number(stored: Stored, data: bytes) -> object:
    """Return the number in the bytes of a 0-d tensor, and a description of any other."""
    storage = StorageRef(None, "", stored.size)
    ref = TensorRef(storage, stored.dtype, 0, stored.shape, stored.stride, stored.flags)
    return _tensor(ref, data, little=stored.little)


def _tensor(ref: TensorRef, data: bytes, *, little: bool) -> object:
    """Return the number in a 0-d tensor, and a description of any other."""
    code = _NUMBERS.get(ref.dtype)
    if ref.shape == () and not ref.flags:
        if ref.dtype == "bfloat16":
            raw = data[ref.offset * 2 : ref.offset * 2 + 2]
            if len(raw) == 2:
                raw = raw if little else raw[::-1]
                return struct.unpack("<f", b"\0\0" + raw)[0]
        elif code is not None:
            width = struct.calcsize(code)
            raw = data[ref.offset * width : (ref.offset + 1) * width]
            if len(raw) == width:
                return struct.unpack(("<" if little else ">") + code, raw)[0]
    return Described(f"tensor {ref.dtype} {list(ref.shape)}")
