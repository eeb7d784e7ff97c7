"""``ckptctl schema``."""

import json as encoder
from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import Format, Json, chosen
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.text import Screen
from ckptctl.cli.parameters import Argument
from ckptctl.results import Schema


def schema_command(
    name: Annotated[str, Argument(help="A command; without one, all are named.")] = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Print the JSON Schema of what a command prints with --json."""
    return emit(api.schema(name), chosen(output_format, json=json), command="schema")


@render.register
def render_schema(found: Schema, screen: Screen) -> None:
    """Print one schema, or the names of all."""
    if found.name:
        screen.line(encoder.dumps(found.document, indent=2, ensure_ascii=True))
        return
    for name in found.names:
        screen.line(name)
