"""Row-major bytes of tensors that are stored otherwise: strided, lazily conjugated, big-endian."""

from __future__ import annotations

from math import prod

from ckptctl.crc import crc32
from ckptctl.errors import MalformedData, Unsupported
from ckptctl.model.checkpoint import Item, Stored
from ckptctl.storage import Reader

_LARGEST_STRIDED = 1 << 30


def rearranged(reader: Reader, item: Item, stored: Stored, width: int) -> bytes:
    """Return the row-major little-endian bytes of any plain tensor; ``width`` is of an element.

    Raises ``MalformedData`` for damage, and for a piece too large to hold in memory.
    """
    import numpy as np

    if stored.size > _LARGEST_STRIDED:
        raise MalformedData(
            f"{item.path}: {item.fqn}: a strided piece of {stored.size} bytes is too large to "
            "rearrange"
        )
    if prod(stored.shape) * width > _LARGEST_STRIDED:
        raise MalformedData(
            f"{item.path}: {item.fqn}: {prod(stored.shape)} elements that share their bytes are "
            "too many to write out"
        )
    data = reader.read(stored.start, stored.start + stored.size)
    if stored.crc is not None and crc32(data) != stored.crc:
        raise MalformedData(f"{item.path}: {item.fqn}: its CRC-32 does not fit its bytes")
    if 0 in stored.shape:
        return b""
    complex_ = stored.dtype.startswith("complex")
    part = width // 2 if complex_ else width
    flat = np.frombuffer(data, f"{'<' if stored.little else '>'}u{part}")
    if not stored.little:
        flat = flat.astype(f"<u{part}")
    lanes = 2 if complex_ else 1
    pairs = flat.reshape(-1, lanes)[stored.offset :]
    reach = 1 + sum((n - 1) * s for n, s in zip(stored.shape, stored.stride, strict=True))
    if reach > len(pairs):
        raise MalformedData(f"{item.path}: {item.fqn}: it reaches past the end of its storage")
    view = np.lib.stride_tricks.as_strided(
        pairs,
        (*stored.shape, lanes),
        # the stride of a dimension with one element means nothing, and may be any number
        (*(s * width * (n > 1) for n, s in zip(stored.shape, stored.stride, strict=True)), part),
        writeable=False,
    )
    out = np.ascontiguousarray(view)
    unknown = set(stored.flags) - {"conj", "neg"}
    if unknown:
        raise Unsupported(f"{item.path}: {item.fqn}: its flag {unknown.pop()} is not known")
    if stored.flags:
        out = out.copy()
    sign = np.array(1 << (part * 8 - 1), f"<u{part}")
    if "conj" in stored.flags and complex_:
        out[..., 1] ^= sign
    if "neg" in stored.flags:
        if not (complex_ or "float" in stored.dtype):
            raise MalformedData(f"{item.path}: {item.fqn}: a negated {stored.dtype} is not read")
        out ^= sign
    return out.tobytes()
