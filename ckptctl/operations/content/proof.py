"""The proof of what was written: read back, it holds what the source holds. Reshard and convert share it.

By *digest*: each tensor and object has the content digest that the source's has, taken of all its
bytes in a pass of their own or as they were read to be written. By *crc*: the source is read once.
Each piece of the source, cut out of what is read back, has the CRC-32 that the source recorded with
it, or that was computed as it was read where none was recorded.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, UsageError
from ckptctl.model.checkpoint import Item, ObjectEntry, TensorEntry
from ckptctl.model.dtypes import item_size
from ckptctl.model.geometry import Shape
from ckptctl.operations.content.cut import Sums
from ckptctl.operations.content.digest import Content, digest_content
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.segments import Log, PieceCrc, Records, whole
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.progress import Progress

BUDGET = 256 << 20
"""Bytes of a source that is read once more without a second thought."""


class ProofBy(str, enum.Enum):
    """What the source and the result are compared by."""

    DIGEST = "digest"
    CRC = "crc"

    @classmethod
    def parse(cls, text: str) -> ProofBy | None:
        """Read a user's word, none for the empty string; raises ``UsageError`` for another."""
        try:
            return cls(text) if text else None
        except ValueError:
            known = " or ".join(one.value for one in cls)
            raise UsageError(f"`proof` takes {known}, not {text!r}") from None

    @classmethod
    def fitting(cls, *, committed: bool, size: int) -> ProofBy:
        """Choose: what is committed or small is read once more, for the stronger proof."""
        return cls.DIGEST if committed or size <= BUDGET else cls.CRC


@dataclass(frozen=True, slots=True)
class Held:
    """What a tensor must be and hold: by its digest, or by the CRC-32s of its pieces."""

    dtype: str
    shape: Shape
    digest: str = ""
    pieces: tuple[PieceCrc, ...] | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a result must hold, by its own keys: its tensors, and its objects by digest or records.

    ``apart`` are keys that are compared in another way, and where ``more`` is true there may be
    objects that nobody names here.
    """

    tensors: Mapping[str, Held]
    objects: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[str, Records] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    more: bool = False

    @property
    def covers(self) -> str:
        """Say what the proof is over, and how strong it is."""
        pieces = [held.pieces for held in self.tensors.values() if held.pieces is not None]
        digests = len(self.tensors) - len(pieces)
        told = [
            _told(digests, len(self.objects), "content digest (xxh3-128)"),
            _told(
                len(pieces),
                len(self.records),
                f"the CRC-32 of each of {_count(sum(map(len, pieces)), 'piece')} of the source and "
                "each record of an object",
            ),
        ]
        return "; ".join(filter(None, told))


def _told(tensors: int, objects: int, by: str) -> str:
    counts = [(tensors, "tensor"), (objects, "object")]
    what = " and ".join(_count(number, name) for number, name in counts if number)
    return f"{what} by {by}" if what else ""


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def pieces_of(source: TensorSource, log: Log, fqn: str) -> tuple[PieceCrc, ...]:
    """Return the CRC-32 of each piece of a tensor, from what was read of it.

    What was not read (by whom an earlier attempt was ended) comes from the source. Raises
    ``MalformedData`` where a piece is not the one that was recorded.
    """
    entry = source.entry(fqn)
    width = item_size(entry.dtype) or 1
    boxes = {box.offsets: box for box in entry.boxes if box.volume}
    found: dict[Shape, int] = {}
    for origin, box in boxes.items():
        seen = log.pieces.get((fqn, origin), ())
        crc = whole((run for one in seen for run in one.runs), box.volume * width)
        if crc is None:
            continue
        for one in seen:
            if one.recorded is not None and one.recorded != crc:
                raise MalformedData(
                    f"{fqn}: the CRC-32 of the piece at {list(origin)} is {crc:08x}, "
                    f"{one.recorded:08x} was written"
                )
        found[origin] = crc
    missing = boxes.keys() - found.keys()
    if missing:
        found.update(source.piece_crcs(fqn, missing))
    return tuple(PieceCrc(box, found[origin]) for origin, box in boxes.items() if origin in found)


def read_back(
    opened: Opened,
    expected: Expected,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Content, list[tuple[str, str]]]:
    """Read a result once; return its content, and each key that is not as expected with the reason."""
    watched: dict[str, Sums] = {}

    def watch(entry: TensorEntry) -> Sums | None:
        held = expected.tensors.get(entry.fqn)
        width = item_size(entry.dtype)
        if held is None or held.pieces is None or width is None or held.shape != entry.shape:
            return None
        boxes = [one.box for one in held.pieces]
        watched[entry.fqn] = Sums(entry.shape, width, boxes)
        return watched[entry.fqn]

    content = digest_content(
        opened, objects=not expected.records, workers=workers, progress=progress, watch=watch
    )
    wrong = list(_tensors(content, expected, watched))
    entries = opened.checkpoint.entries
    if expected.records:
        wrong += _records(opened, expected)
    else:
        for row in content.objects:
            if row.fqn not in expected.objects and (expected.more or row.fqn in expected.apart):
                continue
            if not row.digest or row.digest != expected.objects.get(row.fqn):
                wrong.append(
                    (row.fqn, f"its content is {row.digest or row.problem}, not the source's")
                )
    objects = {fqn for fqn, entry in entries.items() if isinstance(entry, ObjectEntry)}
    wanted = expected.tensors.keys() | expected.objects.keys() | expected.records.keys()
    wanted |= expected.apart
    there = {row.fqn for row in content.tensors} | (objects & wanted if expected.more else objects)
    for fqn in sorted(wanted ^ there):
        wrong.append(
            (fqn, "it is missing from the result" if fqn in wanted else "it was not asked for")
        )
    return content, wrong


def _tensors(
    content: Content, expected: Expected, watched: Mapping[str, Sums]
) -> Iterator[tuple[str, str]]:
    for row in content.tensors:
        held = expected.tensors.get(row.fqn)
        if held is None:
            continue  # compared in another way, or too many
        if (row.dtype, row.shape) != (held.dtype, held.shape) or not row.digest:
            yield row.fqn, f"its content is {row.problem or 'of another form'}"
        elif held.pieces is None:
            if row.digest != held.digest:
                yield row.fqn, f"its content is {row.digest}, not that of the source"
        elif row.fqn not in watched or watched[row.fqn].differ([one.crc for one in held.pieces]):
            yield row.fqn, "a piece of the source has another CRC-32 in it"
        elif sum(one.box.volume for one in held.pieces) != _numel(row.shape):
            yield row.fqn, "the pieces of the source are not all of it"


def _numel(shape: Shape) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _records(opened: Opened, expected: Expected) -> Iterator[tuple[str, str]]:
    """Compare objects by the records that they are made of."""
    with opened.source() as source:
        for fqn, records in expected.records.items():
            items: Iterable[Item] = source.items_of(fqn)
            try:
                found = set(source.object_records(items).values())
            except MalformedData as error:
                yield fqn, str(error)
                continue
            if found != {records}:
                yield fqn, "its records are not those of the source"
