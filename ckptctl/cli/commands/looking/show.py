"""``ckptctl show``."""

from collections.abc import Sequence
from typing import Annotated

from ckptctl import api
from ckptctl.cli.options import Checkpoint, Format, Framework, Json, chosen
from ckptctl.cli.output.accepted import line
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.tensor_layout import draw_layout
from ckptctl.cli.output.text import Screen, age, columns, number, plural, safe, size
from ckptctl.cli.parameters import Argument, Option
from ckptctl.model.geometry import Shape
from ckptctl.results import Description, FileRow, ObjectRow, Sealed, Shown, TensorRow
from ckptctl.words import ranges as ranks

_VALUE_WIDTH = 60
_MOST_RANKS = 16


def show_command(
    checkpoint: Checkpoint = None,
    pattern: Annotated[
        str, Argument(help="With --tensors or --objects: only names like this.")
    ] = "*",
    tensors: Annotated[bool, Option("--tensors", help="List the tensors.")] = False,
    objects: Annotated[bool, Option("--objects", help="List the other values.")] = False,
    files: Annotated[bool, Option("--files", help="List the files.")] = False,
    layout: Annotated[
        str | None, Option(metavar="FQN", help="Draw where one tensor's pieces lie.")
    ] = None,
    framework: Framework = "",
    output_format: Format = "text",
    json: Json = False,
) -> int:
    """Show what is in a checkpoint: step, components, dtypes, files of each rank.

    Values are decoded without running anything; an object of an unknown class is named, not built.
    """
    result = api.show(
        checkpoint,
        tensors=tensors,
        objects=objects,
        files=files,
        layout=layout,
        pattern=pattern,
        framework=framework,
    )
    return emit(result, chosen(output_format, json=json), command="show")


@render.register
def render_shown(found: Shown, screen: Screen) -> None:
    """Print what was asked for."""
    if found.tensors is not None:
        render_tensors(found.tensors, screen)
    elif found.objects is not None:
        render_objects(found.objects, screen)
    elif found.files is not None:
        render_files(found.files, screen)
    elif found.layout is not None:
        draw_layout(found.layout, screen)
    elif found.description is not None:
        render_description(found.description, screen)


def _sealed(found: Sealed) -> str:
    step = "no step" if found.step is None else f"step {found.step}"
    run = f" of run {safe(found.run_id)}" if found.run_id else ""
    ranks = f", {plural(found.world_size, 'rank')}" if found.world_size else ""
    return f"as {step}{run}{ranks}, by {safe(found.by)} at {safe(found.time)}"


def render_description(found: Description, screen: Screen) -> None:
    """Print a checkpoint at a glance."""
    facts = [
        ("checkpoint", safe(found.checkpoint)),
        ("step", "not in its name" if found.step is None else f"{found.step}, by its name"),
        ("format", found.layout),
        ("size", f"{size(found.size)}, {plural(found.keys, 'key')}, {plural(found.items, 'item')}"),
        ("written by", _written_by(found)),
        ("save id", safe(found.save_id or "not recorded")),
        ("saved as", safe(found.saved_as or "not recorded")),
    ]
    if found.world_size is not None:
        facts.append(("world size", f"{found.world_size}, each rank saved on its own"))
    if found.sealed is not None:
        facts.append(("committed", _sealed(found.sealed)))
    if found.sealed is not None and found.sealed.amended:
        last = found.sealed
        why = f": {safe(last.reason)}" if last.reason else ""
        said = f"{plural(last.amended, 'time')}, last by {safe(last.amended_by)}"
        facts.append(("amended", f"{said} at {safe(last.amended_at)}{why}"))
    if found.sealed is not None:
        facts += [("accepted", line(one)) for one in found.sealed.accepted]
        facts += [("made", safe(text)) for text in found.sealed.accepted_before]
    for name, value in facts:
        screen.line(f"{screen.paint(f'{name:<11}', 'bold')} {value}")
    _render_progress(found, screen)
    screen.line()
    rows = [("COMPONENT", "TENSORS", "OBJECTS", "ELEMENTS", "BYTES", "DTYPES")]
    rows += [
        (
            part.name,
            f"{part.tensors}",
            f"{part.objects}",
            number(part.parameters),
            size(part.size),
            safe(", ".join(f"{name} x{count}" for name, count in part.dtypes)),
        )
        for part in found.components
    ]
    _table(rows, screen, right=(1, 2, 3, 4))
    screen.line()
    table = [("RANK", "FILES", "ITEMS", "BYTES")]
    table += [
        ("-" if r.rank is None else f"{r.rank}", f"{r.files}", f"{r.items}", size(r.size))
        for r in found.ranks
    ]
    if len(table) > _MOST_RANKS + 1:
        del table[_MOST_RANKS + 1 :]
        screen.line(f"first {_MOST_RANKS} of {len(found.ranks)} ranks; --files lists all")
    _table(table, screen, right=(0, 1, 2, 3))
    sizes = [rank.size for rank in found.ranks]
    total = sum(sizes)
    if len(sizes) > 1 and total:
        ratio = max(sizes) * len(sizes) / total
        screen.line(f"balance: the fullest rank holds {ratio:.2f} times the mean")
    for problem in found.problems:
        screen.wrapped(screen.paint(f"problem: {safe(problem)}", "yellow"), 0)


def _written_by(found: Description) -> str:
    if not found.items_by:
        return f"torch {found.metadata_by} (metadata)"
    return f"torch {found.metadata_by} (metadata), {', '.join(found.items_by)} (items)"


def _render_progress(found: Description, screen: Screen) -> None:
    facts = [(name, _short(value)) for name, value in found.progress]
    if found.optimizer_steps:
        steps = ", ".join(
            f"{step:g} ({plural(count, 'tensor')})" for step, count in found.optimizer_steps
        )
        facts.append(("optimizer step", steps))
    if facts:
        screen.line()
        screen.line(screen.paint("PROGRESS", "bold"))
        for line in columns([(safe(name), value) for name, value in facts]):
            screen.line("".join(line).rstrip())


def render_tensors(rows: Sequence[TensorRow], screen: Screen) -> None:
    """Print tensors with shape, dtype, bytes, and how they are cut over which ranks."""
    table = [("TENSOR", "DTYPE", "SHAPE", "BYTES", "PARTS", "RANKS")]
    table += [
        (
            safe(row.fqn),
            safe(row.dtype),
            shape(row.shape),
            size(row.size),
            _parts(row),
            ranks(row.ranks),
        )
        for row in rows
    ]
    _table(table, screen, right=(3,))
    screen.line(plural(len(rows), "tensor"))


def _parts(row: TensorRow) -> str:
    if row.grid is None:
        return f"{row.chunks} irregular"
    return "x".join(map(str, row.grid)) or "whole"


def shape(found: Shape) -> str:
    """Write a shape as torch does."""
    return f"[{', '.join(map(str, found))}]"


def render_objects(rows: Sequence[ObjectRow], screen: Screen) -> None:
    """Print the values that are not tensors."""
    table = [("OBJECT", "RANK", "VALUE")]
    table += [
        (
            safe(row.fqn),
            "-" if row.rank is None else f"{row.rank}",
            f"unreadable: {safe(row.problem)}" if row.problem else _short(row.value),
        )
        for row in rows
    ]
    _table(table, screen, right=(1,))
    screen.line(plural(len(rows), "object"))


def _short(value: object) -> str:
    text = safe(repr(value))
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."


def render_files(rows: Sequence[FileRow], screen: Screen) -> None:
    """Print the files with size and age, and how many items each holds."""
    table = [("FILE", "RANK", "ITEMS", "BYTES", "AGE")]
    table += [
        (
            safe(row.path),
            "-" if row.rank is None else f"{row.rank}",
            "-" if row.items is None else f"{row.items}",
            size(row.size),
            age(row.modified),
        )
        for row in rows
    ]
    _table(table, screen, right=(1, 2, 3, 4))
    screen.line(f"{plural(len(rows), 'file')}, {size(sum(row.size for row in rows))}")


def _table(rows: Sequence[Sequence[str]], screen: Screen, *, right: Sequence[int]) -> None:
    for position, cells in enumerate(columns(rows, right=right)):
        line = "".join(cells).rstrip()
        screen.line(screen.paint(line, "bold") if position == 0 else line)
