"""The one encoder of machine output: dataclasses to JSON, with a schema's name."""

from __future__ import annotations

import json

from ckptctl.model.plain import plain


def to_json(schema: str, fields: dict[str, object]) -> str:
    """Write one result; ``schema`` names its form, e.g. ``ckptctl/list/1``."""
    document = {"schema": schema, **{key: plain(value) for key, value in fields.items()}}
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)
