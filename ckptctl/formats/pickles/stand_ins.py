"""What stands for the globals of a pickle: functions of ours, and inert records of all others.

A pickle reaches these only through ``machine``, which gives each opcode to the ones that take it;
nothing in a pickle can set an attribute of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, cast

from ckptctl.errors import MalformedData, RunsCode, UnsafeData
from ckptctl.formats.budget import Budget
from ckptctl.formats.pickles.keys import check_members

_DEEPEST_ANATOMY = 200
_HOOKS = frozenset({"__setstate__", "append", "extend", "add"})
"""Attributes that unpickling looks up on an object and calls: a state must not plant them."""


class Sealed(type):
    """A class of classes whose attributes a pickle cannot set."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        """Refuse."""
        raise UnsafeData(f"the pickle tries to change {cls.__name__}.{name}")

    def __delattr__(cls, name: str) -> NoReturn:
        """Refuse."""
        raise UnsafeData(f"the pickle tries to delete {cls.__name__}.{name}")


class Function:
    """A function of ours that a pickle may call and not otherwise touch."""

    __slots__ = ("_call",)
    _call: Callable[..., object]

    def __init__(self, call: Callable[..., object]) -> None:
        """Wrap a function."""
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: object) -> object:
        """Call it."""
        return self._call(*args)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse."""
        raise UnsafeData("the pickle tries to change a reader's function")


class Stateful(metaclass=Sealed):
    """Base of what ``BUILD`` may be applied to."""

    __slots__ = ()

    def take_state(self, state: object) -> None:
        """Take a state; what is a mapping is copied, as unpickling does."""
        raise NotImplementedError


_LAYOUTS = frozenset(
    f"torch.{name}"
    for name in (
        "strided",
        "sparse_coo",
        "sparse_csr",
        "sparse_csc",
        "sparse_bsr",
        "sparse_bsc",
        "_mkldnn",
        "jagged",
    )
)


class Layout:
    """A tensor's layout; no text, so that it cannot stand in for one elsewhere in the pickle."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Note which it is."""
        self._name = name

    def __repr__(self) -> str:
        """Name it."""
        return self._name


def layout(*args: object) -> Layout:
    """Build a layout as ``torch.serialization._get_layout`` does."""
    if len(args) != 1 or type(args[0]) is not str or args[0] not in _LAYOUTS:
        raise MalformedData("it names a layout that torch does not have")
    return Layout(args[0])


class DtypeName(str):
    """A dtype of torch; no plain text, so that text cannot stand in for one."""

    __slots__ = ()


class Ordered(dict[object, object]):
    """An ``OrderedDict``."""

    __slots__ = ()


def ordered(*args: object) -> Ordered:
    """Build an ``OrderedDict`` of nothing, a mapping, or a list of pairs."""
    if not args:
        return Ordered()
    (pairs,) = args
    if isinstance(pairs, dict):
        return Ordered(pairs)
    if isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) in (str, int, bytes)
        for pair in pairs
    ):
        check_members((pair[0] for pair in pairs), Budget(0).take)
        return Ordered(pairs)
    raise MalformedData("an OrderedDict is not made of pairs")


def size(*args: object) -> tuple[object, ...]:
    """Build a ``torch.Size``: a tuple of numbers, as torch pickles it."""
    (numbers,) = args
    if type(numbers) is tuple and all(type(number) is int for number in numbers):
        return numbers
    raise MalformedData("a torch.Size is not made of numbers")


class Opaque(Stateful):
    """Stand-in for what a pickle names and this tool does not know; it records and does nothing."""

    __slots__ = ("args", "items", "state")
    module = "?"
    name = "?"

    args: tuple[object, ...]
    items: list[object]
    state: object

    def __init__(self, *args: object) -> None:
        """Record what the class or function was given."""
        self.args = args
        self.items = []
        self.state = None

    def take_state(self, state: object) -> None:
        """Record the state; refuse one that plants what unpickling would call next."""
        parts = state if type(state) is tuple and len(state) == 2 else (state,)
        for part in parts:
            if type(part) is dict:
                for hook in _HOOKS.intersection(key for key in part if type(key) is str):
                    if isinstance(part[hook], type | Function | Stateful):
                        raise RunsCode(f"it gives an object its own {hook}; nothing was run")
        if type(state) is dict:
            before = self.state
            self.state = {**before, **state} if type(before) is dict else dict(state)
        elif len(parts) == 2:
            self.state = tuple(dict(p) if type(p) is dict else p for p in parts)
        else:
            self.state = state

    @classmethod
    def label(cls) -> str:
        """The name of what it stands for."""
        return f"{cls.module}.{cls.name}"

    def __repr__(self) -> str:
        """Name it, without its content."""
        return f"<opaque {self.label()}>"


def opaque_class(module: str, name: str) -> type[Opaque]:
    """Make the stand-in for one global."""
    stand_in: Any = Sealed("Opaque", (Opaque,), {"__slots__": (), "module": module, "name": name})
    return cast("type[Opaque]", stand_in)


def attributes_of(stand_in: Opaque) -> object:
    """Return what an object was given, as plain containers; itself where it was given nothing.

    Attributes and members of a mapping or list come from its state and items. An enum's member is
    its value. A node of an OmegaConf tree is what it holds.
    """
    state = stand_in.state
    if isinstance(state, tuple):  # what is kept in slots comes second
        state = {k: v for one in state if isinstance(one, dict) for k, v in one.items()}
    found = state if isinstance(state, dict) else {}
    for holder in ("_content", "_val"):
        if holder in found:
            return found[holder]
    pairs = [one for one in stand_in.items if isinstance(one, tuple) and len(one) == 2]
    if pairs and all(isinstance(pair[0], str) for pair in pairs):
        return {**found, **dict(pairs)}
    if stand_in.items:
        return stand_in.items
    if found:
        return found
    if len(stand_in.args) == 1 and isinstance(stand_in.args[0], str | int | float):
        return stand_in.args[0]
    return stand_in


def anatomy(value: object, depth: int = 0, budget: Budget | None = None) -> object:
    """Return what can be compared of a value: stand-ins by what they stand for and were given."""
    if depth > _DEEPEST_ANATOMY:
        raise MalformedData("it nests too deeply")
    budget = Budget(0) if budget is None else budget
    budget.take(1)
    deeper = depth + 1
    if isinstance(value, Opaque):
        given = (value.args, value.items, value.state)
        return (value.label(), *(anatomy(one, deeper, budget) for one in given))
    if isinstance(value, dict):
        return [(anatomy(k, deeper, budget), anatomy(v, deeper, budget)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(anatomy(one, deeper, budget) for one in value))
    if type(value) is int:
        return hex(value)  # there is no limit to its digits
    return repr(value)  # of a NaN too, which is unlike itself
