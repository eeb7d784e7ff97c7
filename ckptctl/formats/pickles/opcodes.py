"""What single opcodes of a pickle hold: bytes, text and numbers; and a memo with gaps."""

from __future__ import annotations

import codecs
from typing import Any

from ckptctl.errors import MalformedData, TooLarge

_MOST_DIGITS = 4300

WIDTHS = {0x54: 4, 0x55: 1, 0x42: 4, 0x43: 1, 0x8D: 8, 0x8E: 8, 0x96: 8, 0x8B: 4}
"""How many bytes tell the length of what an opcode holds."""

STRICT_OPCODES = frozenset(b"cRb\x81aesu(t\x85\x86\x87N\x88\x89)]}\x8fJKMGXU\x8aQhjqr\x80.")
"""What torch's weights-only unpickler knows."""


class Sparse(dict[int, Any]):
    """A memo whose numbers have gaps; ``MEMOIZE`` counts what is there, as pickle does."""

    def append(self, value: object) -> None:
        """Remember a value by the number of those that are there."""
        self[len(self)] = value


def bytes_of(op: int, data: bytes) -> object:
    """Return the value of one of the opcodes that hold so many bytes as they say."""
    if op == 0x8B:  # LONG4
        return int.from_bytes(data, "little", signed=True)
    if op in (0x54, 0x55):  # BINSTRING SHORT_BINSTRING: text of Python 2
        return data.decode("utf-8")
    if op == 0x8D:  # BINUNICODE8
        return data.decode("utf-8", "surrogatepass")
    return bytearray(data) if op == 0x96 else data


def text_value(op: int, text: bytes) -> object:
    """Return the value of one of the opcodes that hold text up to the end of the line."""
    if op == 0x56:
        return codecs.decode(text, "raw-unicode-escape")
    if op == 0x53:
        text = text.strip()
        if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
            raise MalformedData("a text is not in quotes")
        return codecs.escape_decode(text[1:-1])[0].decode("utf-8")
    if len(text) > _MOST_DIGITS:
        raise TooLarge(f"a number of {len(text)} digits")
    if op == 0x46:
        return float(text)
    if op == 0x49 and text in (b"00", b"01"):
        return text == b"01"
    return int(text[:-1] if op == 0x4C and text[-1:] == b"L" else text, 0)
