"""Facts that identify a run: flat, dotted names to values that JSON can hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ckptctl.errors import MalformedData

Plain: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, or lists of them."""

CONFIG = "config"
CONFIG_DIGEST = "config_digest"
MOST_FACTS = 20_000
_MOST_VALUES = 100_000
_DEEPEST = 32
_LONGEST = 64 << 10
_WIDEST_INTEGER = 4096


def flatten(document: Mapping[Any, Any], *, prefix: str = "") -> dict[str, Plain]:
    """Give nested facts dotted names; lists stay lists where they hold only scalars.

    Raises ``MalformedData`` for what no JSON document can hold (NaN, objects), and for too much:
    20,000 facts, 100,000 values, 32 levels, 64 KiB of text in one.
    """
    found: dict[str, Plain] = {}
    for name, value in _Walk().leaves(document, prefix, 0):
        if name in found:
            raise MalformedData(f"two facts are called {name[:80]}")
        if len(found) >= MOST_FACTS:
            raise MalformedData(f"it holds more than {MOST_FACTS} facts")
        found[name] = value
    return found


def plain(value: Any, name: str) -> Plain:
    """Return a scalar, or a list of scalars, as JSON has it.

    Raises ``MalformedData`` naming the fact for what JSON cannot hold.
    """
    return _Walk().plain(value, name)


class _Walk:
    """A walk over one document, which may refer to parts of itself and so be larger than it looks."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise MalformedData(f"it holds more than {_MOST_VALUES} values")

    def leaves(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, Plain]]:
        self._count()
        if depth > _DEEPEST:
            raise MalformedData(f"{name[:80]} is nested more than {_DEEPEST} levels deep")
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if not isinstance(key, str | int | float):
                    raise MalformedData(f"{name[:80]}: a {type(key).__name__} is no name of a fact")
                text = key if isinstance(key, str) else json.dumps(key)
                yield from self.leaves(inner, f"{name}.{text}" if name else text, depth + 1)
        elif isinstance(value, list | tuple) and any(
            isinstance(one, Mapping | list | tuple) for one in value
        ):
            for index, inner in enumerate(value):
                yield from self.leaves(inner, f"{name}.{index}", depth + 1)
        else:
            yield name, self.plain(value, name)

    def plain(self, value: Any, name: str) -> Plain:
        self._count()
        if isinstance(value, list | tuple):
            return [self.plain(one, name) for one in value]
        if isinstance(value, set | frozenset):
            return sorted((self.plain(one, name) for one in value), key=json.dumps)
        return _scalar(value, name[:80])


def _scalar(value: Any, where: str) -> Plain:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _WIDEST_INTEGER:
            raise MalformedData(f"{where}: an integer of {value.bit_length()} bits is too large")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise MalformedData(f"{where}: {value} is no value that can be recorded")
        return value
    if isinstance(value, str):
        if len(value) > _LONGEST:
            raise MalformedData(f"{where}: a text of {len(value)} characters is too long")
        return value
    written = getattr(value, "isoformat", None)
    if written is not None:
        return str(written())
    raise MalformedData(f"{where}: a {type(value).__name__} cannot be recorded")


def config_digest(facts: Mapping[str, Plain]) -> str:
    """Return the digest of the training configuration: of all facts below ``config``."""
    chosen = {n: v for n, v in facts.items() if n.startswith(f"{CONFIG}.")}
    text = json.dumps(chosen, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def same(one: Plain, other: Plain) -> bool:
    """Compare two facts; ``"1e-4"``, as YAML reads that number, is the number."""
    if one == other:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return False
    try:
        return float(one) == float(other)
    except (TypeError, ValueError, OverflowError):
        return False
