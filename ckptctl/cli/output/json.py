"""The one encoder of machine output: dataclasses to JSON, with a schema's name."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from typing import Any

from ckptctl.formats.pickles.values import Described
from ckptctl.model.finding import Severity, Stage


def to_json(schema: str, fields: dict[str, object]) -> str:
    """Write one result; ``schema`` names its form, e.g. ``ckptctl/list/1``."""
    document = {"schema": schema, **{key: plain(value) for key, value in fields.items()}}
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)


def plain(value: object) -> Any:
    """Return a value as JSON has it: NaN becomes a string, bytes and descriptions an object."""
    if isinstance(value, Severity | Stage):
        return value.word
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Described):
        return {"described": value.text}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
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
        return {"bytes": len(value), "hex": value[:64].hex()}
    return value
