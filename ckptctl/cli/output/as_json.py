"""The JSON document of a command: one envelope for every ending, and nothing else on stdout."""

from __future__ import annotations

import json
import sys

from ckptctl.cli.output.as_text import complain
from ckptctl.cli.output.emit import Ending

VERSION = 2


def schema_id(command: str) -> str:
    """Name the form of a command's document; without a command, that of any."""
    return f"ckptctl/{command}/{VERSION}" if command else f"ckptctl/{VERSION}"


def write(ending: Ending) -> None:
    """Write the envelope; an error is said on standard error as well."""
    error = None
    if ending.error is not None:
        complain(ending)
        remedy = getattr(ending.error, "remedy", "")
        message = f"{ending.message}\n{remedy}" if remedy else ending.message
        error = {"type": type(ending.error).__name__, "message": message}
    document = {
        "schema": schema_id(ending.command),
        "command": ending.command or None,
        "exit_code": int(ending.exit_code),
        "verdict": ending.verdict,
        "result": None if ending.result is None else ending.result.to_dict(),
        "error": error,
    }
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n")
