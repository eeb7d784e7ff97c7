"""What a pickle of values may name that is built or described here, and not kept closed."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData, RunsCode, TooLarge
from ckptctl.formats.pickles.forms import is_class
from ckptctl.formats.pickles.keys import check_members
from ckptctl.formats.pickles.tensors import TABLE as TENSOR_TABLE
from ckptctl.formats.pickles.unpickler import Function, Opaque, Ordered, Stateful, ordered

MAX_VALUE = 16 << 20
"""Bytes of an item above which its value is not decoded for display."""

_DEVICES = frozenset(
    "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia "
    "privateuseone".split()
)
"""Devices that every torch has a name for."""

_DEVICE = re.compile(r"[a-z_]{1,32}(?::\d{1,9})?")


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


class _Copies:
    """What one pickle may copy: bytes and members, each time it asks for more."""

    def __init__(self) -> None:
        self._left = 4 * MAX_VALUE

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooLarge("it makes too much out of too little")

    def encode(self, *args: object) -> bytes:
        text, encoding = (*args, "latin1")[:2]
        if type(text) is not str or encoding not in ("latin1", "latin-1") or len(args) > 2:
            raise RunsCode("it asks its reader to run _codecs.encode; nothing was run")
        self.take(len(text))
        return text.encode("latin1")

    def members(self, kind: Callable[[Iterable[object]], object], most: int) -> Function:
        def build(*args: object) -> object:
            found, *longest = args or ((),)
            if len(args) > most or any(one is not None and type(one) is not int for one in longest):
                raise MalformedData("the length of a container is no number")
            if type(found) not in (list, tuple, set, frozenset, dict, Ordered):
                raise MalformedData("a container is not made of members")
            self.take(len(found))  # type: ignore[arg-type]
            if kind is not list:
                check_members(found, self.take)  # type: ignore[arg-type]
            return kind(found)  # type: ignore[arg-type]

        return Function(build)

    def mapping(self, most: int) -> Function:
        """Build what is a mapping apart from its class: OrderedDict, Counter, defaultdict."""

        def build(*args: object) -> Ordered:
            *factory, pairs = args if len(args) == most else (*args, ())
            if len(args) > most or not all(_may_make_members(one) for one in factory):
                raise MalformedData("a mapping is not made of pairs")
            found = ordered(pairs)
            self.take(len(found))
            return found

        return Function(build)


def _may_make_members(factory: object) -> bool:
    """Tell whether something stands for the function that makes a mapping's missing members."""
    return factory is None or isinstance(factory, type | Function | Opaque)


class Stream(Stateful):
    """A stream of bytes or text in memory, which a value may hold; only its length is kept."""

    __slots__ = ("text",)
    text: str

    def __init__(self) -> None:
        self.text = "empty stream"

    def take_state(self, state: object) -> None:
        """Take what a pickle fills it with: it comes before position and attributes."""
        data = state[0] if type(state) is tuple and state else None
        if type(data) not in (bytes, str, bytearray):
            raise MalformedData("a stream in memory is not filled with bytes")
        self.text = f"stream of {len(data)} bytes"  # type: ignore[arg-type]


class Array(Stateful):
    """A numpy array being rebuilt: its state is (version, shape, dtype, order, data)."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = "numpy array"

    def take_state(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) >= 3:
            dtype = state[2].text if isinstance(state[2], Array) else "?"
            shape = state[1]
            if type(shape) is tuple and len(shape) <= 64 and all(type(n) is int for n in shape):
                self.text = f"numpy array {dtype} {[min(n, 1 << 63) for n in shape]}"
            else:
                self.text = f"numpy array {dtype}"


class _Dtype(Array):
    """A numpy dtype; its state adds byte order and fields, which do not matter for display."""

    __slots__ = ()

    def __init__(self, name: object = "?") -> None:
        self.text = name[:64] if type(name) is str else "?"

    def take_state(self, state: object) -> None:
        """Keep the name."""


def _array(*args: object) -> object:
    if len(args) != 3 or not (args[0] == "ndarray" or is_class(args[0])):
        raise MalformedData("a numpy array is rebuilt from something else")
    return Array()


def _dtype(*args: object) -> object:
    if not 1 <= len(args) <= 3:
        raise MalformedData("a numpy dtype has no name")
    return _Dtype(args[0])


def _scalar(*args: object) -> object:
    dtype, data = args if len(args) == 2 else (None, b"")
    code = dtype.text if isinstance(dtype, _Dtype) else ""
    form = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "u8": "<Q", "u4": "<I", "b1": "<?"}
    if isinstance(data, bytes) and code in form and len(data) == struct.calcsize(form[code]):
        return struct.unpack(form[code], data)[0]
    return Described(f"numpy scalar {code}")


def _when(name: str) -> Function:
    def build(*args: object) -> object:
        if len(args) > 8:
            raise MalformedData("a time is not made of numbers")
        import datetime

        kind = getattr(datetime, name)
        for given in (args, args[:1]):  # the second argument is a time zone, not always readable
            if all(type(one) in (int, float, bytes) for one in given):
                try:
                    return str(kind(*given))
                except (TypeError, ValueError, OverflowError):
                    continue
        return Described("time")

    return Function(build)


def _complex(*args: object) -> object:
    numbers = [one for one in args if isinstance(one, int | float)]
    if len(args) == len(numbers) <= 2:
        return complex(*numbers)
    return Described("complex number")


def _range(*numbers: object) -> object:
    if len(numbers) <= 3 and all(type(n) is int and abs(n) < 1 << 63 for n in numbers):
        return Described(f"range{numbers}")
    return Described("range")


def _bytes(*args: object) -> bytes:
    if not args:
        return b""
    if len(args) == 1 and type(args[0]) is bytes:
        return args[0]
    raise RunsCode("it asks its reader to run builtins.bytes; nothing was run")


def _slice(*args: object) -> object:
    if not 1 <= len(args) <= 3:
        raise MalformedData("a slice is not made of its ends")
    return Described("slice")


def _device(*parts: object) -> object:
    kind, *number = parts or ("",)
    if (
        type(kind) is str
        and _DEVICE.fullmatch(kind)
        and len(number) <= 1
        and all(type(n) is int and 0 <= n < 1 << 31 for n in number)
    ):
        text = ":".join(map(str, parts))
        # of any other only the torch with that backend makes a device
        return text if kind.partition(":")[0] in _DEVICES else Described(f"opaque device {text}")
    raise MalformedData("a device is not named")


_CALLS: dict[tuple[str, str], object] = {
    **TENSOR_TABLE,
    ("builtins", "complex"): Function(_complex),
    ("builtins", "bytes"): Function(_bytes),
    ("builtins", "slice"): Function(_slice),
    ("builtins", "range"): Function(_range),
    ("datetime", "datetime"): _when("datetime"),
    ("datetime", "date"): _when("date"),
    ("datetime", "timedelta"): _when("timedelta"),
    ("torch", "device"): Function(_device),
    **{(module, name): Stream for module in ("_io", "io") for name in ("BytesIO", "StringIO")},
    **{
        (module, "_reconstruct"): Function(_array)
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
    copies = _Copies()
    return {
        **_CALLS,
        ("builtins", "set"): copies.members(set, 1),
        ("builtins", "frozenset"): copies.members(frozenset, 1),
        ("collections", "deque"): copies.members(list, 2),
        ("collections", "OrderedDict"): copies.mapping(1),
        ("collections", "defaultdict"): copies.mapping(2),
        ("collections", "Counter"): copies.mapping(1),
        ("_codecs", "encode"): Function(copies.encode),
    }
