"""Comparing what there is no reader for: by what it was pickled as, by its bytes, by whole files."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.errors import Unsupported
from ckptctl.formats.items.runs import block_of
from ckptctl.hashing import DEFAULT, digest_of
from ckptctl.model.checkpoint import Item
from ckptctl.model.paths import join
from ckptctl.operations.content.digest import object_digest
from ckptctl.operations.content.tensors import TensorSource


def same_items(a: TensorSource, b: TensorSource, pairs: Iterable[tuple[Item, Item]]) -> bool:
    """Tell whether items are pickled alike, their storages too; compressed ones byte for byte.

    Raises ``MalformedData`` for damage.
    """
    for one, other in pairs:
        try:
            equal = object_digest(a, one) == object_digest(b, other)
        except Unsupported:
            equal = a.item_digest(one) == b.item_digest(other)
        if not equal:
            return False
    return True


def same_files(a: TensorSource, b: TensorSource) -> bool:
    """Tell whether all that two checkpoints were read from is the same, byte for byte."""
    ours, theirs = sorted(a.checkpoint.sources), sorted(b.checkpoint.sources)
    if not ours or len(ours) != len(theirs):
        return False
    return all(
        _digest(a, one) == _digest(b, other) for one, other in zip(ours, theirs, strict=True)
    )


def _digest(source: TensorSource, path: str) -> str:
    with source.store.open(join(source.base, path)) as reader:
        return digest_of(reader, reader.size, DEFAULT, block=block_of(reader))
