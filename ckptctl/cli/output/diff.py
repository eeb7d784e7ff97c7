"""What ``ckptctl diff`` prints: a heading with counts for each part, and the first rows of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.text import Screen, columns, plural, safe
from ckptctl.comparison.consequences import Consequence
from ckptctl.comparison.difference import (
    ContentRow,
    Diff,
    EntryChange,
    KeyChange,
    SideSeen,
    Verdict,
)
from ckptctl.words import listed

_MOST_BITS = 512
_MOST = 20
_EXAMPLES = 3
_WIDE = 120
_WIDEST = 34
_PAINT = {
    Consequence.BREAKS_LOAD: "red",
    Consequence.DATA_ORDER: "yellow",
    Consequence.NUMERICS: "yellow",
}
_UNITS = {"step": "step", "samples": "sample", "tokens": "token", "epoch": "epoch"}
_MEANING = {
    Consequence.BREAKS_LOAD: ": B does not load as A does",
    Consequence.DATA_ORDER: ": the order of the data changes, and with it the numbers",
    Consequence.NUMERICS: ": the numbers change",
    Consequence.UNKNOWN: ": what that means is not known",
    Consequence.HARMLESS: ", but only in what is harmless",
}
_FORMATS = {"dcp": "DCP", "torch": "torch.save"}


@render.register
def render_diff(found: Diff, screen: Screen) -> None:
    """Print everything that differs, by part, and an answer in the end."""
    for letter, side in (("A", found.a), ("B", found.b)):
        screen.line(f"{screen.paint(letter, 'bold')}  {safe(side.checkpoint)}")
        screen.line(f"   {_side(side)}")
        for problem in side.problems:
            screen.wrapped(screen.paint(f"problem: {safe(problem)}", "yellow"), 3)
    _identity(found, screen)
    _structure(found, screen)
    _progress(found, screen)
    _content(found, screen)
    if found.not_compared:
        names = safe(listed(found.not_compared))
        screen.line()
        screen.wrapped(f"{screen.paint('NOT COMPARED', 'bold')}  {names}", 0)
    screen.line()
    screen.line(_answer(found, screen))


def _side(side: SideSeen) -> str:
    step = "no step known" if side.step is None else f"step {side.step}"
    state = "committed" if side.committed else "not committed"
    return f"{step}, {_FORMATS.get(side.format, side.format)}, {state}, {plural(side.keys, 'key')}"


def _answer(found: Diff, screen: Screen) -> str:
    worst = min(found.consequences(), key=lambda one: one.rank, default=None)
    if worst is None and found.nothing:
        why = "neither holds a key" if not found.a.keys else "no key or fact is one that was chosen"
        return screen.paint(f"nothing compared: {why}", "yellow", "bold")
    problems = len(found.content.problems)
    unread = found.content.unread
    if worst is not None:
        rest = f"; {plural(unread + problems, 'key')} not compared" if unread + problems else ""
        return screen.paint(f"different{_MEANING[worst]}{rest}", _PAINT.get(worst, ""), "bold")
    if problems:
        return screen.paint(f"nothing differs, but {plural(problems, 'key')} could not be compared",
                            "yellow", "bold")  # fmt: skip
    if unread:
        return f"nothing differs as far as was looked; {plural(unread, 'key')} not compared"
    by_crc = found.content.equal.get("CRC-32", 0)
    by_digest = found.content.equal.get("file digest", 0)
    if by_digest:
        return (
            f"nothing differs; of {plural(by_digest, 'tensor')} the manifests promise the same, and "
            "nothing was read"
        )
    if by_crc:
        return f"nothing differs; {plural(by_crc, 'tensor')} equal by CRC-32, which proves it not"
    if found.not_compared:
        return f"nothing differs; {plural(len(found.not_compared), 'file')} beside the keys not compared"
    return screen.paint("the same", "green", "bold")


def _heading(name: str, text: str, screen: Screen) -> None:
    screen.line()
    screen.wrapped(f"{screen.paint(name, 'bold')}  {text}", 0)


def _cut(rows: Sequence[object], screen: Screen) -> None:
    if len(rows) > _MOST:
        screen.line(f"  ... and {len(rows) - _MOST:,} more")


def _short(value: object, width: int = _WIDEST) -> str:
    try:
        text = safe(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError):
        text = safe(repr(value))
    return _clip(text, width)


def _clip(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


def _table(
    rows: Sequence[Sequence[str]],
    screen: Screen,
    *,
    right: Iterable[int] = (),
    styles: Sequence[str] = (),
    flexible: int = 0,
) -> None:
    """Print aligned rows; on a narrow screen the ``flexible`` column is cut in the middle."""
    if not rows:
        return
    if screen.width:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        others = sum(widths) - widths[flexible] + 2 * len(widths)
        room = max(16, screen.width - others)
        rows = [[_clip(c, room) if i == flexible else c for i, c in enumerate(r)] for r in rows]
    for number, cells in enumerate(columns(rows, right=right)):
        line = "  " + "".join(cells).rstrip()
        screen.line(screen.paint(line, styles[number]) if styles and styles[number] else line)


def _identity(found: Diff, screen: Screen) -> None:
    changed = [fact for fact in found.identity if not fact.only]
    only = {side: sum(fact.only == side for fact in found.identity) for side in "ab"}
    if not (found.compared_facts or changed):
        text = "neither side records facts that could be compared"
    elif changed:
        text = f"{len(changed):,} of {plural(found.compared_facts, 'fact')} differ"
    else:
        text = f"the same, in {plural(found.compared_facts, 'fact')}"
    _heading("IDENTITY", text, screen)
    shown = changed[:_MOST]
    _table(
        [(f.consequence.value, safe(f.name), _short(f.a), "->", _short(f.b)) for f in shown],
        screen,
        styles=[_PAINT.get(fact.consequence, "") for fact in shown],
        flexible=1,
    )
    _cut(changed, screen)
    for side, count in only.items():
        if count:
            screen.line(f"  {plural(count, 'fact')} that only {side.upper()} records")


def _structure(found: Diff, screen: Screen) -> None:
    structure = found.structure
    moved = sum(len(group.pairs) for group in structure.renamed)
    parts = []
    if moved:
        parts.append(f"{plural(moved, 'key')} renamed by prefix")
    for what in ("kind", "shape", "dtype", "sharding"):
        changes = structure.of(what)
        kinds = {(row.a, row.b) for row in changes}
        if len(kinds) == 1:
            ((a, b),) = kinds
            parts.append(f"{len(changes):,} {what} {safe(a)} -> {safe(b)}")
        elif changes:
            parts.append(f"{len(changes):,} with another {what}")
    if not (parts or structure.removed or structure.added):
        text = f"the same {plural(structure.keys, 'key')}, cut alike"
        _heading("STRUCTURE", text if structure.keys else "no key is one that was chosen", screen)
        return
    parts.append(f"{len(structure.removed):,} really missing")
    if structure.added:
        parts.append(f"{len(structure.added):,} new")
    _heading("STRUCTURE", ", ".join(parts), screen)
    rows = [
        (
            "renamed",
            plural(len(group.pairs), "key"),
            _renaming(group.old, group.new),
            _pair(*group.pairs[0]),
        )
        for group in structure.renamed
    ]
    rows += [
        (what, plural(len(group), "key"), f"{safe(a)} -> {safe(b)}", _examples(group, screen))
        for what in ("kind", "shape", "dtype", "sharding")
        for (a, b), group in _grouped(structure.of(what)).items()
    ]
    _table(rows[:_MOST], screen, flexible=3)
    _cut(rows, screen)
    _keys("missing in B", structure.removed, screen)
    _keys("new in B", structure.added, screen)


def _renaming(old: str, new: str) -> str:
    if old and new:
        return f"{safe(old)} -> {safe(new)}"
    return f"with {safe(new)}" if new else f"without {safe(old)}"


def _pair(one: str, other: str) -> str:
    return f"{safe(one)} -> {safe(other)}"


def _grouped(rows: Iterable[EntryChange]) -> dict[tuple[str, str], list[str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        groups.setdefault((row.a, row.b), []).append(row.fqn)
    return dict(sorted(groups.items(), key=lambda pair: -len(pair[1])))


def _examples(names: Sequence[str], screen: Screen) -> str:
    count = 1 if 0 < screen.width < _WIDE else _EXAMPLES
    return safe(", ".join(names[:count])) + (", ..." if len(names) > count else "")


def _keys(title: str, rows: Sequence[KeyChange], screen: Screen) -> None:
    if not rows:
        return
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.component] = counts.get(row.component, 0) + 1
    listed = ", ".join(f"{count:,} of {component}" for component, count in sorted(counts.items()))
    screen.wrapped(f"{title}: {listed}", 2)
    ordered = sorted(rows, key=lambda row: (row.consequence.rank, row.component, row.fqn))
    _table(
        [(f"  {row.consequence.value}", safe(row.fqn)) for row in ordered[:_MOST]],
        screen,
        flexible=1,
    )
    _cut(rows, screen)


def _progress(found: Diff, screen: Screen) -> None:
    rows = [row for row in found.progress if row.apart]
    both = [row for row in found.progress if row.apart is not None]
    if not both:
        return
    if not rows:
        _heading("PROGRESS", f"the same, in {plural(len(both), 'counter')}", screen)
        return
    by_name = {row.name: abs(row.apart or 0) for row in rows}
    named = [
        f"{_amount(by_name[name])} {word if by_name[name] == 1 else word + 's'}"
        for name, word in _UNITS.items()
        if name in by_name
    ]
    _heading("PROGRESS", f"{', '.join(named) or plural(len(rows), 'counter')} apart", screen)
    _table(
        [
            (safe(row.name), _short(row.a), "->", _short(row.b),
             f"B is {_amount(abs(row.apart or 0))} {'ahead' if (row.apart or 0) > 0 else 'behind'}")
            for row in rows[:_MOST]
        ],
        screen,
    )  # fmt: skip


def _amount(value: float) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"more than 2^{_MOST_BITS}"
    return f"{value:,g}"


def _content(found: Diff, screen: Screen) -> None:
    content = found.content
    if not (content.tensors or content.objects):
        return
    equal = sum(content.equal.values())
    how = ", ".join(f"{count:,} by {name}" for name, count in content.equal.items())
    text = f"{equal:,} of {plural(content.tensors, 'tensor')} equal"
    if equal:
        text += f" ({how})"
    for verdict, word in (
        (Verdict.DIFFERS, "differing"),
        (Verdict.CONVERTED, "of another dtype"),
        (Verdict.UNKNOWN, "not compared"),
    ):
        count = len(content.of(verdict, tensor=True))
        text += f", {count:,} {word}" if count else ""
    if content.objects:
        text += f"; {content.equal_objects:,} of {plural(content.objects, 'value')} equal"
    _heading("CONTENT", text, screen)
    _tensors(content.of(Verdict.DIFFERS, tensor=True), screen)
    _tensors([r for r in content.of(Verdict.CONVERTED, tensor=True) if r.statistics], screen)
    values = [row for row in content.rows if row.verdict is Verdict.DIFFERS and not row.tensor]
    _table(
        [
            (safe(row.fqn), _short(row.a), "->", _short(row.b))
            if row.shown
            else (safe(row.fqn), f"by its {row.how.removeprefix('its ')}", "", "")
            for row in values[:_MOST]
        ],
        screen,
    )
    _cut(values, screen)
    for row in content.problems[:_MOST]:
        screen.wrapped(
            screen.paint(f"not compared: {safe(row.fqn)}: {safe(row.problem)}", "yellow"), 2
        )
    _cut(content.problems, screen)


def _tensors(rows: Sequence[ContentRow], screen: Screen) -> None:
    if not rows:
        return
    if not any(row.statistics for row in rows):
        _table([(row.component, safe(row.fqn), f"by {row.how}") for row in rows[:_MOST]], screen,
               flexible=1)  # fmt: skip
        _cut(rows, screen)
        return
    table = [("TENSOR", "UNEQUAL", "MAX ABS", "MAX REL", "REL NORM", "NAN A", "NAN B", "FIRST")]
    ordered = sorted(rows, key=_worst)
    table += [(safe(row.fqn), *_numbers(row)) for row in ordered[:_MOST]]
    _table(table, screen, right=range(1, 7), styles=["bold", *([""] * (len(table) - 1))])
    _cut(rows, screen)


def _worst(row: ContentRow) -> tuple[int, float, str]:
    found = row.statistics
    if found is None:
        return (1, 0.0, row.fqn)
    return (-abs(found.nan[1] - found.nan[0]), -found.relative_norm, row.fqn)


def _numbers(row: ContentRow) -> tuple[str, str, str, str, str, str, str]:
    found = row.statistics
    if found is None:
        return ("?",) * 7
    write: Callable[[float], str] = "{:.2e}".format
    return (
        f"{found.differing:,}",
        write(found.largest),
        write(found.relative),
        write(found.relative_norm),
        f"{found.nan[0]:,}",
        f"{found.nan[1]:,}",
        "" if found.first is None else str(list(found.first)),
    )
