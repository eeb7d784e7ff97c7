"""Keys and members of sets: what is hashed must be hashed in bounded time and depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckptctl.errors import TooDeep, TooLarge
from ckptctl.formats.budget import MAX_DEPTH

_WIDE = 64
"""Bits above which numbers can be chosen so that all of them have one hash."""

_MOST_WIDE = 128


def check_key(key: object, take: Callable[[int], None]) -> bool:
    """Tell whether the hash of a key can be chosen; ``take`` counts what hashing it looks at.

    Raises ``TypeError`` for what has no hash, ``TooDeep`` for tuples nested too deeply.
    """
    if type(key) is not tuple:
        return _is_wide(key, take)
    wide = False
    pending: list[tuple[object, int]] = [(key, 0)]
    while pending:
        one, depth = pending.pop()
        if type(one) is tuple:
            if depth > MAX_DEPTH:
                raise TooDeep(f"it nests tuples more than {MAX_DEPTH} deep in a key")
            take(32 + len(one))
            pending.extend((inner, depth + 1) for inner in one)
        else:
            wide = _is_wide(one, take) or wide
    return wide


def _is_wide(one: object, take: Callable[[int], None]) -> bool:
    if type(one) is int:
        if one.bit_length() <= _WIDE:
            return False
        take(one.bit_length())
        return True
    state = getattr(one, "state", None)
    if type(state) is dict:  # an index of metadata is hashed by its fields
        take(len(state))
    hash(one)
    return type(one) is complex


def check_members(members: Iterable[object], take: Callable[[int], None]) -> None:
    """Check what a set or a mapping is made of at once; raises also where very many may collide."""
    if sum(check_key(one, take) for one in members) > _MOST_WIDE:
        raise TooLarge("it has too many keys whose hashes can be chosen")
