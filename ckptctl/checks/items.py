"""Stage 3: is each item a whole zip, and does it hold what the metadata says?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from ckptctl.checks.base import Check, Context, Hit, Override, from_item_faults, never
from ckptctl.model.checkpoint import FaultKind, Item, TensorEntry
from ckptctl.model.damage import describe_loss, describe_part
from ckptctl.model.dtypes import item_size
from ckptctl.model.finding import Severity, Stage, Touched
from ckptctl.model.geometry import Box
from ckptctl.model.observation import ItemSeen, Payload, family, is_cast

_ELSEWHERE = (
    "restore the file from another copy and run `ckptctl verify {checkpoint}` again, or choose "
    "another checkpoint with `ckptctl list {root}`"
)

_OVERSIZED = "no writer makes such bytes: do not load {checkpoint}, and find out who wrote it"


def _mismatch(context: Context, seen: ItemSeen) -> Iterator[Hit]:
    entry = context.checkpoint.entries.get(seen.item.fqn)
    payload = seen.payload
    if payload is None or payload.kind != "plain" or not isinstance(entry, TensorEntry):
        return
    box = context.boxes.box(seen.item)
    if box is None and len(entry.boxes) == 1:
        box = entry.boxes[0]
    problems = list(_differences(entry, box, payload, seen))
    if problems:
        yield Hit(
            "; ".join(problems),
            context.where(seen.item),
            describe_part(context.checkpoint, context.boxes, seen.item),
        )


def _differences(
    entry: TensorEntry, box: Box | None, payload: Payload, seen: ItemSeen
) -> Iterator[str]:
    if entry.dtype not in (payload.dtype, "?") and not is_cast(entry, payload):
        yield f"it holds {payload.dtype}, the metadata says {entry.dtype}"
    if box is not None and payload.shape != box.sizes:
        yield f"it holds {list(payload.shape)}, the metadata says {list(box.sizes)}"
    record = next((r for r in seen.records if r.name == f"data/{payload.storage_key}"), None)
    if record is None:
        if payload.storage_bytes >= 0:
            yield f"the record data/{payload.storage_key} that it views is not there"
    elif payload.storage_bytes >= 0 and record.size != payload.storage_bytes:
        yield (
            f"its storage should have {payload.storage_bytes} bytes and the record has {record.size}"
        )


def _oversized(context: Context, seen: ItemSeen) -> Iterator[Hit]:
    payload = seen.payload
    width = item_size(payload.dtype) if payload and payload.kind == "plain" else None
    if payload is None or width is None:
        return
    used = prod(payload.shape) * width
    if payload.storage_bytes > 2 * used + 4096:
        yield Hit(
            f"a tensor of {used} bytes was saved with its whole storage of {payload.storage_bytes} "
            "bytes: it was a view of something larger",
            context.where(seen.item),
        )


def _encoding(context: Context, _: None) -> Iterator[Hit]:
    """Find objects that are text: a planner may write so, and writes what is alike in one form."""
    objects = context.objects
    over: dict[str, list[Item]] = {}
    rest: list[Item] = list(objects.raws)
    for item in objects.texts:
        other = objects.elsewhere.get(item.fqn, "")
        if family(item.fqn) in objects.families:
            over.setdefault("and the same under other numbers is one", []).append(item)
        elif other:
            over.setdefault(f"and in {other} it is one", []).append(item)
        else:
            rest.append(item)
    for why, items in over.items():
        yield Hit(
            f"{_text(items)}, {why}: text was written over what was saved",
            context.where(_first(items)),
            describe_loss(context.checkpoint, context.boxes, items),
            Severity.ERROR,
            _ELSEWHERE,
            Touched.of(item.fqn for item in items),
        )
    if not rest:
        return
    touched = Touched.of(item.fqn for item in rest)
    said = _text(rest, raw=bool(objects.raws))
    if not objects.saved:
        yield Hit(said, context.where(_first(rest)), touched=touched)
        return
    yield Hit(
        f"{said}, and {objects.saved} objects are such: a planner of one's own may write so, and text "
        "may have been written over what was saved; it was not examined",
        context.where(_first(rest)),
        describe_loss(context.checkpoint, context.boxes, rest),
        Severity.WARNING,
        touched=touched,
    )


def _first(items: Iterable[Item]) -> Item:
    return min(items, key=lambda item: (item.path, item.offset))


def _text(items: Sequence[Item], *, raw: bool = False) -> str:
    more = len(items) - 1
    name, what = _first(items).fqn, "in an unknown encoding" if raw else "text"
    whose = f"{name} and {more} more objects are" if more else f"{name} is"
    return f"{whose} {what}, which no torch.save item is"


def _casts(context: Context, _: None) -> Iterator[Hit]:
    """A planner may cast what it saves and leave the metadata as it was; loading casts it back."""
    for (held, said), (item, count) in sorted(context.objects.casts.items()):
        more = f", and so do {count - 1} more items" if count > 1 else ""
        yield Hit(
            f"it holds {held}, the metadata says {said}{more}: loading casts what was saved",
            context.where(item),
            touched=Touched.of(),
        )


OBJECT_CHECKS: tuple[Check[None], ...] = (
    Check(
        "unknown-encoding",
        Stage.ITEMS,
        Severity.NOTE,
        "Objects that are text, or all of them other bytes, as a planner of one's own may write. Beside torch.save items: a "
        "warning, and an error where others of its kind, or those of other checkpoints, are such items.",
        "`ckptctl commit {checkpoint}` gives them digests, once whoever wrote them has read them back",
        _encoding,
        override=Override("only who wrote the text knows whether it is what was saved"),
    ),
    Check(
        "cast-item",
        Stage.ITEMS,
        Severity.WARNING,
        "An item holds floats of another dtype than the metadata says; loading casts them.",
        "nothing, if a planner of yours casts what it saves: let it state the dtype in its plan too; else "
        "compare with another checkpoint of {root}",
        _casts,
        override=Override("loading gives what was saved, in another precision"),
    ),
)
"""Asked once all items have been looked at."""

CHECKS: tuple[Check[ItemSeen], ...] = (
    Check(
        "item-structure",
        Stage.ITEMS,
        Severity.ERROR,
        "An item is not a whole torch.save zip.",
        _ELSEWHERE,
        from_item_faults(FaultKind.ITEM_STRUCTURE, lost=True),
        override=never("the item is not whole, and torch cannot load it"),
    ),
    Check(
        "unsafe-item",
        Stage.ITEMS,
        Severity.ERROR,
        "An item asks its reader to run something; torch would run it.",
        "do not load {checkpoint} with torch; find out who wrote it",
        from_item_faults(FaultKind.UNSAFE_ITEM),
        override=never("torch would run it, whoever accepts that"),
    ),
    Check(
        "too-large-item",
        Stage.ITEMS,
        Severity.ERROR,
        "An item asks for more memory or time than its size allows.",
        _OVERSIZED,
        from_item_faults(FaultKind.TOO_LARGE_ITEM, lost=True),
        override=never("no reader may take it, and no writer makes it"),
    ),
    Check(
        "too-deep-item",
        Stage.ITEMS,
        Severity.ERROR,
        "An item nests deeper than any reader follows.",
        _OVERSIZED,
        from_item_faults(FaultKind.TOO_DEEP_ITEM, lost=True),
        override=never("no reader may take it, and no writer makes it"),
    ),
    Check(
        "item-mismatch",
        Stage.ITEMS,
        Severity.ERROR,
        "An item's dtype, shape or size is not what the metadata says.",
        "metadata and shards do not belong together: restore both from one copy, or choose another "
        "checkpoint with `ckptctl list {root}`",
        _mismatch,
        override=never("the bytes are not what the metadata says, and load as other numbers"),
    ),
    Check(
        "oversized-storage",
        Stage.ITEMS,
        Severity.NOTE,
        "A small tensor was saved together with the large storage it views.",
        "clone such tensors before saving them",
        _oversized,
    ),
    Check(
        "unstable-read",
        Stage.CONTENT,
        Severity.ERROR,
        "Two reads of the same bytes gave different answers.",
        "look at the storage, its network and this machine's memory, then run "
        "`ckptctl verify {checkpoint}` again",
        from_item_faults(FaultKind.UNSTABLE_READ),
        override=never("bytes that differ between two reads prove nothing"),
    ),
)
