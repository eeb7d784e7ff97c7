"""Reading one small value of a checkpoint: a counter, a setting, a schedule."""

from __future__ import annotations

from ckptctl.errors import MalformedData, Unsupported
from ckptctl.formats.items import transforms
from ckptctl.formats.items.scan import as_text
from ckptctl.formats.pickles.values import MAX_VALUE, decode_item, decode_number
from ckptctl.model.checkpoint import Checkpoint, Item
from ckptctl.model.paths import is_contained, join
from ckptctl.storage import Store, open_listed


def read_value(
    store: Store,
    base: str,
    checkpoint: Checkpoint,
    item: Item,
    *,
    limit: int = MAX_VALUE,
    attributes: bool = False,
) -> object:
    """Decode an item of at most ``limit`` bytes, running nothing.

    With ``attributes`` objects of unknown classes come back as their attributes. Raises
    ``MalformedData`` for what is damaged or too large, ``StorageError`` where the storage does
    not answer.
    """
    if item.fqn in checkpoint.values:
        return checkpoint.values[item.fqn]
    if item.length > limit:
        raise MalformedData(f"{item.length} bytes, too large to show")
    if not is_contained(item.path):
        raise MalformedData("its file lies outside the checkpoint")
    file = checkpoint.files.get(item.path)
    if file is None or item.end > file.size:
        raise MalformedData("its bytes are not there")
    with open_listed(store, join(base, item.path), file.size, ahead=False) as reader:
        data = reader.read(item.offset, item.end)
    if item.stored is not None:
        return decode_number(item.stored, data)
    reason = transforms.unreadable(item.transforms)
    if reason:
        raise Unsupported(reason)
    if item.transforms:
        out, size = transforms.decode([data], len(item.transforms), limit)
        with out:
            out.seek(0)
            data = out.read(size)
    try:
        return decode_item(data, attributes=attributes)
    except MalformedData:
        if as_text(data) is not None:
            raise MalformedData("it is text, which no torch.save item is") from None
        raise
