"""What a reader saw of one item, before anybody judges it."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.model.checkpoint import Fault, Item, TensorEntry
from ckptctl.model.dtypes import CAST
from ckptctl.model.finding import Gap
from ckptctl.model.geometry import Shape
from ckptctl.pattern import pattern

_NUMBERS = pattern(r"\d+")


class Against(str, enum.Enum):
    """What the bytes of a file were checked against before somebody vouches for them."""

    RECEIPT = "receipt"
    CRC = "crc"
    SOME_CRCS = "crc in part"
    DIGEST = "digest"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Payload:
    """A tensor as ``data.pkl`` describes it; ``storage_bytes`` is what the storage must hold.

    ``kind`` is ``plain`` where ``dtype``, ``shape`` and ``stride`` (in elements) mean what they
    say, and otherwise the name of the tensor class, whose layout this tool does not interpret.
    """

    kind: str = "plain"
    dtype: str = ""
    shape: Shape = ()
    stride: Shape = ()
    storage_offset: int = 0
    storage_key: str = ""
    storage_bytes: int = 0
    flags: tuple[str, ...] = ()


TEXT = "text in an unknown encoding, which is no torch.save item,"
JSON = f"JSON {TEXT}"
"""The kinds of an object that is text: a planner may write so, and text may lie over one."""

RAW = "bytes in an unknown encoding, which are no torch.save item,"
"""The kind of an object of which nothing looks like a zip: a fault, unless a planner writes all so."""

_SHORTEST = 300
"""Bytes below which no item of ``torch.save`` is: two records, each with two headers, and their end."""


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """One record of an item's zip.

    ``start`` counts bytes in the file (in the decoded item where it is compressed). ``crc`` is the
    directory's copy, ``trailer_crc`` the one behind the data, ``computed`` what the bytes gave or
    None where they were not read. A recorded CRC of 0 over data means that none was recorded.
    """

    name: str
    start: int
    size: int
    crc: int
    trailer_crc: int | None = None
    computed: int | None = None

    @property
    def recorded(self) -> bool:
        """True if the writer kept a CRC for these bytes."""
        return bool(self.crc) or bool(self.trailer_crc) or self.size == 0

    def fits(self, crc: int) -> bool:
        """Tell whether bytes with this CRC-32 are the ones that were written; yes if none was kept."""
        return not self.recorded or crc in (self.crc, self.trailer_crc)

    @property
    def damaged(self) -> bool:
        """True if all bytes were read and are not the ones that were written."""
        return self.computed is not None and not self.fits(self.computed)

    @property
    def proven(self) -> bool:
        """True if all bytes were read and a CRC shows them to be the ones that were written."""
        return self.computed is not None and self.recorded and not self.damaged


@dataclass(frozen=True, slots=True)
class ValuesSeen:
    """What the numbers of one item's tensor are like; ``gap`` says why they were not looked at.

    ``nan``, ``infinite`` and ``negative`` (infinities below zero) count elements; a complex one
    may be counted as both. ``first`` is the index, in the item, of the first that is no finite
    number, ``largest`` the largest finite magnitude, which is ``extreme`` where the dtype has no
    larger one. ``subnormal`` means that there are numbers other than zero and all of them are subnormal.
    """

    count: int = 0
    nan: int = 0
    infinite: int = 0
    negative: int = 0
    first: Shape | None = None
    largest: float = 0.0
    extreme: bool = False
    subnormal: bool = False
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class ItemSeen:
    """One item as its bytes are: records, the tensor they hold, and what did not fit.

    ``unread`` says why the item could not be looked at; ``torch_versions`` is the range of torch
    releases that write such a set of records. ``values`` is None where nobody asked for them, or
    where there are none that could be bad. ``body`` holds the bytes of an item that was to be kept,
    ``root`` the directory in which its records lie: the name that its file was written under.
    """

    item: Item
    records: tuple[RecordSeen, ...] = ()
    payload: Payload | None = None
    torch_versions: str = ""
    faults: tuple[Fault, ...] = ()
    unread: str = ""
    bytes_read: int = 0
    values: ValuesSeen | None = None
    body: bytes = b""
    root: str = ""

    @property
    def is_text(self) -> bool:
        """True for an object that is text, and so was not written by ``torch.save``."""
        return self.payload is not None and self.payload.kind in (TEXT, JSON)

    @property
    def is_raw(self) -> bool:
        """True for an object of which nothing looks as if ``torch.save`` had written it."""
        return self.payload is not None and self.payload.kind == RAW

    @property
    def is_json(self) -> bool:
        """True for an object that is JSON, which whoever saved it may well have written."""
        return self.payload is not None and self.payload.kind == JSON

    @property
    def damage(self) -> str:
        """What shows that these are not the bytes that were written; empty for nothing."""
        if self.faults:
            return self.faults[0].message
        bad = next((record.name for record in self.records if record.damaged), None)
        return "" if bad is None else f"the CRC-32 of {bad} does not fit its bytes"


@dataclass(frozen=True, slots=True)
class Objects:
    """In which form objects were met: how many as ``torch.save`` writes them, and which as text.

    ``loose`` are those of ``texts`` that are no JSON, ``raws`` are bytes that are not even text, and
    ``broken`` counts what is left of ``torch.save`` items. ``families`` are the keys of those that are
    saved, numbers aside, and ``elsewhere`` names checkpoints in which what is loose here is saved.
    ``casts`` are tensors of another float dtype than the metadata says: the first of each two
    dtypes, held and said, and how many there are.
    """

    saved: int = 0
    texts: tuple[Item, ...] = ()
    loose: tuple[Item, ...] = ()
    raws: tuple[Item, ...] = ()
    broken: int = 0
    families: frozenset[str] = frozenset()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[tuple[str, str], tuple[Item, int]] = field(default_factory=dict)

    def __add__(self, other: Objects) -> Objects:
        """Add what was met elsewhere."""
        casts = dict(self.casts)
        for dtypes, (item, count) in other.casts.items():
            known, more = casts.get(dtypes, (item, 0))
            first = min(known, item, key=lambda one: (one.path, one.offset))
            casts[dtypes] = (first, more + count)
        return Objects(
            self.saved + other.saved,
            self.texts + other.texts,
            self.loose + other.loose,
            self.raws + other.raws,
            self.broken + other.broken,
            self.families | other.families,
            casts=casts,
        )

    @property
    def foreign(self) -> tuple[Item, ...]:
        """Those of ``raws`` that a planner of one's own wrote.

        That is all of them, where there are several objects and none is as usual; elsewhere those
        that are too short to have been anything else.
        """
        several = len(self.texts) + len(self.raws) > 1
        return self.raws if several and not self.saved + self.broken else self.short

    @property
    def short(self) -> tuple[Item, ...]:
        """Those of ``raws`` that are too short to have been saved as usual."""
        return tuple(item for item in self.raws if item.length < _SHORTEST)


def family(fqn: str) -> str:
    """Return a key, numbers aside: that of the same thing on another rank, or in another layer."""
    return _NUMBERS.sub("#", fqn)


def is_cast(entry: TensorEntry, payload: Payload) -> bool:
    """Tell whether an item holds floats of another dtype than the metadata says."""
    plain = payload.kind == "plain"
    return plain and entry.dtype != payload.dtype and {entry.dtype, payload.dtype} <= CAST
