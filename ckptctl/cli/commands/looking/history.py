"""``ckptctl history``."""

from ckptctl import api
from ckptctl.cli.options import Format, Framework, Json, Root, chosen
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.text import Screen, columns, safe
from ckptctl.results import History


def history_command(
    root: Root = None,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Show who committed, promoted, rolled back and quarantined what, when and why."""
    return emit(
        api.history(root, framework=framework), chosen(output_format, json=json), command="history"
    )


@render.register
def render_history(found: History, screen: Screen) -> None:
    """Print one line for each record, oldest first."""
    rows = [("TIME", "WHAT", "CHECKPOINT", "STEP", "BY", "REASON")]
    rows += [
        (
            safe(event.time or "?"),
            safe(event.what) + (f" (revision {event.revision})" if event.revision else ""),
            safe(event.name),
            "-" if event.step is None else f"{event.step}",
            safe(event.actor),
            safe(event.reason),
        )
        for event in found.events
    ]
    for number, cells in enumerate(columns(rows, right=(3,))):
        line = "".join(cells).rstrip()
        screen.line(screen.paint(line, "bold") if number == 0 else line)
