"""A cheap look at ``.metadata`` for listings: which files it needs, and how long they must be.

The checkpoints of one run differ in little more than their save id, so a layout that was parsed
once is recognised again by its bytes: all of the pickle before ``storage_meta``, and the opcodes
after it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from ckptctl.dataclass import dataclass
from ckptctl.formats.dcp.apart import FAST_FROM, parse_metadata
from ckptctl.formats.dcp.metadata import Parsed, parse
from ckptctl.storage import Reader

_MARK = b"storage_meta"
_PREAMBLE = 11  # PROTO and the first FRAME, whose length depends on the length of the save's path
_TAIL_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Summary:
    """Expected length of each file in bytes, number of keys; or why the metadata is unreadable."""

    lengths: Mapping[str, int]
    keys: int = 0
    problem: str = ""


def summarise(data: bytes, source: str, known: MutableMapping[object, object]) -> Summary:
    """Summarise one metadata file; ``known`` keeps layouts seen before and may start empty."""
    key = _layout_key(data)
    before = known.get(key) if key is not None else None
    if isinstance(before, Summary):
        return before
    summary = _summary(parse(data, source))
    if key is not None and not summary.problem:
        known[key] = summary
    return summary


def summarise_file(reader: Reader, source: str, known: MutableMapping[object, object]) -> Summary:
    """Summarise one metadata file; a large one is not kept in memory."""
    if reader.size < FAST_FROM:
        return summarise(reader.read(0, reader.size), source, known)
    return _summary(parse_metadata(reader, source))


def _summary(parsed: Parsed) -> Summary:
    problem = parsed.faults[0].message if parsed.faults else ""
    lengths: dict[str, int] = {}
    items = parsed.items
    for path, start, length in zip(items.paths, items.offsets, items.lengths, strict=True):
        end = start + length
        if end > lengths.get(path, -1):
            lengths[path] = end
    return Summary(lengths, len(parsed.entries), problem)


def _layout_key(data: bytes) -> object | None:
    """Return what must be equal for two files to describe the same layout, or None."""
    cut = data.rfind(_MARK)
    if cut < 0 or len(data) - cut > _TAIL_LIMIT or data[:1] != b"\x80" or data[2:3] != b"\x95":
        return None
    frame = int.from_bytes(data[3:_PREAMBLE], "little")
    if frame == len(data) - _PREAMBLE:
        frame = -1  # one frame to the end, however long the save's path makes it
    tail: list[bytes] = []
    position = cut + len(_MARK)
    while True:
        found = data.find(b"\x8c", position)  # SHORT_BINUNICODE
        if found < 0:
            tail.append(data[position:])
            return data[:2], frame, data[_PREAMBLE:cut], tuple(tail)
        end = found + 2 + data[found + 1] if found + 1 < len(data) else len(data) + 1
        if end > len(data):
            return None
        text = data[found + 2 : end]
        # ids and paths of saves hold digits; names of classes and fields do not
        varies = any(48 <= byte < 58 for byte in text) and _is_text(text)
        tail.append(data[position:found])
        tail.append(b"?" if varies else text)
        position = end


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
