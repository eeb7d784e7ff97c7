"""Writing one ``torch.save`` file: the nested state as it was, tensors streamed, values taken over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckptctl.dataclass import replace
from ckptctl.errors import Findings, MalformedData
from ckptctl.formats.pickles.plain import fragment, pickle_plain
from ckptctl.formats.pickles.tensors import TABLE as TENSOR_TABLE
from ckptctl.formats.pickles.unpickler import anatomy
from ckptctl.formats.pickles.values import named_in
from ckptctl.formats.torch import reader as torchfile
from ckptctl.formats.torch import writer
from ckptctl.formats.torch.reader import unpickle
from ckptctl.formats.torch.zip_writer import WRITABLE
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.manifest import FileRecord
from ckptctl.model.paths import join
from ckptctl.operations.content.digest import object_digest, object_records
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
from ckptctl.operations.place import split
from ckptctl.operations.reshard.target import Target
from ckptctl.operations.reshard.write import HashedUpload, nobody

_LARGEST_VALUE = 64 << 20


def is_plain(leaf: writer.ValueLeaf) -> bool:
    """Tell whether torch loads a value with ``weights_only=True``."""
    try:
        pickle_plain(unpickle(b"\x80\x02" + leaf.opcodes + b"."))
    except MalformedData:
        return False
    return True


def to_torch(
    opened: Opened,
    out: str,
    names: Mapping[str, str],
    options: ConvertOptions,
    reading: Reading,
    left_out: list[LeftOut],
) -> Prepared:
    """Prepare one file; values are taken over as they were pickled, and never run."""
    tensors = targets(opened, names, options.dtype, WRITABLE, left_out)
    leaves: list[tuple[Sequence[str | int], writer.Leaf]] = []
    for fqn in names:
        if isinstance(opened.checkpoint.entries[fqn], TensorEntry):
            continue
        try:
            leaves.append((_path(opened, names, fqn), _value(opened, reading, fqn)))
        except MalformedData as error:
            left_out.append(LeftOut(fqn, held_in(reading.source, fqn) or str(error)))
    values = len(leaves)
    needs = tuple(
        ".".join(map(str, path))
        for path, leaf in leaves
        if isinstance(leaf, writer.ValueLeaf) and not is_plain(leaf)
    )
    storages: dict[str, int] = {}
    kept: list[TargetTensor] = []
    for tensor in tensors:
        first = opened.checkpoint.shared.get(tensor.fqn, tensor.fqn)
        if first not in storages:
            storages[first] = len(kept)
            kept.append(tensor)
        leaf = writer.TensorLeaf(tensor.dtype, tensor.shape, storages[first])
        leaves.append((_path(opened, names, tensor.fqn), leaf))
    order = {fqn: position for position, fqn in enumerate(opened.checkpoint.entries)}
    by_path = {tuple(_path(opened, names, fqn)): order[fqn] for fqn in names}
    leaves.sort(key=lambda pair: by_path[tuple(pair[0])])
    tree = writer.nest(leaves)
    head = len(pickled := writer.pickle_of(tree))
    size = head + sum(tensor.size + 256 for tensor in kept) + 1024
    _, name = split(out)
    shared = {
        tensor.name: names[opened.checkpoint.shared[tensor.fqn]]
        for tensor in tensors
        if tensor.fqn in opened.checkpoint.shared
    }
    result = Conversion(
        opened.url,
        out,
        "torch",
        len(tensors),
        values,
        size,
        (Output(name, size, len(tensors)),),
        tuple(left_out),
        shared=shared,
        unsafe=needs,
        dry_run=options.dry_run,
    )

    def contents() -> Iterator[tuple[int, int, Iterator[memoryview]]]:
        for number, tensor in enumerate(kept):
            yield number, tensor.size, reading.blocks(tensor)

    def write(target: Target) -> Conversion:
        path = join(target.base, name)
        target.store.delete(path)  # of an attempt that was stopped before its proof
        reading.progress.start(opened.url, sum(tensor.size for tensor in kept))
        upload = target.store.upload(path)
        try:
            out = HashedUpload(upload, nobody)
            writer.write(out, tree, contents())
            digest = out.finish()
        finally:
            upload.abandon()
            reading.progress.finish()
        target.record = replace(target.record, files=())
        target.finish(FileRecord(name, out.size, digest))
        for tensor in tensors:  # what is shared was read once
            once = kept[storages[opened.checkpoint.shared.get(tensor.fqn, tensor.fqn)]]
            reading.held.setdefault(tensor.name, reading.held[once.name])
        with target.store.open(path) as reader:
            _prove_values(target.url, torchfile.state_of(reader), leaves)
        return replace(result, size=out.size, outputs=(Output(name, out.size, len(tensors)),))

    plan = plan_digest(opened, "torch", pickled)
    return Prepared(result, tensors, plan, frozenset((name,)), write, single=True)


def _prove_values(
    out: str, state: object, leaves: list[tuple[Sequence[str | int], writer.Leaf]]
) -> None:
    """Raise ``Findings`` unless every value stands in the result as it was pickled."""
    for path, leaf in leaves:
        if not isinstance(leaf, writer.ValueLeaf):
            continue
        found: object = state
        for element in path:
            if isinstance(found, dict):
                found = found.get(element, found.get(str(element)))
            elif isinstance(found, list) and isinstance(element, int) and element < len(found):
                found = found[element]
            else:
                found = None
        pickled = b"\x80\x02" + leaf.opcodes + b"."
        if anatomy(found) != anatomy(unpickle(pickled, table=TENSOR_TABLE)):
            name = ".".join(map(str, path))
            raise Findings(f"{out}: the value {name} is not what was read: do not use it")


def _path(opened: Opened, names: Mapping[str, str], fqn: str) -> Sequence[str | int]:
    """Return where a key goes in the nested state: its own path, or its new name as one key."""
    path = opened.checkpoint.paths_in_state.get(fqn)
    if names[fqn] != fqn or not path:
        return (names[fqn],)
    return path


def _value(opened: Opened, reading: Reading, fqn: str) -> writer.ValueLeaf:
    """Take over a value: the opcodes it was pickled with, where they stand on their own."""
    if fqn in opened.checkpoint.values:
        return writer.ValueLeaf(fragment(pickle_plain(opened.checkpoint.values[fqn])))
    items = reading.source.items_of(fqn)
    if len({object_digest(reading.source, item) for item in items}) != 1:
        raise MalformedData(f"{len(items)} ranks have saved one each, and they differ")
    data = b""
    for name, size, blocks in object_records(reading.source, items[0]):
        if name != "data.pkl":
            raise MalformedData("tensors are pickled inside it")
        if size > _LARGEST_VALUE:
            raise MalformedData(f"a value of {size} bytes is too large to take over")
        data = b"".join(blocks)
    if not data:
        raise Findings(f"{fqn}: it has no data.pkl")
    named_in(data)  # refuses what asks its reader to run something
    return writer.ValueLeaf(fragment(data))
