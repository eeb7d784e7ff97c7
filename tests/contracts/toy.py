"""The smallest whole layout: two raw files, one per rank, and a JSON that says what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from ckptctl.errors import MalformedData
from ckptctl.formats.base import Claim, Folder, Layout, Reads, Sure, read_small
from ckptctl.model import checkpoint as model
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Box, Boxes
from ckptctl.storage import Store

INDEX = "toy.json"


class Toy(Layout):
    name = "toy"
    title = "toy"
    reads = Reads.WHOLE

    def claim(self, folder: Folder) -> Iterator[Claim]:
        if INDEX in folder.files:
            yield Claim(self.name, folder.path, Sure.MARKED, step=folder.name.step)

    def metadata(self, files: Iterable[str]) -> list[str]:
        return [name for name in files if name == INDEX]

    def read(self, store: Store, base: str, files: Mapping[str, model.File]) -> model.Checkpoint:
        try:
            index = json.loads(read_small(store, f"{base}/{INDEX}" if base else INDEX) or b"")
        except (MalformedData, ValueError) as error:
            kind = model.FaultKind.UNREADABLE_METADATA
            fault = model.Fault(kind, str(error), Location(file=INDEX))
            return model.Checkpoint(self.name, files, faults=(fault,))
        entries: dict[str, model.Entry] = {fqn: model.ObjectEntry(fqn) for fqn in index["values"]}
        items = []
        for fqn, one in index["tensors"].items():
            boxes = []
            for file, start, size, crc, offsets, sizes in one["pieces"]:
                box = Box(tuple(offsets), tuple(sizes))
                bare = model.Stored.bare(one["dtype"], box.sizes, start, size, crc=crc)
                items.append(model.Item(fqn, box.offsets, file, start, size, stored=bare))
                boxes.append(box)
            shape = tuple(one["shape"])
            cut = Boxes.of(len(shape), boxes)
            entries[fqn] = model.TensorEntry(fqn, one["dtype"], shape, cut)
        return model.Checkpoint(
            self.name, files, (INDEX,), entries, model.Items.of(items), values=index["values"]
        )
