"""The application: its commands, and how every ending becomes an exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from types import FunctionType
from typing import Any, NoReturn

from ckptctl.cli.ending import Ended, finished
from ckptctl.cli.output.emit import FORMATS, emit_error
from ckptctl.cli.output.text import NAME
from ckptctl.cli.parameters import read
from ckptctl.errors import CkptctlError, Interrupted, Terminated
from ckptctl.exit_codes import ExitCode
from ckptctl.version import __version__

_COMMANDS = {
    "list": "looking",
    "show": "looking",
    "verify": "looking",
    "digest": "looking",
    "diff": "looking",
    "convert": "transforming",
    "reshard": "transforming",
    "resolve": "looking",
    "commit": "publishing",
    "promote": "publishing",
    "quarantine": "publishing",
    "release": "publishing",
    "history": "looking",
    "prune": "publishing",
    "undelete": "publishing",
    "schema": "looking",
}
"""Each is a module of its name in that room; only the one that is called is imported, as most of the time that a
short command takes is importing."""


def _command(name: str) -> FunctionType:
    module = import_module(f"ckptctl.cli.commands.{_COMMANDS[name]}.{name}")
    found: FunctionType = getattr(module, f"{name}_command")
    return found


def _call(words: list[str], wanted: str) -> Any:
    """Run what the words say; typer reads them where they are not plain."""
    if words == ["--version"]:
        return finished(lambda: sys.stdout.write(f"ckptctl {__version__}\n")) and 0
    if wanted and words[0] == wanted and "_CKPTCTL_COMPLETE" not in os.environ:
        command = _command(wanted)
        values = read(command, words[1:])
        if values is not None:
            return finished(partial(command, **values))
    return _application(wanted)(standalone_mode=False)


def _application(wanted: str) -> Any:
    """Make the application with the one command that is called, or with all of them for help."""
    from ckptctl.cli.application import application

    return application({name: _command(name) for name in ([wanted] if wanted else _COMMANDS)})


def main() -> None:
    """Run the command line and exit; this is where errors become exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # a short process that makes millions of objects and no cycles worth finding: collecting would
    # only walk them
    gc.disable()
    _listen()
    words = sys.argv[1:]
    wanted = next((word for word in words if not word.startswith("-")), "")
    command = wanted if wanted in _COMMANDS else ""
    try:
        code = _call(words, command) or 0
    except (Ended, KeyboardInterrupt) as ended:
        if isinstance(ended.__cause__, BrokenPipeError):
            # keep the interpreter from complaining once more when it closes the stream
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = int(ExitCode.PIPE_CLOSED)
        else:
            code = _stopped(ended.__cause__ if isinstance(ended, Ended) else ended, command)
    except Exception as error:
        aborted = type(error).__name__ == "Abort"  # typer's, which may not be imported
        code = _stopped(error, command) if aborted else _fail(error, *_explain(error), command)
    sys.exit(code)


def _listen() -> None:
    """Take a request to end as an interrupt, so that whatever is being written is left in order."""

    def stop(number: int, frame: object) -> NoReturn:
        raise Terminated

    with suppress(ValueError):  # not in the main thread, where a test may call this
        signal.signal(signal.SIGTERM, stop)


def _stopped(stop: BaseException | None, command: str) -> int:
    """Say that it was stopped, and what goes on where something was left behind."""
    if not isinstance(stop, Interrupted):
        return _fail(KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted", NAME, command)
    from ckptctl.cli.output.spelling import spelled

    if stop.left:
        import shlex

        words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        stop.remedy = shlex.join(["ckptctl", *words, "--resume"])
    return _fail(stop, stop.exit_code, spelled(stop), NAME, command)


def _fail(error: BaseException, code: ExitCode, message: str, before: str, command: str) -> int:
    """Say what went wrong, in the format that was asked for as far as that can be told."""
    try:
        wanted = _format(sys.argv[1:])
        emit_error(error, code, wanted, command=command, message=message, before=before)
        sys.stdout.flush()
    except (OSError, ValueError):  # a full disk or a closed stream cannot be told of itself
        if code is ExitCode.DONE:
            return int(ExitCode.FAILED)
    return int(code)


def _format(words: list[str]) -> str:
    """Tell which output format was asked for, also where the words make no sense otherwise."""
    words = words[: words.index("--")] if "--" in words else words
    if "--json" in words:
        return "json"
    for word, following in pairwise([*words, ""]):
        if word == "--format":
            return following
        if word.startswith("--format="):
            return word.partition("=")[2]
    found = os.environ.get("CKPTCTL_FORMAT", "")
    return found if found in FORMATS else "text"


def _explain(error: Exception) -> tuple[ExitCode, str, str]:
    """Return exit code, words, and what stands before them, for an error or a wrong call."""
    if isinstance(error, CkptctlError):
        from ckptctl.cli.output.spelling import spelled

        return error.exit_code, spelled(error), NAME
    message = getattr(error, "format_message", None)
    if message is not None:  # the base of typer's usage errors has no public name
        context = getattr(error, "ctx", None)
        asked = type(error).__name__ == "NoArgsIsHelpError"
        usage = f"{context.get_usage()}\n\nError: " if context is not None and not asked else ""
        return ExitCode.USAGE, message(), usage
    if os.environ.get("CKPTCTL_DEBUG"):
        raise error
    name = type(error).__name__
    return (
        ExitCode.FAILED,
        f"ckptctl itself failed: {name}: {error}; with CKPTCTL_DEBUG=1 it says where",
        NAME,
    )
