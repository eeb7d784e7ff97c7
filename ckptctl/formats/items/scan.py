"""Looking at items in one pass over their file: zip structure, ``data.pkl``, the CRC of each record.

Small items are read in runs of neighbours; a large one is streamed through one buffer, its end
first because its directory is there. No byte is read twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache

from ckptctl.crc import crc32
from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import MalformedData
from ckptctl.formats.budget import item_fault_kind
from ckptctl.formats.items import transforms
from ckptctl.formats.items.bytes import (
    RUN,
    Distant,
    ItemBytes,
    Sink,
    Sparse,
    Spooled,
    Stream,
    Whole,
)
from ckptctl.formats.items.raw import see_raw
from ckptctl.formats.items.runs import block_of, is_distant, limits_of, runs
from ckptctl.formats.items.templates import Lane
from ckptctl.formats.items.values import Scanner, scanner_of, values_of
from ckptctl.formats.pickles.tensors import parse_tensor
from ckptctl.formats.pickles.values import named_in
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import Fault, FaultKind, Item
from ckptctl.model.finding import Location
from ckptctl.model.observation import JSON, RAW, TEXT, ItemSeen, Payload, RecordSeen
from ckptctl.storage import Reader

_SMALL_RECORD = 1 << 20
_LARGEST_PICKLE = 64 << 20
_WORD = 8
"""Bytes of a number, which may well be nothing but zeros."""
_LINES = {ord(one): " " for one in "\n\r\t"}
_OBJECT_LIMIT = 1 << 30

_parse_small = lru_cache(maxsize=4096)(parse_tensor)
_SMALL_PICKLE = 2048


def parse_payload(data: bytes) -> Payload:
    """Read a tensor's ``data.pkl``; the same few lines stand in very many items."""
    return _parse_small(data) if len(data) <= _SMALL_PICKLE else parse_tensor(data)


@dataclass(frozen=True, slots=True)
class _How:
    """What is to be found out about an item."""

    content: bool
    values: bool
    checksums: bool
    keep: Callable[[Item], bool] | None = None

    def keeps(self, item: Item) -> bool:
        """Tell whether all bytes of the item are to be handed over with it."""
        return self.keep is not None and self.keep(item)


def scan_items(
    reader: Reader,
    items: Sequence[Item],
    *,
    content: bool,
    is_tensor: Callable[[str], bool],
    expected_bytes: Callable[[Item], int | None],
    sink: Sink | None = None,
    values: bool = False,
    checksums: bool = True,
    keep: Callable[[Item], bool] | None = None,
    probe: bool = False,
    lane: Lane | None = None,
) -> Iterator[ItemSeen]:
    """Look at items of one file that lie inside it, given in the order of their bytes.

    With ``content`` every byte is read and each record's CRC computed; without it only headers,
    directories and ``data.pkl``. ``expected_bytes`` bounds what a compressed item may decode to.
    With ``content``, ``sink`` is given all bytes of the items in the order of the file, and with
    ``values`` as well the numbers in tensors are looked at. Without ``checksums`` no CRC of larger
    records is computed: the sink knows a better way. ``keep`` chooses small items whose bytes, decoded
    where they are compressed, come with what was seen of them. A ``probe`` is made by whoever reads
    the payload afterwards, and fetches no large one for the sake of its ends. What passes the
    ``lane`` is counted there and not yielded.
    """
    how = _How(content=content, values=values and content, checksums=checksums, keep=keep)
    buffer: memoryview | None = None
    block, distant = block_of(reader), is_distant(reader)
    limits = limits_of(reader, content=content, probe=probe)
    for item in items:
        if item.stored is not None:
            yield see_raw(
                reader,
                item,
                item.stored,
                content=content,
                values=how.values,
                checksums=checksums,
                sink=sink,
                keep=how.keeps(item),
                block=block,
            )
    items = [item for item in items if item.stored is None]
    for run in runs(items, limits, keeps=how.keeps):
        first = run[0]
        if len(run) > 1 or first.length <= limits[0] or how.keeps(first):
            data = reader.read(first.offset, run[-1].end)
            if sink is not None:
                sink(memoryview(data))
            for item in run:
                low = item.offset - first.offset
                if lane is not None and lane.passes(item, data, low):
                    continue
                view = memoryview(data)[low : low + item.length]
                whole = Whole(view)
                seen = _see(whole, item, is_tensor, expected_bytes, how)
                if how.keeps(item) and not item.transforms:
                    seen = replace(seen, body=bytes(view))
                if lane is not None:
                    lane.offer(seen, whole)
                yield seen
        elif content:
            buffer = memoryview(bytearray(block)) if buffer is None else buffer
            stream = Stream(reader, first, buffer, sink)
            seen = _see(stream, first, is_tensor, expected_bytes, how)
            stream.finish()
            yield replace(seen, bytes_read=stream.bytes_read)
        elif distant:
            far = Distant(reader, first, block)
            seen = _see(far, first, is_tensor, expected_bytes, how)
            yield replace(seen, bytes_read=far.bytes_read)
        else:
            sparse = Sparse(reader, first)
            if lane is not None and lane.passes_ends(first, sparse.head, sparse.tail):
                continue
            seen = _see(sparse, first, is_tensor, expected_bytes, how)
            seen = replace(seen, bytes_read=sparse.bytes_read)
            if lane is not None:
                lane.offer(seen, sparse)
            yield seen


def _see(
    data: ItemBytes,
    item: Item,
    is_tensor: Callable[[str], bool],
    expected_bytes: Callable[[Item], int | None],
    how: _How,
) -> ItemSeen:
    tensor = is_tensor(item.fqn)
    if not item.transforms:
        return _see_zip(data, item, item.length, item.offset, how, tensor=tensor)
    reason = transforms.unreadable(item.transforms)
    if not reason and not how.content:
        reason = "it is compressed, and its content was left out"
    if reason:
        return ItemSeen(item, unread=reason)
    expected = expected_bytes(item)
    limit = _OBJECT_LIMIT if expected is None else expected + (1 << 20)
    try:
        file, size = transforms.decode(data.pieces(0, item.length), len(item.transforms), limit)
    except MalformedData as error:
        return ItemSeen(item, faults=(_fault(item, str(error)),))
    with closing(file):

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            return file.read(stop - start)

        seen = _see_zip(Spooled(read), item, size, 0, how, tensor=tensor)
        return replace(seen, body=read(0, size)) if how.keeps(item) and size <= RUN else seen


def _fault(item: Item, message: str) -> Fault:
    where = Location(file=item.path, fqn=item.fqn, start=item.offset, stop=item.end)
    return Fault(FaultKind.ITEM_STRUCTURE, message, where)


def _is_kept(head: torchzip.Head) -> bool:
    """Tell whether a record's bytes are wanted by whoever only looks: of all but tensors' data."""
    most = _LARGEST_PICKLE if head.name == "data.pkl" else _SMALL_RECORD
    return head.size <= most and not head.name.startswith("data/")


def _parts(directory: torchzip.Directory) -> Iterator[tuple[int, int]]:
    """Yield which bytes of an item a look without its content reads."""
    ends = [*(head.header for head in directory.heads[1:]), directory.start]
    for head, end in zip(directory.heads, ends, strict=True):
        header = head.header + torchzip.LOCAL_SIZE + len(head.raw_name)
        yield head.header, end if _is_kept(head) else header


def _see_zip(
    data: ItemBytes,
    item: Item,
    length: int,
    base: int,
    how: _How,
    *,
    tensor: bool,
) -> ItemSeen:
    """Walk the records in the order of their bytes."""
    values = how.values and tensor
    scanner: Scanner | None = None
    faults: list[Fault] = []
    records: list[RecordSeen] = []
    small: dict[str, bytes] = {}
    root = ""
    try:
        directory = torchzip.read_directory(lambda a, b: bytes(data.get(a, b)), length)
        if isinstance(data, Stream):
            data.extend_tail(directory.start)
        elif isinstance(data, Distant):
            data.expect(directory.start, _parts(directory))
        if directory.heads:
            root = directory.heads[0].raw_name.partition(b"/")[0].decode("utf-8", "replace")
        position = 0
        for head in directory.heads:
            if head.header != position:
                raise MalformedData(f"record {head.name} does not begin where the one before ends")
            stop = min(directory.start, head.header + torchzip.LOCAL_SIZE + len(head.raw_name))
            header = bytes(data.get(head.header, stop))
            if len(header) < torchzip.LOCAL_SIZE + len(head.raw_name):
                raise MalformedData(f"record {head.name}: its local header is cut short")
            start = torchzip.data_start(header, head)
            trailer_size = torchzip.trailer_size(head)
            position = start + head.size + trailer_size
            if position > directory.start:
                raise MalformedData(f"record {head.name} reaches past the records' end")
            computed: int | None = None
            keep = _is_kept(head)
            if keep:
                small[head.name] = bytes(data.get(start, start + head.size))
                computed = crc32(small[head.name])
            elif how.content:
                computed = 0 if how.checksums else None
                looks = None
                if values and scanner is None:
                    looks = scanner = _scanner(head.name, small)
                for piece in data.pieces(start, start + head.size):
                    if computed is not None:
                        computed = crc32(piece, computed)
                    if looks is not None:
                        looks.feed(piece)
            trailer: int | None = None
            if trailer_size and (how.content or keep):
                trailer = torchzip.trailer_crc(
                    bytes(data.get(position - trailer_size, position)), head
                )
            records.append(
                RecordSeen(head.name, base + start, head.size, head.crc, trailer, computed)
            )
        if position != directory.start:
            raise MalformedData("bytes lie between the last record and the zip directory")
    except MalformedData as error:
        # a planner chooses how objects are written; a file beside them has one form (and no key)
        text = _text(data, length) if item.fqn and not tensor and not records else None
        if text is not None:
            whole = RecordSeen("", base, length, 0)  # nobody kept a CRC of it
            kind = JSON if _is_json(text) else TEXT
            return ItemSeen(item, (whole,), Payload(kind=kind), bytes_read=length)
        message = str(error)
        if not records and length > 9 and bytes(data.get(8, 9)) == b"{":
            message = "it holds safetensors bytes, which torch's own DCP reader cannot load either"
        faults.append(_fault(item, message))
    payload = None
    if faults and item.fqn and not tensor and not records and _is_raw(data, length):
        payload = Payload(kind=RAW)  # a planner may have written it: whoever sees all objects tells
    unread = ""
    if not faults and any(r.name == "data.pkl" and r.size > _LARGEST_PICKLE for r in records):
        unread = f"its data.pkl has more than the {_LARGEST_PICKLE} bytes that are looked at"
    elif not faults:
        payload = _read_small(small, records, item, faults, tensor=tensor)
    return ItemSeen(
        item,
        tuple(records),
        payload,
        _torch_versions(small),
        tuple(faults),
        unread,
        bytes_read=item.length,
        values=values_of(payload, scanner, big=_big(small)) if values and payload else None,
        root=root,
    )


def _text(data: ItemBytes, length: int) -> str | None:
    """Return an item that is text, as a planner may write it that does not use ``torch.save``."""
    if not 0 < length <= _SMALL_RECORD:
        return None
    return as_text(bytes(data.get(0, length)))


def _is_raw(data: ItemBytes, length: int) -> bool:
    """Tell whether nothing of an item is what is left of a zip, or of bytes that were never written."""
    if not 0 < length <= _SMALL_RECORD:
        return False
    found = bytes(data.get(0, length))
    hole = length > _WORD and found.count(found[0]) == length
    return b"PK" not in found and bytes(256) not in found and not hole


def as_text(found: bytes) -> str | None:
    """Return the bytes of an item as text; None for what is none."""
    if b"\0" in found or b"PK" in found:
        return None
    try:
        text = found.decode("utf-8")
    except UnicodeDecodeError:
        return None
    plain = text.translate(_LINES).isprintable()
    return text if plain or text.strip()[:1] in ("{", "[") else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


def _scanner(record: str, small: Mapping[str, bytes]) -> Scanner | None:
    """Return what looks at the values in a record, if what came before it says that it should."""
    try:
        payload = parse_payload(small["data.pkl"])
    except (KeyError, MalformedData):  # said of the item once all of it was seen
        return None
    return scanner_of(payload, record, big=_big(small))


def _big(small: Mapping[str, bytes]) -> bool:
    return small.get("byteorder") == b"big"


def _read_small(
    small: dict[str, bytes],
    records: list[RecordSeen],
    item: Item,
    faults: list[Fault],
    *,
    tensor: bool,
) -> Payload | None:
    problem = torchzip.problem({record.name for record in records}, small)
    if problem:
        faults.append(_fault(item, problem))
        return None
    damaged = any(record.name == "data.pkl" and record.damaged for record in records)
    if damaged or "data.pkl" not in small:  # damage is reported by its CRC; what it says is noise
        return None
    try:
        if tensor:
            return parse_payload(small["data.pkl"])
        named_in(small["data.pkl"], {record.name: record.size for record in records})
    except MalformedData as error:
        kind = item_fault_kind(error)
        faults.append(replace(_fault(item, str(error)), kind=kind))
    return None


def _torch_versions(small: dict[str, bytes]) -> str:
    """Tell from the set of records which torch releases write such an item."""
    if ".format_version" in small:
        return "2.7 or later"
    return "2.1-2.6" if "byteorder" in small else "2.0"
