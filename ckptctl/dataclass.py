"""Dataclasses that cost little to define.

The standard library compiles six functions for each frozen dataclass, which takes half a millisecond,
and a short command defines a hundred. Here ``__init__`` alone is compiled, when the first object is
made; everything else is shared. Fields, ``replace``, comparison, hash, text and pickling are those of
the standard library.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Fields = tuple[dataclasses.Field[Any], ...]
    Method = Callable[..., Any]

_set = object.__setattr__


class _Factory:
    """Stands for a default that is made for each object; signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _dataclass(
    *, frozen: bool = False, slots: bool = False, order: bool = False, kw_only: bool = False
) -> Callable[[type], type]:
    def decorate(cls: type) -> type:
        if order:  # rare
            return dataclasses.dataclass(frozen=frozen, slots=slots, order=True)(cls)
        own = cls.__dict__
        inherits = any(map(dataclasses.is_dataclass, cls.__bases__))  # both must be frozen then
        made_class: Any = dataclasses.dataclass(
            init=False,
            repr=False,
            eq=False,
            frozen=frozen and inherits,
            slots=slots,
            kw_only=kw_only,
        )(cls)
        params = made_class.__dataclass_params__
        params.init = params.repr = params.eq = True
        params.frozen = frozen
        fields = dataclasses.fields(made_class)
        methods = _shared(fields)
        if frozen:
            methods += _frozen(fields)
        for method in methods:
            if method.__name__ not in own:
                method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
                setattr(made_class, method.__name__, method)
        if not frozen:
            made_class.__hash__ = own.get("__hash__")
        if "__init__" not in own:
            _later(made_class, fields, frozen=frozen)
        return made_class  # type: ignore[no-any-return]

    return decorate


def _later(cls: Any, fields: Fields, *, frozen: bool) -> None:
    """Compile ``__init__`` when it is called, or when the class is asked for its signature."""

    def finish() -> None:
        if cls.__init__ is first:
            method = _initializer(cls, fields, frozen=frozen)
            method.__qualname__ = f"{cls.__qualname__}.__init__"
            cls.__init__ = method

    def first(self: Any, *args: object, **named: object) -> None:
        finish()
        cls.__init__(self, *args, **named)

    class Signature:
        """Answers as if it were not there, once the class can answer by itself."""

        def __get__(self, one: object, owner: type) -> None:
            finish()
            raise AttributeError("__signature__")

    cls.__init__ = first
    cls.__signature__ = Signature()


def _initializer(cls: type, fields: Fields, *, frozen: bool) -> Method:
    """Compile ``__init__``, which sets the fields and hands over to ``__post_init__``."""
    missing = dataclasses.MISSING
    known: dict[str, Any] = {"_set": _set, "_factory": _FACTORY}
    takes: list[str] = ["self"]
    named: list[str] = []
    lines = []
    for field in fields:
        name, default = field.name, ""
        if field.default_factory is not missing:
            known[f"_make_{name}"], default = field.default_factory, "=_factory"
            lines.append(f"if {name} is _factory: {name} = _make_{name}()")
        elif field.default is not missing:
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
    made.__annotations__ = {**{field.name: field.type for field in fields}, "return": None}
    return made


def _shared(fields: Fields) -> list[Method]:
    names = tuple(field.name for field in fields)
    values: Method = lambda one: tuple(getattr(one, name) for name in names)  # noqa: E731
    if len(names) > 1:
        values = attrgetter(*names)

    def __eq__(self: object, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(values(self) == values(other))

    def __hash__(self: object) -> int:
        return hash(values(self))

    @recursive_repr()
    def __repr__(self: object) -> str:
        shown = map("{}={!r}".format, names, values(self))
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    return [__eq__, __hash__, __repr__]


def _frozen(fields: Fields) -> list[Method]:
    names = tuple(field.name for field in fields)

    def __setattr__(self: object, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self: object, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self: object) -> list[object]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: object, state: list[object]) -> None:
        for name, value in zip(names, state, strict=True):
            _set(self, name, value)

    return [__setattr__, __delattr__, __getstate__, __setstate__]


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
