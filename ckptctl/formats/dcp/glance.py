"""A glance at a DCP directory for the step that its optimizer counted."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ckptctl.errors import CkptctlError
from ckptctl.model.checkpoint import Item, TensorEntry
from ckptctl.model.paths import is_contained
from ckptctl.storage import Store

_LARGEST = 1 << 20
_MOST = 2


def optimizer_step(store: Store, path: str) -> int | None:
    """Return the step that parameters of the optimizer's state agree on, else None.

    Two of them are read, with the ends of their items. None also where the metadata is large,
    damaged or has no such tensors.
    """
    try:
        steps = set(_steps(store, path))
    except (CkptctlError, struct.error):
        return None
    (found,) = steps if len(steps) == 1 else (-1.0,)
    return int(found) if found >= 0 and found.is_integer() else None


def _steps(store: Store, path: str) -> Iterator[float]:
    from ckptctl.formats.dcp.reader import METADATA
    from ckptctl.formats.items.storage import locate_tensor

    for item in _items(store, path, METADATA):
        with store.open(f"{path}/{item.path}") as reader:
            span = locate_tensor(reader, item).row_major
            if span is not None and span[1] - span[0] == 4:
                yield struct.unpack("<f", reader.read(*span))[0]


def _items(store: Store, path: str, name: str) -> list[Item]:
    from ckptctl.formats.dcp.apart import parse_metadata

    with store.open(f"{path}/{name}") as reader:
        if reader.size > _LARGEST:
            return []
        parsed = parse_metadata(reader, name)
    found: list[Item] = []
    for index, fqn in enumerate(parsed.items.fqns):
        entry = parsed.entries.get(fqn)
        scalar = isinstance(entry, TensorEntry) and (entry.dtype, entry.shape) == ("float32", ())
        if scalar and fqn.endswith(".step") and is_contained(parsed.items.paths[index]):
            found.append(parsed.items[index])
        if len(found) == _MOST:
            break
    return found
