"""The application: its commands, and how every ending becomes an exit code."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ckptctl import __version__
from ckptctl.cli.output.text import safe
from ckptctl.errors import CkptctlError

_HELP = """Inspect, verify and publish the checkpoints of distributed training.

Paths are directories or URLs (s3://, gs://, az://, hf://, http://, memory://). Nothing in a
checkpoint is ever executed, and torch is not needed.
"""
_EXIT_CODES = (
    "Exit codes: 0 done, nothing wrong; 2 usage; 3 nothing there; 4 storage failed or something "
    "could not be checked; 5 refused, nothing changed; 6 outcome unknown; 10 findings; 130 "
    "interrupted; 1 ckptctl itself failed."
)


class _Ended(BaseException):
    """Carries an ending past typer, which would end the process in a way of its own."""


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (KeyboardInterrupt, BrokenPipeError) as error:
            raise _Ended from error
        return result


app = typer.Typer(
    cls=_Group,
    help=_HELP,
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"auto_envvar_prefix": "CKPTCTL", "help_option_names": ["-h", "--help"]},
)
_COMMANDS = {
    "list": "ckptctl.cli.commands.list:list_command",
    "show": "ckptctl.cli.commands.show:show_command",
    "verify": "ckptctl.cli.commands.verify:verify_command",
    "digest": "ckptctl.cli.commands.digest:digest_command",
    "diff": "ckptctl.cli.commands.diff:diff_command",
    "convert": "ckptctl.cli.commands.convert:convert_command",
    "reshard": "ckptctl.cli.commands.reshard:reshard_command",
    "resolve": "ckptctl.cli.commands.resolve:resolve_command",
    "commit": "ckptctl.cli.commands.commit:commit_command",
    "promote": "ckptctl.cli.commands.commit:promote_command",
    "quarantine": "ckptctl.cli.commands.quarantine:quarantine_command",
    "release": "ckptctl.cli.commands.quarantine:release_command",
    "history": "ckptctl.cli.commands.history:history_command",
    "prune": "ckptctl.cli.commands.prune:prune_command",
}
"""Where each command is; only the one that is called is imported, as most of the time that a
short command takes is importing."""


def _register(wanted: str | None) -> None:
    """Add the one command that is called to the application, or all of them for help."""
    for name in [wanted] if wanted in _COMMANDS else _COMMANDS:
        module, _, function = _COMMANDS[name].partition(":")
        app.command(name)(getattr(import_module(module), function))


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ckptctl {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit; this is where errors become exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # a short process that makes millions of objects and no cycles worth finding: collecting would
    # only walk them
    gc.disable()
    _register(next((word for word in sys.argv[1:] if not word.startswith("-")), None))
    try:
        code = app(standalone_mode=False) or 0
    except CkptctlError as error:
        _complain(str(error))
        code = int(error.exit_code)
    except (_Ended, KeyboardInterrupt, typer.Abort) as ended:
        if isinstance(ended.__cause__, BrokenPipeError):
            # keep the interpreter from complaining once more when it closes the stream
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 141
        else:
            _complain("interrupted")
            code = 130
    except Exception as error:
        code = _explain(error)
    sys.exit(code)


def _explain(error: Exception) -> int:
    """Print a wrong call, escaped as it quotes what was typed, or a failure of ckptctl itself."""
    message = getattr(error, "format_message", None)
    if message is not None:  # the base of typer's usage errors has no public name
        context = getattr(error, "ctx", None)
        asked = type(error).__name__ == "NoArgsIsHelpError"
        usage = f"{context.get_usage()}\n\nError: " if context is not None and not asked else ""
        for line in f"{usage}{message()}".split("\n"):
            sys.stderr.write(f"{safe(line)}\n")
        return int(getattr(error, "exit_code", 2))
    if os.environ.get("CKPTCTL_DEBUG"):
        raise error
    _complain(
        f"ckptctl itself failed: {type(error).__name__}: {error}; with CKPTCTL_DEBUG=1 it says where"
    )
    return 1


def _complain(message: str) -> None:
    sys.stderr.write(f"ckptctl: {safe(message)}\n")
