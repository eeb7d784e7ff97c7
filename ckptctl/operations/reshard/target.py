"""The destination of a reshard: free or left by the same plan, then filled file by file."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from uuid import uuid4

from ckptctl.errors import Conflict, MalformedData, NotFound, Refused, StorageError
from ckptctl.formats import registry
from ckptctl.formats.items.scan import block_of
from ckptctl.hashing import algorithm_of, digest_of
from ckptctl.model.manifest import MANIFEST, FileRecord, decode
from ckptctl.model.paths import join
from ckptctl.operations.progress import Progress, Shared
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.reshard.write import FileUnit, HashedUpload, copy_beside, nobody, write_file
from ckptctl.sharding.plan import Plan
from ckptctl.sharding.record import RESHARD, ReshardRecord
from ckptctl.storage import Entry, Store, WritableStore

_TEMPORARY = (".ckptctl-", ".tmp")


@dataclass(slots=True)
class Target:
    """A checkpoint in the making: the store of its root, its name there, and what is finished."""

    store: WritableStore
    name: str
    url: str
    record: ReshardRecord

    @property
    def done(self) -> dict[str, FileRecord]:
        """The finished files by path."""
        return {file.path: file for file in self.record.files}

    def finish(self, file: FileRecord) -> None:
        """Note that a file is written and durable."""
        self.record = replace(self.record, files=(*self.record.files, file))
        self.store.put(join(self.name, RESHARD), self.record.encode())


def look(store: WritableStore, name: str, *, resume: bool) -> list[Entry]:
    """Return what is at the destination; raises ``Refused`` where it is occupied.

    With ``resume`` what an unfinished reshard left may be there.
    """
    url = f"{store.url.rstrip('/')}/{name}"
    try:
        kind = store.stat(name).kind
        entries = store.entries(name) if kind == "directory" else []
    except NotFound:
        return []
    names = {entry.name for entry in entries}
    ours = RESHARD in names or (resume and all(map(_temporary, names)))
    if kind != "directory":
        raise Refused(f"{url} is not a directory; nothing was written")
    if MANIFEST in names:
        raise Refused(f"{url} holds a committed checkpoint; nothing was written")
    if names and not resume:
        hint = "; `resume` finishes what is there" if RESHARD in names else ""
        raise Refused(f"{url} exists already and is not empty; nothing was written{hint}")
    if names and not ours:
        raise Refused(f"{url} holds files that no reshard left there; nothing was written")
    return entries


def begin(
    store: WritableStore, name: str, url: str, plan: Plan, entries: Iterable[Entry]
) -> tuple[Target, int]:
    """Claim the destination, or go on with what the same plan left; return how many files it left.

    Raises ``Refused`` where another plan left it, ``Conflict`` where somebody else is first.
    """
    digest, found = plan.digest, list(entries)
    path = join(name, RESHARD)
    if all(_temporary(entry.name) for entry in found):  # it was stopped before its first record
        for entry in found:
            store.delete(join(name, entry.name))
        record = ReshardRecord(plan=digest, save_id=str(uuid4()), time=now(), actor=actor())
        try:
            store.create(path, record.encode())
        except Conflict:
            raise Conflict(f"{url}: another reshard has begun there; nothing was written") from None
        return Target(store, name, url, record), 0
    try:
        with store.open(path) as reader:
            record = decode(ReshardRecord, reader.read(0, reader.size))
    except MalformedData as error:
        raise Refused(f"{url}: its record {RESHARD} cannot be used: {error}") from None
    if record.plan != digest:
        raise Refused(
            f"{url} was left by another plan ({record.plan[:23]}, this one is {digest[:23]}): of "
            "another source, another number of ranks or other policies; nothing was changed"
        )
    expected = {registry.sharded_writer().file, *plan.beside, *(file.path for file in plan.files)}
    strange = [
        entry.name
        for entry in found
        if entry.name not in expected | {RESHARD} and not _temporary(entry.name)
    ]
    if strange:
        raise Refused(
            f"{url} holds {strange[0]}, which this plan does not write; nothing was changed"
        )
    sound = tuple(file for file in record.files if is_sound(store, name, file))
    kept = {file.path for file in sound} | {RESHARD}
    for entry in found:
        if entry.name not in kept:
            store.delete(join(name, entry.name))
    return Target(store, name, url, replace(record, files=sound)), len(sound)


def _temporary(name: str) -> bool:
    return name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1])


def is_sound(store: Store, name: str, file: FileRecord) -> bool:
    """Tell whether a file is still what was written."""
    try:
        with store.open(join(name, file.path)) as reader:
            block, algorithm = block_of(reader), algorithm_of(file.digest)
            return reader.size == file.size and file.digest == digest_of(
                reader, file.size, algorithm, block=block
            )
    except NotFound:
        return False


def write_files(
    target: Target,
    units: Iterable[FileUnit],
    source: Store,
    *,
    workers: int,
    progress: Progress,
    executor: Executor | None = None,
) -> None:
    """Write all files that are not finished yet, each noted as it is."""
    shared = Shared(progress)
    waiting = [unit for unit in units if unit.file.path not in target.done]
    shared.start(target.url, sum(unit.file.size for unit in waiting))
    pool = executor or ThreadPoolExecutor(workers)
    futures: list[Future[FileRecord]] = []
    try:
        for unit in sorted(waiting, key=lambda unit: -unit.file.size):
            if executor is None:
                futures.append(
                    pool.submit(
                        write_file, unit, source=source, target=target.store, tick=shared.advance
                    )
                )
            else:  # perhaps in another process: stores and progress do not go there
                futures.append(pool.submit(write_file, unit))
        for future in as_completed(futures):
            target.finish(future.result())
            if executor is not None:
                shared.advance(future.result().size)
    finally:
        for future in futures:
            future.cancel()
        if executor is None:
            pool.shutdown()
        shared.finish()


def write_beside(target: Target, plan: Plan, source: Store, base: str) -> None:
    """Copy the files that the framework keeps beside the shards."""
    for name in plan.beside:
        if name not in target.done:
            target.finish(copy_beside(source, base, target.store, target.name, name))


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
    upload = target.store.upload(join(target.name, writer.file))
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
    target.store.make_durable(join(target.name, path) for path in target.done)


def forget_record(target: Target) -> None:
    """Remove the record of the unfinished reshard, once its result is committed."""
    try:
        target.store.delete(join(target.name, RESHARD))
    except (StorageError, Refused):
        return  # the manifest is what counts; a record beside it does no harm
