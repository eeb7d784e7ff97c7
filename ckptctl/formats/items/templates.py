"""Passing the many items that are like one which was looked at with care, at the price of comparing bytes.

Items of one dtype and shape that one torch wrote differ in their payload alone, and in what follows
from it: its CRC-32, written behind it and in the zip directory, the second half of their
serialization id, and that one's CRC. All other bytes must be those of an item that was looked at and
passed; of what may differ, both copies of both CRCs must fit the bytes. Nothing is accused here: what
does not fit is looked at with care like any other item.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from struct import Struct, unpack_from
from typing import TypeAlias

from ckptctl.crc import crc32
from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.items.bytes import ItemBytes
from ckptctl.formats.items.values import scanner_of, values_of
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import BoxIndex, Item, Stored
from ckptctl.model.observation import ItemSeen, Payload, RecordSeen, ValuesSeen

_LARGEST = 16 << 10
"""Bytes around a payload, of which a copy is kept."""

_MOST_FORMS, _MOST_TEMPLATES = 1 << 14, 1 << 11
"""How many forms are remembered, and templates of all of them: a few megabytes."""

_MOST_EACH = 8
_MOST_TRIES = 16
_ID, _HALF = ".data/serialization_id", 20
_ORDER = "byteorder"
_TRAILER, _LINE = 16, 46
_CRC, _LOCAL_CRC, _CENTRAL_CRC = 4, 14, 16


@dataclass(frozen=True, slots=True)
class Template:
    """What all items of one form have in common: the bytes before their payload and behind it.

    The payload lies at ``[start, start + size)`` of the item. ``tail`` takes what lies behind it
    apart into what is ``fixed`` and what is not, in turn. ``half`` is the CRC-32 of the half of the
    serialization id that is fixed, None where items have no id. ``payload`` is what the pickle says
    of the tensor, ``little`` the order of its bytes; ``records`` counts records. ``cast`` are the
    dtypes that items hold and should hold, where these differ and nobody minds.
    """

    head: bytes
    tail: Struct
    fixed: tuple[bytes, ...]
    start: int
    size: int
    half: int | None
    payload: Payload
    little: bool
    records: int
    torch_versions: str
    cast: tuple[str, str] | None = None

    def values(self, data: memoryview) -> ValuesSeen | None:
        """Look at the numbers in the payload of an item that fits."""
        name, big = f"data/{self.payload.storage_key}", not self.little
        scanner = scanner_of(self.payload, name, big=big)
        if scanner is not None:
            scanner.feed(data)
        return values_of(self.payload, scanner, big=big)

    def stored(self, offset: int, crc: int) -> Stored:
        """Say where the tensor lies of an item that begins at ``offset`` and fits."""
        one = self.payload
        place = one.storage_offset, offset + self.start, self.size, crc
        return Stored(one.dtype, one.shape, one.stride, *place, self.little, one.flags)

    def fits(self, first: bytes, at: int, last: bytes, behind: int) -> int | None:
        """Compare an item, and return the CRC-32 that was written of its payload; None if it is unlike.

        It begins ``at`` a position of ``first``, and its payload ends where ``last`` has ``behind``.
        """
        found = self.tail.unpack_from(last, behind)
        if found[::2] != self.fixed or not first.startswith(self.head, at):
            return None
        if not self.size:
            return 0
        if self.half is None:
            crc, again = found[1::2]
        else:
            crc, digits, named, again, renamed = found[1::2]
            if named != renamed or not named or crc32(digits, self.half) != named:
                return None
            if not digits.isdigit():
                return None
        return int(crc) if crc and crc == again else None


@dataclass(slots=True)
class _Form:
    """What is known of items of one dtype, shape and length; ``tries`` counts what was no template."""

    templates: tuple[Template, ...] = ()
    tries: int = 0


Key: TypeAlias = Callable[[Item], Hashable | None]
"""Returns what items have in common that may be alike, None for those that are not compared."""


def by_form(boxes: BoxIndex) -> Key:
    """Compare items of one length of which the metadata says the same dtype and sizes."""

    def key(item: Item) -> Hashable | None:
        form = boxes.form(item.fqn, item.offsets)
        return None if form is None else (form, item.length)

    return key


def by_length(item: Item) -> Hashable | None:
    """Compare tensors of one length, where dtype and shape are compared by somebody else."""
    return None if item.offsets is None else item.length


class Templates:
    """The templates of one checkpoint, learned as its items go by; shared by all threads."""

    def __init__(self, key: Key = by_length) -> None:
        """Begin with none; ``key`` tells which items may be alike."""
        self.key = key
        self.forms: dict[Hashable, _Form] = {}
        self._count = 0

    def learn(self, seen: ItemSeen, data: ItemBytes, cast: tuple[str, str] | None = None) -> None:
        """Take an item that passed; a template is made where another one like it has passed before."""
        key = self.key(seen.item)
        if key is None:
            return
        known = self.forms.get(key)
        if known is None:
            if len(self.forms) < _MOST_FORMS:
                self.forms[key] = _Form()  # what comes only once is not worth the trouble
        elif (
            known.tries < _MOST_TRIES
            and len(known.templates) < _MOST_EACH
            and self._count < _MOST_TEMPLATES
        ):
            template = template_of(seen, data, cast)
            if template is None:
                known.tries += 1
            else:
                self._count += 1
                known.templates = (*known.templates, template)


class Lane:
    """Passes items of one unit of work by templates, and counts what was passed.

    With ``content`` the CRC of each payload is computed and must fit. Items at the offsets in
    ``spared`` are left to those who want to see them. ``see`` is shown what passes, and with
    ``values`` what its numbers are like.
    """

    def __init__(
        self,
        templates: Templates,
        *,
        content: bool,
        values: bool = False,
        spared: Container[int] = frozenset(),
        see: Callable[[ItemSeen], object] | None = None,
    ) -> None:
        """Begin with nothing passed."""
        self._templates, self._content, self._spared = templates, content, spared
        self._values, self._see = values, see
        self._waiting: tuple[ItemSeen, ItemBytes] | None = None
        self.items = self.records = self.bytes = 0
        self.torch_versions: set[str] = set()
        self.last: tuple[Template, int] | None = None
        self.casts: dict[tuple[str, str], tuple[Item, int]] = {}

    @property
    def checked(self) -> int:
        """How many of the records that were passed had their CRC computed and compared."""
        return self.records if self._content else self.records - self.items

    def passes(self, item: Item, data: bytes, at: int) -> bool:
        """Tell whether an item that lies in memory passes; ``at`` is where it begins."""
        template, crc = self._like(item, data, at, data, at)
        if template is None:
            return False
        start = at + template.start
        if self._content and crc32(memoryview(data)[start : start + template.size]) != crc:
            return False
        if self._see is not None:
            payload = memoryview(data)[start : start + template.size]
            values = template.values(payload) if self._values else None
            self._see(ItemSeen(item, payload=template.payload, values=values))
        return self._count(item, item.length, template)

    def passes_ends(self, item: Item, head: bytes, tail: bytes) -> bool:
        """Tell whether an item passes of which only the first and the last bytes are there."""
        template, _ = self._like(item, head, 0, tail, len(tail) - item.length)
        if template is None or self._content or self._values:
            return False
        if self._see is not None:
            self._see(ItemSeen(item, payload=template.payload))
        return self._count(item, len(head) + len(tail), template)

    def _like(
        self, item: Item, first: bytes, at: int, last: bytes, begin: int
    ) -> tuple[Template | None, int]:
        """Return the template that an item fits, and the CRC-32 that was written of its payload."""
        key = self._templates.key(item)
        if key is None or item.offset in self._spared or item.transforms:
            return None, 0
        known = self._templates.forms.get(key)
        for template in known.templates if known is not None else ():
            behind = begin + template.start + template.size
            if behind >= 0:
                crc = template.fits(first, at, last, behind)
                if crc is not None:
                    self.last = template, crc
                    return template, crc
        return None, 0

    def _count(self, item: Item, read: int, template: Template) -> bool:
        self.items += 1
        self.records += template.records
        self.bytes += read
        self.torch_versions.add(template.torch_versions)
        if template.cast is not None:
            first, count = self.casts.get(template.cast, (item, 0))
            self.casts[template.cast] = first, count + 1
        return True

    def offer(self, seen: ItemSeen, data: ItemBytes) -> None:
        """Take note of an item that is handed to whoever judges it, before it is."""
        self._waiting = (seen, data)

    def learn(self, seen: ItemSeen, cast: tuple[str, str] | None = None) -> None:
        """Learn from an item that was looked at with care and of which there is nothing to say."""
        if self._waiting is not None and self._waiting[0] is seen:
            self._templates.learn(*self._waiting, cast)
        self._waiting = None


def template_of(
    seen: ItemSeen, data: ItemBytes, cast: tuple[str, str] | None = None
) -> Template | None:
    """Make a template of an item that passed, or return None where that is not safe.

    It must be what torch writes of one tensor: one payload, which its pickle names, and CRCs that
    were recorded for all its records, behind the data and in the directory, and agree.
    """
    payload, item = seen.payload, seen.item
    if payload is None or payload.kind != "plain" or seen.faults or seen.unread:
        return None
    name = f"data/{payload.storage_key}"
    if [one.name for one in seen.records if one.name.startswith("data/")] != [name]:
        return None
    try:
        shape = _Shape(seen, data)
        if not all(shape.sound(record) for record in seen.records):
            return None
        start, stop = shape.span(name)
        if item.length - (stop - start) > _LARGEST or not shape.described(start):
            return None
        half, varies = None, shape.crcs(name) if stop > start else []
        if varies and _ID in shape.heads:
            at, end = shape.span(_ID)
            half = crc32(data.get(at, at + _HALF))
            behind, central = varies
            behind_id, central_id = shape.crcs(_ID)
            varies = [behind, (at + _HALF, _HALF), behind_id, central, central_id]
            if end - at != 2 * _HALF or varies != sorted(varies):
                return None
    except MalformedData:
        return None
    form, end = "<", stop
    for at, size in varies:
        form += f"{at - end}s" + ("I" if size == _CRC else f"{size}s")
        end = at + size
    tail, last = Struct(f"{form}{item.length - end}s"), bytes(data.get(stop, item.length))
    found = Template(
        bytes(data.get(0, start)),
        tail,
        tail.unpack_from(last)[::2],
        start,
        stop - start,
        half,
        payload,
        shape.little,
        len(seen.records),
        seen.torch_versions,
        cast,
    )
    return found if found.fits(found.head, 0, last, 0) is not None else None


class _Shape:
    """Where the parts of one item lie, counted from where it begins."""

    def __init__(self, seen: ItemSeen, data: ItemBytes) -> None:
        """Read the directory once more; raises ``MalformedData`` where it says something else."""
        self._data, length = data, seen.item.length
        directory = torchzip.read_directory(lambda a, b: bytes(data.get(a, b)), length)
        self.heads = {head.name: head for head in directory.heads}
        self._starts = {record.name: record.start - seen.item.offset for record in seen.records}
        if self.heads.keys() != self._starts.keys() or len(self.heads) != len(seen.records):
            raise MalformedData("the records are not those that were looked at")
        self._lines: dict[bytes, int] = {}
        at = directory.start
        while at < length - torchzip.END_SIZE:
            line = bytes(data.get(at, at + _LINE))
            names, extras, comments = unpack_from("<HHH", line, 28)
            self._lines[bytes(data.get(at + _LINE, at + _LINE + names))] = at
            at += _LINE + names + extras + comments

    @property
    def little(self) -> bool:
        """True unless the bytes of elements are in big-endian order."""
        start, stop = self.span(_ORDER) if _ORDER in self.heads else (0, 0)
        return bytes(self._data.get(start, stop)) != b"big"

    def described(self, payload: int) -> bool:
        """Tell whether a payload that begins there lies behind all that says what it means."""
        return all(self._starts.get(name, 0) < payload for name in ("data.pkl", _ORDER))

    def span(self, name: str) -> tuple[int, int]:
        """Return where the bytes of a record begin and end."""
        start = self._starts[name]
        return start, start + self.heads[name].size

    def sound(self, record: RecordSeen) -> bool:
        """Tell whether a record has a CRC in both places, and its bytes, where they were read, fit."""
        if record.computed not in (None, record.crc):
            return False
        if not record.size:
            return not record.crc
        _, stop = self.span(record.name)
        trailer = bytes(self._data.get(stop, stop + _TRAILER))
        head = self.heads[record.name]
        return (
            torchzip.trailer_size(head) == _TRAILER
            and bool(record.crc)
            and torchzip.trailer_crc(trailer, head) == record.crc
            and (record.computed is not None or record.name.startswith("data/"))
        )

    def crcs(self, name: str) -> list[tuple[int, int]]:
        """Return where the two copies of a record's CRC lie, behind its data and in the directory.

        Raises ``MalformedData`` where there is a third one, in the local header.
        """
        head, (_, stop) = self.heads[name], self.span(name)
        local = head.header + _LOCAL_CRC
        if bytes(self._data.get(local, local + _CRC)) != bytes(_CRC):
            raise MalformedData("its local header has a CRC as well")
        return [(stop + 4, _CRC), (self._lines[head.raw_name] + _CENTRAL_CRC, _CRC)]
