"""Filling a destination file by file, so that the same plan can go on with what it left."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from functools import partial
from threading import Event
from uuid import uuid4

from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import Conflict, MalformedData, Refused
from ckptctl.formats import registry
from ckptctl.model.manifest import MANIFEST, FileRecord, decode
from ckptctl.model.paths import join
from ckptctl.operations.content.files import OpenFiles
from ckptctl.operations.content.segments import Log
from ckptctl.operations.content.unread import is_sound
from ckptctl.operations.progress import Progress, Shared
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.reshard.destination import Destination, discard
from ckptctl.operations.reshard.units import Unit
from ckptctl.operations.reshard.write import Done, HashedUpload, copy_beside, nobody, write_unit
from ckptctl.sharding.plan import Plan
from ckptctl.sharding.record import CONVERTED, RESHARD, ReshardRecord, temporary
from ckptctl.storage import Store, WritableStore
from ckptctl.storage.traffic import writers


@dataclass(slots=True)
class Target:
    """A result in the making: where it is written, and what of it is finished."""

    destination: Destination
    record: ReshardRecord

    @property
    def store(self) -> WritableStore:
        """The store that it is written to."""
        return self.destination.store

    @property
    def base(self) -> str:
        """The directory that its files are written in."""
        return self.destination.base

    @property
    def url(self) -> str:
        """Where it will be, as the user typed it."""
        return self.destination.url

    @property
    def done(self) -> dict[str, FileRecord]:
        """The finished files by path."""
        return {file.path: file for file in self.record.files}

    def finish(self, file: FileRecord) -> None:
        """Note that a file is written and durable."""
        self.record = replace(self.record, files=(*self.record.files, file))
        self.store.put(join(self.destination.notes, RESHARD), self.record.encode())


def expected_files(plan: Plan) -> set[str]:
    """Name all files that a plan makes."""
    return {registry.sharded_writer().file, *plan.beside, *(file.path for file in plan.files)}


def begin(
    found: Destination, digest: str, expected: Collection[str], *, overwrite: bool = False
) -> tuple[Target, int]:
    """Claim the destination, or go on with what the same plan left; return how many files it left.

    ``digest`` is of the plan, ``expected`` the files that it makes. Raises ``Refused`` where another
    plan left something, ``Conflict`` where somebody else is first.
    """
    store, url, path = found.store, found.url, join(found.notes, RESHARD)
    left = list(found.entries)
    if overwrite and left:
        known = {RESHARD, *(file.path for file in _record_of(found).files), *expected}
        strange = [e.name for e in left if e.name not in known and not temporary(e.name)]
        if strange and not found.renamed:
            raise Refused(
                f"{url} holds {strange[0]}, which this does not write; nothing was changed"
            )
        discard(found)
        left = []
    if all(temporary(entry.name) for entry in left):  # it was stopped before its first record
        for entry in left:
            store.delete(join(found.notes, entry.name))
        record = ReshardRecord(plan=digest, save_id=str(uuid4()), time=now(), actor=actor())
        try:
            store.create(path, record.encode())
        except Conflict:
            raise Conflict(f"{url}: another attempt has begun there; nothing was written") from None
        return Target(found, record), 0
    record = _record_of(found)
    if record.plan != digest:
        raise Refused(
            f"{url} was left by another plan ({record.plan[:23]}, this one is {digest[:23]}): of "
            "another source, another number of ranks or other policies; nothing was changed; "
            "`overwrite` begins again"
        )
    sealed = {MANIFEST, CONVERTED} if found.renamed else set()  # stopped before it got its name
    strange = [
        entry.name
        for entry in left
        if entry.name not in {*expected, RESHARD, *sealed} and not temporary(entry.name)
    ]
    if strange:
        raise Refused(
            f"{url} holds {strange[0]}, which this plan does not write; nothing was changed"
        )
    sound = tuple(file for file in record.files if is_sound(store, found.base, file))
    kept = {file.path for file in sound} | {RESHARD}
    for entry in left:
        if entry.name not in kept:
            store.delete(join(found.notes, entry.name))
    return Target(found, replace(record, files=sound)), len(sound)


def _record_of(found: Destination) -> ReshardRecord:
    """Read the record of an unfinished attempt; raises ``Refused`` where it cannot be used."""
    path = join(found.notes, RESHARD)
    if all(entry.name != RESHARD for entry in found.entries):
        return ReshardRecord(plan="", save_id="")
    try:
        with found.store.open(path) as reader:
            return decode(ReshardRecord, reader.read(0, reader.size))
    except MalformedData as error:
        if found.renamed:
            return ReshardRecord(plan="", save_id="")
        raise Refused(f"{found.url}: its record {RESHARD} cannot be used: {error}") from None


def write_files(
    target: Target,
    units: Iterable[Unit],
    source: Store,
    *,
    workers: int | None,
    progress: Progress,
    executor: Executor | None = None,
) -> Log:
    """Write the files of all units, each noted as it is finished; return what was read, if noted."""
    shared = Shared(progress)
    stopped = Event()

    def tick(count: int) -> None:
        if stopped.is_set():
            raise Refused(f"{target.url}: stopped")
        shared.advance(count)

    waiting = sorted(units, key=lambda unit: -unit.size)
    shared.start(target.url, sum(unit.size for unit in waiting))
    pool = executor or ThreadPoolExecutor(writers(workers))
    opened = OpenFiles(source, waiting[0].base) if waiting else None
    work = partial(write_unit, source=source, target=target.store, tick=tick, opened=opened)
    futures: list[Future[Done]] = []
    log = Log()
    try:
        for unit in waiting:
            if executor is None:
                futures.append(pool.submit(work, unit))
            else:  # perhaps in another process: stores and progress do not go there
                futures.append(pool.submit(write_unit, unit))
        for future in as_completed(futures):
            done = future.result()
            if done.log is not None:
                log.add(done.log)
            for file in done.files:
                target.finish(file)
                if executor is not None:
                    shared.advance(file.size)
    except BaseException:
        stopped.set()  # those at work end at their next block, and leave nothing
        raise
    finally:
        for future in futures:
            future.cancel()
        if executor is None:
            pool.shutdown()
        if opened is not None:
            opened.close()
        shared.finish()
    return log


def write_beside(target: Target, plan: Plan, source: Store, base: str) -> None:
    """Copy the files that the framework keeps beside the shards."""
    for name in plan.beside:
        if name not in target.done:
            target.finish(copy_beside(source, base, target.store, target.base, name))


def write_metadata(target: Target, plan: Plan) -> None:
    """Write ``.metadata``, after all files; it makes them a checkpoint for torch."""
    writer = registry.sharded_writer()
    if writer.file in target.done:
        return
    pieces = writer.encode(
        plan.entries,
        plan.items(),
        plan.paths,
        save_id=target.record.save_id,
        checkpoint_id=target.url,
    )
    upload = target.store.upload(join(target.base, writer.file))
    try:
        out = HashedUpload(upload, nobody)
        for piece in pieces:
            out.write(piece)
        digest = out.finish()
    finally:
        upload.abandon()
    target.finish(FileRecord(writer.file, out.size, digest))


def make_durable(target: Target) -> None:
    """Make all files and their names survive a crash."""
    target.store.make_durable(join(target.base, path) for path in target.done)
