"""Options that several commands have, and asking before something is changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

from ckptctl.cli.output.emit import FORMATS
from ckptctl.cli.output.text import safe
from ckptctl.cli.parameters import Argument, Option
from ckptctl.errors import Refused, UsageError

_WITHOUT = "[default: CKPTCTL_ROOT, else here]"

Checkpoint = Annotated[
    str | None,
    Argument(
        help="A checkpoint: directory, file or URL, a file in it, a pointer, ROOT@latest, "
        f"ROOT@STEP.  {_WITHOUT}"
    ),
]
Root = Annotated[
    str | None,
    Argument(help=f"Directory or URL that holds checkpoints.  {_WITHOUT}"),
]
Json = Annotated[bool, Option("--json", help="Print JSON: --format json.")]


def _known(output_format: str) -> str:
    """Refuse an unknown format before anything is done."""
    if output_format not in FORMATS:
        import typer

        raise typer.BadParameter(f"{output_format!r} is not one of {', '.join(FORMATS)}")
    return output_format


Format = Annotated[
    str,
    Option(
        "--format",
        metavar="text|json",
        envvar="CKPTCTL_FORMAT",
        callback=_known,
        help="How the result is printed.",
    ),
]
Framework = Annotated[
    str,
    Option("--framework", metavar="NAME", help="Take it for what this framework writes."),
]
Proof = Annotated[
    str,
    Option(
        metavar="digest|crc",
        help="What result and source are compared by.  [default: digest, crc for a large source "
        "that would be read again]",
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing on success.")]
DryRun = Annotated[bool, Option("--dry-run", help="Say what would be done and do nothing.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
Workers = Annotated[
    int | None,
    Option(
        min=1,
        max=256,
        envvar="CKPTCTL_WORKERS",
        help="Threads that read.  [default: CPUs, to 8; 64 over a network]",
    ),
]
Required = Annotated[
    str,
    Option(
        "--require", metavar="PROFILE", help="What it must hold: resume, weights, serve or none."
    ),
]
AllowMissing = Annotated[
    list[str] | None,
    Option("--allow-missing", metavar="COMPONENT", help="Accept that it is missing; repeatable."),
]
Mapped = Annotated[
    list[str] | None,
    Option("--map", metavar="GLOB=COMPONENT", help="Which component such keys are; repeatable."),
]


Accept = Annotated[
    list[str] | None,
    Option(
        "--accept",
        metavar="CHECK[:GLOB]",
        help="Accept what this check finds (at files or keys that match), and record why; repeatable.",
    ),
]


def pairs(option: str, texts: Iterable[str] | None, example: str) -> dict[str, str]:
    """Read ``OLD=NEW`` as often as it was given; raises ``UsageError`` for anything else."""
    found = {}
    for text in texts or ():
        old, _, new = text.rpartition("=") if option == "--map" else text.partition("=")
        if not old or "=" not in text:
            raise UsageError(f"{option} takes {example}, not {text!r}")
        found[old] = new
    return found


def components(texts: Iterable[str] | None) -> dict[str, str]:
    """Read what ``--map`` says."""
    return pairs("--map", texts, "GLOB=COMPONENT such as 'gpt.*=model'")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; raise ``Refused`` for any answer but yes."""
    if yes or not sys.stdin.isatty():
        return
    import typer

    if not typer.confirm(safe(question), err=True):
        raise Refused("not confirmed; nothing was changed")


def chosen(output_format: str, *, json: bool) -> str:
    """Return the output format: ``--json`` outranks the other ways of saying it."""
    return "json" if json else output_format
