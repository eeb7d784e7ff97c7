"""Comparing what two checkpoints hold, the cheapest proof first.

Equal file digests of two manifests say that equal bytes were committed; a copy brings its manifest
along, whatever became of its bytes. Where both sides are cut alike, the CRC-32 of each payload, kept
behind it, proves a difference and suggests equality. Unread, with ``quick``, that is all there is.
Otherwise everything is read: digests of the whole row-major bytes are the same whatever the sharding.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock

from ckptctl.comparison.difference import ContentResult, ContentRow, Verdict, consequence_in
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import MalformedData, NothingThere, Refused, StorageError, Unsupported
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import Checkpoint, Item, Stored, TensorEntry
from ckptctl.model.geometry import Shape
from ckptctl.model.manifest import Manifest
from ckptctl.operations.content.digest import bytes_of
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.diff.objects import SMALL, compare_decoded, compare_objects, decoded
from ckptctl.operations.diff.structure import component_in, same_boxes
from ckptctl.operations.diff.undecoded import same_files, same_items
from ckptctl.operations.diff.values import Interpreted, compare_values
from ckptctl.operations.progress import Progress, Shared
from ckptctl.storage.traffic import tasks

FILE_DIGEST, CRC, DIGEST = "file digest", "CRC-32", "content digest"
BYTES = "its bytes"
UNREAD = "only reading would tell"


@dataclass(frozen=True, slots=True)
class ContentSide:
    """One checkpoint opened for comparing.

    ``digests`` of its files are those it was committed with. ``values`` are those of a
    ``torch.save`` file, which has no items for them.
    """

    source: TensorSource
    digests: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Checkpoint:
        """What it consists of."""
        return self.source.checkpoint


def trusted_digests(checkpoint: Checkpoint, manifest: Manifest | None) -> dict[str, str]:
    """Return the digests that a manifest promises of files that have the size it states."""
    if manifest is None:
        return {}
    files = checkpoint.files
    return {
        record.path: record.digest
        for record in manifest.files
        if record.path in files and files[record.path].size == record.size
    }


class Comparer:
    """Compares the content of pairs of keys."""

    def __init__(
        self,
        a: ContentSide,
        b: ContentSide,
        *,
        quick: bool,
        values: bool,
        progress: Progress | None = None,
    ) -> None:
        """Take both sides; ``quick`` reads no payload, ``values`` says how the numbers differ."""
        self._a, self._b = a, b
        self._quick, self._values = quick, values
        self._progress = Shared(progress)
        self._lock = Lock()
        self._alike: bool | None = None

    def run(self, pairs: list[tuple[str, str]], *, workers: int | None) -> ContentResult:
        """Compare all pairs; damage of one is its row's problem."""
        tensors, objects = [], []
        for one, other in pairs:
            kinds = (self._a.checkpoint.entries[one], self._b.checkpoint.entries[other])
            if all(isinstance(entry, TensorEntry) for entry in kinds):
                tensors.append((one, other))
            elif not any(isinstance(entry, TensorEntry) for entry in kinds):
                objects.append((one, other))
        self._progress.start("comparing", 2 * sum(self._size(one) for one, _ in tensors))
        order = sorted(tensors, key=lambda pair: -self._size(pair[0]))
        try:
            with ThreadPoolExecutor(tasks(self._a.source.store, workers)) as pool:
                rows = list(pool.map(self._tensor, order))
                rows += pool.map(self._object, objects)
        finally:
            self._progress.finish()
        equal: dict[str, int] = {}
        for row in rows:
            if row.verdict is Verdict.EQUAL and row.tensor:
                equal[row.how] = equal.get(row.how, 0) + 1
        return ContentResult(
            tuple(
                sorted(
                    (row for row in rows if row.verdict is not Verdict.EQUAL),
                    key=lambda row: (not row.tensor, row.component, row.fqn),
                )
            ),
            dict(sorted(equal.items())),
            sum(row.verdict is Verdict.EQUAL and not row.tensor for row in rows),
            len(tensors),
            len(objects),
            self._progress.done,
        )

    def _size(self, fqn: str) -> int:
        entry = self._a.checkpoint.entries[fqn]
        return bytes_of(entry) if isinstance(entry, TensorEntry) else 0

    def _row(self, one: str, other: str, verdict: Verdict, how: str = "") -> ContentRow:
        component = component_in(self._a.checkpoint, one)
        return ContentRow(one, other, component, verdict, how, consequence_in(component))

    def _tensor(self, pair: tuple[str, str]) -> ContentRow:
        one, other = pair
        a, b = self._a.source.entry(one), self._b.source.entry(other)
        try:
            return self._compare(a, b)
        except Unsupported as error:
            return self._by_bytes(a, b, str(error))
        except (MalformedData, Refused, StorageError, NothingThere) as error:
            return replace(self._row(one, other, Verdict.UNKNOWN), problem=str(error))

    def _compare(self, a: TensorEntry, b: TensorEntry) -> ContentRow:
        row = self._row(a.fqn, b.fqn, Verdict.UNKNOWN)
        if a.shape != b.shape:
            return replace(row, how="another shape")
        if a.dtype != b.dtype:
            row = replace(row, verdict=Verdict.CONVERTED, how=f"{a.dtype} -> {b.dtype}")
            found = self._measure(a, b) if self._values and not self._quick else None
            return replace(row, statistics=found.statistics) if found else row
        if not a.numel:
            return replace(row, verdict=Verdict.EQUAL, how="no elements")
        cheap = self._unread(a, b)
        if cheap and self._quick:
            return replace(row, verdict=cheap[0], how=cheap[1])
        if self._quick:
            return replace(row, how=UNREAD)
        if self._values:
            found = self._measure(a, b)
            if found is not None:
                verdict = Verdict.EQUAL if found.identical else Verdict.DIFFERS
                return replace(row, verdict=verdict, how="all bytes", statistics=found.statistics)
        if cheap and cheap[0] is Verdict.DIFFERS:
            return replace(row, verdict=cheap[0], how=cheap[1])
        equal = self._digest(self._a.source, a.fqn) == self._digest(self._b.source, b.fqn)
        return replace(row, verdict=Verdict.EQUAL if equal else Verdict.DIFFERS, how=DIGEST)

    def _by_bytes(self, a: TensorEntry, b: TensorEntry, why: str) -> ContentRow:
        """Compare what there is no reader for by what it was pickled as, else by its bytes."""
        row = self._row(a.fqn, b.fqn, Verdict.UNKNOWN, why)
        if self._quick or not same_boxes(a, b):
            return row
        ours, theirs = _by_box(self._a.source, a), _by_box(self._b.source, b)
        if not ours or ours.keys() != theirs.keys():
            return row
        try:
            pairs = [(ours[origin], theirs[origin]) for origin in ours]
            if any(one.transforms != other.transforms for one, other in pairs):
                return row  # the same bytes would mean something else
            equal = same_items(self._a.source, self._b.source, pairs)
        except (MalformedData, StorageError) as error:
            return replace(row, problem=str(error))
        return replace(row, verdict=Verdict.EQUAL if equal else Verdict.DIFFERS, how=BYTES)

    def _measure(self, a: TensorEntry, b: TensorEntry) -> Interpreted | None:
        return compare_values(self._a.source, a, self._b.source, b, self._progress.advance)

    def _digest(self, source: TensorSource, fqn: str) -> str:
        hasher = Hasher()
        for block in source.read(fqn):
            hasher.update(block)
            self._progress.advance(len(block))
        return hasher.text()

    def _unread(self, a: TensorEntry, b: TensorEntry) -> tuple[Verdict, str] | None:
        """Compare without reading payload; None where that tells nothing."""
        if not same_boxes(a, b):
            return None
        ours, theirs = _by_box(self._a.source, a), _by_box(self._b.source, b)
        if not ours or ours.keys() != theirs.keys():
            return None
        both = [(ours[origin], theirs[origin]) for origin in ours]
        if all(self._same_place(one, other) for one, other in both):
            return Verdict.EQUAL, FILE_DIGEST
        if any(item.stored is not None for pair in both for item in pair):
            return None  # only items that are zips of their own have records with CRCs
        verdict: tuple[Verdict, str] | None = (Verdict.EQUAL, CRC)
        for one, other in both:
            if self._same_place(one, other):
                continue
            if one.transforms or other.transforms:
                return None  # its records lie in what would have to be decompressed
            alike = self._same_crc(one, other)
            if alike is False:
                return Verdict.DIFFERS, CRC
            if alike is None:
                verdict = None
        return verdict

    def _same_place(self, one: Item, other: Item) -> bool:
        """Tell whether two items are the same bytes of files that are known to be equal."""
        digest = self._a.digests.get(one.path)
        return (
            digest is not None
            and digest == self._b.digests.get(other.path)
            and (one.offset, one.length) == (other.offset, other.length)
            and one.transforms == other.transforms
        )

    def _same_crc(self, one: Item, other: Item) -> bool | None:
        with ExitStack() as stack:
            ours, theirs = self._stored(self._a, one, stack), self._stored(self._b, other, stack)
        if ours.whole_crc is None or theirs.whole_crc is None or ours.size != theirs.size:
            return None
        return ours.whole_crc == theirs.whole_crc

    def _stored(self, side: ContentSide, item: Item, stack: ExitStack) -> Stored:
        return side.source.stored(item, stack)[1]

    def _object(self, pair: tuple[str, str]) -> ContentRow:
        one, other = pair
        row = replace(self._row(one, other, Verdict.UNKNOWN), tensor=False)
        try:
            return self._compare_objects(one, other, row)
        except (MalformedData, StorageError) as error:
            return replace(row, problem=str(error))

    def _compare_objects(self, one: str, other: str, row: ContentRow) -> ContentRow:
        ours, theirs = self._a.source.items_of(one), self._b.source.items_of(other)
        alike = bool(ours) and len(ours) == len(theirs)
        if self._quick and alike and all(map(self._same_place, ours, theirs)):
            return replace(row, verdict=Verdict.EQUAL, how=FILE_DIGEST)
        if self._quick and any(item.length > SMALL for item in [*ours, *theirs]):
            return replace(row, how=UNREAD)
        if self._a.values or self._b.values:
            row = compare_decoded(
                self._held(self._a, one, ours), self._held(self._b, other, theirs), row
            )
            if row.verdict is not Verdict.UNKNOWN or self._quick or one != other:
                return row
            equal = self._same_files()
            return replace(row, verdict=Verdict.EQUAL, how=FILE_DIGEST) if equal else row
        return compare_objects(self._a.source, ours, self._b.source, theirs, row)

    def _same_files(self) -> bool:
        """Tell whether both sides are the same bytes, for values that are no plain data."""
        with self._lock:
            if self._alike is None:
                self._alike = same_files(self._a.source, self._b.source)
            return self._alike

    def _held(self, side: ContentSide, fqn: str, items: list[Item]) -> list[object]:
        """Return the values of one key, one for each rank that saved its own."""
        if fqn in side.values:
            return [side.values[fqn]]
        return [decoded(side.source, item) for item in items]


def _by_box(source: TensorSource, entry: TensorEntry) -> dict[Shape, Item]:
    """Return the first item of each box that holds anything."""
    origins = {box.offsets for box in entry.boxes if box.volume}
    found: dict[Shape, Item] = {}
    for item in source.items_of(entry.fqn):
        if item.offsets in origins:
            found.setdefault(item.offsets, item)
    return found if found.keys() == origins else {}
