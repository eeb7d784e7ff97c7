"""A look at a pickle's opcodes before anything is built from them.

The C unpickler allocates what a file asks for: one ``LONG_BINPUT`` of 2**32 - 1 makes it touch
64 GB, and a tuple nested a hundred thousand times overflows the C stack as soon as it is hashed.
This scan follows the opcodes without making any object and refuses such files.
Opcodes: the ``pickletools`` module of Python.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ckptctl.errors import MalformedData, UnsafeData

MAX_DEPTH = 500
"""Levels of tuples inside tuples; real metadata has four."""

MAX_EXPANDED = 10_000_000
"""Values in a tuple, counted as often as they are referred to."""

_LEVEL, _SIZE = 1 << 40, (1 << 40) - 1

_FIXED = {  # opcodes that push one plain value, with the bytes of their argument
    **dict.fromkeys(b"N)]}\x88\x89\x8f\x97", 0),
    **dict.fromkeys(b"K\x82", 1),
    **dict.fromkeys(b"M\x83", 2),
    **dict.fromkeys(b"J\x84", 4),
    ord("G"): 8,
}
_COUNTED = {  # opcodes that push one value whose length comes first, in so many bytes
    **dict.fromkeys(b"UC\x8a\x8c", 1),
    **dict.fromkeys(b"TXB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e\x96", 8),
}
_LINES = {**dict.fromkeys(b"FILSVP", 1), ord("c"): 2}  # push one value, text up to newlines
_KEEP = {**dict.fromkeys(b"\x80", 1), ord("\x95"): 8, ord("\x98"): 0}
_POP_TWO_PUSH = frozenset(b"R\x81\x93")  # REDUCE NEWOBJ STACK_GLOBAL
_TO_MARK_MUTABLE = frozenset(b"ldo")  # LIST DICT OBJ
_TO_MARK_INTO = frozenset(b"eu\x90")  # APPENDS SETITEMS ADDITEMS


def scan(data: bytes) -> int:
    """Return the position behind STOP, or raise for a pickle that must not be loaded.

    Raises ``MalformedData`` where the opcodes make no sense or the end is missing, and
    ``UnsafeData`` where loading could take memory or stack out of all proportion to the file.
    """
    try:
        return _scan(data)
    except IndexError:
        raise MalformedData("the pickle ends in the middle of an opcode or pops too much") from None
    except struct.error:
        raise MalformedData("the pickle ends in the middle of an opcode") from None


def _scan(data: bytes) -> int:
    size = len(data)
    position = 0
    # for each value, how deeply tuples are nested in it (times 2**40) and how many values they hold
    # when every reference is followed: a tuple is hashed by following them all
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}

    def since_mark() -> int:
        if not marks:
            raise MalformedData(
                f"byte {position - 1}: an opcode looks for a mark that is not there"
            )
        low = marks.pop()
        parts = stack[low:]
        del stack[low:]
        return _together(parts)

    while position < size:
        op = data[position]
        position += 1
        if op in _FIXED:
            stack.append(0)
            position += _FIXED[op]
        elif op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op == 0x68:  # BINGET
            stack.append(memo.get(data[position], 0))
            position += 1
        elif op in _COUNTED:
            width = _COUNTED[op]
            length = int.from_bytes(data[position : position + width], "little")
            position += width + length
            if position > size:
                raise UnsafeData(
                    f"byte {position - width - length - 1}: a value claims {length} bytes, more "
                    f"than the {size} bytes of the file"
                )
            stack.append(0)
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op in _POP_TWO_PUSH:
            top = stack.pop()
            stack[-1] = 0 if op == 0x93 else _together((stack[-1], top))
        elif op == 0x85:  # TUPLE1
            stack[-1] = _together(stack[-1:])
        elif op == 0x86:  # TUPLE2
            top = stack.pop()
            stack[-1] = _together((stack[-1], top)) if top or stack[-1] else _LEVEL
        elif op == 0x87:  # TUPLE3
            stack[-3:] = (_together(stack[-3:]),)
        elif op == 0x74 or op == 0x91:  # TUPLE FROZENSET
            stack.append(since_mark())
        elif op in _TO_MARK_INTO:
            since_mark()
            _ = stack[-1]
        elif op == 0x62 or op == 0x61:  # BUILD APPEND
            stack.pop()
            _ = stack[-1]
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo.get(struct.unpack_from("<I", data, position)[0], 0))
            position += 4
        elif op in _KEEP:
            position += _KEEP[op]
        elif op == 0x73:  # SETITEM
            del stack[-2:]
            _ = stack[-1]
        elif op in (0x71, 0x72, 0x70):  # BINPUT LONG_BINPUT PUT
            if op == 0x71:
                index = data[position]
                position += 1
            elif op == 0x72:
                index = struct.unpack_from("<I", data, position)[0]
                position += 4
            else:
                index, position = _line_number(data, position)
            if index > size:
                raise UnsafeData(
                    f"byte {position}: memo index {index} in a file of {size} bytes; loading it "
                    f"would take {16 * index} bytes of memory"
                )
            memo[index] = stack[-1]
        elif op == 0x67:  # GET
            index, position = _line_number(data, position)
            stack.append(memo.get(index, 0))
        elif op in _LINES:
            for _ in range(_LINES[op]):
                position = _line_end(data, position)
            stack.append(0)
        elif op in _TO_MARK_MUTABLE:
            since_mark()
            stack.append(0)
        elif op == 0x69:  # INST
            position = _line_end(data, _line_end(data, position))
            since_mark()
            stack.append(0)
        elif op == 0x51:  # BINPERSID
            stack[-1] = 0
        elif op == 0x92:  # NEWOBJ_EX
            del stack[-2:]
            _ = stack[-1]
        elif op == 0x30:  # POP
            if marks and marks[-1] == len(stack):
                marks.pop()
            else:
                stack.pop()
        elif op == 0x31:  # POP_MARK
            since_mark()
        elif op == 0x32:  # DUP
            stack.append(stack[-1])
        elif op == 0x2E:  # STOP
            if position > size:
                break
            _ = stack[-1]
            return position
        else:
            raise MalformedData(f"byte {position - 1}: 0x{op:02x} is not a pickle opcode")
    raise MalformedData(f"the pickle ends without STOP after {size} bytes: it is cut short")


def _together(parts: Sequence[int]) -> int:
    """Return depth and expanded size of a tuple of these parts; refuse a monster."""
    if not any(parts):
        return _LEVEL + len(parts)
    depth = max(part >> 40 for part in parts) + 1
    size = sum(part & _SIZE for part in parts) + len(parts)
    if depth > MAX_DEPTH:
        raise UnsafeData(f"it nests tuples more than {MAX_DEPTH} deep")
    if size > MAX_EXPANDED:
        raise UnsafeData(
            f"it holds a tuple of more than {MAX_EXPANDED} values once every reference in it is "
            "followed"
        )
    return depth * _LEVEL + size


def _line_end(data: bytes, position: int) -> int:
    end = data.find(b"\n", position)
    if end < 0:
        raise MalformedData(f"byte {position}: a text argument has no end")
    return end + 1


def _line_number(data: bytes, position: int) -> tuple[int, int]:
    end = _line_end(data, position)
    text = data[position : end - 1].strip()
    if not text.isdigit() or len(text) > 18:
        raise MalformedData(f"byte {position}: {text[:32]!r} is not a memo index")
    return int(text), end
