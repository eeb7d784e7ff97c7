"""Many items of one tensor, looked at by templates and with care, to compare what both say."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ckptctl.checks import ITEM_CHECKS, Context
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.items.templates import Lane, Templates, by_form
from ckptctl.formats.torch.zip_writer import write_tensor
from ckptctl.model.checkpoint import Checkpoint, File, Item, Items, TensorEntry
from ckptctl.model.geometry import Box, Boxes
from ckptctl.model.observation import ItemSeen
from slow.fuzz import zips
from slow.fuzz.memory import Bytes
from slow.fuzz.mutate import flipped

KEY, PATH = "model.layers.0.weight", "__0_0.distcp"
SHAPE = (4, 4)
DTYPE = "float32"


def written(number: int, dtype: str = DTYPE, shape: tuple[int, ...] = SHAPE) -> bytes:
    """Return an item as torch writes it; its payload follows from the number."""
    out = io.BytesIO()
    size = {"float32": 4, "int64": 8, "bfloat16": 2}[dtype]
    count = size
    for extent in shape:
        count *= extent
    write_tensor(out, dtype, shape, [random.Random(number).randbytes(count)])
    return out.getvalue()


@dataclass
class Tensor:
    """One tensor cut by rows, whose pieces are items that lie one behind the other."""

    datas: Sequence[bytes]
    dtype: str = DTYPE
    shape: tuple[int, ...] = SHAPE
    context: Context = field(init=False)
    items: list[Item] = field(init=False)
    templates: Templates = field(init=False)

    def __post_init__(self) -> None:
        rows, rest = self.shape[0], self.shape[1:]
        origins = [(number * rows, *(0 for _ in rest)) for number in range(len(self.datas))]
        boxes = Boxes.of(len(self.shape), [Box(origin, self.shape) for origin in origins])
        entry = TensorEntry(KEY, self.dtype, (rows * len(self.datas), *rest), boxes)
        self.items, at = [], 0
        for origin, data in zip(origins, self.datas, strict=True):
            self.items.append(Item(KEY, origin, PATH, at, len(data)))
            at += len(data)
        files = {PATH: File(PATH, at)}
        found = Checkpoint("dcp", files, (".metadata",), {KEY: entry}, Items.of(self.items))
        self.context = Context.of(found)
        self.templates = Templates(by_form(self.context.boxes))

    @property
    def whole(self) -> bytes:
        """The file."""
        return b"".join(self.datas)

    def lane(self, *, content: bool = True, spared: Iterable[int] = ()) -> Lane:
        """Return a lane that knows what was learned so far."""
        return Lane(self.templates, content=content, spared=frozenset(spared))

    def look(
        self, data: bytes, items: Iterable[Item], *, content: bool, lane: Lane | None = None
    ) -> Iterator[ItemSeen]:
        """Look at items as a verification does, and teach the lane what was found good."""
        boxes = self.context.boxes
        for seen in scan_items(
            Bytes(data),
            list(items),
            content=content,
            is_tensor=boxes.is_tensor,
            expected_bytes=boxes.payload,
            lane=lane,
        ):
            if lane is not None and not self.said(seen):
                lane.learn(seen)
            yield seen

    def said(self, seen: ItemSeen) -> list[str]:
        """Return which checks have something to say of an item."""
        return [one.check for check in ITEM_CHECKS for one in check.ask(self.context, seen)]

    def taught(self, *, content: bool = True) -> Lane:
        """Look at all items of the file, and return a lane that knows them."""
        lane = self.lane(content=content)
        list(self.look(self.whole, self.items, content=content, lane=lane))
        return self.lane(content=content)

    def refused(self, data: bytes, *, content: bool = True) -> bool:
        """Tell whether the careful look finds anything at all in an item in place of the first."""
        item = Item(KEY, self.items[0].offsets, PATH, 0, len(data))
        (seen,) = self.look(data, [item], content=content)
        return bool(seen.unread or self.said(seen) or any(not r.recorded for r in seen.records))


def exchanged(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield every change of one byte to another value, and where it is."""
    for at, old in enumerate(data):
        head, tail = data[:at], data[at + 1 :]
        for value in range(256):
            if value != old:
                yield at, b"%b%c%b" % (head, value, tail)


def tried(count: int, seed: int) -> tuple[int, int]:
    """Teach changed items where nothing is said of them, and try further changes on what was learned."""
    rng = random.Random(seed)
    taught = passed = 0
    for _ in range(count):
        good = zips.take_apart(written(rng.randrange(1 << 30)))
        first = zips.changed(rng, good) if rng.random() < 0.7 else zips.put_together(good)
        tensor = Tensor([first, first, first])
        content = rng.random() < 0.6
        lane = tensor.taught(content=content)
        if not any(form.templates for form in tensor.templates.forms.values()):
            continue
        taught += 1
        for _ in range(8):
            other = mixed(rng, first)
            item = replace(tensor.items[0], length=len(other))
            if lane.passes(item, other, 0):
                passed += 1
                assert not tensor.refused(other, content=content), (seed, first, other)
    return taught, passed


def mixed(rng: random.Random, data: bytes) -> bytes:
    """Change an item in one or several places, most often so that it keeps its length and its CRCs."""
    if rng.random() < 0.3:
        start, stop = rng.randrange(len(data)), rng.randrange(len(data))
        other = bytearray(data)
        other[start : start + 4], other[stop : stop + 4] = (
            data[stop : stop + 4],
            data[start : start + 4],
        )
        return bytes(other)
    try:
        records = list(zips.take_apart(data))
    except (struct.error, AssertionError, IndexError):  # it is no healthy zip
        return flipped(rng, data)
    at = rng.randrange(len(records))
    body = bytearray(records[at].data)
    for _ in range(rng.randrange(1, 4)):
        if body:
            body[rng.randrange(len(body))] = rng.randrange(256)
    records[at] = replace(records[at], data=bytes(body), crc=None)
    return zips.put_together(tuple(records))
