"""The application as typer knows it: for help, wrong calls, and words that are not plain."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from types import FunctionType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ckptctl.cli.ending import finished
from ckptctl.cli.parameters import for_typer
from ckptctl.exit_codes import in_words
from ckptctl.version import __version__

_HELP = """Inspect, verify and publish the checkpoints of distributed training.

Paths are directories, files or URLs (s3://, gs://, az://, hf://, http://, memory://), ROOT@latest
or ROOT@STEP; without one it is CKPTCTL_ROOT, else the current directory. Nothing in a checkpoint is
ever executed, and torch is not needed.
"""


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        return finished(partial(super().invoke, ctx))


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ckptctl {__version__}\n")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def application(commands: Mapping[str, FunctionType]) -> typer.Typer:
    """Make the application with these commands."""
    app = typer.Typer(
        cls=_Group,
        help=_HELP,
        epilog=in_words(),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, command in commands.items():
        app.command(name)(for_typer(command))
    return app
