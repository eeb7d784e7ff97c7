"""Uniting what the ranks of one save wrote, each into files of its own.

Pieces of a distributed tensor become one tensor. What every rank holds and is equal on all of them
is one; what differs, or only some have, keeps the rank in its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData
from ckptctl.formats.pickles.unpickler import anatomy
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    Fault,
    FaultKind,
    Item,
    Items,
    ObjectEntry,
    TensorEntry,
)
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Box, Boxes, Shape


def unite_ranks(parts: Mapping[int, Checkpoint]) -> Checkpoint:
    """Return one checkpoint of what each rank saved under the same keys.

    Of copies of a box, the one of the lowest rank counts. Two ranks that say otherwise of a
    tensor's dtype or shape are a fault.
    """
    holders: dict[str, list[int]] = {}
    for rank, part in sorted(parts.items()):
        for fqn in part.entries:
            holders.setdefault(fqn, []).append(rank)
    items = {rank: _items_by_key(part) for rank, part in parts.items()}
    found = _United()
    for fqn, ranks in holders.items():
        entries = [parts[rank].entries[fqn] for rank in ranks]
        pieces = {rank: items[rank].get(fqn, []) for rank in ranks}
        if all(isinstance(entry, TensorEntry) for entry in entries) and _distributed(
            entries, pieces
        ):
            found.join(fqn, parts[ranks[0]], entries, pieces)
        elif len(ranks) == len(parts) and _alike(fqn, parts, entries, pieces):
            found.take(fqn, fqn, parts[ranks[0]], pieces[ranks[0]])
            for rank in ranks[1:]:
                found.repeat(fqn, parts[rank], pieces[rank])
        else:
            for rank in ranks:
                found.take(f"rank_{rank}.{fqn}", fqn, parts[rank], pieces[rank], rank)
    return found.result(parts)


def _items_by_key(part: Checkpoint) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in part.items:
        found.setdefault(item.fqn, []).append(item)
    return found


def _distributed(entries: Sequence[Entry], pieces: Mapping[int, list[Item]]) -> bool:
    """Tell whether ranks hold pieces: boxes that are not the whole, or not the same ones."""
    boxes = {
        (tuple(entry.boxes.offsets), tuple(entry.boxes.sizes), entry.shape)
        for entry in entries
        if isinstance(entry, TensorEntry)
    }
    shapes = {shape for _, _, shape in boxes}
    whole = all(sizes == shape for _, sizes, shape in boxes)
    return len(shapes) == 1 and (len(boxes) > 1 or not whole) and bool(pieces)


def _alike(
    fqn: str,
    parts: Mapping[int, Checkpoint],
    entries: Sequence[Entry],
    pieces: Mapping[int, list[Item]],
) -> bool:
    """Tell whether all ranks hold the same, as far as CRCs and pickles tell."""
    if all(isinstance(entry, ObjectEntry) for entry in entries):
        values = []
        for part in parts.values():
            try:
                values.append(anatomy(part.values.get(fqn)))
            except MalformedData:
                return False
        return all(value == values[0] for value in values)
    prints = {
        (entry.dtype, entry.shape, tuple(_print(item) for item in pieces[rank]))
        if isinstance(entry, TensorEntry)
        else None
        for rank, entry in zip(pieces, entries, strict=True)
    }
    return len(prints) == 1 and None not in prints


def _print(item: Item) -> object:
    """Return what is equal for equal bytes; of bytes without a CRC, nothing is known to be."""
    stored = item.stored
    if stored is None or (stored.crc is None and stored.size):
        return item.path
    return (stored.crc, stored.size, stored.offset, stored.shape, stored.stride, stored.flags)


class _United:
    """Entries and items of one checkpoint while they are gathered."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._paths: dict[str, tuple[str | int, ...]] = {}
        self._items: list[Item] = []
        self._values: dict[str, object] = {}
        self._value_files: dict[str, tuple[str, ...]] = {}
        self._copies: list[Item] = []
        self._shared: dict[str, str] = {}
        self._faults: list[Fault] = []

    def take(
        self, name: str, fqn: str, part: Checkpoint, items: list[Item], rank: int | None = None
    ) -> None:
        """Take a key of one rank, under that name or another."""
        self._entries[name] = replace(part.entries[fqn], fqn=name)
        path = part.paths_in_state.get(fqn)
        if path is not None:
            self._paths[name] = path if rank is None else (f"rank_{rank}", *path)
        self._items += [replace(item, fqn=name) for item in items]
        if fqn in part.values:
            self._values[name] = part.values[fqn]
            self._value_files[name] = part.value_files.get(fqn, ())
        first = part.shared.get(fqn)
        if first is not None:
            self._shared[name] = first if rank is None else f"rank_{rank}.{first}"

    def repeat(self, fqn: str, part: Checkpoint, items: list[Item]) -> None:
        """Note that a further rank holds what was taken of the first."""
        self._copies += items
        if fqn in self._value_files:
            self._value_files[fqn] += part.value_files.get(fqn, ())

    def join(
        self,
        fqn: str,
        first: Checkpoint,
        entries: Sequence[Entry],
        pieces: Mapping[int, list[Item]],
    ) -> None:
        """Put the pieces of a tensor together."""
        tensors = [entry for entry in entries if isinstance(entry, TensorEntry)]
        whole = tensors[0]
        chosen: dict[Shape, tuple[Box, Item]] = {}
        for (rank, items), entry in zip(pieces.items(), tensors, strict=True):
            if (entry.dtype, entry.shape) != (whole.dtype, whole.shape):
                message = (
                    f"rank {rank} holds {entry.dtype} {list(entry.shape)} of it, and rank "
                    f"{next(iter(pieces))} {whole.dtype} {list(whole.shape)}"
                )
                where = Location(file=items[0].path if items else None, fqn=fqn, rank=rank)
                self._faults.append(Fault(FaultKind.MALFORMED_ENTRY, message, where, fqn))
                continue
            for box, item in zip(entry.boxes, items, strict=True):
                known = chosen.get(box.offsets)
                if known is None or known[0].volume < box.volume:
                    chosen[box.offsets] = box, item
                elif known[0] == box:
                    self._copies.append(item)
        self._items += [item for _, item in chosen.values()]
        boxes = Boxes.of(len(whole.shape), [box for box, _ in chosen.values()])
        self._entries[fqn] = replace(whole, boxes=boxes)
        path = first.paths_in_state.get(fqn)
        if path is not None:
            self._paths[fqn] = path

    def result(self, parts: Mapping[int, Checkpoint]) -> Checkpoint:
        """Return what was gathered, with the files and the faults of all parts."""
        everything = list(parts.values())
        return Checkpoint(
            format=everything[0].format,
            files={path: file for part in everything for path, file in part.files.items()},
            sources=tuple(name for part in everything for name in part.sources),
            entries=self._entries,
            items=Items.of(self._items),
            paths_in_state=self._paths,
            faults=(*self._faults, *(fault for part in everything for fault in part.faults)),
            values=self._values,
            value_files=self._value_files,
            copies=Items.of(self._copies),
            described=frozenset(path for part in everything for path in part.described),
            shared=self._shared,
        )
