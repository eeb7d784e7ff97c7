"""How every command ends: with a result or an error, written in the format that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import UsageError
from ckptctl.exit_codes import ExitCode
from ckptctl.model.result.answer import Answer

FORMATS = {
    "text": "ckptctl.cli.output.as_text",
    "json": "ckptctl.cli.output.as_json",
}
"""The output formats: each is a module with a function ``write(ending)``."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one command ended.

    ``options`` are for the text of this result alone, and so is what stands ``before`` the message
    of an error.
    """

    command: str
    exit_code: ExitCode
    verdict: str
    result: Answer | None = None
    error: BaseException | None = None
    message: str = ""
    before: str = ""
    quiet: bool = False
    options: Mapping[str, object] = field(default_factory=dict)


class Writer(Protocol):
    """What each module of an output format is."""

    def write(self, ending: Ending) -> None:
        """Write an ending to standard output, and to standard error what is not for programs."""


def writer(output_format: str) -> Writer:
    """Load an output format; raises ``UsageError`` for one that there is not."""
    if output_format not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"--format takes one of {known}, not {output_format!r}")
    found: Writer = import_module(FORMATS[output_format])
    return found


def emit(
    result: Answer, output_format: str, *, command: str, quiet: bool = False, **options: object
) -> int:
    """Write a result and return the exit code of the command.

    With ``quiet`` a text for people is left out where nothing is wrong.
    """
    code = result.exit_code
    ending = Ending(command, code, result.verdict.value, result, quiet=quiet, options=options)
    writer(output_format).write(ending)
    return int(code)


def emit_error(
    error: BaseException,
    code: ExitCode,
    output_format: str,
    *,
    command: str,
    message: str,
    before: str,
) -> None:
    """Write an error, with what is known all the same where it carries a result."""
    result = getattr(error, "result", None)
    known = result if isinstance(result, Answer) else None
    ending = Ending(command, code, code.verdict, known, error, message, before)
    writer(output_format if output_format in FORMATS else "text").write(ending)
