"""Decoding the small values of a checkpoint: ints, strings, schedules, RNG states.

Nothing of the file is run. Numbers, strings and plain containers come back as themselves; tensors,
arrays and objects of other classes as a ``Described`` that says what they are.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.pickles.tensors import TABLE as TENSOR_TABLE
from ckptctl.formats.pickles.tensors import StorageRef, TensorRef, persistent_storage
from ckptctl.formats.pickles.unpickler import Function, Opaque, Sealed, attributes_of, load
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import Stored

MAX_VALUE = 16 << 20
"""Bytes of an item above which its value is not decoded for display."""

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


@dataclass(frozen=True, slots=True)
class Described:
    """A value that is shown by what it is and not by what it holds."""

    text: str

    def __repr__(self) -> str:
        """The description between angle brackets."""
        return f"<{self.text}>"

    def to_plain(self) -> dict[str, str]:
        """The description as JSON holds it, so that it is not taken for a value."""
        return {"described": self.text}


class _Budget:
    """What one value may make out of little: bytes and members, each time it asks for more."""

    def __init__(self) -> None:
        self._left = 4 * MAX_VALUE

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise MalformedData("it makes too much out of too little")

    def encode(self, text: object, encoding: object = "latin1") -> object:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise MalformedData("bytes are spelled in an encoding other than latin1")
        self.take(len(text))
        return text.encode("latin1")

    def members(self, kind: Callable[[Iterable[object]], object]) -> Function:
        def build(found: object = (), longest: object = None) -> object:
            if longest is not None and type(longest) is not int:  # of a deque
                raise MalformedData("the length of a container is no number")
            if not isinstance(found, list | tuple | set | frozenset | dict):
                raise MalformedData("a container is not made of members")
            self.take(len(found))
            return kind(found)

        return Function(build)

    def mapping(self, *args: object) -> object:
        """Build what is a mapping apart from its class: OrderedDict, Counter, defaultdict."""
        pairs = args[-1] if args else {}
        if isinstance(pairs, dict):
            self.take(len(pairs))
            return dict(pairs)
        if isinstance(pairs, list):
            self.take(len(pairs))
            return {p[0]: p[1] for p in pairs if isinstance(p, list | tuple) and len(p) == 2}
        return {}


class _Stream(metaclass=Sealed):
    """A stream of bytes in memory, which a value may hold; only its length is kept."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, data: object = b"", *_: object) -> _Stream:
        """Note how long it is."""
        self = object.__new__(cls)
        self.text = f"stream of {len(data) if isinstance(data, bytes) else 0} bytes"
        return self

    def __init__(self, *_: object) -> None:
        """Accept what ``__new__`` has seen."""

    def __setstate__(self, state: object) -> None:
        """Take the bytes that a pickle fills it with: they come before position and attributes."""
        data = state[0] if isinstance(state, tuple) and state else b""
        self.text = f"stream of {len(data) if isinstance(data, bytes) else 0} bytes"


class _Array:
    """A numpy array being rebuilt: its state is (version, shape, dtype, order, data)."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = "numpy array"

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) >= 3:
            dtype = state[2].text if isinstance(state[2], _Array) else "?"
            shape = list(state[1]) if isinstance(state[1], tuple) else "?"
            self.text = f"numpy array {dtype} {shape}"


class _Dtype(_Array):
    """A numpy dtype; its state adds byte order and fields, which do not matter for display."""

    __slots__ = ()

    def __init__(self, name: object = "?") -> None:
        self.text = name if isinstance(name, str) else "?"

    def __setstate__(self, state: object) -> None:
        """Keep the name."""


def _dtype(name: object = "?", *_: object) -> object:
    return _Dtype(name)


def _scalar(dtype: object = None, data: object = b"", *_: object) -> object:
    code = dtype.text if isinstance(dtype, _Dtype) else ""
    form = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "u8": "<Q", "u4": "<I", "b1": "<?"}
    if isinstance(data, bytes) and code in form and len(data) == struct.calcsize(form[code]):
        return struct.unpack(form[code], data)[0]
    return Described(f"numpy scalar {code}")


def _when(kind: Callable[..., object]) -> Function:
    def build(*args: object) -> object:
        for given in (args, args[:1]):  # the second argument is a time zone, not always readable
            try:
                return str(kind(*given))
            except (TypeError, ValueError, OverflowError):
                continue
        return Described("time")

    return Function(build)


def _complex(real: object = 0, imaginary: object = 0) -> object:
    if isinstance(real, int | float) and isinstance(imaginary, int | float):
        return complex(real, imaginary)
    return Described("complex number")


def _range(*numbers: object) -> object:
    if len(numbers) <= 3 and all(type(n) is int and abs(n) < 1 << 63 for n in numbers):
        return Described(f"range{numbers}")
    return Described("range")


def _device(*parts: object) -> object:
    if len(parts) <= 2 and all(
        (isinstance(p, str) and len(p) < 64) or (type(p) is int and 0 <= p < 1 << 31) for p in parts
    ):
        return ":".join(map(str, parts))
    return Described("device")


_CALLS: dict[tuple[str, str], object] = {
    **TENSOR_TABLE,
    ("builtins", "complex"): Function(_complex),
    ("builtins", "bytes"): Function(lambda *_: b""),
    ("builtins", "slice"): Function(lambda *_: Described("slice")),
    ("builtins", "range"): Function(_range),
    ("datetime", "datetime"): _when(datetime.datetime),
    ("datetime", "date"): _when(datetime.date),
    ("datetime", "timedelta"): _when(datetime.timedelta),
    ("torch", "device"): Function(_device),
    ("_io", "BytesIO"): _Stream,
    **{
        (module, "_reconstruct"): Function(lambda *_: _Array())
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
    },
    **{
        (module, "scalar"): Function(_scalar)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
    },
    ("numpy", "dtype"): Function(_dtype),
    ("numpy", "ndarray"): "ndarray",
}


def value_table() -> dict[tuple[str, str], object]:
    """Return what a pickle of values may name, with a budget of its own."""
    budget = _Budget()
    mapping = Function(budget.mapping)
    return {
        **_CALLS,
        ("builtins", "set"): budget.members(set),
        ("builtins", "frozenset"): budget.members(frozenset),
        ("collections", "deque"): budget.members(list),
        ("collections", "OrderedDict"): mapping,
        ("collections", "defaultdict"): mapping,
        ("collections", "Counter"): mapping,
        ("_codecs", "encode"): Function(budget.encode),
    }


def dangerous_names(data: bytes) -> list[str]:
    """List what a pickle of values names that no training state has business naming.

    Raises ``MalformedData`` where it cannot be read.
    """
    _, unpickler, _ = load(data, value_table(), persistent=persistent_storage)
    return [name for name in unpickler.dangerous if not name.startswith(_PLAIN_PYTHON)]


_PLAIN_PYTHON = ("builtins.getattr", "functools.", "operator.", "_operator.", "types.")
"""Named by pickled bound methods, partials and the like, which some states hold."""


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
    value, _, _ = load(
        data[slice(*places["data.pkl"])], value_table(), persistent=persistent_storage
    )
    storages = {name: data[slice(*place)] for name, place in places.items()}
    little = storages.get("byteorder", b"little") != b"big"
    return _Plainer(storages, little=little, attributes=attributes).plain(value, 0)


def decode_pickle(data: bytes) -> object:
    """Decode a bare pickle of values, as data loaders put one inside another.

    Raises ``MalformedData`` where it is damaged.
    """
    value, _, _ = load(data, value_table(), persistent=persistent_storage)
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
        if isinstance(value, _Array | _Stream):
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
