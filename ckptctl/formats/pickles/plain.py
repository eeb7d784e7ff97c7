"""Pickling plain values again as torch.save does, and reusing pickles that are already there."""

from __future__ import annotations

import pickle

from ckptctl.errors import MalformedData, Unsupported
from ckptctl.formats.budget import Budget

_PROTOCOL = 2
_DEEPEST = 100
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def pickle_plain(value: object) -> bytes:
    """Pickle a value made of numbers, text, lists, tuples and mappings.

    Raises ``Unsupported`` for anything else: what it was is not known, so it cannot be written.
    """
    _check(value, 0, Budget(0))
    return pickle.dumps(_as_builtin(value), _PROTOCOL)


def _check(value: object, depth: int, budget: Budget) -> None:
    if depth > _DEEPEST:
        raise MalformedData("it nests too deeply")
    budget.take(1)  # what is used twice is written out twice
    if isinstance(value, dict):
        for key, inner in value.items():
            _check(key, depth + 1, budget)
            _check(inner, depth + 1, budget)
    elif type(value) in (list, tuple, set, frozenset):
        for inner in value:  # type: ignore[attr-defined]
            _check(inner, depth + 1, budget)
    elif type(value) not in _PLAIN:
        label = getattr(value, "label", None)
        what = label() if callable(label) else getattr(value, "text", type(value).__name__)
        raise Unsupported(f"it holds an object of {what}")


def _as_builtin(value: object) -> object:
    if isinstance(value, dict):
        return {_as_builtin(key): _as_builtin(inner) for key, inner in value.items()}
    if type(value) is list:
        return [_as_builtin(inner) for inner in value]
    if type(value) is tuple:
        return tuple(_as_builtin(inner) for inner in value)
    return value


def fragment(data: bytes) -> bytes:
    """Return the opcodes of a pickle without its frame, for use inside another one.

    Only protocol 2 can be taken over: later ones number what they remember by position.
    Raises ``MalformedData`` for others.
    """
    if data[:2] != b"\x80\x02" or data[-1:] != b".":
        raise MalformedData("it is pickled in a protocol other than 2")
    return data[2:-1]
