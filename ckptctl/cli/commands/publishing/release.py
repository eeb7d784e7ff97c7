"""``ckptctl release``."""

from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import (
    Checkpoint,
    DryRun,
    Format,
    Framework,
    Json,
    Quiet,
    Yes,
    chosen,
    confirm,
)
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.mark import render_mark as render_mark
from ckptctl.cli.parameters import Option


def release_command(
    reason: Annotated[str, Option(help="Why, for whoever is on call next.")],
    checkpoint: Checkpoint = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Take a quarantine back."""
    if not dry_run:
        confirm(f"release {checkpoint or 'this checkpoint'}?", yes=yes)
    result = api.release(checkpoint, reason=reason, dry_run=dry_run, framework=framework)
    return emit(result, chosen(output_format, json=json), command="release", quiet=quiet)
