"""A checkpoint as its format describes it: entries, items and the files they lie in."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ckptctl.model.finding import Location
from ckptctl.model.geometry import Box, Boxes, Shape

_DCP_FILE = re.compile(r"(?:^|/|_)__(\d+)_\d+(?:\.[A-Za-z]+)?$")


def rank_of(path: str) -> int | None:
    """Return the rank in a DCP file name (``__3_0.distcp`` is rank 3), or None."""
    match = _DCP_FILE.search(path.removesuffix(".distcp"))
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint as the storage shows it; ``path`` is relative to the checkpoint."""

    path: str
    size: int
    is_file: bool = True
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of the state dict: its dtype, its whole shape, and the boxes that make it up."""

    fqn: str
    dtype: str
    shape: Shape
    boxes: Boxes
    requires_grad: bool = False

    @property
    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return Box(self.shape, self.shape).volume


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """A value that is not a tensor: an int, a string, a pickled object."""

    fqn: str


Entry: TypeAlias = TensorEntry | ObjectEntry


@dataclass(frozen=True, slots=True)
class Item:
    """Where one piece of one entry is stored.

    ``offsets`` is the box's origin for a tensor and None for an object; ``offset`` and ``length``
    are bytes in the file; ``transforms`` name what a reader must undo, in that order.
    """

    fqn: str
    offsets: Shape | None
    path: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """One past the last byte in the file."""
        return self.offset + self.length

    @property
    def rank(self) -> int | None:
        """The rank that wrote the file, by its name."""
        return rank_of(self.path)


@dataclass(frozen=True, slots=True)
class Items:
    """All items of a checkpoint in columns, in the order of the metadata."""

    fqns: list[str] = field(default_factory=list)
    origins: list[Shape | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    transforms: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the items."""
        return len(self.fqns)

    def __getitem__(self, index: int) -> Item:
        """Return one item."""
        return Item(
            self.fqns[index],
            self.origins[index],
            self.paths[index],
            self.offsets[index],
            self.lengths[index],
            self.transforms.get(index, ()),
        )

    def __iter__(self) -> Iterator[Item]:
        """Yield the items."""
        return map(self.__getitem__, range(len(self.fqns)))

    def by_path(self) -> dict[str, list[int]]:
        """Group item numbers by file, each group in the order of its bytes."""
        groups: dict[str, list[int]] = {}
        for index, path in enumerate(self.paths):
            groups.setdefault(path, []).append(index)
        for group in groups.values():
            group.sort(key=lambda i: (self.offsets[i], self.lengths[i]))
        return groups


@dataclass(frozen=True, slots=True)
class Fault:
    """Something a reader met and could not accept; ``check`` is the id of the check that owns it."""

    check: str
    message: str
    where: Location = field(default_factory=Location)


@dataclass(frozen=True, slots=True)
class SaveIdentity:
    """What the metadata says about the save it belongs to."""

    save_id: str | None = None
    checkpoint_id: str | None = None
    torch_versions: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that the listing and the metadata of one checkpoint say.

    ``sources`` are the metadata files it was read from. ``faults`` hold what was wrong with them.
    With ``replicated``, several items may hold the same box: each rank saved its own copy.
    ``paths_in_state`` maps a key to its path in the nested state dict, where the format keeps it.
    """

    format: str
    files: Mapping[str, File]
    sources: tuple[str, ...] = ()
    entries: Mapping[str, Entry] = field(default_factory=dict)
    items: Items = field(default_factory=Items)
    identity: SaveIdentity = field(default_factory=SaveIdentity)
    paths_in_state: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    opaque_classes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    replicated: bool = False
    provisional: bool = False

    @property
    def readable(self) -> bool:
        """True if the metadata could be read at all."""
        return bool(self.sources)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote files, by the names of the files that items lie in."""
        found = {rank_of(path) for path in set(self.items.paths)}
        return tuple(sorted(rank for rank in found if rank is not None))


class BoxIndex:
    """Finds the box of a tensor item by the origin that its storage entry names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Index tensors on first use."""
        self._entries = checkpoint.entries
        self._numbers: dict[str, dict[Shape, int]] = {}

    def number(self, fqn: str, origin: Shape) -> int | None:
        """Return which box of the tensor begins at ``origin``, or None."""
        entry = self._entries.get(fqn)
        if not isinstance(entry, TensorEntry):
            return None
        numbers = self._numbers.get(fqn)
        if numbers is None:
            flat, ndim = entry.boxes.offsets, entry.boxes.ndim
            numbers = {
                tuple(flat[i * ndim : (i + 1) * ndim]): i for i in reversed(range(len(entry.boxes)))
            }
            self._numbers[fqn] = numbers
        return numbers.get(origin)

    def box(self, item: Item) -> Box | None:
        """Return the box of an item; None for an object or for an origin nobody declared."""
        entry = self._entries.get(item.fqn)
        if item.offsets is None or not isinstance(entry, TensorEntry):
            return None
        number = self.number(item.fqn, item.offsets)
        return None if number is None else entry.boxes[number]
