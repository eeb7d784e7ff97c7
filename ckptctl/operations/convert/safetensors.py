"""Writing safetensors: files of bounded size, and the index that Hugging Face expects beside them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from ckptctl.formats.safetensors import writer
from ckptctl.formats.safetensors.reader import INDEX
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.manifest import FileRecord
from ckptctl.model.paths import join
from ckptctl.operations.content.open import Opened
from ckptctl.operations.convert.options import (
    Conversion,
    ConvertOptions,
    LeftOut,
    Output,
    Prepared,
    Reading,
    TargetTensor,
    plan_digest,
    targets,
)
from ckptctl.operations.convert.unreadable import held_in
from ckptctl.operations.reshard.target import Target
from ckptctl.operations.reshard.write import HashedUpload, nobody
from ckptctl.storage.traffic import writers

_METADATA = {"format": "pt"}


def to_safetensors(
    opened: Opened,
    out: str,
    names: Mapping[str, str],
    options: ConvertOptions,
    reading: Reading,
    left_out: list[LeftOut],
) -> Prepared:
    """Prepare a directory of safetensors files; each file appears whole, the index last."""
    entries = opened.checkpoint.entries
    left_out.extend(
        LeftOut(fqn, held_in(reading.source, fqn) or "it is no tensor")
        for fqn in names
        if not isinstance(entries[fqn], TensorEntry)
    )
    tensors = targets(opened, names, options.dtype, writer.WRITABLE, left_out)
    shared = {
        names[again]: names[first]
        for again, first in opened.checkpoint.shared.items()
        if again in names and first in names
    }
    kept = [tensor for tensor in tensors if tensor.name not in shared]
    groups = [
        (path, [t for line in writer.order(group) for t in group if t is line])
        for path, group in writer.shards(kept, options.largest)
    ]
    # the format's own convention: which name a tensor that was left out is kept under
    metadata = {**_METADATA, **shared}
    heads = {path: writer.header(group, metadata) for path, group in groups}
    outputs = tuple(
        Output(path, len(heads[path]) + sum(t.size for t in group), len(group))
        for path, group in groups
    )
    size = sum(output.size for output in outputs)
    result = Conversion(
        opened.url,
        out,
        "safetensors",
        len(kept),
        0,
        size,
        outputs,
        tuple(left_out),
        shared=shared,
        dry_run=options.dry_run,
    )
    index = b""
    if len(groups) > 1:
        weights = {tensor.name: path for path, group in groups for tensor in group}
        index = writer.index(weights, sum(tensor.size for tensor in kept))

    def write(target: Target) -> Conversion:
        reading.progress.start(opened.url, sum(tensor.size for tensor in kept))
        pool = ThreadPoolExecutor(writers(options.workers))
        jobs: list[Future[FileRecord]] = []
        try:
            for path, group in groups:
                done = target.done.get(path)
                jobs.append(pool.submit(_write, target, path, heads[path], group, reading, done))
            for job in as_completed(jobs):
                if job.result().path not in target.done:
                    target.finish(job.result())
        except BaseException:
            reading.stopped.set()  # those at work end at their next block, and leave nothing
            raise
        finally:
            for job in jobs:
                job.cancel()
            pool.shutdown()
            reading.progress.finish()
        if index and INDEX not in target.done:
            target.store.create(join(target.base, INDEX), index)
            target.finish(FileRecord(INDEX, len(index), digest_of_bytes(index)))
        return result

    files = frozenset((*heads, INDEX))
    plan = plan_digest(opened, "safetensors", *heads.values(), index)
    return Prepared(result, kept, plan, files, write)


def _write(
    target: Target,
    path: str,
    head: bytes,
    group: list[TargetTensor],
    reading: Reading,
    done: FileRecord | None,
) -> FileRecord:
    """Write a file; one that is written already is only read again, for what it must hold."""
    if done is not None:
        for tensor in group:
            reading.again(tensor)
        return done
    upload = target.store.upload(join(target.base, path))
    try:
        out = HashedUpload(upload, nobody)
        out.write(head)
        for tensor in group:
            for block in reading.blocks(tensor):
                out.write(block)
        digest = out.finish()
    finally:
        upload.abandon()
    return FileRecord(path, out.size, digest)


def digest_of_bytes(data: bytes) -> str:
    """Return the digest of a small file."""
    hasher = Hasher()
    hasher.update(data)
    return hasher.text()
