"""Drawing how one tensor is cut up and which rank and file holds which piece."""

from __future__ import annotations

from ckptctl.cli.output.text import Screen, columns, plural, safe, size
from ckptctl.model.geometry import Box
from ckptctl.results import BoxRow, Layout

_MOST_DOWN, _MOST_ACROSS = 32, 16


def draw_layout(found: Layout, screen: Screen) -> None:
    """Print a tensor's boxes as a grid where they form one, then each with its file and bytes."""
    tensor = found.tensor
    shape = f"[{', '.join(map(str, tensor.shape))}]"
    screen.line(
        f"{screen.paint(safe(tensor.fqn), 'bold')}  {safe(tensor.dtype)} {shape}, "
        f"{size(tensor.size)}, {plural(tensor.chunks, 'chunk')}"
    )
    drawing = _grid(found)
    if drawing:
        screen.line()
        for line in drawing:
            screen.line(line)
    screen.line()
    rows = [("CHUNK", "RANK", "FILE", "BYTES IN FILE")]
    rows += [
        (
            _extent(row.box),
            _rank(row),
            safe(row.path),
            f"{row.offset}-{row.offset + row.length}",
        )
        for row in found.boxes
    ]
    for number, cells in enumerate(columns(rows, right=(1,))):
        line = "".join(cells).rstrip()
        screen.line(screen.paint(line, "bold") if number == 0 else line)


def _rank(row: BoxRow) -> str:
    return "-" if row.rank is None else f"{row.rank}"


def _extent(box: Box) -> str:
    """Write a box as slices: ``[0:3, 0:8]``."""
    slices = (f"{o}:{o + s}" for o, s in zip(box.offsets, box.sizes, strict=True))
    return f"[{', '.join(slices)}]"


def _grid(found: Layout) -> list[str]:
    """Draw boxes that are cut along at most two dimensions; an empty list where that fails."""
    grid = found.tensor.grid
    if grid is None or found.tensor.chunks == 0:
        return []
    cut = [d for d, parts in enumerate(grid) if parts > 1] or ([0] if grid else [])
    if not cut or len(cut) > 2 or found.tensor.shape[cut[0]] == 0:
        return []
    down, across = cut[0], cut[1] if len(cut) == 2 else None
    cells: dict[tuple[int, int], list[str]] = {}
    for row in found.boxes:
        if row.box.volume:
            key = (row.box.offsets[down], row.box.offsets[across] if across is not None else 0)
            cells.setdefault(key, []).append(_rank(row))
    tops = sorted({key[0] for key in cells})
    lefts = sorted({key[1] for key in cells})
    if not cells or len(tops) > _MOST_DOWN or len(lefts) > _MOST_ACROSS:
        return []
    extent = {row.box.offsets[down]: row.box.sizes[down] for row in found.boxes if row.box.volume}
    labels = [f"dim {down} {top}-{top + extent[top] - 1}" for top in tops]
    texts = [
        [f" rank {', '.join(cells.get((top, left), ['?']))} " for left in lefts] for top in tops
    ]
    heads = [f" dim {across} from {left} " if across is not None else "" for left in lefts]
    widths = [max(len(heads[i]), *(len(row[i]) for row in texts)) for i in range(len(lefts))]
    margin = max(map(len, labels))
    rule = " " * margin + " +" + "+".join("-" * width for width in widths) + "+"
    lines = []
    if across is not None:
        lines.append(" " * (margin + 2) + " ".join(map(str.center, heads, widths)).rstrip())
    lines.append(rule)
    for label, cells_of_row in zip(labels, texts, strict=True):
        body = "|".join(map(str.center, cells_of_row, widths))
        lines += [f"{label:>{margin}} |{body}|", rule]
    return lines
