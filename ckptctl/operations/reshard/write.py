"""Carrying a plan out, one target file after the other: small units of work that can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import MalformedData
from ckptctl.formats.torch.zip_writer import write_object, write_tensor
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    TensorEntry,
)
from ckptctl.model.geometry import Boxes
from ckptctl.model.manifest import FileRecord
from ckptctl.model.paths import join
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.sharding.plan import Copy, Give, Plan, Step, TargetFile, Write
from ckptctl.storage import Store, Upload, WritableStore, open_store, open_writable

_BUFFER = 1 << 20

Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileUnit:
    """One file to be written: what a worker needs to know, and nothing of the rest.

    ``checkpoint`` holds the source items that go into the file and no others; the steps of ``file``
    number them. ``source`` and ``target`` are the URLs of stores, ``base`` and ``directory`` the
    checkpoints in them.
    """

    source: str
    base: str
    checkpoint: Checkpoint
    target: str
    directory: str
    file: TargetFile


def units_of(
    plan: Plan,
    checkpoint: Checkpoint,
    source: tuple[str, str],
    target: tuple[str, str],
) -> Iterator[FileUnit]:
    """Cut a plan into units; ``source`` and ``target`` are pairs of store and directory in it."""
    for file in plan.files:
        part, steps = _part_of(checkpoint, file.steps)
        own = replace(file, steps=steps)
        yield FileUnit(source[0], source[1], part, target[0], target[1], own)


def _part_of(checkpoint: Checkpoint, steps: Iterable[Step]) -> tuple[Checkpoint, tuple[Step, ...]]:
    """Return the part of a checkpoint that some steps read, and the steps numbered for it."""
    numbers: dict[int, int] = {}
    boxes: dict[str, list[int]] = {}
    own: list[Step] = []
    for step in steps:
        if isinstance(step, Give):
            own.append(step)
            continue
        wanted = (step.item,) if isinstance(step, Copy) else step.pieces
        for index in wanted:
            if index not in numbers:
                numbers[index] = len(numbers)
                boxes.setdefault(checkpoint.items.fqns[index], []).append(index)
        if isinstance(step, Copy):
            own.append(replace(step, item=numbers[step.item]))
        else:
            own.append(replace(step, pieces=tuple(numbers[i] for i in step.pieces)))
            boxes.setdefault(step.fqn, [])
    entries = {
        fqn: _entry_part(checkpoint.entries[fqn], [checkpoint.items.origins[i] for i in indices])
        for fqn, indices in boxes.items()
    }
    part = Checkpoint(
        checkpoint.format,
        {},
        checkpoint.sources,
        entries,
        checkpoint.items.pick(list(numbers)),
        replicated=checkpoint.replicated,
    )
    return part, tuple(own)


def _entry_part(entry: Entry, origins: list[tuple[int, ...] | None]) -> Entry:
    if not isinstance(entry, TensorEntry):
        return entry
    wanted = set(origins)
    boxes = [box for box in entry.boxes if box.offsets in wanted]
    return replace(entry, boxes=Boxes.of(len(entry.shape), boxes))


class HashedUpload:
    """Gathers small writes, hashes everything and hands it to an upload."""

    def __init__(self, upload: Upload, tick: Tick) -> None:
        """Begin with nothing."""
        self._upload, self._tick = upload, tick
        self._hasher, self._pending = Hasher(), bytearray()
        self.size = 0

    def write(self, data: bytes | memoryview, /) -> object:
        """Take more bytes."""
        self.size += len(data)
        if len(self._pending) + len(data) < _BUFFER:
            self._pending += data
            return None
        self._flush()
        if len(data) < _BUFFER // 4:
            self._pending += data
        else:
            self._send(data)
        return None

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._send(memoryview(pending))

    def _send(self, data: bytes | memoryview) -> None:
        self._hasher.update(data)
        self._upload.write(data)
        self._tick(len(data))

    def finish(self) -> str:
        """Finish the upload and return the digest of all bytes."""
        self._flush()
        self._upload.finish()
        return self._hasher.text()


def write_file(
    unit: FileUnit,
    *,
    source: Store | None = None,
    target: WritableStore | None = None,
    tick: Tick | None = None,
) -> FileRecord:
    """Write one file and return what it is; stores are opened by URL where none are given.

    Every item that is copied has the CRCs of its records checked on the way. Raises
    ``MalformedData`` for damage of the source; the file is then not there.
    """
    source = source or open_store(unit.source)
    target = target or open_writable(unit.target)
    path = join(unit.directory, unit.file.path)
    upload = target.upload(path)
    try:
        out = HashedUpload(upload, tick or nobody)
        with TensorSource(source, unit.base, unit.checkpoint) as tensors:
            for run in _runs(unit):
                _do(run, unit, tensors, out)
        if out.size != unit.file.size:
            raise MalformedData(f"{path}: {out.size} bytes were written of {unit.file.size}")
        digest = out.finish()
    finally:
        upload.abandon()
    return FileRecord(unit.file.path, out.size, digest, unit.file.rank)


def copy_beside(
    source: Store, base: str, target: WritableStore, directory: str, name: str
) -> FileRecord:
    """Copy a file of the framework as it is."""
    upload = target.upload(join(directory, name))
    try:
        out = HashedUpload(upload, nobody)
        with source.open(join(base, name)) as reader:
            for start in range(0, reader.size, _BUFFER):
                out.write(reader.read(start, min(start + _BUFFER, reader.size)))
        digest = out.finish()
    finally:
        upload.abandon()
    return FileRecord(name, out.size, digest)


def nobody(count: int) -> None:
    """Tell nobody."""


def _runs(unit: FileUnit) -> Iterator[list[Step]]:
    """Group the steps: items to be copied that are neighbours in the source come together."""
    items = unit.checkpoint.items
    run: list[Step] = []
    for step in unit.file.steps:
        if isinstance(step, Copy) and run:
            last, this = run[-1], items[step.item]
            if isinstance(last, Copy):
                before = items[last.item]
                if before.path == this.path and before.end == this.offset:
                    run.append(step)
                    continue
        if run:
            yield run
        run = [step]
    if run:
        yield run


def _do(run: list[Step], unit: FileUnit, tensors: TensorSource, out: HashedUpload) -> None:
    first = run[0]
    if isinstance(first, Give):
        write_object(out, first.pickle)
        return
    if isinstance(first, Write):
        entry = tensors.entry(first.fqn)
        before = out.size
        write_tensor(out, entry.dtype, first.box.sizes, tensors.read(first.fqn, first.box))
        if out.size - before != first.length:
            raise MalformedData(f"{first.fqn}: {out.size - before} bytes of {first.length}")
        return
    items = unit.checkpoint.items
    tensors.copy([items[step.item] for step in run if isinstance(step, Copy)], out)
