"""Reading the file of facts that a user gives to ``commit``: JSON, YAML or TOML, by its suffix."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ckptctl.errors import MalformedData, UsageError
from ckptctl.model.run_facts import Plain, flatten

_LARGEST = 1 << 20


def read_identity(path: Path) -> dict[str, Plain]:
    """Read a file of facts and give nested ones dotted names; dates become ISO 8601 text.

    A name without a suffix is read as JSON. Raises ``UsageError`` for a file that is not there,
    larger than 1 MiB, not of its suffix's form, no mapping, or that holds what JSON cannot (NaN).
    """
    suffix = path.suffix.lower() or ".json"
    load = _LOADERS.get(suffix)
    if load is None:
        raise UsageError(f"{path}: its name should end in one of {', '.join(_LOADERS)}")
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise UsageError(f"{path}: more than {_LARGEST} bytes are too many for facts about a run")
    try:
        found = load(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        detail = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(
            f"{path}: not {suffix[1:].upper()}: {' '.join(detail.split())[:200]}"
        ) from None
    if not isinstance(found, Mapping):
        raise UsageError(f"{path}: holds a {type(found).__name__}, and an object is expected")
    try:
        return flatten(found)
    except MalformedData as error:
        raise UsageError(f"{path}: {error}") from None


def _json(text: str) -> Any:
    return json.loads(text)


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(_missing("YAML", "PyYAML")) from None
    load: Callable[[str], Any] = yaml.safe_load
    try:
        return load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise UsageError(_missing("TOML", "tomli")) from None
    return tomllib.loads(text)


def _missing(form: str, package: str) -> str:
    return f"reading {form} needs {package}: `pip install 'ckptctl[identity]'`, or give JSON"


_LOADERS: dict[str, Callable[[str], Any]] = {
    ".json": _json,
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
}
