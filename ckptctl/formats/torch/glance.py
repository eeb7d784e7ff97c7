"""A glance at a ``torch.save`` file for one counter, with a few small reads and no payload.

The pickle is the first record of the zip, so that its beginning tells what kind of state it is.
"""

from __future__ import annotations

import struct

from ckptctl.errors import CkptctlError
from ckptctl.storage import Store

_LOCAL = 30
_LONGEST = 64 << 10
_LARGEST_DIRECTORY = 256 << 10
_SHORT, _LONG = 0x8C, 0x58  # SHORT_BINUNICODE, BINUNICODE
_MEMO = {0x71: 1, 0x72: 4, 0x94: 0}  # BINPUT, LONG_BINPUT, MEMOIZE: bytes of their argument
_INTEGERS = {0x4B: "<B", 0x4D: "<H", 0x4A: "<i"}  # BININT1, BININT2, BININT


def beginning(data: bytes) -> bytes:
    """Return what of the pickle lies in the first bytes of a file; empty for another file."""
    if data[:4] != b"PK\x03\x04" or len(data) < _LOCAL:
        return b""
    name, extra = struct.unpack_from("<HH", data, 26)
    if not data[_LOCAL : _LOCAL + name].endswith(b"/data.pkl"):
        return b""
    return data[_LOCAL + name + extra :]


def number(pickle: bytes, key: str) -> int | None:
    """Return the integer that a mapping in the beginning of a pickle has under a key."""
    raw = key.encode()
    texts = (bytes((_SHORT, len(raw))) + raw, bytes((_LONG,)) + struct.pack("<I", len(raw)) + raw)
    for text in texts:
        at = pickle.find(text)
        if at < 0:
            continue
        at += len(text)
        while at < len(pickle) and pickle[at] in _MEMO:
            at += 1 + _MEMO[pickle[at]]
        form = _INTEGERS.get(pickle[at]) if at < len(pickle) else None
        if form is not None and at + 1 + struct.calcsize(form) <= len(pickle):
            value = struct.unpack_from(form, pickle, at + 1)[0]
            return int(value) if value >= 0 else None
    return None


def optimizer_step(store: Store, path: str) -> int | None:
    """Return the step that all parameters of a small optimizer's state agree on, else None.

    At most four of them are read. None also where the file is large, damaged or not readable.
    """
    try:
        return _optimizer_step(store, path)
    except (CkptctlError, struct.error):
        return None


def _optimizer_step(store: Store, path: str) -> int | None:
    from ckptctl.formats.pickles.tensors import TensorRef
    from ckptctl.formats.torch import zip as torchzip
    from ckptctl.formats.torch.reader import unpickle

    with store.open(path) as reader:
        if reader.size < torchzip.END_SIZE:
            return None
        end = reader.read(reader.size - torchzip.END_SIZE, reader.size)
        if struct.unpack_from("<Q", end, 40)[0] > _LARGEST_DIRECTORY:
            return None
        heads = {
            head.name: head for head in torchzip.read_directory(reader.read, reader.size).heads
        }

        def record(name: str) -> bytes | None:
            head = heads.get(name)
            if head is None or head.size > _LONGEST:
                return None
            size = torchzip.LOCAL_SIZE + len(head.raw_name)
            start = torchzip.data_start(reader.read(head.header, head.header + size), head)
            return reader.read(start, start + head.size)

        pickle = record("data.pkl")
        state = unpickle(pickle) if pickle is not None else None
        states = state.get("state") if isinstance(state, dict) else None
        steps: set[float] = set()
        for one in list(states.values())[:4] if isinstance(states, dict) else ():
            step = one.get("step") if isinstance(one, dict) else None
            if isinstance(step, TensorRef) and step.dtype == "float32" and step.shape == ():
                data = record(f"data/{step.storage.key}")
                if data is not None and len(data) >= 4 * (step.offset + 1):
                    step = struct.unpack_from("<f", data, 4 * step.offset)[0]
            if isinstance(step, int | float) and abs(step) < 1 << 63:
                steps.add(float(step))
        if len(steps) != 1:
            return None
        (found,) = steps
        return int(found) if found >= 0 and found.is_integer() else None
