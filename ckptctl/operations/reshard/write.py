"""Carrying a plan out: the files of one unit, each written once and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.torch.zip_writer import TensorItem, write_object
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import Items
from ckptctl.model.dtypes import ITEM_SIZE
from ckptctl.model.geometry import Box
from ckptctl.model.manifest import FileRecord
from ckptctl.model.paths import join
from ckptctl.operations.content.cut import Cutter
from ckptctl.operations.content.files import OpenFiles
from ckptctl.operations.content.segments import Log
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.reshard.units import Unit
from ckptctl.sharding.plan import Copy, Give, Step, TargetFile, Write
from ckptctl.storage import Store, Upload, WritableStore, open_store, open_writable

_BUFFER = 1 << 20
_BUFFERS = 16 << 20
"""Bytes of the buffers of all files that are written at the same time."""

_SMALLEST = 64 << 10
_BAND = 4 << 20
"""Bytes of a tensor that are read at once for several files."""

_WORTH_SHARING = 1 << 20
_HELPERS = 2

Tick = Callable[[int], None]


class HashedUpload:
    """Gathers small writes, hashes everything and hands it to an upload."""

    def __init__(self, upload: Upload, tick: Tick, buffer: int = _BUFFER) -> None:
        """Begin with nothing."""
        self._upload, self._tick, self._buffer = upload, tick, buffer
        self._hasher, self._pending = Hasher(), bytearray()
        self.size = 0

    def write(self, data: bytes | memoryview, /) -> object:
        """Take more bytes."""
        self.size += len(data)
        if len(self._pending) + len(data) < self._buffer:
            self._pending += data
            return None
        self._flush()
        if len(data) < self._buffer // 4:
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


@dataclass(frozen=True, slots=True)
class Done:
    """The files of a unit, and what was read of the source to write them, where that is noted."""

    files: tuple[FileRecord, ...]
    log: Log | None = None


def write_unit(
    unit: Unit,
    *,
    source: Store | None = None,
    target: WritableStore | None = None,
    tick: Tick | None = None,
    opened: OpenFiles | None = None,
) -> Done:
    """Write the files of a unit and return what they are; stores are opened by URL where not given.

    ``opened`` are files of the source that other units share.

    Every item that is copied has the CRCs of its records checked on the way. Raises
    ``MalformedData`` for damage of the source; none of the files is there then.
    """
    source = source or open_store(unit.source)
    target = target or open_writable(unit.target)
    buffer = max(_SMALLEST, min(_BUFFER, _BUFFERS // len(unit.files)))
    log = Log() if unit.noted else None
    with ExitStack() as stack:
        tensors = stack.enter_context(
            TensorSource(source, unit.base, unit.checkpoint, files=opened, log=log)
        )
        lines = []
        for file in unit.files:
            path = join(unit.directory, file.path)
            upload = target.upload(path, together=len(unit.files))
            stack.callback(upload.abandon)
            out = HashedUpload(upload, tick or nobody, buffer)
            lines.append(_Line(file, unit.checkpoint.items, out))
        _write_lines(lines, tensors, stack)
        for line in lines:
            if line.out.size != line.file.size:
                path, size = line.file.path, line.file.size
                raise MalformedData(f"{path}: {line.out.size} bytes were written of {size}")
        files = tuple(
            FileRecord(line.file.path, line.out.size, line.out.finish(), line.file.rank)
            for line in lines
        )
    if log is not None:
        log.unchecked |= tensors.unchecked
    return Done(files, log)


class _Line:
    """One file in the making, and the steps that it waits for."""

    def __init__(self, file: TargetFile, items: Items, out: HashedUpload) -> None:
        self.file, self.out = file, out
        self._runs = _runs(file, items)
        self.run: list[Step] = next(self._runs, [])

    def advance(self) -> None:
        self.run = next(self._runs, [])

    @property
    def shared(self) -> tuple[str, Box] | None:
        """What is to be read for this file and others, if that is what comes next."""
        return _shared(self.run[0]) if self.run else None


def _shared(step: Step) -> tuple[str, Box] | None:
    if isinstance(step, Write) and step.shared is not None:
        return step.fqn, step.shared
    return None


def _write_lines(lines: Sequence[_Line], tensors: TensorSource, stack: ExitStack) -> None:
    """Take all files forwards: each by itself, and together what is read once for several.

    The keys come in the same order in all files, so that they meet.
    """
    coming = Counter(key for line in lines for step in line.file.steps if (key := _shared(step)))
    helpers = stack.enter_context(ThreadPoolExecutor(_HELPERS)) if coming else None
    while True:
        met: dict[tuple[str, Box], list[_Line]] = {}
        for line in lines:
            while line.run and line.shared is None:
                _do(line.run, tensors, line.out)
                line.advance()
            if line.shared is not None:
                met.setdefault(line.shared, []).append(line)
        if not met:
            return
        key = next((k for k, those in met.items() if len(those) == coming[k]), next(iter(met)))
        _feed(key, met[key], tensors, helpers)
        coming[key] -= len(met[key])
        for line in met[key]:
            line.advance()


def _feed(
    key: tuple[str, Box],
    lines: Sequence[_Line],
    tensors: TensorSource,
    helpers: ThreadPoolExecutor | None,
) -> None:
    """Read a box once, and write to each file what it holds of it."""
    fqn, whole = key
    dtype = tensors.entry(fqn).dtype
    steps = [step for line in lines if isinstance(step := line.run[0], Write)]
    items = [
        TensorItem(line.out, dtype, step.box.sizes) for line, step in zip(lines, steps, strict=True)
    ]
    cutter = Cutter(whole, ITEM_SIZE[dtype], [step.box for step in steps])
    for block in tensors.read(fqn, whole, block=_BAND):
        slabs = cutter.slabs(block)

        def give(first: int, stride: int = _HELPERS) -> None:
            for number in range(first, len(items), stride):
                for slab, data in slabs:  # noqa: B023 - is done before the next block comes
                    part = cutter.part(number, slab, data)
                    if part is not None:
                        items[number].write(part)

        if helpers is not None and len(block) >= _WORTH_SHARING:
            list(helpers.map(give, range(_HELPERS)))
        else:
            give(0, 1)
    for item, step in zip(items, steps, strict=True):
        length = item.finish().length
        if length != step.length:
            raise MalformedData(f"{fqn}: {length} bytes of {step.length}")


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


def _runs(file: TargetFile, items: Items) -> Iterator[list[Step]]:
    """Group the steps: items to be copied that are neighbours in the source come together."""
    run: list[Step] = []
    for step in file.steps:
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


def _do(run: list[Step], tensors: TensorSource, out: HashedUpload) -> None:
    first = run[0]
    if isinstance(first, Give):
        write_object(out, first.pickle)
        return
    if isinstance(first, Write):
        entry = tensors.entry(first.fqn)
        before = out.size
        item = TensorItem(out, entry.dtype, first.box.sizes)
        for block, crc in tensors.segments(first.fqn, first.box):
            item.write(block, crc)
        item.finish()
        if out.size - before != first.length:
            raise MalformedData(f"{first.fqn}: {out.size - before} bytes of {first.length}")
        return
    items = tensors.checkpoint.items
    tensors.copy([items[step.item] for step in run if isinstance(step, Copy)], out)
