"""From results to what JSON can hold: one way for all of them.

The metadata of a dataclass field says what its value means: ``TIME`` is seconds since the epoch,
written in ISO 8601, and ``PATH`` a path or URL as a user typed it, written as an absolute one.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Mapping
from typing import Any

from ckptctl.dataclass import Field, fields, is_dataclass

TIME: Mapping[str, str] = {"format": "date-time"}
PATH: Mapping[str, str] = {"format": "path"}
INTERNAL: Mapping[str, str] = {"format": "internal"}
"""Of a field that is for the library itself and stands in no output."""
_MOST_BYTES = 64


def plain(value: object) -> Any:
    """Return a value as JSON has it: NaN becomes a string, bytes an object with their length."""
    described = getattr(value, "to_plain", None)
    if described is not None and not isinstance(value, type):
        return described()
    if isinstance(value, enum.Enum):
        return getattr(value, "word", value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _field(getattr(value, f.name), f)
            for f in fields(value)
            if f.metadata.get("format") != INTERNAL["format"]
        }
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(inner) for inner in value), key=repr)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, bytes):
        return {"bytes": len(value), "hex": value[:_MOST_BYTES].hex()}
    return value


def _field(value: object, field: Field) -> Any:
    form = field.metadata.get("format")
    if form == TIME["format"] and isinstance(value, int | float):
        return iso(value)
    if form == PATH["format"] and isinstance(value, str) and value:
        return absolute(value)
    return plain(value)


def iso(seconds: float) -> str:
    """Write seconds since the epoch in ISO 8601, in UTC."""
    import datetime

    when = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    try:
        when += datetime.timedelta(seconds=seconds)
    except OverflowError:  # a file may claim any time
        when = when.max if seconds > 0 else when.min
    return when.isoformat(timespec="milliseconds")


def absolute(path: str) -> str:
    """Write a path as an absolute one; URLs stay as they are."""
    return path if "://" in path or "::" in path else os.path.abspath(path)  # noqa: PTH100
