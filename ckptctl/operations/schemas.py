"""The JSON Schemas of what the command line prints with ``--json``, as they are shipped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ckptctl.dataclass import dataclass
from ckptctl.errors import UsageError
from ckptctl.model.result.answer import Answer

FOLDER = "schemas"


@dataclass(frozen=True, slots=True)
class Schema(Answer):
    """The schema of one command's document, or without a name what schemas there are."""

    name: str
    names: tuple[str, ...]
    document: Mapping[str, Any]


def schema(name: str = "") -> Schema:
    """Return the schema of a command's document; raises ``UsageError`` for an unknown command."""
    shipped = files("ckptctl") / FOLDER
    names = tuple(sorted(p.name.removesuffix(".json") for p in shipped.iterdir()))
    if name and name not in names:
        raise UsageError(f"there is no schema {name!r}; there are {', '.join(names)}")
    document = json.loads((shipped / f"{name}.json").read_text("utf-8")) if name else {}
    return Schema(name, names, document)
