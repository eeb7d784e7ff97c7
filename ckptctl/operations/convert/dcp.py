"""Writing a DCP checkpoint from other formats, cut for a number of ranks: a reshard of sorts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from ckptctl.completeness.classifier import Classifier
from ckptctl.errors import MalformedData, UsageError
from ckptctl.formats.pickles.plain import pickle_plain
from ckptctl.formats.torch.zip_writer import WRITABLE
from ckptctl.model.checkpoint import Checkpoint, Entry, ObjectEntry, TensorEntry
from ckptctl.operations.content.digest import object_records, pickle_digest
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.convert.options import (
    Conversion,
    ConvertOptions,
    LeftOut,
    Output,
    Reading,
    TargetTensor,
    targets,
)
from ckptctl.operations.place import split
from ckptctl.operations.reshard import target as reshard_target
from ckptctl.operations.reshard.destination import need_space
from ckptctl.operations.reshard.plan import Request, plan_reshard
from ckptctl.operations.reshard.write import units_of
from ckptctl.sharding.rank_policy import Policy
from ckptctl.sharding.rank_state import families
from ckptctl.storage import open_writable


def to_dcp(
    opened: Opened,
    out: str,
    names: Mapping[str, str],
    options: ConvertOptions,
    reading: Reading,
    left_out: list[LeftOut],
) -> tuple[Conversion, list[TargetTensor]]:
    """Write a DCP checkpoint, cut along the first dimension for ``options.world_size`` ranks."""
    if options.dtype:
        raise UsageError("`dtype` goes with safetensors and torch; convert twice to cast for DCP")
    if opened.place is not None and opened.place.layout.writer is not None:
        raise UsageError(f"{opened.url} is DCP already: `ckptctl reshard` changes its ranks")
    parent, name = split(out)
    store = open_writable(parent or ".")
    found = reshard_target.look(store, name, resume=False)
    tensors = targets(opened, names, "", WRITABLE, left_out)
    pickles = _pickles(opened, names, left_out)
    view = _renamed(opened, names, {t.name for t in tensors} | pickles.keys())
    request = Request(
        options.world_size,
        policies={"rng": Policy.KEEP, "data": Policy.KEEP},
        source=_identity(opened),
        pickles=pickles,
    )
    classifier = Classifier(view)
    plan = plan_reshard(view, request, classifier, families(view, classifier)).plan
    result = Conversion(
        opened.url,
        out,
        "dcp",
        len(tensors),
        len(pickles),
        plan.written,
        tuple(Output(f.path, f.size, len(f.steps)) for f in plan.files),
        tuple(left_out),
        dry_run=options.dry_run,
    )
    need_space(store, plan.written)
    if options.dry_run:
        return result, tensors
    target, _ = reshard_target.begin(store, name, out, plan, found)
    source = (opened.store.url, opened.base)
    units = units_of(plan, view, source, (store.url, name))
    reshard_target.write_files(
        target, units, opened.store, workers=options.workers, progress=reading.progress
    )
    reshard_target.write_metadata(target, plan)
    reshard_target.make_durable(target)
    # the boxes were written from pieces, so what the source holds is read once more as a whole
    for tensor in tensors:
        for _ in reading.blocks(tensor):
            pass
    reading.objects = {key: pickle_digest(data) for key, data in pickles.items()}
    reshard_target.forget_record(target)
    return result, tensors


def _pickles(opened: Opened, names: Mapping[str, str], left_out: list[LeftOut]) -> dict[str, bytes]:
    """Return what each value is as a pickle by itself."""
    found = {}
    values = opened.checkpoint.values
    with opened.source() as source:
        for fqn, name in names.items():
            if isinstance(opened.checkpoint.entries[fqn], TensorEntry):
                continue
            try:
                stored = fqn not in values
                found[name] = _pickled(source, fqn) if stored else pickle_plain(values[fqn])
            except MalformedData as error:
                left_out.append(LeftOut(fqn, str(error)))
    return found


def _pickled(source: TensorSource, fqn: str) -> bytes:
    """Return the pickle of a value that is an item; raises ``MalformedData`` where it has more."""
    for item in source.items_of(fqn):
        records = {name: b"".join(data) for name, _, data in object_records(source, item)}
        if records.keys() != {"data.pkl"}:
            raise MalformedData("it holds tensors of its own, which are not taken over")
        return records["data.pkl"]
    raise MalformedData("it is not stored")


def _renamed(opened: Opened, names: Mapping[str, str], kept: set[str]) -> Checkpoint:
    """Return the source with other names, and without what is left out."""
    whole = opened.checkpoint
    entries: dict[str, Entry] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for fqn, name in names.items():
        if name not in kept:
            continue
        entry = whole.entries[fqn]
        entries[name] = (
            replace(entry, fqn=name) if isinstance(entry, TensorEntry) else ObjectEntry(name)
        )
        path = whole.paths_in_state.get(fqn)
        paths[name] = path if path and name == fqn else (name,)
    chosen = [i for i, fqn in enumerate(whole.items.fqns) if names.get(fqn) in kept]
    items = whole.items.pick(chosen)
    items = replace(items, fqns=[names[fqn] for fqn in items.fqns])
    return replace(whole, entries=entries, items=items, paths_in_state=paths)


def _identity(opened: Opened) -> str:
    """Name the source for the plan: its files with their sizes and times."""
    hasher = hashlib.sha256()
    for path, file in sorted(opened.checkpoint.files.items()):
        hasher.update(f"{path}\0{file.size}\0{file.modified}\n".encode("utf-8", "replace"))
    return f"files:{hasher.hexdigest()}"
