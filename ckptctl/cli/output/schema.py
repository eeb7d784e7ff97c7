"""JSON Schemas of the documents that commands print, made from the types of their results.

They are shipped in ``ckptctl/schemas`` and printed by ``ckptctl schema``; a test compares them with
what is made here.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

from ckptctl import results
from ckptctl.cli.output.as_json import schema_id
from ckptctl.dataclass import Field, fields, is_dataclass
from ckptctl.exit_codes import ExitCode
from ckptctl.model.result.plain import INTERNAL, PATH, TIME, plain
from ckptctl.model.result.verdict import Verdict

DIALECT = "https://json-schema.org/draft/2020-12/schema"
RESULTS = {
    "list": "Listing",
    "show": "Shown",
    "verify": "Verifications",
    "digest": "Content",
    "diff": "Diff",
    "convert": "Conversion",
    "reshard": "Resharding",
    "resolve": "Resolution",
    "commit": "Committed",
    "promote": "Promoted",
    "quarantine": "Marked",
    "release": "Marked",
    "history": "History",
    "prune": "Plan",
    "undelete": "Undeleted",
    "schema": "Schema",
}
"""The type of each command's result."""

OF_ERRORS = {"resolve": "Unresolved", "reshard": "Unresolved"}
"""The type of a result that an error of the command carries, where it is another."""

_PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: {"type": ["number", "string"]},  # NaN and infinities are words
    complex: {"type": "string"},
    bytes: {"type": "object", "required": ["bytes", "hex"]},
    type(None): {"type": "null"},
}


def document_schema(command: str) -> dict[str, Any]:
    """Return the schema of everything that one command prints with ``--json``."""
    maker = _Maker()
    names = [table[command] for table in (RESULTS, OF_ERRORS) if command in table]
    known = [maker.of(getattr(results, name)) for name in names]
    error = {
        "type": "object",
        "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        "required": ["type", "message"],
        "additionalProperties": False,
    }
    codes = [int(code) for code in ExitCode if code is not ExitCode.PIPE_CLOSED]
    words = [*Verdict, *(c.verdict for c in ExitCode if c is not ExitCode.DONE)]
    properties = {
        "schema": {"const": schema_id(command)},
        "command": {"const": command},
        "exit_code": {"enum": codes},
        "verdict": {"enum": [*dict.fromkeys(map(str, words))]},
        "result": {"anyOf": [*known, {"type": "null"}]},
        "error": {"anyOf": [error, {"type": "null"}]},
    }
    return {
        "$schema": DIALECT,
        "$id": schema_id(command),
        "title": f"What `ckptctl {command} --json` prints, however it ends.",
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
        "$defs": dict(sorted(maker.definitions.items())),
    }


class _Maker:
    """Makes the schemas of types; those of dataclasses are definitions that others refer to."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._names: dict[type, str] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """Return the schema of one type as it is annotated."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        if origin is tuple and arguments[-1:] != (...,):
            items = [self.of(one) for one in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
        if origin in (tuple, list, set, frozenset):
            return {"type": "array", "items": self.of(arguments[0])}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return {"enum": [plain(member) for member in hint]}
        if is_dataclass(hint) and isinstance(hint, type):
            return {"$ref": f"#/$defs/{self._definition(hint)}"}
        return {}

    def _union(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        found = [self.of(one) for one in arguments]
        if {} in found:
            return {}
        return {"anyOf": found}

    def _definition(self, kind: type) -> str:
        if kind in self._names:
            return self._names[kind]
        name = kind.__name__
        if name in self.definitions:  # two rooms may call different things by one word
            name = f"{kind.__module__.rpartition('.')[2].capitalize()}{name}"
        self._names[kind] = name
        self.definitions[name] = {}
        hints = typing.get_type_hints(kind)
        found = {
            one.name: one
            for one in fields(kind)
            if one.metadata.get("format") != INTERNAL["format"]
        }
        self.definitions[name] = {
            "description": (kind.__doc__ or "").split("\n")[0],
            "type": "object",
            "properties": {key: self._field(one, hints[key]) for key, one in found.items()},
            "required": [*found],
            "additionalProperties": False,
        }
        return name

    def _field(self, field: Field, hint: Any) -> dict[str, Any]:
        form = field.metadata.get("format")
        if form == TIME["format"]:
            when = {"type": "string", "format": "date-time"}
            optional = type(None) in typing.get_args(hint)
            return {"anyOf": [when, {"type": "null"}]} if optional else when
        found = self.of(hint)
        if form == PATH["format"]:
            found["description"] = "an absolute path, or a URL"
        return found
