"""The smallest whole layout: two raw files, one per rank, and a JSON that says what is in them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping

from ckptctl.errors import NotFound
from ckptctl.formats.base import Claim, Folder, Layout, Reads, Sure
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    Fault,
    FaultKind,
    File,
    Items,
    ObjectEntry,
    Stored,
    TensorEntry,
)  # fmt: skip
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Box, Boxes, Shape
from ckptctl.storage import Store


class Toy(Layout):
    name = "toy"
    title = "toy"
    reads = Reads.WHOLE

    def claim(self, folder: Folder) -> Iterator[Claim]:
        if "toy.json" in folder.files:
            yield Claim(self.name, folder.path, Sure.MARKED, step=folder.name.step)

    def metadata(self, files: Iterable[str]) -> list[str]:
        return [name for name in files if name == "toy.json"]

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        try:
            with store.open(f"{base}/toy.json" if base else "toy.json") as reader:
                index = json.loads(reader.read(0, reader.size))
        except (NotFound, ValueError) as error:
            fault = Fault(FaultKind.UNREADABLE_METADATA, str(error), Location(file="toy.json"))
            return Checkpoint(self.name, files, faults=(fault,))
        entries: dict[str, Entry] = {fqn: ObjectEntry(fqn) for fqn in index["values"]}
        found: list[tuple[str, Shape, str, int, int]] = []
        stored: dict[int, Stored] = {}
        for fqn, one in index["tensors"].items():
            boxes = []
            for file, start, size, crc, offsets, sizes in one["pieces"]:
                boxes.append(Box(tuple(offsets), tuple(sizes)))
                bare = Stored.bare(one["dtype"], tuple(sizes), start, size, crc=crc)
                stored[len(found)] = bare
                found.append((fqn, tuple(offsets), file, start, size))
            shape = tuple(one["shape"])
            entries[fqn] = TensorEntry(fqn, one["dtype"], shape, Boxes.of(len(shape), boxes))
        fqns, origins, paths, offsets, sizes = map(list, zip(*found, strict=True))
        items = Items(fqns, origins, paths, array("q", offsets), array("q", sizes), stored=stored)
        return Checkpoint(
            self.name, files, ("toy.json",), entries, items, values=index["values"]
        )  # fmt: skip
