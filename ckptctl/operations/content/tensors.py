"""Reading tensors whole, or any box of them, from the pieces that ranks saved.

Bytes come in row-major order whatever the sharding, in bounded memory. Reading a whole tensor
visits every byte of every piece once and in order, so each piece's CRC-32 is checked on the way; a
storage that is larger than the piece is checked whole before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from threading import Lock
from types import TracebackType

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, NotFound, NothingThere, Refused, Unsupported
from ckptctl.formats.items.casting import Loss, cast
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.items.storage import DECODED_SLACK, decode, locate_tensor, stored_in
from ckptctl.formats.items.strided import rearranged
from ckptctl.formats.items.templates import Lane
from ckptctl.formats.torch.zip_writer import Sink
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import BoxIndex, Checkpoint, Item, Stored, TensorEntry
from ckptctl.model.dtypes import CAST, item_size
from ckptctl.model.geometry import Box, Shape
from ckptctl.model.observation import ItemSeen
from ckptctl.operations.content.assemble import Block, InMemory, Piece, stream, volume
from ckptctl.operations.content.checked import (
    Check,
    Checked,
    Recorded,
    Unrecorded,
)
from ckptctl.operations.content.files import OpenFiles
from ckptctl.operations.content.segments import Log, Records, Run, Seen, records_of
from ckptctl.storage import Reader, Store

BLOCK = 1 << 20
"""Bytes of one band, and of one read."""


@dataclass(slots=True)
class _Digesting:
    hasher: Hasher = field(default_factory=Hasher)

    def write(self, data: bytes | memoryview, /) -> object:
        """Hash bytes."""
        self.hasher.update(data)
        return len(data)


@dataclass(slots=True)
class TensorSource:
    """The tensors of one checkpoint, opened for reading; safe to use from several threads.

    ``unchecked`` are the keys that were read and for which no CRC was recorded. ``files`` are those
    of other parts of the same checkpoint, to be shared. With a ``log`` what is read is noted there;
    pieces of which only a part is read are then for whoever reads the log to check.
    """

    store: Store
    base: str
    checkpoint: Checkpoint
    unchecked: set[str] = field(default_factory=set)
    files: OpenFiles | None = None
    log: Log | None = None
    _own: list[OpenFiles] = field(default_factory=list)
    _items: dict[str, list[int]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> TensorSource:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all files but those that others share."""
        for files in self._own:
            files.close()

    @property
    def _files(self) -> OpenFiles:
        if self.files is not None:
            return self.files
        with self._lock:
            if not self._own:
                self._own.append(OpenFiles(self.store, self.base))
        return self._own[0]

    def entry(self, fqn: str) -> TensorEntry:
        """Return a tensor's entry; raises ``NothingThere`` where there is no such tensor."""
        entry = self.checkpoint.entries.get(fqn)
        if not isinstance(entry, TensorEntry):
            raise NothingThere(f"{self.store.url}: there is no tensor {fqn}")
        return entry

    def items_of(self, fqn: str) -> list[Item]:
        """Return the items of one key, in the order of the metadata."""
        with self._lock:
            if not self._items:
                for index, name in enumerate(self.checkpoint.items.fqns):
                    self._items.setdefault(name, []).append(index)
        return [self.checkpoint.items[index] for index in self._items.get(fqn, ())]

    def copy(self, items: list[Item], out: Sink) -> None:
        """Write neighbouring items of a file as they are, and check the CRC of each of their records.

        Raises ``MalformedData`` for damage, and with a log for what could not be noted there.
        """
        boxes, lane = BoxIndex(self.checkpoint), Lane(self._files.templates, content=True)
        noted = self.log is not None  # of each item, what was seen of it
        with ExitStack() as stack:
            reader = self.reader(items[0].path, stack)
            if items[-1].end > reader.size:
                raise MalformedData(f"{items[-1].path}: it ends before {items[-1].fqn} does")
            for seen in scan_items(
                reader,
                items,
                content=True,
                is_tensor=boxes.is_tensor,
                expected_bytes=boxes.payload,
                sink=out.write,
                lane=None if noted else lane,
            ):
                if seen.damage:
                    raise MalformedData(f"{seen.item.path}: {seen.item.fqn}: {seen.damage}")
                if not noted:
                    lane.learn(seen)
                if seen.unread or not all(one.proven for one in seen.records if one.size):
                    self.unchecked.add(seen.item.fqn)
                if self.log is not None:
                    self._note_copy(seen, self.log)

    def _note_copy(self, seen: ItemSeen, log: Log) -> None:
        """Note the CRC of a tensor that was copied, where its bytes lie in order, or of an object."""
        item = seen.item
        entry = self.checkpoint.entries.get(item.fqn)
        if seen.unread or any(record.computed is None for record in seen.records if record.size):
            raise MalformedData(f"{item.path}: {item.fqn}: it cannot be read, only copied")
        if not isinstance(entry, TensorEntry):
            log.records[item.path, item.offset] = records_of(seen)
            return
        stored = stored_in(seen)
        box = next((b for b in entry.boxes if b.offsets == item.offsets), None)
        if stored.kind != "plain" or item_size(entry.dtype) is None or box is None:
            raise MalformedData(f"{item.path}: {item.fqn}: it cannot be read, only copied")
        if stored.dtype != entry.dtype and {stored.dtype, entry.dtype} <= CAST:
            return  # what it is read as has a CRC of its own
        if (stored.dtype, stored.shape) != (entry.dtype, box.sizes):
            raise MalformedData(f"{item.path}: {item.fqn}: it is not what the metadata says")
        if stored.row_major == (stored.start, stored.start + stored.size):
            computed = next((r.computed for r in seen.records if r.start == stored.start), None)
            run = Run(0, stored.size, computed or 0)
            log.note(item.fqn, box.offsets, Seen(stored.crc, (run,)))

    def object_records(self, items: Iterable[Item]) -> dict[tuple[str, int], Records]:
        """Read objects and return the CRC of each of their records; raises ``MalformedData`` for damage."""
        log = Log()
        part = TensorSource(
            self.store, self.base, self.checkpoint, self.unchecked, self._files, log
        )
        for item in items:
            part.copy([item], _Digesting())
        return log.records

    def damage(self, fqn: str) -> str:
        """Read the items of a key and return what is wrong with them; empty for nothing."""
        try:
            for item in self.items_of(fqn):
                self.copy([item], _Digesting())
        except (MalformedData, NotFound) as error:
            return str(error)
        return ""

    def item_digests(self, fqns: Iterable[str]) -> dict[tuple[str, object], str]:
        """Digest the items of some keys byte for byte, as they lie in their files."""
        found: dict[tuple[str, object], str] = {}
        for fqn in sorted(fqns):
            for item in self.items_of(fqn):
                if (fqn, item.offsets) not in found:
                    found[fqn, item.offsets] = self.item_digest(item)
        return found

    def item_digest(self, item: Item) -> str:
        """Digest an item byte for byte, as it lies in its file."""
        sink = _Digesting()
        self.copy([item], sink)
        return sink.hasher.text()

    def read(self, fqn: str, box: Box | None = None, *, block: int = BLOCK) -> Iterator[memoryview]:
        """Yield the row-major bytes of a tensor, or of a box of it; each block until the next.

        Of a whole tensor, and of a whole piece of one, the CRC has been checked when this ends;
        until then, and for parts of pieces, the bytes may be used only for what is compared with
        the whole afterwards. What nothing was recorded for is ``unchecked`` from then on. Raises ``MalformedData`` for damage and for tensors whose layout is not interpreted,
        ``Refused`` where pieces leave a part of the box open.
        """
        for data, _ in self._blocks(fqn, box, block, noted=self.log is not None):
            yield data

    def segments(self, fqn: str, box: Box | None = None, *, block: int = BLOCK) -> Iterator[Block]:
        """Yield what ``read`` yields, each block with its CRC-32 where that was computed."""
        return self._blocks(fqn, box, block, noted=True)

    def _blocks(self, fqn: str, box: Box | None, block: int, *, noted: bool) -> Iterator[Block]:
        entry = self.entry(fqn)
        whole = Box((0,) * len(entry.shape), entry.shape)
        target = whole if box is None else box
        width = item_size(entry.dtype)
        with ExitStack() as stack:
            if width is None:
                yield from self._opaque(entry, target, whole, block, stack)
                return
            if target.volume == 0:
                return
            pieces = [
                piece
                for piece in self._pieces(entry, width, target, stack)
                if piece.box.overlap(target) is not None or not target.sizes
            ]
            covered = sum(volume(piece.box, target) for piece in pieces)
            if covered != target.volume:
                raise Refused(
                    f"{fqn}: its pieces hold {covered} of {target.volume} elements of a part of "
                    f"it; `ckptctl verify` says what is missing"
                )
            for piece in pieces:
                piece.runs = [] if noted else None
            yield from stream(pieces, target, width, block)
            for piece in pieces:
                if self.log is not None:
                    recorded = piece.check.crc if isinstance(piece.check, Recorded) else None
                    seen = Seen(recorded, tuple(piece.runs or ()))
                    self.log.note(fqn, piece.box.offsets, seen)
                if target == whole or piece.passed:
                    piece.settle()

    def piece_crcs(self, fqn: str, origins: Collection[Shape]) -> dict[Shape, int]:
        """Return the CRC-32 of each piece that begins at one of these places.

        It is the one that was recorded; where there is none the piece is read.
        """
        entry, found = self.entry(fqn), {}
        width = item_size(entry.dtype) or 1
        whole = Box((0,) * len(entry.shape), entry.shape)
        with ExitStack() as stack:
            for piece in self._pieces(entry, width, whole, stack, origins):
                if isinstance(piece.check, Recorded):
                    found[piece.box.offsets] = piece.check.crc
                    continue
                piece.runs = []
                buffer = memoryview(bytearray(min(BLOCK, max(1, piece.size))))
                for start in range(0, piece.size, len(buffer)):
                    piece.read_into(start, buffer[: min(len(buffer), piece.size - start)])
                found[piece.box.offsets] = piece.runs[0].crc if piece.runs else 0
        return found

    def reader(self, path: str, stack: ExitStack) -> Reader:
        """Return a file of the checkpoint opened for reading, kept open where there is room."""
        file = self.checkpoint.files.get(path)
        return self._files.reader(path, stack, file.size if file is not None else None)

    def stored(self, item: Item, stack: ExitStack) -> tuple[Reader, Stored]:
        """Find where a tensor item's storage lies: what to read it from, and where in there."""
        reader = self.reader(item.path, stack)
        if item.stored is not None:
            return reader, item.stored
        if item.transforms:
            limit = self._payload(item) + DECODED_SLACK
            decoded, item = decode(reader, item, limit=limit)
            stack.enter_context(decoded)
            return decoded, locate_tensor(decoded, item)
        return reader, self._files.locate(reader, item)

    def _payload(self, item: Item) -> int:
        """Return the bytes that a tensor item may hold by what the metadata says of its box."""
        entry = self.entry(item.fqn)
        box = next((b for b in entry.boxes if b.offsets == item.offsets and b.volume), None)
        return (box.volume if box is not None else 1) * (item_size(entry.dtype) or 16)

    def _pieces(
        self,
        entry: TensorEntry,
        width: int,
        target: Box,
        stack: ExitStack,
        origins: Collection[Shape] | None = None,
    ) -> Iterator[Piece]:
        """Open the pieces that touch a box, one of each where ranks saved copies.

        With ``origins`` only those that begin there.
        """
        sizes = {box.offsets: box for box in entry.boxes if box.volume or not entry.shape}
        taken: set[tuple[int, ...]] = set()
        for item in self.items_of(entry.fqn):
            box = sizes.get(item.offsets) if item.offsets is not None else None
            if box is None or box.offsets in taken:
                continue
            if target.sizes and box.overlap(target) is None:
                continue
            if origins is not None and box.offsets not in origins:
                continue
            taken.add(box.offsets)
            yield self._piece(entry, item, box, width, stack)

    def _piece(
        self, entry: TensorEntry, item: Item, box: Box, width: int, stack: ExitStack
    ) -> Piece:
        reader, stored = self.stored(item, stack)
        if stored.kind != "plain":
            raise _not_interpreted(item, stored)
        cast_from = stored.dtype if {stored.dtype, entry.dtype} <= CAST else ""
        if stored.dtype != (cast_from or entry.dtype) or stored.shape != box.sizes:
            raise MalformedData(
                f"{item.path}: {item.fqn}: it holds {stored.dtype} {list(stored.shape)}, and the "
                f"metadata says {entry.dtype} {list(box.sizes)}"
            )
        span = stored.row_major
        if span is not None and stored.dtype == entry.dtype:
            return Piece(
                box,
                item,
                reader,
                span[0],
                span[1] - span[0],
                self._check(reader, item, stored, span),
            )
        # the whole storage is checked in there
        data = rearranged(reader, item, stored, item_size(stored.dtype) or width)
        if stored.dtype != entry.dtype:  # as loading does where a planner cast what it saved
            blocks = cast(iter([memoryview(data)]), stored.dtype, entry.dtype, Loss())
            data = b"".join(blocks)
        check = self._noted(item, Unrecorded() if stored.crc is None else Checked())
        return Piece(box, item, InMemory(data), 0, len(data), check)

    def _check(self, reader: Reader, item: Item, stored: Stored, span: tuple[int, int]) -> Check:
        """Settle what bytes of a storage are checked against; of a larger storage it is done here."""
        if stored.crc is None or span == (stored.start, stored.start + stored.size):
            found = Unrecorded() if stored.crc is None else Recorded(stored.crc)
            return self._noted(item, found)
        return self._files.storages.check(reader, item, stored)

    def _noted(self, item: Item, check: Check) -> Check:
        if isinstance(check, Unrecorded):
            self.unchecked.add(item.fqn)
        return check

    def _opaque(
        self, entry: TensorEntry, target: Box, whole: Box, block: int, stack: ExitStack
    ) -> Iterator[Block]:
        """Yield the storage of a tensor whose elements are not whole bytes, which is one piece."""
        items = self.items_of(entry.fqn)
        boxes = [box for box in entry.boxes if box.volume]
        if target != whole or len(boxes) > 1 or not items:
            raise Unsupported(
                f"{entry.fqn}: elements of {entry.dtype} are not whole bytes, so it cannot be cut"
            )
        reader, stored = self.stored(items[0], stack)
        if stored.kind != "plain":
            raise _not_interpreted(items[0], stored)
        span = (stored.start, stored.start + stored.size)
        check = self._check(reader, items[0], stored, span)
        piece = Piece(whole, items[0], reader, stored.start, stored.size, check)
        for position in range(0, stored.size, block):
            buffer = memoryview(bytearray(min(block, stored.size - position)))
            yield buffer, piece.read_into(position, buffer)
        piece.settle()


def _not_interpreted(item: Item, stored: Stored) -> Unsupported:
    return Unsupported(f"{item.path}: {item.fqn}: the layout of {stored.kind} is not interpreted")
