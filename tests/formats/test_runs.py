"""Where each read is a request, a quick look at items sends no more of them than reading it all."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field

import pytest

from ckptctl.errors import ShortRead
from ckptctl.formats.items.scan import scan_items
from ckptctl.model.checkpoint import Item
from ckptctl.model.observation import ItemSeen
from support.stores import torch_zip

BLOCK = 256 << 10


@dataclass
class Distant:
    """An object in memory that counts the reads of it."""

    data: bytes
    block: int = BLOCK
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        self.reads.append((start, stop))
        if stop > len(self.data):
            raise ShortRead("past the end")
        return self.data[start:stop]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None:
        pass

    def __enter__(self) -> Distant:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _item(chance: random.Random) -> bytes:
    """One saved object: small or large, with few records or many, large ones first or last."""
    sizes = [chance.choice((0, 7, 900, 5000, 70_000, 300_000, 900_000))]
    sizes += [chance.choice((10, 3000, 90_000)) for _ in range(chance.choice((0, 0, 1, 3, 40)))]
    chance.shuffle(sizes)
    records = {f"data/{number}": bytes(size) for number, size in enumerate(sizes)}
    told = pickle.dumps("x" * chance.choice((20, 3000, 9000, 400_000)), protocol=2)
    few = {"byteorder": b"little", "version": b"3\n"}
    parts = [("data.pkl", told), *few.items(), *records.items()]
    if chance.random() < 0.3:
        chance.shuffle(parts)
    return torch_zip(
        dict(parts), descriptors=chance.random() < 0.3, padding=chance.choice((0, 40, 60_000))
    )


def _file(chance: random.Random) -> tuple[bytes, list[Item]]:
    data, items = bytearray(), []
    for number in range(chance.choice((1, 2, 9))):
        if chance.random() < 0.2:
            data += bytes(chance.choice((1, 5000)))
        body = _item(chance)
        items.append(Item(f"key.{number}", None, "file", len(data), len(body)))
        data += body
    return bytes(data), items


def _look(data: bytes, items: list[Item], *, content: bool) -> tuple[list[ItemSeen], Distant]:
    reader = Distant(data)
    seen = scan_items(
        reader,
        items,
        content=content,
        is_tensor=lambda _: False,
        expected_bytes=lambda _: None,
    )
    return list(seen), reader


@pytest.mark.parametrize("seed", range(60))
def test_a_quick_look_reads_no_more_often_and_sees_the_same(seed: int) -> None:
    data, items = _file(random.Random(seed))
    quick, few = _look(data, items, content=False)
    whole, many = _look(data, items, content=True)
    assert len(few.reads) <= len(many.reads), (few.reads, many.reads)
    assert [one.faults for one in quick] == [one.faults for one in whole]
    records = [[(r.name, r.start, r.size, r.crc) for r in one.records] for one in quick]
    assert records == [[(r.name, r.start, r.size, r.crc) for r in one.records] for one in whole]


def test_of_a_large_item_only_the_ends_are_read() -> None:
    body = torch_zip({"data.pkl": b"x" * 50, "data/0": bytes(3_000_000), "version": b"3"})
    _, reader = _look(body, [Item("key", None, "file", 0, len(body))], content=False)
    assert len(reader.reads) == 2
    assert sum(stop - start for start, stop in reader.reads) < 100_000
