"""Taking a nested state apart into leaves with paths, as DCP flattens state dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from ckptctl.errors import MalformedData, TooDeep
from ckptctl.formats.budget import Budget
from ckptctl.formats.pickles.tensors import StorageRef, TensorRef
from ckptctl.formats.pickles.unpickler import Function, Opaque, attributes_of
from ckptctl.formats.torch.wrapped import Held

_DEEPEST = 64
_MOST_BITS = 4096
_OF_MODULES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that its state dict is made of, under the names that they have in them."""

Path: TypeAlias = tuple[str | int, ...]
Tensors: TypeAlias = Callable[[Opaque], TensorRef | Held | None]
"""Tells of an object which tensor it is, if it is one."""


def _none(_: Opaque) -> None:
    return None


def flatten(
    value: object, path: Path = (), budget: Budget | None = None, tensors: Tensors = _none
) -> Iterator[tuple[Path, object]]:
    """Yield the leaves of a state with their paths, as DCP's planner takes it apart.

    Mappings are always descended, lists where they hold a tensor or a mapping, tuples never.
    Objects that are tensors by ``tensors`` come as such; those with tensors in their attributes are
    descended, a module as its state dict is named. Raises ``TooDeep`` for a state that nests without
    end, and ``TooLarge`` for one whose parts are used again and again.
    """
    budget = Budget(0) if budget is None else budget
    if len(path) > _DEEPEST:
        raise TooDeep(f"it nests deeper than {_DEEPEST} levels")
    if isinstance(value, Opaque):
        found = tensors(value)
        inner = None if found is not None else _contents(value, budget)
        if found is not None or inner is None:
            yield path, value if found is None else found
            return
        value = inner
    if isinstance(value, dict):
        budget.take(8 + len(value))
        for key, inner in value.items():
            yield from flatten(inner, (*path, _name(key)), budget, tensors)
    elif isinstance(value, list) and _holds_more(value, 0, budget):
        for index, inner in enumerate(value):
            yield from flatten(inner, (*path, index), budget, tensors)
    else:
        yield path, value


def _name(key: object) -> str:
    """Return what a key is called in a flat state: its text, within bounds."""
    if type(key) is str:
        return key
    if isinstance(key, type | Function):
        raise MalformedData("a class or a function is a key")
    if isinstance(key, int) and key.bit_length() > _MOST_BITS:
        return f"integer of {key.bit_length()} bits"
    if isinstance(key, int | float | bytes | None):
        return str(key)
    if isinstance(key, StorageRef | TensorRef):
        raise MalformedData("a tensor or a storage is a key")
    return key.label() if isinstance(key, Opaque) else f"<{type(key).__name__}>"


def _contents(value: Opaque, budget: Budget) -> object | None:
    """Return what an object with tensors in it is made of; None for an object without any."""
    if not _holds_tensor(value, budget):
        return None
    state = value.state
    if isinstance(state, dict) and all(isinstance(state.get(n), dict) for n in _OF_MODULES):
        parts = [state[name] for name in _OF_MODULES]
        return {key: held for part in parts for key, held in part.items() if held is not None}
    found = attributes_of(value)
    return found if isinstance(found, dict | list) else Held("?", (), kind=value.label())


def _holds_tensor(value: object, budget: Budget, seen: set[int] | None = None) -> bool:
    """Tell whether a tensor lies anywhere in a value, however it is held; objects may be in circles."""
    seen = set() if seen is None else seen
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, TensorRef):
            return True
        if isinstance(one, Opaque):
            inner: list[object] = [*one.args, *one.items, one.state]
        elif isinstance(one, dict):
            inner = list(one.values())
        elif isinstance(one, list | tuple):
            inner = list(one)
        else:
            continue
        if id(one) not in seen:
            seen.add(id(one))
            budget.take(1 + len(inner))
            waiting.extend(inner)
    return False


def _holds_more(value: object, depth: int, budget: Budget) -> bool:
    if isinstance(value, dict | TensorRef):
        return True
    if isinstance(value, Opaque):
        return _holds_tensor(value, budget)
    if depth > _DEEPEST:
        raise TooDeep(f"it nests deeper than {_DEEPEST} levels")
    if not isinstance(value, list):
        return False
    budget.take(8 + len(value))
    return any(_holds_more(inner, depth + 1, budget) for inner in value)
