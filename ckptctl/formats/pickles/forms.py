"""Forms of arguments: what a listed callable may be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeGuard

from ckptctl.formats.pickles.stand_ins import Function, Opaque

Arguments: TypeAlias = tuple[object, ...]
Form: TypeAlias = Callable[[Arguments], bool]

SCALARS = (bool, int, float, complex, str, bytes, type(None))
PURE = frozenset(
    "max min sum len abs round sorted any all int float str bool repr ord chr bin hex oct divmod "
    "tuple list set frozenset dict complex bytes".split()
)
MOST_ARGUMENTS = 64
_MOST_LOOKED_AT = 1 << 14


def is_scalar(value: object) -> bool:
    """Tell whether a value is a number, text, bytes or None."""
    return type(value) in SCALARS


def is_plain(value: object) -> bool:
    """Tell whether a value is data: scalars, and containers that hold few of them."""
    pending: list[tuple[object, int]] = [(value, 0)]
    seen = 0
    while pending:
        one, depth = pending.pop()
        seen += 1
        if isinstance(one, dict):
            if not all(is_scalar(k) and is_scalar(v) for k, v in one.items()):
                return False
            seen += len(one)
        elif is_class(one):
            if one.module != "builtins" or one.name not in PURE:
                return False
        elif isinstance(one, tuple | list):
            if depth >= 4 or len(one) > MOST_ARGUMENTS or seen > _MOST_LOOKED_AT:
                return False
            pending.extend((inner, depth + 1) for inner in one)
        elif not is_scalar(one):
            return False
    return True


def is_class(value: object) -> TypeGuard[type[Opaque]]:
    """Tell whether a value is a global that the pickle named and nobody called."""
    return isinstance(value, type) and issubclass(value, Opaque)


def looks_like_class(name: str) -> bool:
    """Tell whether a name, with the classes it is nested in, is written as classes' names are."""
    return all(part.lstrip("_")[:1].isupper() for part in name.split("."))


def is_member(value: object) -> bool:
    """Tell whether a value is a named class, a type of Python's, or a member of a class."""
    return isinstance(value, type) and (
        not issubclass(value, Opaque)
        or looks_like_class(value.name)
        or (value.module == "builtins" and value.name in PURE)
    )


def scalars(least: int, most: int) -> Form:
    return lambda args: least <= len(args) <= most and all(map(is_scalar, args))


def members(args: Arguments) -> bool:
    return all(map(is_given, args)) and len(args) <= MOST_ARGUMENTS


def is_given(value: object) -> bool:
    """Tell whether a value is data: scalars, containers, or objects already made."""
    return is_scalar(value) or not isinstance(value, type | Function)


def iterates(args: Arguments) -> bool:
    return len(args) == 1 and is_given(args[0])


def iterated(args: Arguments) -> bool:
    return all(isinstance(one, list | tuple | str | bytes | Opaque | int) for one in args)


def maps(args: Arguments) -> bool:
    function = args[0] if args else None
    pure = is_class(function) and function.module == "builtins" and function.name in PURE
    return (pure or function is None) and iterated(args[1:])


def partial_of(args: Arguments) -> bool:
    return len(args) == 1 and (isinstance(args[0], type | Function | Opaque))


def union_of(args: Arguments) -> bool:
    """``int | None``: ``functools.reduce(operator.or_, types)``; also of a flag's members."""
    operation, parts = args if len(args) == 2 else (None, ())
    return (
        is_class(operation)
        and operation.label() in ("_operator.or_", "operator.or_")
        and isinstance(parts, tuple | list)
        and all(one is None or is_member(one) or isinstance(one, Opaque) for one in parts)
    )


def joined(args: Arguments) -> bool:
    """``or_`` of a flag's members, or of one with a number: so Python 3.11.0 to 3.11.3 pickle it."""
    return len(args) == 2 and all(
        type(one) is int or is_member(one) or isinstance(one, Opaque) for one in args
    )


def subscript(args: Arguments) -> bool:
    """``list[int]`` and what ``typing`` makes: a class with the classes in its brackets."""
    holder, parts = args if len(args) == 2 else (None, ())
    listed = parts if isinstance(parts, tuple) else (parts,)
    return is_member(holder) and all(
        is_scalar(one) or is_member(one) or isinstance(one, Opaque | list) for one in listed
    )


def none_type(args: Arguments) -> bool:
    return len(args) == 1 and (
        args[0] is None or (is_class(args[0]) and args[0].name in ("Ellipsis", "NotImplemented"))
    )


def contained(args: Arguments) -> bool:
    return not args or (len(args) == 1 and type(args[0]) in (list, tuple, set, frozenset))


def rebuilt(least: int, most: int) -> Form:
    return lambda args: (
        least <= len(args) <= most and not any(isinstance(one, Function) for one in args)
    )
