"""Which steps another checkpoint states, under the keys that are out of line in the one at hand."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData, NotFound, UnsafeData
from ckptctl.formats.pickles.values import MAX_VALUE, decode_item
from ckptctl.model.checkpoint import Checkpoint
from ckptctl.model.companion import UPDATES, Form
from ckptctl.model.components import KeyName, elements
from ckptctl.operations.located import Located
from ckptctl.operations.provenance.compare_items import readable_beside
from ckptctl.provenance.counters import MOST_BYTES, Stamp, stamps_beside, stamps_of

_MOST_KEYS = 64


def steps_in(beside: Located, stamps: Iterable[Stamp]) -> list[Stamp]:
    """Read what another checkpoint has under the keys of these stamps.

    Raises ``StorageError`` where it cannot be read, ``MalformedData`` where its metadata cannot.
    """
    wanted = dict.fromkeys(stamp.key for stamp in stamps)
    keys = set(list(wanted)[:_MOST_KEYS])
    other = readable_beside(beside)
    found: list[Stamp] = []
    for index, fqn in enumerate(other.items.fqns):
        path = elements(fqn, other.paths_in_state.get(fqn))
        text = KeyName.of(path).text
        length = other.items.lengths[index]
        if text not in keys or length > MOST_BYTES or index in other.items.transforms:
            continue
        keys.discard(text)
        item = other.items[index]
        try:
            value = decode_item(_read(beside, other, item.path, item.offset, item.end))
        except (MalformedData, UnsafeData):
            continue
        says = stamps_of(item.path, path, value, alone=other.replicated)
        found.extend(
            replace(one, scheme=UPDATES) if one.kind in other.tied else one
            for one in says
            if isinstance(one, Stamp)
        )
    return found + _of_companions(beside, other, set(wanted))


def _read(beside: Located, other: Checkpoint, path: str, start: int, stop: int) -> bytes:
    try:
        with beside.open(path, other.files, ahead=False) as reader:
            return reader.read(start, min(stop, reader.size))
    except NotFound:
        return b""


def _of_companions(beside: Located, other: Checkpoint, keys: set[str]) -> list[Stamp]:
    """Read what files beside the tensors state, those that ``torch.save`` wrote."""
    found: list[Stamp] = []
    for path, one in other.companions.items():
        size = other.files[path].size
        if not any(".".join(told.path) in keys for told in one.told):
            continue
        if one.form is not Form.TORCH or not 0 < size <= MAX_VALUE:
            continue
        try:
            value = decode_item(_read(beside, other, path, 0, size), attributes=True)
        except (MalformedData, UnsafeData):
            continue
        found += [stamp for stamp in stamps_beside(one, value) if isinstance(stamp, Stamp)]
    return found
