"""Stage 2, continued: do entries, chunks and byte ranges belong together one to one?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ckptctl.checks.base import Check, Context, Hit, Override, never, reported
from ckptctl.model.checkpoint import FaultKind, ObjectEntry, TensorEntry, rank_of
from ckptctl.model.finding import Location, Severity, Stage, Touched
from ckptctl.model.geometry import Shape, describe
from ckptctl.model.paths import is_contained

_DAMAGED = (
    "the metadata does not fit these files: restore the metadata from another copy, or choose "
    "another checkpoint with `ckptctl list {root}`"
)
_UNLISTED = (
    "nothing, if keys were taken out on purpose: what is left loads; else restore the metadata from "
    "another copy"
)
_MOST_EXCHANGED = 16
"""Entries out of place up to which an exchange is the explanation, not an unknown writer."""


def _escaping(context: Context, _: None) -> Iterator[Hit]:
    for path, layout in context.layouts.items():
        if not is_contained(path):
            yield Hit(
                f"the metadata refers to {path!r}, which lies outside the checkpoint; it was not "
                "opened",
                Location(file=path, rank=rank_of(path)),
                context.loss(layout.indices),
            )


def _missing_entry(context: Context, _: None) -> Iterator[Hit]:
    yield from reported(context, FaultKind.MISSING_ENTRY)
    items = context.checkpoint.items
    stored: dict[str, set[Shape | None]] = {}
    for fqn, origin in zip(items.fqns, items.origins, strict=True):
        stored.setdefault(fqn, set()).add(origin)
    source = _source(context)
    for fqn, entry in context.checkpoint.entries.items():
        have = stored.get(fqn, set())
        if isinstance(entry, ObjectEntry):
            # a value that the metadata itself holds is stored nowhere else
            if None not in have and fqn not in context.checkpoint.values:
                only = ": only a part is, as of a tensor" if have else ""
                yield Hit(
                    f"nothing says where it is stored{only}", Location(file=source, fqn=fqn), fqn
                )
            continue
        if have.issuperset(entry.boxes.origins()):
            continue
        for box in entry.boxes:
            if box.offsets not in have:  # torch asks for a whole tensor by its origin as well
                part = describe(box, entry.shape)
                yield Hit(
                    f"nothing says where {part} of it are stored",
                    Location(file=source, fqn=fqn, box=box),
                    f"{part} of {fqn}",
                )


def _unknown_entry(context: Context, _: None) -> Iterator[Hit]:
    items, entries = context.checkpoint.items, context.checkpoint.entries
    for index, fqn in enumerate(items.fqns):
        entry = entries.get(fqn)
        if entry is None:
            item = items[index]
            yield Hit(
                "bytes are stored for a key that the state dict does not have", context.where(item)
            )
        elif isinstance(entry, TensorEntry):
            origin = items.origins[index]
            if origin is None or context.boxes.number(fqn, origin) is None:
                place = "no chunk" if origin is None else f"a chunk at {list(origin)}"
                yield Hit(
                    f"bytes are stored for {place} that the tensor does not have",
                    context.where(items[index]),
                )


def _duplicate_entry(context: Context, _: None) -> Iterator[Hit]:
    checkpoint = context.checkpoint
    if checkpoint.replicated:
        return
    keys = Counter(zip(checkpoint.items.fqns, checkpoint.items.origins, strict=True))
    if len(keys) == len(checkpoint.items):
        return
    for (fqn, origin), count in keys.items():
        if count > 1:
            place = "" if origin is None else f" of the chunk at {list(origin)}"
            yield Hit(
                f"{count} entries say where the bytes{place} lie; which one wins is chance",
                Location(file=_source(context), fqn=fqn),
                fqn,
            )


def _outside(context: Context, _: None) -> Iterator[Hit]:
    items = context.checkpoint.items
    for path, size in context.present.items():
        layout = context.layouts[path]
        if size == 0 or layout.end <= size or layout.contiguous:
            continue
        for index in layout.indices:
            item = items[index]
            if item.end > size:
                yield Hit(
                    f"bytes {item.offset}-{item.end} lie past the end of the file of {size} bytes",
                    context.where(item),
                    context.loss([index]),
                )


def _shared_bytes(context: Context, _: None) -> Iterator[Hit]:
    items = context.checkpoint.items
    for path, layout in context.layouts.items():
        if layout.overlaps and path not in context.checkpoint.described:
            first, second = (items[i] for i in layout.overlaps[0])
            more = len(layout.overlaps) - 1
            yield Hit(
                f"{first.fqn} (bytes {first.offset}-{first.end}) and {second.fqn} (bytes "
                f"{second.offset}-{second.end}) are said to share bytes"
                + (f", and so are {more} more pairs in this file" if more else ""),
                Location(file=path, rank=rank_of(path), start=second.offset, stop=first.end),
                context.loss({i for pair in layout.overlaps for i in pair}),
                touched=Touched.of(items.fqns[i] for pair in layout.overlaps for i in pair),
            )


def _lost_entries(context: Context) -> bool:
    """Tell whether anything else says that the metadata is not all that was written."""
    checkpoint = context.checkpoint
    return (
        any(fault.kind is FaultKind.MALFORMED_ENTRY for fault in checkpoint.faults)
        or any(fqn not in checkpoint.entries for fqn in checkpoint.paths_in_state)
        or not all(tiling.exact for tiling in context.structure.tilings.values())
        or any(_missing_entry(context, None))
        or any(_outside(context, None))
    )


def _unreferenced_bytes(context: Context, _: None) -> Iterator[Hit]:
    odd = [path for path in context.present if context.structure.unlisted(path)]
    lost = bool(odd) and _lost_entries(context)
    for path in odd:
        gaps = context.structure.unlisted(path)
        if gaps:
            total = sum(high - low for low, high in gaps)
            where = f"bytes {gaps[0][0]}-{gaps[0][1]}"
            if len(gaps) > 1:
                where += f" and {len(gaps) - 1} more ranges"
            at = Location(file=path, rank=rank_of(path), start=gaps[0][0], stop=gaps[0][1])
            count = 0 if lost else context.unlisted.get(path, 0)
            if count:  # all is where the metadata says, and more: torch loads what it lists
                yield Hit(
                    f"{where} ({total} bytes) belong to no entry: whole items, {count} in all, of which "
                    "the keys are no longer in the metadata",
                    at,
                    severity=Severity.WARNING,
                    remedy=_UNLISTED,
                    touched=Touched.of(),
                )
                continue
            yield Hit(
                f"{where} ({total} bytes) belong to no entry: entries are missing from the "
                "metadata, or something was added to the file",
                at,
                touched=Touched.of(unnamed=(f"bytes {a}-{b} of {path}" for a, b in gaps)),
            )


def _exchanged(context: Context, _: None) -> Iterator[Hit]:
    """Every writer lists a file's items together and by offset; a few that are not were moved."""
    items = context.checkpoint.items
    count = len(items)
    if count < 2 or context.checkpoint.replicated or context.checkpoint.described:
        return
    if not all(layout.contiguous for layout in context.layouts.values()):
        return  # bytes lie where none should: that is no mere exchange, and has its own checks
    positions: dict[str, list[int]] = {}
    for index, path in enumerate(items.paths):
        positions.setdefault(path, []).append(index)
    middles = {path: found[len(found) // 2] for path, found in positions.items()}
    order = [(middles[path], start) for path, start in zip(items.paths, items.offsets, strict=True)]
    moved = [
        i for i, (seen, due) in enumerate(zip(order, sorted(order), strict=True)) if seen != due
    ]
    if not moved or len(moved) > min(_MOST_EXCHANGED, count // 2):
        return
    names = ", ".join(
        f"{item.fqn} at {list(item.offsets)}" if item.offsets else item.fqn
        for item in (items[i] for i in moved[:4])
    )
    yield Hit(
        f"{len(moved)} of {count} entries are not in the order in which they were written: the "
        f"places of {names} look exchanged",
        context.where(items[moved[0]]),
        context.loss(moved),
        touched=Touched.of(items.fqns[i] for i in moved),
    )


def _source(context: Context) -> str | None:
    return context.checkpoint.sources[0] if context.checkpoint.sources else None


CHECKS: tuple[Check[None], ...] = (
    Check(
        "escaping-path",
        Stage.METADATA,
        Severity.ERROR,
        "The metadata refers to a file outside the checkpoint; torch would follow it.",
        "do not load {checkpoint} with torch; find out who wrote it",
        _escaping,
        override=never("torch would read a file outside the checkpoint"),
    ),
    Check(
        "missing-entry",
        Stage.METADATA,
        Severity.ERROR,
        "A chunk or object whose place in the files is not recorded.",
        _DAMAGED,
        _missing_entry,
        override=never("nothing says where its bytes are, so it cannot be loaded"),
    ),
    Check(
        "unknown-entry",
        Stage.METADATA,
        Severity.ERROR,
        "Bytes are recorded for something the state dict does not have.",
        _DAMAGED,
        _unknown_entry,
        override=Override(
            "what is loaded is whole: keys may have been taken out of the metadata on purpose"
        ),
    ),
    Check(
        "duplicate-entry",
        Stage.METADATA,
        Severity.ERROR,
        "Two places are recorded for one chunk or object.",
        _DAMAGED,
        _duplicate_entry,
        override=never("which of the two is loaded is chance"),
    ),
    Check(
        "item-outside-file",
        Stage.METADATA,
        Severity.ERROR,
        "An item's recorded bytes lie past the end of its file.",
        _DAMAGED,
        _outside,
        override=never("the bytes are not there"),
    ),
    Check(
        "item-overlap",
        Stage.METADATA,
        Severity.ERROR,
        "Two items are recorded at the same bytes.",
        _DAMAGED,
        _shared_bytes,
        override=never("two items cannot both be what was written there"),
    ),
    Check(
        "unreferenced-bytes",
        Stage.METADATA,
        Severity.ERROR,
        "Bytes of a shard that belong to no item; no writer leaves any. A warning where they are whole "
        "items: then keys were taken out of the metadata, and what is left loads.",
        _DAMAGED,
        _unreferenced_bytes,
        override=Override(
            "what is loaded is whole: keys may have been taken out of the metadata on purpose"
        ),
    ),
    Check(
        "exchanged-entries",
        Stage.METADATA,
        Severity.ERROR,
        "A few entries point to each other's bytes.",
        _DAMAGED,
        _exchanged,
        override=Override(
            "order is a habit of writers and no rule: a tool may have sorted the entries"
        ),
    ),
)
