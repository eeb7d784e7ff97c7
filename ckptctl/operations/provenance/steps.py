"""Which steps another checkpoint states, under the keys that are out of line in the one at hand."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.errors import MalformedData, NotFound, UnsafeData
from ckptctl.formats.pickles.values import decode_item
from ckptctl.model.components import KeyName, elements
from ckptctl.operations.located import Located
from ckptctl.operations.provenance.compare_items import readable_beside
from ckptctl.provenance.counters import MOST_BYTES, Stamp, stamps_of

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
            with beside.open(item.path, other.files, ahead=False) as reader:
                value = decode_item(reader.read(item.offset, item.end))
        except (MalformedData, UnsafeData, NotFound):
            continue
        says = stamps_of(item.path, path, value, alone=other.replicated)
        found.extend(one for one in says if isinstance(one, Stamp))
    return found
