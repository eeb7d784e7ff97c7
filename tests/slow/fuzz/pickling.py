"""Pickles as lists of opcodes: taken apart once, changed opcode by opcode or value by value."""

from __future__ import annotations

import pickletools
import random
import struct
from dataclasses import dataclass, field

from slow.fuzz.mutate import TEXTS, flipped, number, text

MARK = pickletools.markobject
STRUCTURE = tuple(
    bytes([code])
    for code in b"N)]}\x88\x89\x8f(0123teus\x90\x91\x85\x86\x87ald\x81\x92bR\x93Qo\x94."
)
NAMES = (
    *(("builtins", name) for name in "eval exec getattr print len set dict object int".split()),
    *(("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("nt", "system")),
    *(("torch", name) for name in "load float32 int64 Size Tensor FloatStorage IntStorage".split()),
    *(("torch", name) for name in "UntypedStorage device bfloat16 BoolStorage qint8 nope".split()),
    *(("torch._utils", f"_rebuild_{name}") for name in "tensor_v2 tensor_v3 parameter".split()),
    *(("torch._utils", f"_rebuild_{name}") for name in "tensor qtensor sparse_tensor".split()),
    *(("torch.storage", name) for name in "UntypedStorage TypedStorage _load_from_bytes".split()),
    *(("collections", name) for name in "OrderedDict defaultdict deque Counter namedtuple".split()),
    *(("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor"), ("functools", "partial")),
    *(("pathlib", "PosixPath"), ("datetime", "datetime"), ("timeit", "timeit"), ("mine", "Mine")),
    *(("torch.serialization", "_get_layout"), ("torch.hub", "load"), ("__builtin__", "set")),
    *(("_codecs", "encode"), ("torch._tensor", "_rebuild_from_type_v2"), ("numpy", "dtype")),
    *(("torch.distributed.checkpoint.metadata", n) for n in "Metadata MetadataIndex".split()),
    *(("torch.distributed.checkpoint.metadata", n) for n in "StorageMeta TensorProperties".split()),
    *(("torch.distributed.checkpoint.metadata", n) for n in ("ChunkStorageMetadata", "Nothing")),
    *(("torch.distributed.checkpoint.filesystem", n) for n in ("_StorageInfo", "FileSystem")),
)


def integer(rng: random.Random, value: int) -> bytes:
    """Spell an integer with any opcode that can hold it."""
    made = []
    if 0 <= value < 256:
        made.append(b"K" + bytes([value]))
    if 0 <= value < 1 << 16:
        made.append(b"M" + struct.pack("<H", value))
    if -(1 << 31) <= value < 1 << 31:
        made.append(b"J" + struct.pack("<i", value))
    size = value.bit_length() // 8 + 1
    raw = value.to_bytes(size, "little", signed=True)
    if size < 256:
        made.append(b"\x8a" + bytes([size]) + raw)
    if not made or rng.random() < 0.05:
        made.append(b"\x8b" + struct.pack("<I", size) + raw)
    if abs(value) < 1 << 70 and rng.random() < 0.1:
        made.append(rng.choice((b"I%d\n", b"L%dL\n")) % value)
    return rng.choice(made)


def string(value: str) -> bytes:
    """Spell a text as protocol 2 does."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def named(module: str, name: str) -> bytes:
    """Spell a global as protocol 2 does."""
    return b"c" + f"{module}\n{name}\n".encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Pickle:
    """One pickle: its opcodes without frames, and which of them make up each value."""

    ops: tuple[bytes, ...]
    spans: tuple[tuple[int, int], ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def data(self) -> bytes:
        """The pickle itself."""
        return b"".join(self.ops)


def take_apart(data: bytes) -> Pickle:
    """Split a healthy pickle."""
    found = list(pickletools.genops(data))
    ends = [position for _, _, position in found[1:]] + [len(data)]
    ops: list[bytes] = []
    spans: list[tuple[int, int]] = []
    texts: list[str] = []
    stack: list[int] = []
    for (op, argument, start), end in zip(found, ends, strict=True):
        if op.name == "FRAME":
            continue
        at = len(ops)
        ops.append(data[start:end])
        if isinstance(argument, str):
            texts.append(argument)
        first = at
        if MARK in op.stack_before:
            while stack and stack[-1] >= 0:
                first = min(first, stack.pop())
            first = min(first, -stack.pop() - 1) if stack else first
            for _ in range(op.stack_before.index(MARK)):
                first = min(first, stack.pop()) if stack else first
        else:
            for _ in op.stack_before:
                first = min(first, stack.pop()) if stack else first
        for one in op.stack_after:
            stack.append(-at - 1 if one is MARK else first)
            if one is not MARK:
                spans.append((first, at + 1))
    return Pickle(tuple(ops), tuple(dict.fromkeys(spans)), tuple(texts))


@dataclass(frozen=True)
class Pool:
    """What pieces of pickles are taken from: values and texts of all seeds."""

    values: tuple[bytes, ...] = ()
    texts: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = NAMES
    small: int = field(default=400)

    @classmethod
    def of(cls, seeds: list[Pickle]) -> Pool:
        """Collect the values of some pickles, the large ones left out."""
        values = (b"".join(one.ops[a:b]) for one in seeds for a, b in one.spans)
        some = dict.fromkeys(value for value in values if len(value) < 400)
        return cls(tuple(some), tuple(dict.fromkeys(t for one in seeds for t in one.texts)))


def changed(rng: random.Random, seed: Pickle, pool: Pool) -> bytes:
    """Return a pickle with a few of its opcodes, arguments or values changed."""
    if rng.random() < 0.2:
        return flipped(rng, seed.data)
    ops = list(seed.ops)
    spans = seed.spans
    for _ in range(1 + (rng.random() < 0.35) * rng.randrange(4)):
        if not ops:
            break
        at = rng.randrange(len(ops))
        how = rng.random()
        if how < 0.30:
            ops[at] = _argument(rng, ops[at], pool)
        elif how < 0.52 and spans:
            start, end = rng.choice(spans)
            ops[start:end] = [_value(rng, pool)]
            spans = ()  # they have moved
        elif how < 0.60 and len(spans) > 1:
            (a, b), (c, d) = sorted(rng.sample(spans, 2))
            if b <= c:
                ops = ops[:a] + ops[c:d] + ops[b:c] + ops[a:b] + ops[d:]
                spans = ()
        elif how < 0.68:
            del ops[at]
        elif how < 0.74:
            ops.insert(at, rng.choice(ops))
        elif how < 0.80:
            other = rng.randrange(len(ops))
            ops[at], ops[other] = ops[other], ops[at]
        elif how < 0.88:
            ops.insert(at, rng.choice(STRUCTURE))
        elif how < 0.92:
            ops.insert(at, _value(rng, pool))
        elif how < 0.96:
            width = rng.randrange(1, 12)
            copied = ops[at : at + width]
            spot = rng.randrange(len(ops))
            ops[spot:spot] = copied
        else:  # after the object is made, or instead of it: what a later opcode may still change
            end = len(ops) - 1
            ops[end:end] = rng.choice(_late(rng, pool))
    return b"".join(ops)


def _late(rng: random.Random, pool: Pool) -> list[list[bytes]]:
    value = _value(rng, pool)
    return [
        [b"}", string(rng.choice(pool.texts or TEXTS)), value, b"s", b"b"],
        [value, b"b"],
        [b"h\x00", b"0"],
        [value, b"0"],
        [b"\x85"],
        [b"N", b"\x86", value, b"b"],
        [b"h" + bytes([rng.randrange(24)]), value, value, b"s", b"0"],
        [value, b"\x85", b"b"],
    ]


def _value(rng: random.Random, pool: Pool) -> bytes:
    """Return one value: of any seed, a plain one, or an object of any class."""
    how = rng.random()
    if how < 0.5 and pool.values:
        return rng.choice(pool.values)
    if how < 0.6:
        return integer(rng, number(rng))
    if how < 0.7:
        return string(text(rng, "", pool.texts))
    if how < 0.78:
        return rng.choice(
            (b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"h\x05", b"j\5\0\0\0")
        )
    name = named(*rng.choice(pool.names))
    inner = rng.choice(
        (b")", b"(K\x01t", string("x") + b"\x85", b"(K\x02K\x03tq\x07\x85", b"]\x85")
    )
    if how < 0.84:
        return name
    if how < 0.9:
        return name + inner + rng.choice((b"R", b"\x81"))
    if how < 0.94:
        return b"(" + name + b"K\x01" + b"o"
    if how < 0.96:
        return b"(K\x01i" + name[1:]
    if how < 0.97:
        return name + inner + b"}" + b"\x92"
    if how < 0.98:
        return b"G" + rng.choice((b"\x7f\xf8" + b"\0" * 6, rng.randbytes(8)))
    if how < 0.99:
        depth = rng.choice((3, 60, 600, 6000))
        return b")" + rng.choice((b"\x85", b"]\x93", b"2\x86")) * depth
    return b")" + b"2\x86" * rng.randrange(4, 30)  # a tuple of two of itself, and so on


def _argument(rng: random.Random, op: bytes, pool: Pool) -> bytes:
    """Return an opcode of the same kind with another argument."""
    code = op[:1]
    if code in b"KMJ\x8aIL" and len(op) > 1:
        return integer(rng, number(rng, _read(op)))
    if code in b"X\x8c":
        near = op[5 if code == b"X" else 2 :].decode("utf-8", "replace")
        return string(text(rng, near, pool.texts))
    if code == b"c":
        if rng.random() < 0.6:
            return named(*rng.choice(pool.names))
        module, _, name = op[1:-1].decode("utf-8", "replace").partition("\n")
        half = rng.random() < 0.5
        return named(text(rng, module) if half else module, name if half else text(rng, name))
    if code in b"qh":
        return code + bytes([rng.randrange(256) if rng.random() < 0.2 else rng.randrange(40)])
    if code in b"rj":
        index = rng.choice((0, 1, 2, 255, 256, 257, (1 << 31) - 1, (1 << 32) - 1))
        return code + struct.pack("<I", index)
    if code == b"G":
        return b"G" + rng.randbytes(8)
    if code == b"\x80":
        return b"\x80" + bytes([rng.randrange(8)])
    if len(op) == 1:
        return rng.choice(STRUCTURE)
    return flipped(rng, op)


def _read(op: bytes) -> int:
    code, rest = op[:1], op[1:]
    if code in b"KM":
        return int.from_bytes(rest, "little")
    if code == b"J":
        return int.from_bytes(rest, "little", signed=True)
    if code == b"\x8a":
        return int.from_bytes(rest[1:], "little", signed=True)
    digits = rest.strip().rstrip(b"L")
    return int(digits) if digits.lstrip(b"-").isdigit() else 0
