"""Writing safetensors files as Hugging Face lays them out: shards and their index."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ckptctl.dataclass import dataclass
from ckptctl.errors import UsageError
from ckptctl.formats.safetensors.reader import DTYPES
from ckptctl.model.dtypes import ITEM_SIZE
from ckptctl.model.geometry import Shape

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
WRITABLE = frozenset(_NAMES)
"""The dtypes that the format has a name for."""


@dataclass(frozen=True, slots=True)
class Line:
    """One tensor as the header describes it; ``size`` in bytes."""

    name: str
    dtype: str
    shape: Shape
    size: int


def order(lines: Iterable[Line]) -> list[Line]:
    """Sort tensors as they lie in a file: the widest elements first, so that all are aligned."""
    return sorted(lines, key=lambda line: (-ITEM_SIZE[line.dtype], line.name))


def header(lines: Sequence[Line], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the first tensor: length, JSON, and spaces up to a multiple of 8."""
    document: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for line in lines:
        document[line.name] = {
            "dtype": _NAMES[line.dtype],
            "shape": list(line.shape),
            "data_offsets": [position, position + line.size],
        }
        position += line.size
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def index(weights: Mapping[str, str], size: int) -> bytes:
    """Return the index of several files: which holds which tensor, and the bytes of all."""
    document = {
        "metadata": {"total_size": size},
        "weight_map": {name: weights[name] for name in sorted(weights)},
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


AnyLine = TypeVar("AnyLine", bound=Line)


def shards(lines: Sequence[AnyLine], largest: int) -> list[tuple[str, list[AnyLine]]]:
    """Cut tensors, in the order of the state dict, into files of at most ``largest`` bytes.

    A tensor is never cut, so one that is larger has a file of its own. Raises ``UsageError`` for
    more files than the names can count.
    """
    groups: list[list[AnyLine]] = [[]]
    room = largest
    for line in lines:
        if groups[-1] and line.size > room:
            groups.append([])
            room = largest
        groups[-1].append(line)
        room -= line.size
    if len(groups) == 1:
        return [("model.safetensors", groups[0])]
    if len(groups) > 99_999:
        raise UsageError(f"{len(groups)} files are too many; choose a larger `max_shard_size`")
    return [
        (f"model-{number:05d}-of-{len(groups):05d}.safetensors", group)
        for number, group in enumerate(groups, 1)
    ]


def parse_size(text: str) -> int:
    """Read a size as people write it: ``5GB``, ``500MB``, ``2GiB``; raises ``UsageError``."""
    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
    number = text.strip().rstrip("BbIiKkMmGgTt").strip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        value = int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise UsageError(f"a size such as 5GB or 500MiB is expected, not {text!r}") from None
    if value <= 0:
        raise UsageError(f"a size above nothing is expected, not {text!r}")
    return value
