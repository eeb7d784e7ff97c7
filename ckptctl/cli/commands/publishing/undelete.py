"""``ckptctl undelete``."""

from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import DryRun, Format, Json, Quiet, Root, chosen
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.text import Screen, safe
from ckptctl.cli.parameters import Argument
from ckptctl.results import Undeleted


def undelete_command(
    root: Root = None,
    name: Annotated[
        str, Argument(help="Which one, where the trash holds several: its name or path.")
    ] = "",
    dry_run: DryRun = False,
    quiet: Quiet = False,
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Bring back a checkpoint that prune moved into ckptctl.trash, to where it was."""
    result = api.undelete(root, name, dry_run=dry_run)
    return emit(result, chosen(output_format, json=json), command="undelete", quiet=quiet)


@render.register
def render_undeleted(result: Undeleted, screen: Screen) -> None:
    """Print where it is now, and who had moved it aside."""
    verb = "would be brought back" if result.dry_run else "is back"
    who = f"{safe(result.actor)} at {safe(result.time)}"
    screen.line(f"{safe(result.path)} {verb}; moved aside by {who}: {safe(result.reason)}")
