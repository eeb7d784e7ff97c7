"""Dataclasses that cost little to define.

The standard library looks at each field with a regular expression, compiles six functions for each
frozen class, and imports ``inspect``; a short command defines two hundred classes. Here ``__init__``
alone is compiled, for a class of which many objects are made; everything else is shared. What the
standard library knows of a class (``fields``, ``replace``, ``asdict``) is made when it asks.
"""

from __future__ import annotations

import operator
from reprlib import recursive_repr
from types import MappingProxyType, MemberDescriptorType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Method = Callable[..., Any]

One = TypeVar("One")
_set = object.__setattr__
_FEW = 12
"""So many objects of a class are made field by field, which is cheaper than compiling."""


class _Missing:
    """Stands for a default that there is not."""


class _Factory:
    """Stands for a default that is made for each object; signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_MISSING: Any = _Missing()
_FACTORY = _Factory()
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Field:
    """One field of a class: its name, its type as it is written, its default."""

    __slots__ = ("compare", "default", "default_factory", "kw_only", "metadata", "name", "type")

    def __init__(
        self,
        default: Any = _MISSING,
        default_factory: Any = _MISSING,
        *,
        compare: bool = True,
        metadata: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.default, self.default_factory = default, default_factory
        self.compare, self.metadata, self.kw_only = compare, metadata, False
        self.name, self.type = "", ""


def fields(cls: Any) -> tuple[Field, ...]:
    """Return the fields of a class or of an object of it, in order."""
    found: tuple[Field, ...] = cls.__own_fields__
    return found


def is_dataclass(value: object) -> bool:
    """Tell whether this is a dataclass of this package or an object of one."""
    return hasattr(value, "__own_fields__")


def _replace(one: Any, /, **changes: Any) -> Any:
    for field in one.__own_fields__:
        if field.name not in changes:
            changes[field.name] = getattr(one, field.name)
    return one.__class__(**changes)


def _dataclass(
    *, frozen: bool = False, slots: bool = False, order: bool = False, kw_only: bool = False
) -> Callable[[type], type]:
    def decorate(cls: type) -> type:
        own = vars(cls)
        found: dict[str, Field] = {}
        for base in cls.__mro__[:0:-1]:
            found.update((field.name, field) for field in vars(base).get("__own_fields__", ()))
        for name, written in cls.__annotations__.items():
            if not str(written).startswith(("ClassVar", "typing.ClassVar")):
                found[name] = _field(cls, name, written, kw_only=kw_only)
        members: dict[str, Any] = {
            "__own_fields__": tuple(found.values()),
            "__dataclass_fields__": _FIELDS,
            "__dataclass_params__": _Parameters(
                frozen=frozen, slots=slots, order=order, kw_only=kw_only
            ),
            "__match_args__": tuple(name for name, field in found.items() if not field.kw_only),
            "__values__": _values([name for name, field in found.items() if field.compare]),
            "__signature__": _SIGNATURE,
            "__replace__": _replace,
            **_EVERY,
            **(_FROZEN if frozen else {"__hash__": None}),
            **(_ORDERED if order else {}),
            "__init__": None,
        }
        members = {name: member for name, member in members.items() if not _given(own, name)}
        made = _slotted(cls, found, members) if slots else cls
        for name, member in {} if slots else members.items():
            setattr(made, name, member)
        if "__init__" in members:
            made.__init__ = _later(made, frozen=frozen)  # type: ignore[misc]
        return made

    return decorate


def _given(own: Mapping[str, Any], name: str) -> bool:
    """Tell whether a class says this itself; Python takes its hash from one that says ``__eq__``."""
    taken = name == "__hash__" and own.get(name) is None and "__eq__" in own
    return name in own and not taken


def _field(cls: type, name: str, written: str, *, kw_only: bool) -> Field:
    default = getattr(cls, name, _MISSING)
    if isinstance(default, Field):
        field = default
        if field.default is not _MISSING:
            setattr(cls, name, field.default)
        else:
            delattr(cls, name)
    elif type(default).__module__ == "dataclasses":
        raise TypeError(
            f"field {name} is one of the standard library: take ckptctl.dataclass.field"
        )
    else:
        field = Field(_MISSING if isinstance(default, MemberDescriptorType) else default)
        if field.default.__class__.__hash__ is None:
            raise ValueError(f"mutable default {type(default)} for field {name}: use a factory")
    field.name, field.type, field.kw_only = name, written, kw_only
    return field


def _slotted(cls: Any, found: Mapping[str, Field], members: Mapping[str, Any]) -> Any:
    """Make the class once more, with a slot for each field that no base has."""
    above: set[str] = set()
    for base in cls.__mro__[1:-1]:
        above.update(vars(base).get("__slots__", ()))
    body = {
        name: value
        for name, value in vars(cls).items()
        if name not in found and name not in ("__dict__", "__weakref__")
    }
    body.update(members)
    body["__slots__"] = tuple(name for name in found if name not in above)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


class _Lazy:
    """An attribute that the standard library looks for and that is made when it is looked for."""

    def __get__(self, one: object, owner: type) -> dict[str, Any]:
        import dataclasses

        given = []
        for ours in fields(owner):
            said: dict[str, Any] = {"compare": ours.compare, "metadata": ours.metadata}
            said["kw_only"] = ours.kw_only
            for name in ("default", "default_factory"):
                if getattr(ours, name) is not _MISSING:
                    said[name] = getattr(ours, name)
            given.append((ours.name, ours.type, dataclasses.field(**said)))
        made: Any = dataclasses.make_dataclass(
            owner.__name__, given, init=False, repr=False, eq=False
        )
        return dict(made.__dataclass_fields__)


class _Parameters(SimpleNamespace):
    """How a class was made, in the words of the standard library."""

    init = repr = eq = match_args = True
    unsafe_hash = weakref_slot = False


class _Signature:
    """Has ``__init__`` compiled, which answers then, and acts as if it were not there."""

    def __get__(self, one: object, owner: type) -> None:
        finish = getattr(owner.__init__, "finish", None)  # type: ignore[misc]
        if finish is not None:
            finish()
        raise AttributeError("__signature__")


_FIELDS, _SIGNATURE = _Lazy(), _Signature()


def _later(cls: Any, *, frozen: bool) -> Method:
    """Return an ``__init__`` that gives way to a compiled one when the class is used a lot."""
    left = _FEW

    def finish() -> None:
        if cls.__init__ is __init__:
            method = _initializer(cls, fields(cls), frozen=frozen)
            method.__qualname__ = f"{cls.__qualname__}.__init__"
            cls.__init__ = method

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0 or not _filled(self, args, named):
            finish()
            cls.__init__(self, *args, **named)
        elif hasattr(cls, "__post_init__"):
            self.__post_init__()

    __init__.finish = finish  # type: ignore[attr-defined]
    return __init__


def _filled(one: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Set the fields as a call says, or tell that the call is wrong and leave it to a compiled one."""
    rest = iter(args)
    end = object()
    taken = 0
    for field in one.__own_fields__:
        name = field.name
        value = end if field.kw_only else next(rest, end)
        if value is end:
            if name in named:
                value = named[name]
                taken += 1
            elif field.default is not _MISSING:
                value = field.default
            elif field.default_factory is not _MISSING:
                value = field.default_factory()
            else:
                return False
        _set(one, name, value)
    return taken == len(named) and next(rest, end) is end


def _initializer(cls: type, found: tuple[Field, ...], *, frozen: bool) -> Method:
    """Compile ``__init__``, which sets the fields and hands over to ``__post_init__``."""
    known: dict[str, Any] = {"_set": _set, "_factory": _FACTORY}
    takes: list[str] = ["self"]
    named: list[str] = []
    lines = []
    for field in found:
        name, default = field.name, ""
        if field.default_factory is not _MISSING:
            known[f"_make_{name}"], default = field.default_factory, "=_factory"
            lines.append(f"if {name} is _factory: {name} = _make_{name}()")
        elif field.default is not _MISSING:
            known[f"_default_{name}"], default = field.default, f"=_default_{name}"
        (named if field.kw_only else takes).append(name + default)
        lines.append(f"_set(self, '{name}', {name})" if frozen else f"self.{name} = {name}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    if named:
        takes += ["*", *named]
    body = "\n ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(takes)}):\n {body}", known)
    made: Method = known["__init__"]
    made.__annotations__ = {**{field.name: field.type for field in found}, "return": None}
    return made


def _values(names: list[str]) -> Method:
    """Return what gives the values that are compared; as a class attribute it is not bound."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return staticmethod(lambda one: tuple(getattr(one, name) for name in names))


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__values__(self) == self.__values__(other)


def _hash(self: Any) -> int:
    return hash(self.__values__(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in self.__own_fields__)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _setattr(self: object, name: str, value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: object, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in self.__own_fields__]


def _setstate(self: Any, state: list[object]) -> None:
    for field, value in zip(self.__own_fields__, state, strict=True):
        _set(self, field.name, value)


def _compared(compare: Method) -> Method:
    """Return a comparison of order, which is that of the values."""

    def method(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compare(self.__values__(self), self.__values__(other))

    return method


_EVERY: dict[str, Any] = {"__eq__": _eq, "__hash__": _hash, "__repr__": _repr}
_FROZEN: dict[str, Any] = {
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
_ORDERED: dict[str, Any] = {
    "__lt__": _compared(operator.lt),
    "__le__": _compared(operator.le),
    "__gt__": _compared(operator.gt),
    "__ge__": _compared(operator.ge),
}


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    dataclass, field, replace = _dataclass, Field, _replace
