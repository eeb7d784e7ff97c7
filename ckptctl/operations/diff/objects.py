"""Comparing values that are not tensors: by what they decode to, else by the bytes of their pickle."""

from __future__ import annotations

from collections.abc import Sequence

from ckptctl.comparison.difference import ContentRow, Verdict
from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData
from ckptctl.model.checkpoint import Item
from ckptctl.operations.content.digest import object_digest
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.content.value import read_value

SMALL = 1 << 20
"""Bytes of an item up to which a value is decoded."""

_SHOWN = 200


def compare_objects(
    a: TensorSource, ours: Sequence[Item], b: TensorSource, theirs: Sequence[Item], row: ContentRow
) -> ContentRow:
    """Compare one key's values, in the order of ranks where each rank saved its own.

    Two pickles of one value may differ, so bytes that differ are decoded. A value that is not
    plain data is equal if its bytes are, and different otherwise. Raises ``MalformedData`` for
    damage and ``StorageError``.
    """
    if not ours or not theirs:
        return replace(row, problem=f"{len(ours)} and {len(theirs)} values are stored of it")
    if len(ours) != len(theirs):  # copies of one value, kept by more ranks than on the other side
        ours, theirs = _distinct(a, ours), _distinct(b, theirs)
        if len(ours) != len(theirs):
            how = f"{len(ours)} and {len(theirs)} different values are stored of it"
            return replace(row, verdict=Verdict.DIFFERS, how=how)
    for one, other in zip(_in_order(ours), _in_order(theirs), strict=True):
        found = _pair(a, one, b, other, row)
        if found.verdict is not Verdict.EQUAL:
            return found
    return replace(row, verdict=Verdict.EQUAL, how="value")


def _distinct(source: TensorSource, items: Sequence[Item]) -> list[Item]:
    return list({object_digest(source, item): item for item in reversed(_in_order(items))}.values())


def _in_order(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: (-1 if item.rank is None else item.rank, item.offset))


def _pair(a: TensorSource, one: Item, b: TensorSource, other: Item, row: ContentRow) -> ContentRow:
    if object_digest(a, one) == object_digest(b, other):
        return replace(row, verdict=Verdict.EQUAL)
    if max(one.length, other.length) > SMALL:
        return replace(row, verdict=Verdict.DIFFERS, how="its bytes")
    try:
        found = compare_decoded([decoded(a, one)], [decoded(b, other)], row)
    except MalformedData:  # its CRCs are right: it is in a form that is not read
        return replace(row, verdict=Verdict.DIFFERS, how="its bytes")
    if found.verdict is Verdict.UNKNOWN:
        return replace(row, verdict=Verdict.DIFFERS, how="its bytes")
    return found


def compare_decoded(
    ours: Sequence[object], theirs: Sequence[object], row: ContentRow
) -> ContentRow:
    """Compare decoded values; nothing is known of what holds more than plain data."""
    if not all(map(is_plain, [*ours, *theirs])):
        return replace(row, how="it is no plain data")
    # NaN is equal to itself here, as its text is
    if len(ours) == len(theirs) and (ours == theirs or repr(ours) == repr(theirs)):
        return replace(row, verdict=Verdict.EQUAL, how="value")
    row = replace(row, verdict=Verdict.DIFFERS, how="value")
    if len(ours) == len(theirs) == 1 and max(len(repr(ours)), len(repr(theirs))) <= _SHOWN:
        row = replace(row, a=ours[0], b=theirs[0], shown=True)
    return row


def decoded(source: TensorSource, item: Item) -> object:
    """Decode one value, running nothing."""
    return read_value(source.store, source.base, source.checkpoint, item)


def is_plain(value: object) -> bool:
    """Tell whether a value is all there: no tensor, array or object that is only described."""
    if isinstance(value, dict):
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_plain, value))
    return isinstance(value, str | bytes | int | float | complex | None)
