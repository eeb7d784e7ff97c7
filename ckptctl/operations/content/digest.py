"""Content digests: what tensors hold, whatever their sharding, their file format or their rank.

A tensor's digest is xxh3-128 of its whole row-major little-endian bytes. An object's is over the
records that make it up: what it was pickled as, and not where or by which rank it was saved.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Protocol

from ckptctl.crc import crc32
from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, NotFound, Refused, Unsupported
from ckptctl.formats.items.storage import decode, look
from ckptctl.formats.pickles.plain import pickle_plain
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import Item, ObjectEntry, TensorEntry
from ckptctl.model.dtypes import item_size
from ckptctl.model.geometry import Shape
from ckptctl.model.observation import RecordSeen
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.selection import need_matches
from ckptctl.operations.content.tensors import BLOCK, TensorSource
from ckptctl.operations.progress import Progress, Shared
from ckptctl.storage import Reader
from ckptctl.storage.traffic import tasks


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """The content of one tensor; ``size`` in bytes, ``problem`` says why there is no digest.

    ``unsupported`` where that is no damage: there is no reader for what it holds.
    """

    fqn: str
    dtype: str
    shape: Shape
    size: int
    digest: str = ""
    problem: str = ""
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class ObjectDigest:
    """The content of one value that is not a tensor; ``rank`` where each rank saved its own."""

    fqn: str
    rank: int | None
    digest: str = ""
    problem: str = ""
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class Content(Answer):
    """The fingerprint of a checkpoint: ``tensors_digest`` is over names, dtypes, shapes, digests.

    Both digests over all are empty where one of the parts has none, and where there are no parts;
    ``faults`` are of the metadata. ``unchecked`` are keys that no CRC was recorded for: their
    digest is of what is there now, and nothing tells whether that is what was written. ``unread``
    are files that may hold state and are not read as a part of it. What there is no reader for is left
    out; with ``strict`` that is a finding.
    """

    checkpoint: str = field(metadata=PATH)
    tensors: tuple[TensorDigest, ...]
    objects: tuple[ObjectDigest, ...]
    tensors_digest: str
    objects_digest: str
    faults: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    strict: bool = False

    @property
    def nothing(self) -> bool:
        """True if there was nothing to digest, which is equal to nothing."""
        return not (self.tensors or self.objects)

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be digested because something is wrong with it."""
        rows = [row for row in self._rows if row.problem and not row.unsupported]
        return (*self.faults, *(f"{row.fqn}: {row.problem}" for row in rows))

    @property
    def left_out(self) -> tuple[str, ...]:
        """What could not be digested because there is no reader for it."""
        return tuple(f"{row.fqn}: {row.problem}" for row in self._rows if row.unsupported)

    @property
    def _rows(self) -> tuple[TensorDigest | ObjectDigest, ...]:
        return (*self.tensors, *self.objects)

    @property
    def verdict(self) -> Verdict:
        """Findings where damage kept anything from being digested, refused where all is left out."""
        if self.problems or (self.strict and self.left_out):
            return Verdict.FINDINGS
        if self.left_out and len(self.left_out) == len(self._rows):
            return Verdict.REFUSED
        return Verdict.NOTHING if self.nothing else Verdict.OK


class Watcher(Protocol):
    """Follows the row-major bytes of one tensor."""

    def feed(self, block: memoryview, crc: int | None) -> None:
        """Take the bytes that follow; ``crc`` is theirs where it is known."""


def digest_content(
    opened: Opened,
    *,
    only: Iterable[str] = (),
    objects: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
    watch: Callable[[TensorEntry], Watcher | None] = lambda _: None,
) -> Content:
    """Digest all tensors and objects, or those whose name matches one of the patterns ``only``.

    The CRC-32 of every item is checked on the way. Damage of one tensor is its ``problem``, also
    where its file is not there; the others are digested all the same. Raises ``StorageError``
    where the storage does not answer: that is no damage. ``watch`` may name somebody for a tensor
    who is given its bytes as well.
    """
    patterns = tuple(only)

    def wanted(fqn: str) -> bool:
        return not patterns or any(fnmatch.fnmatchcase(fqn, one) for one in patterns)

    entries = opened.checkpoint.entries
    need_matches(patterns, entries)
    tensors = [e for n, e in entries.items() if isinstance(e, TensorEntry) and wanted(n)]
    values = [n for n, e in entries.items() if isinstance(e, ObjectEntry) and objects and wanted(n)]
    shared = Shared(progress)
    shared.start(opened.url, sum(map(bytes_of, tensors)))
    order = sorted(tensors, key=bytes_of, reverse=True)
    try:
        with (
            opened.source() as source,
            ThreadPoolExecutor(tasks(opened.store, workers)) as pool,
        ):
            rows = list(
                pool.map(lambda one: _tensor(source, one, shared.advance, watch(one)), order)
            )
            items = [item for fqn in values for item in source.items_of(fqn)]
            found = list(pool.map(lambda item: _object(source, item), items))
            found += [
                _value(n, opened.checkpoint.values[n])
                for n in values
                if n in opened.checkpoint.values
            ]
    finally:
        shared.finish()
    rows.sort(key=lambda row: row.fqn)
    found.sort(key=lambda row: (row.fqn, -1 if row.rank is None else row.rank))
    return Content(
        opened.url,
        tuple(rows),
        tuple(found),
        _over(
            None if r.problem else f"{r.fqn}\0{r.dtype}\0{list(r.shape)}\0{r.digest}" for r in rows
        ),
        _over(None if r.problem else f"{r.fqn}\0{r.digest}" for r in found),
        unchecked=tuple(sorted(source.unchecked)),
    )


def bytes_of(entry: TensorEntry) -> int:
    """Return the bytes of a tensor's data, counting one where elements are not whole bytes."""
    return entry.numel * (item_size(entry.dtype) or 1)


def _over(lines: Iterable[str | None]) -> str:
    hasher, nothing = Hasher(), True
    for line in lines:
        if line is None:
            return ""
        hasher.update(line.encode("utf-8", "surrogatepass") + b"\n")
        nothing = False
    return "" if nothing else hasher.text()


def _tensor(
    source: TensorSource,
    entry: TensorEntry,
    tick: Callable[[int], None],
    watcher: Watcher | None = None,
) -> TensorDigest:
    size = bytes_of(entry)
    hasher = Hasher()
    try:
        if watcher is None:
            for block in source.read(entry.fqn):
                hasher.update(block)
                tick(len(block))
        else:
            for block, crc in source.segments(entry.fqn):
                hasher.update(block)
                watcher.feed(block, crc)
                tick(len(block))
    except (MalformedData, Refused, NotFound) as error:
        alien = isinstance(error, Unsupported)
        return TensorDigest(
            entry.fqn, entry.dtype, entry.shape, size, problem=str(error), unsupported=alien
        )
    return TensorDigest(entry.fqn, entry.dtype, entry.shape, size, hasher.text())


def _object(source: TensorSource, item: Item) -> ObjectDigest:
    rank = item.rank if source.checkpoint.replicated else None
    try:
        return ObjectDigest(item.fqn, rank, object_digest(source, item))
    except (MalformedData, NotFound) as error:
        alien = isinstance(error, Unsupported)
        return ObjectDigest(item.fqn, rank, problem=str(error), unsupported=alien)


def _value(fqn: str, value: object) -> ObjectDigest:
    """Digest a value of a ``torch.save`` file as if it had been pickled on its own."""
    try:
        data = pickle_plain(value)
    except MalformedData as error:
        alien = isinstance(error, Unsupported)
        return ObjectDigest(fqn, None, problem=f"no digest: {error}", unsupported=alien)
    return ObjectDigest(fqn, None, pickle_digest(data))


def pickle_digest(data: bytes) -> str:
    """Digest an object that is a pickle and nothing else."""
    hasher = Hasher()
    hasher.update(record_head("data.pkl", len(data)))
    hasher.update(data)
    return hasher.text()


def object_digest(source: TensorSource, item: Item) -> str:
    """Digest the records of one object: its pickle and the storages it refers to.

    Raises ``MalformedData`` for damage.
    """
    hasher = Hasher()
    for name, size, blocks in object_records(source, item):
        hasher.update(record_head(name, size))
        for block in blocks:
            hasher.update(block)
    return hasher.text()


def record_head(name: str, size: int) -> bytes:
    """Return what stands before a record's bytes in the digest of an object."""
    return f"{name}\0{size}\n".encode("utf-8", "replace")


def object_records(source: TensorSource, item: Item) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Yield name, bytes and content of the records that make up an object, in order of name.

    One that is text is a record without a name. Each is read before the next is asked for. Raises ``MalformedData`` for damage.
    """
    with ExitStack() as stack:
        reader = source.reader(item.path, stack)
        if item.transforms:
            reader, item = decode(reader, item)
            stack.enter_context(reader)
        for record in sorted(look(reader, item, tensor=False).records, key=lambda one: one.name):
            if record.name in ("data.pkl", "") or record.name.startswith("data/"):
                if not record.recorded:
                    source.unchecked.add(item.fqn)
                yield record.name, record.size, _checked(reader, item, record)


def _checked(reader: Reader, item: Item, record: RecordSeen) -> Iterator[bytes]:
    crc, end = 0, record.start + record.size
    for start in range(record.start, end, BLOCK):
        block = reader.read(start, min(start + BLOCK, end))
        crc = crc32(block, crc)
        yield block
    if not record.fits(crc):
        raise MalformedData(f"{item.path}: {item.fqn}: {record.name}: its CRC-32 is wrong")
