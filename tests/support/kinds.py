"""Two hundred kinds of objects that people keep in the state of a training run, by name."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import ipaddress
import itertools
import logging
import math
import operator
import pathlib
import random
import re
import string
import types
import uuid
import zoneinfo
from argparse import Namespace
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Optional, TypeVar, Union

Kinds = dict[str, Callable[[], Any]]
Member = TypeVar("Member")


class Colour(enum.Enum):
    """An enum of numbers."""

    RED = 1
    BLUE = "blue"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    """An enum that is a number."""

    LOW = 1


class Mode(str, enum.Enum):
    """An enum that is text."""

    TRAIN = "train"


class Bits(enum.Flag):
    """Flags."""

    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    """A plain dataclass."""

    lr: float = 0.1
    names: list[str] = dataclasses.field(default_factory=lambda: ["a"])


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen dataclass with slots."""

    lr: float = 0.1
    inner: tuple[int, ...] = (1, 2)


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float = 0.5


Pair = collections.namedtuple("Pair", "first second")  # noqa: PYI024 - what people use


class Plain:
    """An object with attributes."""

    shared: ClassVar[int] = 3

    def __init__(self) -> None:
        self.value, self.more = 1, {"a": [1, 2]}

    class Inner:
        """A class inside a class."""

        kind = Colour.RED

    def method(self) -> int:
        """Something to be bound."""
        return self.value


class Slotted:
    """An object with slots."""

    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = 1, [2]


class Stateful:
    """An object with a state of its own making."""

    def __getstate__(self) -> tuple[int, str]:
        return 1, "two"

    def __setstate__(self, state: tuple[int, str]) -> None:
        self.state = state


class WithArguments:
    """An object that is made with arguments."""

    def __new__(cls, *, value: int = 3) -> WithArguments:
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"value": 4}


class Box(Generic[Member]):
    """A generic class."""

    def __init__(self, member: Member) -> None:
        self.member = member


class MyDict(dict[str, int]):
    """A mapping."""


class MyList(list[int]):
    """A list."""


class MyTuple(tuple[int, ...]):
    """A tuple."""

    __slots__ = ()


class MySet(set[int]):
    """A set."""


class MyInt(int):
    """A number."""


class MyFloat(float):
    """A number."""


class MyStr(str):
    """Text."""

    __slots__ = ("extra",)


class MyBytes(bytes):
    """Bytes."""


class MyOrdered(collections.OrderedDict[str, int]):
    """An ordered mapping."""


class MyDefault(collections.defaultdict[str, int]):
    """A mapping with a default."""


class MyCounter(collections.Counter[str]):
    """A counter."""


class MyDeque(collections.deque[int]):
    """A queue."""


class MyPath(pathlib.PurePosixPath):
    """A path."""


class MyError(Exception):
    """An error."""


def function(value: int) -> int:
    """A function of a module."""
    return value


def _iterator(kind: Callable[..., Any], *args: Any) -> Any:
    made = kind(*args)
    next(made)
    return made


def python() -> Kinds:
    """Kinds of Python's own and of classes of other packages."""
    shared = [1, 2]
    loop: list[Any] = [1]
    loop.append(loop)
    return {
        "none": lambda: None,
        "true": lambda: True,
        "zero": lambda: 0,
        "small": lambda: 255,
        "medium": lambda: 65536,
        "negative": lambda: -1,
        "large": lambda: 2**62,
        "huge": lambda: 2**300,
        "very huge": lambda: 1 << 20_000,
        "float": lambda: 0.1,
        "nan": lambda: math.nan,
        "infinity": lambda: -math.inf,
        "complex": lambda: 1 + 2j,
        "text": lambda: "text",
        "empty text": lambda: "",
        "long text": lambda: "x" * 70_000,
        "other text": lambda: "tëxt ☃",
        "half a character": lambda: "\ud800",
        "bytes": lambda: b"\x00\xff",
        "empty bytes": lambda: b"",
        "bytearray": lambda: bytearray(b"\x00\xff"),
        "ellipsis": lambda: ...,
        "not implemented": lambda: NotImplemented,
        "list": lambda: [1, "a", None],
        "empty list": list,
        "nested list": lambda: [[[[1]]]],
        "tuple": lambda: (1, "a"),
        "empty tuple": tuple,
        "triple": lambda: (1, 2, 3),
        "long tuple": lambda: tuple(range(3000)),
        "dict": lambda: {"a": 1, 2: "b", None: 3, (1, 2): 4, 1.5: 5, b"k": 6, True: 7},
        "empty dict": dict,
        "large dict": lambda: {i: i for i in range(3000)},
        "set": lambda: {1, 2, 3},
        "empty set": set,
        "frozenset": lambda: frozenset({1, "a"}),
        "set of tuples": lambda: {(1, 2), (3, 4)},
        "shared": lambda: [shared, shared],
        "loop": lambda: loop,
        "range": lambda: range(1, 10, 2),
        "slice": lambda: slice(1, None, 2),
        "object": object,
        "type": lambda: int,
        "none type": lambda: type(None),
        "class": lambda: Plain,
        "inner class": lambda: Plain.Inner,
        "function": lambda: function,
        "bound method": lambda: Plain().method,
        "builtin max": lambda: max,
        "builtin len": lambda: len,
        "builtin sum": lambda: sum,
        "math function": lambda: math.sqrt,
        "method of a type": lambda: str.upper,
        "iter of list": lambda: iter([1, 2]),
        "iter of list, begun": lambda: _iterator(iter, [1, 2, 3]),
        "iter of tuple": lambda: iter((1, 2)),
        "iter of dict": lambda: iter({"a": 1}),
        "iter of set": lambda: iter({1}),
        "iter of text": lambda: iter("ab"),
        "iter of range": lambda: iter(range(5)),
        "reversed": lambda: reversed([1, 2]),
        "enumerate": lambda: enumerate([1, 2]),
        "zip": lambda: zip([1], [2], strict=False),
        "map": lambda: map(str, [1, 2]),
        "count": lambda: itertools.count(3),
        "cycle": lambda: itertools.cycle([1, 2]),
        "repeat": lambda: itertools.repeat(1, 3),
        "chain": lambda: itertools.chain([1], [2]),
        "partial": lambda: functools.partial(max, 1),
        "partial of a function": lambda: functools.partial(function, value=1),
        "partial of partial": lambda: functools.partial(functools.partial(max, 1), key=len),
        "itemgetter": lambda: operator.itemgetter(1),
        "attrgetter": lambda: operator.attrgetter("a.b"),
        "methodcaller": lambda: operator.methodcaller("run", 1),
        "ordered": lambda: collections.OrderedDict(a=1),
        "empty ordered": collections.OrderedDict,
        "default of list": lambda: collections.defaultdict(list, a=[1]),
        "default of int": lambda: collections.defaultdict(int, a=1),
        "default of nothing": lambda: collections.defaultdict(None, a=1),
        "default of a partial": lambda: collections.defaultdict(functools.partial(int, 3), a=1),
        "counter": lambda: collections.Counter("abca"),
        "deque": lambda: collections.deque([1, 2]),
        "bounded deque": lambda: collections.deque([1, 2], maxlen=2),
        "chain map": lambda: collections.ChainMap({"a": 1}, {"b": 2}),
        "user dict": lambda: collections.UserDict(a=1),
        "user list": lambda: collections.UserList([1]),
        "user string": lambda: collections.UserString("a"),
        "named tuple": lambda: Point(1),
        "collections named tuple": lambda: Pair(1, [2]),
        "namespace": lambda: types.SimpleNamespace(a=1, b=[2]),
        "arguments": lambda: Namespace(lr=0.1, names=["a"]),
        "date": lambda: datetime.date(2026, 1, 2),
        "datetime": lambda: datetime.datetime(2026, 1, 2, 3, 4),
        "datetime with zone": lambda: datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        "time": lambda: datetime.time(1, 2, 3),
        "timedelta": lambda: datetime.timedelta(days=1, seconds=2),
        "timezone": lambda: datetime.timezone(datetime.timedelta(hours=2), "here"),
        "utc": lambda: datetime.timezone.utc,
        "zone": lambda: zoneinfo.ZoneInfo("UTC"),
        "decimal": lambda: decimal.Decimal("1.50"),
        "fraction": lambda: fractions.Fraction(1, 3),
        "path": lambda: pathlib.PurePosixPath("/a/b"),
        "real path": lambda: pathlib.Path("a/b"),
        "windows path": lambda: pathlib.PureWindowsPath("c:/a"),
        "empty path": lambda: pathlib.PurePosixPath(),
        "uuid": lambda: uuid.UUID(int=5),
        "pattern": lambda: re.compile("a+b", re.IGNORECASE),
        "pattern of bytes": lambda: re.compile(b"a"),
        "random": lambda: random.Random(3),
        "random state": lambda: random.Random(3).getstate(),
        "array": lambda: array.array("d", [1.0, 2.0]),
        "address": lambda: ipaddress.ip_address("127.0.0.1"),
        "network": lambda: ipaddress.ip_network("10.0.0.0/8"),
        "template": lambda: string.Template("$a"),
        "logger": lambda: logging.getLogger("a.b"),
        "bytes stream": lambda: io.BytesIO(b"abc"),
        "read stream": lambda: (s := io.BytesIO(b"abc"), s.read(1))[0],
        "text stream": lambda: io.StringIO("abc"),
        "union": lambda: int | None,
        "generic": lambda: list[int],
        "generic of two": lambda: dict[str, list[int]],
        "optional": lambda: Optional[int],  # noqa: UP045
        "typing union": lambda: Union[int, str],  # noqa: UP007
        "any": lambda: Any,
        "callable": lambda: Callable[[int], str],
        "type variable": lambda: Member,
        "enum": lambda: Colour.RED,
        "enum of text": lambda: Colour.BLUE,
        "enum of a tuple": lambda: Colour.PAIR,
        "int enum": lambda: Level.LOW,
        "str enum": lambda: Mode.TRAIN,
        "flag": lambda: Bits.A,
        "flags": lambda: Bits.A | Bits.B,
        "enum as key": lambda: {Colour.RED: 1},
        "enum class": lambda: Colour,
        "signal": lambda: __import__("signal").SIGINT,
        "status": lambda: __import__("http").HTTPStatus.OK,
        "regex flag": lambda: re.IGNORECASE,
        "dataclass": Config,
        "frozen dataclass": Frozen,
        "dataclass field": lambda: dataclasses.field(default=1),
        "object with attributes": Plain,
        "object with slots": Slotted,
        "object with a state": Stateful,
        "object with arguments": WithArguments,
        "object of an inner class": Plain.Inner,
        "generic object": lambda: Box([1]),
        "generic alias": lambda: Box[int],
        "subclass of dict": lambda: MyDict(a=1),
        "subclass of list": lambda: MyList([1]),
        "subclass of tuple": lambda: MyTuple((1, 2)),
        "subclass of set": lambda: MySet({1}),
        "subclass of int": lambda: MyInt(3),
        "subclass of float": lambda: MyFloat(0.5),
        "subclass of str": lambda: MyStr("a"),
        "subclass of bytes": lambda: MyBytes(b"a"),
        "subclass of OrderedDict": lambda: MyOrdered(a=1),
        "subclass of defaultdict": lambda: MyDefault(int, a=1),
        "subclass of Counter": lambda: MyCounter("ab"),
        "subclass of deque": lambda: MyDeque([1]),
        "subclass of a path": lambda: MyPath("a/b"),
        "error": lambda: ValueError("wrong", 3),
        "key error": lambda: KeyError("a"),
        "own error": lambda: MyError("wrong"),
        "os error": lambda: OSError(2, "gone"),
        "objects as keys": lambda: {Frozen(): 1},
        "deep": lambda: functools.reduce(lambda inner, _: {"a": [inner]}, range(20), 1),
    }


def with_numpy() -> Kinds:
    """Kinds of numpy's."""
    import numpy as np

    return {
        "array of floats": lambda: np.arange(6.0).reshape(2, 3),
        "array of ints": lambda: np.arange(3),
        "fortran array": lambda: np.asfortranarray(np.ones((2, 3))),
        "empty array": lambda: np.empty((0, 3)),
        "0-d array": lambda: np.array(1.5),
        "array of text": lambda: np.array(["a", "bc"]),
        "array of bytes": lambda: np.array([b"a"]),
        "array of objects": lambda: np.array([{"a": 1}, None], dtype=object),
        "array of bools": lambda: np.array([True, False]),
        "array of times": lambda: np.array(["2026-01-02"], dtype="datetime64[D]"),
        "structured array": lambda: np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        "masked array": lambda: np.ma.masked_array([1, 2], mask=[True, False]),
        "record array": lambda: np.rec.array([(1, 2.0)], names="a,b"),
        "float64": lambda: np.float64(0.5),
        "float32": lambda: np.float32(0.5),
        "float16": lambda: np.float16(0.5),
        "int64": lambda: np.int64(3),
        "numpy bool": lambda: np.bool_(True),
        "complex128": lambda: np.complex128(1 + 2j),
        "datetime64": lambda: np.datetime64("2026-01-02"),
        "dtype": lambda: np.dtype("float32"),
        "structured dtype": lambda: np.dtype([("a", "i4")]),
        "scalar type": lambda: np.float32,
        "ufunc": lambda: np.add,
        "numpy function": lambda: np.mean,
        "generator": lambda: np.random.default_rng(3),
        "random state of numpy": lambda: np.random.RandomState(3),
        "state of numpy": lambda: np.random.RandomState(3).get_state(),
        "bit generator": lambda: np.random.PCG64(3),
        "seed sequence": lambda: np.random.SeedSequence(3),
        "bit generator's state": lambda: np.random.PCG64(3).state,
    }


def with_torch() -> Kinds:
    """Kinds of torch's that are kept beside tensors."""
    import torch

    return {
        "size": lambda: torch.Size([2, 3]),
        "empty size": lambda: torch.Size([]),
        "torch dtype": lambda: torch.float32,
        "bfloat16": lambda: torch.bfloat16,
        "torch device": lambda: torch.device("cpu"),
        "torch device with number": lambda: torch.device("cuda", 1),
        "layout": lambda: torch.strided,
        "memory format": lambda: torch.channels_last,
        "torch generator": torch.Generator,
        "state of a generator": lambda: torch.Generator().get_state(),
        "tensor in a tuple": lambda: (torch.ones(2), 1),
        "tensor in an object": lambda: Box(torch.ones(2)),
        "parameter": lambda: (torch.nn.Parameter(torch.ones(2)),),
        "sparse tensor": lambda: (torch.eye(3).to_sparse(),),
        "quantized tensor": lambda: (
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        ),
        "storage": lambda: torch.ones(2).untyped_storage(),
        "module": lambda: torch.nn.Linear(2, 3),
        "sequential": lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
        "schedule": lambda: torch.optim.lr_scheduler.StepLR(
            torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), 3
        ).state_dict(),
        "optimizer's state": lambda: torch.optim.SGD(
            [torch.nn.Parameter(torch.ones(1))], lr=0.1
        ).state_dict(),
        "module class": lambda: torch.nn.Linear,
        "torch function": lambda: torch.relu,
        "functional": lambda: torch.nn.functional.gelu,
        "result of max": lambda: torch.ones(2, 2).max(dim=0),
        "packed sequence": lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(2)]),
        "version": lambda: torch.__version__,
        "scaler's state": lambda: torch.amp.GradScaler("cpu", enabled=False).state_dict(),
    }
