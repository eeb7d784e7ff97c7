"""A checkpoint as its format describes it: entries, items and the files they lie in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import TypeAlias

from ckptctl.dataclass import dataclass, field
from ckptctl.model.companion import Companion, Kind
from ckptctl.model.dtypes import item_size
from ckptctl.model.fault import Fault as Fault
from ckptctl.model.fault import FaultKind as FaultKind
from ckptctl.model.geometry import Box, Boxes, Shape
from ckptctl.pattern import pattern

_WIDEST = 16  # bytes of an element of a dtype that is not known
_RANK = pattern(
    r"(?:^|/|_)__(?P<first>\d{1,9})_\d+(?:\.[A-Za-z]+)?$"
    r"|(?:^|[/_.-])(?<!mp_)(?<!pp_)rank[_-]?(?P<named>\d{1,7})(?:[._-][\w.-]*)?$"
)


def rank_of(path: str) -> int | None:
    """Return the rank in a file's name (``__3_0.distcp`` and ``rank3.pt`` are of rank 3), or None."""
    if path.startswith("ckptctl."):
        return None  # records of ckptctl are about ranks, and of none
    match = _RANK.search(path.removesuffix(".distcp"))
    return int(match["first"] or match["named"]) if match else None


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint as the storage shows it; ``path`` is relative to the checkpoint.

    ``version`` and ``changed`` differ where it was written to, as far as the storage tells.
    ``behind`` is the path of a link to a directory through which it is seen, and ``link`` the text
    of that link, or of the one that it is itself.
    """

    path: str
    size: int
    is_file: bool = True
    modified: float | None = None
    version: str = ""
    changed: float | None = None
    link: str = ""
    behind: str = ""


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
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """A value that is not a tensor: an int, a string, a pickled object."""

    fqn: str


Entry: TypeAlias = TensorEntry | ObjectEntry


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor's storage: bytes ``[start, start + size)`` of what it is read from.

    ``stride`` and ``offset`` count elements of the storage. ``crc`` is None where none was
    recorded. ``dtype`` is the payload's own, ``flags`` name lazy operations (``conj``, ``neg``)
    and ``kind`` is not ``plain`` for a tensor class whose layout this tool does not interpret.
    """

    dtype: str
    shape: Shape
    stride: Shape
    offset: int
    start: int
    size: int
    crc: int | None = None
    little: bool = True
    flags: tuple[str, ...] = ()
    kind: str = "plain"

    @classmethod
    def bare(
        cls, dtype: str, shape: Shape, start: int, size: int, *, crc: int | None = None
    ) -> Stored:
        """Describe row-major bytes that nothing surrounds; of another size they are not plain."""
        stride: list[int] = []
        numel = 1
        for extent in reversed(shape):
            stride.insert(0, numel)
            numel *= extent
        return cls(dtype, shape, tuple(stride), 0, start, size, crc)

    @property
    def row_major(self) -> tuple[int, int] | None:
        """The bytes ``[start, stop)`` that are the tensor's row-major little-endian bytes.

        None where it is strided, negated or of other byte order, so that there are none.
        """
        width = item_size(self.dtype)
        if self.kind != "plain" or width is None or self.flags or not self.little:
            return None
        numel = 1
        for extent, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if extent != 1 and step != numel and 0 not in self.shape:
                return None
            numel *= extent
        start = self.start + self.offset * width
        if start + numel * width > self.start + self.size:
            return None
        return start, start + numel * width

    @property
    def whole_crc(self) -> int | None:
        """The recorded CRC-32 if it is over just the tensor's row-major bytes."""
        return self.crc if self.row_major == (self.start, self.start + self.size) else None


@dataclass(frozen=True, slots=True)
class Item:
    """Where one piece of one entry is stored.

    ``offsets`` is the box's origin for a tensor and None for an object; ``offset`` and ``length``
    are bytes in the file; ``transforms`` name what a reader must undo, in that order. ``stored``
    says where a tensor's bytes lie where the metadata tells; elsewhere the item is a zip of its own.
    """

    fqn: str
    offsets: Shape | None
    path: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()
    stored: Stored | None = None

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
    stored: Mapping[int, Stored] = field(default_factory=dict)

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
            self.stored.get(index),
        )

    def __iter__(self) -> Iterator[Item]:
        """Yield the items."""
        return map(self.__getitem__, range(len(self.fqns)))

    @classmethod
    def of(cls, items: Iterable[Item]) -> Items:
        """Put items into columns."""
        found = list(items)
        return cls(
            [one.fqn for one in found],
            [one.offsets for one in found],
            [one.path for one in found],
            array("q", [one.offset for one in found]),
            array("q", [one.length for one in found]),
            {at: one.transforms for at, one in enumerate(found) if one.transforms},
            {at: one.stored for at, one in enumerate(found) if one.stored is not None},
        )

    def pick(self, indices: Sequence[int]) -> Items:
        """Return some of the items, in the order given."""
        return Items(
            [self.fqns[i] for i in indices],
            [self.origins[i] for i in indices],
            [self.paths[i] for i in indices],
            array("q", [self.offsets[i] for i in indices]),
            array("q", [self.lengths[i] for i in indices]),
            {at: self.transforms[i] for at, i in enumerate(indices) if i in self.transforms},
            {at: self.stored[i] for at, i in enumerate(indices) if i in self.stored},
        )

    def by_path(self) -> dict[str, list[int]]:
        """Group item numbers by file, each group in the order of its bytes."""
        groups: dict[str, list[int]] = {}
        for index, path in enumerate(self.paths):
            groups.setdefault(path, []).append(index)
        for group in groups.values():
            group.sort(key=lambda i: (self.offsets[i], self.lengths[i]))
        return groups


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
    ``values`` holds values that the metadata itself has, which are no items, ``value_files`` the
    files that each lies in. ``described`` are files that describe all their own bytes, so that what
    lies between items is no gap. ``copies`` are items of further ranks, equal to those in ``items``.
    ``shared`` maps a
    tensor to the one listed before it that is the very same view of a storage. ``companions`` are
    the files beside the tensors that are parts of it too, ``tied`` the counters among the tensors that
    count as its companions do.
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
    values: Mapping[str, object] = field(default_factory=dict)
    value_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    described: frozenset[str] = frozenset()
    copies: Items = field(default_factory=Items)
    shared: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, Companion] = field(default_factory=dict)
    tied: frozenset[Kind] = frozenset()

    @property
    def readable(self) -> bool:
        """True if the metadata could be read at all."""
        return bool(self.sources)

    def enclosed(self, path: str) -> bool:
        """Tell whether items lie in a file that is one thing: it is looked at as a whole."""
        return path in self.described and path in self.companions

    @property
    def problems(self) -> tuple[Fault, ...]:
        """The faults because of which not all that there is to load was understood."""
        return tuple(fault for fault in self.faults if not fault.kind.harmless)

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
        self._forms: dict[str, list[int]] = {}
        self._known: dict[tuple[str, Shape], int] = {}
        self._next = count()

    def number(self, fqn: str, origin: Shape) -> int | None:
        """Return which box of the tensor begins at ``origin``, or None."""
        numbers = self._numbers.get(fqn)
        if numbers is None:
            entry = self._entries.get(fqn)
            if not isinstance(entry, TensorEntry):
                return None
            origins = list(entry.boxes.origins())
            numbers = dict(zip(reversed(origins), reversed(range(len(origins))), strict=True))
            self._numbers[fqn] = numbers
        return numbers.get(origin)

    def form(self, fqn: str, origin: Shape | None) -> int | None:
        """Number dtype and sizes of an item's box, alike where both are equal; None where it has none."""
        number = None if origin is None else self.number(fqn, origin)
        if number is None:
            return None
        forms = self._forms.get(fqn)
        if forms is None:
            entry = self._entries.get(fqn)
            if not isinstance(entry, TensorEntry):
                return None
            kinds = [(entry.dtype, sizes) for sizes in entry.boxes.extents()]
            # of threads that meet here one wins, and no number is given twice
            forms = [self._known.setdefault(kind, next(self._next)) for kind in kinds]
            self._forms[fqn] = forms
        return forms[number]

    def box(self, item: Item) -> Box | None:
        """Return the box of an item; None for an object or for an origin nobody declared."""
        entry = self._entries.get(item.fqn)
        if item.offsets is None or not isinstance(entry, TensorEntry):
            return None
        number = self.number(item.fqn, item.offsets)
        return None if number is None else entry.boxes[number]

    def payload(self, item: Item) -> int | None:
        """Return the bytes that a tensor item may hold at most; None where the metadata is silent."""
        entry, box = self._entries.get(item.fqn), self.box(item)
        if not isinstance(entry, TensorEntry) or box is None:
            return None
        return box.volume * (item_size(entry.dtype) or _WIDEST)

    def is_tensor(self, fqn: str) -> bool:
        """Tell whether a key is a tensor's."""
        return isinstance(self._entries.get(fqn), TensorEntry)
