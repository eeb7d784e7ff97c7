"""Writing a DCP checkpoint from other formats, cut for a number of ranks: a reshard of sorts."""

from __future__ import annotations

from collections.abc import Mapping

from ckptctl.completeness.classifier import Classifier
from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData, UsageError
from ckptctl.formats.pickles.plain import pickle_plain
from ckptctl.formats.torch.zip_writer import WRITABLE
from ckptctl.model.checkpoint import Checkpoint, Entry, ObjectEntry, TensorEntry
from ckptctl.operations.content.digest import object_records, pickle_digest
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.proof import ProofBy
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.convert.options import (
    Conversion,
    ConvertOptions,
    LeftOut,
    Output,
    Prepared,
    Reading,
    source_identity,
    targets,
)
from ckptctl.operations.convert.unreadable import held_in
from ckptctl.operations.reshard.plan import Request, plan_reshard
from ckptctl.operations.reshard.target import (
    Target,
    expected_files,
    write_files,
    write_metadata,
)
from ckptctl.operations.reshard.units import units_of
from ckptctl.sharding.rank_policy import Policy
from ckptctl.sharding.rank_state import families


def to_dcp(
    opened: Opened,
    out: str,
    names: Mapping[str, str],
    options: ConvertOptions,
    reading: Reading,
    left_out: list[LeftOut],
) -> Prepared:
    """Prepare a DCP checkpoint, cut along the first dimension for ``options.world_size`` ranks."""
    if options.dtype:
        raise UsageError("`dtype` goes with safetensors and torch; convert twice to cast for DCP")
    if opened.place is not None and opened.place.layout.writer is not None:
        raise UsageError(f"{opened.url} is DCP already: `ckptctl reshard` changes its ranks")
    tensors = targets(opened, names, "", WRITABLE, left_out)
    pickles = _pickles(reading.source, names, left_out)
    view = _renamed(opened, names, {t.name for t in tensors} | pickles.keys())
    request = Request(
        options.world_size,
        policies={"rng": Policy.KEEP, "data": Policy.KEEP},
        source=source_identity(opened),
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

    def write(target: Target) -> Conversion:
        source = (opened.store.url, opened.base)
        place = (target.store.url, target.base)
        once = reading.by is ProofBy.CRC
        units = units_of(plan, view, source, place, target.done, noted=once)
        log = write_files(
            target, units, opened.store, workers=options.workers, progress=reading.progress
        )
        write_metadata(target, plan)
        if once:
            with TensorSource(opened.store, opened.base, view, log=log) as seen:
                for tensor in tensors:
                    reading.hold(replace(tensor, fqn=tensor.name), seen)
                reading.source.unchecked |= _before(names, log.unchecked | seen.unchecked)
        else:
            # written from pieces, so what the source holds is read once more as a whole
            for tensor in tensors:
                reading.again(tensor)
        reading.objects = {key: pickle_digest(data) for key, data in pickles.items()}
        return result

    return Prepared(result, tensors, plan.digest, frozenset(expected_files(plan)), write)


def _before(names: Mapping[str, str], found: set[str]) -> set[str]:
    """Return the keys of the source that have these names in the result."""
    return {fqn for fqn, name in names.items() if name in found}


def _pickles(
    source: TensorSource, names: Mapping[str, str], left_out: list[LeftOut]
) -> dict[str, bytes]:
    """Return what each value is as a pickle by itself."""
    found = {}
    values = source.checkpoint.values
    for fqn, name in names.items():
        if isinstance(source.checkpoint.entries[fqn], TensorEntry):
            continue
        try:
            stored = fqn not in values
            found[name] = _pickled(source, fqn) if stored else pickle_plain(values[fqn])
        except MalformedData as error:
            left_out.append(LeftOut(fqn, held_in(source, fqn) or str(error)))
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
