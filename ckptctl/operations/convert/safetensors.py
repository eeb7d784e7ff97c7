"""Writing safetensors: files of bounded size, and the index that Hugging Face expects beside them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ckptctl.formats.safetensors import writer
from ckptctl.formats.safetensors.reader import INDEX
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.operations.content.open import Opened
from ckptctl.operations.convert.options import (
    Conversion,
    ConvertOptions,
    LeftOut,
    Output,
    Reading,
    TargetTensor,
    targets,
)
from ckptctl.operations.reshard.destination import need_space, open_directory
from ckptctl.storage import WritableStore

_METADATA = {"format": "pt"}


def to_safetensors(
    opened: Opened,
    out: str,
    names: Mapping[str, str],
    options: ConvertOptions,
    reading: Reading,
    left_out: list[LeftOut],
) -> tuple[Conversion, list[TargetTensor]]:
    """Write a directory of safetensors files; each file appears whole, the index last."""
    entries = opened.checkpoint.entries
    left_out.extend(
        LeftOut(fqn, "it is no tensor")
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
    store = open_directory(out)
    need_space(store, size)
    if options.dry_run:
        return result, kept
    reading.progress.start(opened.url, sum(tensor.size for tensor in kept))
    try:
        with ThreadPoolExecutor(options.workers) as pool:
            jobs = [
                pool.submit(_write, store, path, heads[path], group, reading)
                for path, group in groups
            ]
            for job in jobs:
                job.result()
    finally:
        reading.progress.finish()
    if len(groups) > 1:
        weights = {tensor.name: path for path, group in groups for tensor in group}
        store.create(INDEX, writer.index(weights, sum(tensor.size for tensor in kept)))
    store.make_durable(output.path for output in outputs)
    return result, kept


def _write(
    store: WritableStore, path: str, head: bytes, group: list[TargetTensor], reading: Reading
) -> None:
    upload = store.upload(path)
    try:
        upload.write(head)
        for tensor in group:
            for block in reading.blocks(tensor):
                upload.write(block)
        upload.finish()
    finally:
        upload.abandon()
