"""The opcodes that entries of ``.metadata`` are written by, and what their parts stand for.

Each expression is of whole opcodes, so that a match from where an opcode begins is exactly what a
machine would read there. Texts are matched up to their end and not by their length, which is
compared afterwards. What was read once is kept by its bytes, as the memo of such a pickle only grows.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from ckptctl.formats.dcp.classes import (
    MEMORY_FORMAT,
    SIZE,
    OldPropertiesRecord,
    PropertiesRecord,
    sound_properties,
)
from ckptctl.formats.pickles.shortcuts import GONE
from ckptctl.model.geometry import Shape
from ckptctl.pattern import pattern

Memo: TypeAlias = list[Any]
Added: TypeAlias = tuple[Any, ...]
"""What some opcodes add to the memo."""

_WORD = 1 << 63
_MOST_KEPT = 1 << 17
_FEW = 1024

_REF = rb"(?:h.|j.{4})"
_INT = rb"(?:K.|M.{2}|J.{4}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
_TEXT = rb"(?:\x8c.[\x20-\x7e]*\x94|" + _REF + rb")"
_NUMBERS = rb"(?:\)|(?:\(I{1,64}t|I(?:\x85|I(?:\x86|I\x87)))\x94?)".replace(b"I", _INT)
_SIZE = _REF + rb"(?:" + _NUMBERS + rb"\x85\x94?R\x94?)?"
_OBJECT = _REF + rb"\)\x81\x94?"
_FIELDS = _OBJECT + rb"\}\x94?\(" + _REF
_LIST = rb"\]\x94?"
_FORMAT = rb"(?:K.\x85\x94?R\x94?)?"
_PROPERTIES = b"%b\\(%b%b[\x88\x89]%b%b[\x88\x89]t\x94?b" % (_OBJECT, _REF, _REF, _REF, _FORMAT)
_PROPERTY = pattern(
    b"(%b)(%b)\\((%b)(%b)([\x88\x89])(%b)(?:(K.)(%b)(%b))?([\x88\x89])t(%b)b"
    % (_REF, rb"\)\x81\x94?", _REF, _REF, _REF, rb"\x85\x94?", rb"R\x94?", rb"\x94?"),
    re.DOTALL,
)

NAME = pattern(b"(" + _TEXT + b")", re.DOTALL)
"""The name of a tensor or an object."""

OBJECT = pattern(b"(" + _OBJECT + b")", re.DOTALL)
"""An object without any fields."""

TENSOR = pattern(
    b"(%b)(%b)(%b)(%b)(%b)(%b)" % (_FIELDS, _PROPERTIES, _REF, _SIZE, _REF, _LIST), re.DOTALL
)
"""A tensor's description up to its chunks: class, properties, size."""

CHUNK = pattern(b"(%b)(%b)(%b)(%b)ub" % (_FIELDS, _SIZE, _REF, _SIZE), re.DOTALL)
"""A chunk: class, offsets, sizes."""

ITEM = pattern(
    b"(%b)(%b)(%b)(?:N|%b)(?:(%b)(%b))?ub" % (_FIELDS, _TEXT, _REF, _INT, _REF, _SIZE)
    + b"(%b)(%b)(%b)(%b)(%b)(%b)" % (_FIELDS, _TEXT, _REF, _INT, _REF, _INT)
    + b"(?:(%b)(%b)(%b)a)?ub" % (_REF, _LIST, _TEXT),
    re.DOTALL,
)
"""An index (class, key, hint, offset) and its place (class, path, offset, length, transform)."""


class Parts:
    """What parts of entries stand for in one pickle, each read once for the same bytes."""

    def __init__(self) -> None:
        """Begin without any."""
        self.sizes: dict[bytes, tuple[Shape, Added]] = {}
        self.texts: dict[bytes, tuple[str, Added]] = {}
        self._kinds: dict[bytes, tuple[object, object, Added]] = {}
        self._properties: dict[bytes, tuple[PropertiesRecord, Added]] = {}

    def value(self, reference: bytes, memo: Memo) -> object:
        """Return what the memo has; nothing where that is left out or not there yet."""
        number = reference[1] if len(reference) == 2 else int.from_bytes(reference[1:], "little")
        return memo[number] if number < len(memo) else None

    def named(self, reference: bytes, memo: Memo) -> object:
        """Return a text that the memo has, without noting it."""
        found = self.value(reference, memo)
        return found if type(found) is str else None

    def kind(self, fields: bytes, memo: Memo) -> tuple[object, object, Added]:
        """Return an object's class, the name of its first field, and what both add to the memo."""
        found = self._kinds.get(fields)
        if found is None:
            end = end_of(fields)
            mark = fields.index(b"(", end)
            found = (
                self.value(fields[:end], memo),
                self.named(fields[mark + 1 :], memo),
                gone(fields[end:mark]),
            )
            if len(self._kinds) < _FEW and found[0] is not None and found[1] is not None:
                self._kinds[fields] = found
        return found

    def text(self, raw: bytes, memo: Memo) -> tuple[str, Added] | None:
        """Return a text, written out or remembered, and what it adds to the memo."""
        found = self.texts.get(raw)
        if found is not None:
            return found
        if raw[0] == 0x8C:
            if raw[1] != len(raw) - 3:
                return None
            text = raw[2:-1].decode("ascii")
            found = (text, (text,))
        else:
            remembered = self.named(raw, memo)
            if type(remembered) is not str:
                return None
            found = (remembered, ())
        if len(self.texts) < _MOST_KEPT:
            self.texts[raw] = found
        return found

    def size(self, raw: bytes, memo: Memo) -> tuple[Shape, Added] | None:
        """Return sizes or offsets, written out or remembered, and what they add to the memo."""
        found = self.sizes.get(raw)
        if found is not None:
            return found
        end = end_of(raw)
        function = self.value(raw[:end], memo)
        if len(raw) == end:
            return None if (shape := _shape(function)) is None else (shape, ())
        if function is not SIZE:
            return None
        numbers, made = _numbers(raw, end)
        if numbers is None:
            return None
        *before, last = raw[made:].split(b"R")
        found = (numbers, gone(b"".join(before)) + ((numbers,) if last else ()))
        if len(self.sizes) < _MOST_KEPT:
            self.sizes[raw] = found
        return found

    def properties(self, raw: bytes, memo: Memo) -> tuple[PropertiesRecord, Added] | None:
        """Return the properties of a tensor, and what they add to the memo."""
        found = self._properties.get(raw)
        if found is not None:
            return found
        match = _PROPERTY.match(raw)
        if match is None:
            return None
        kind, new, dtype, layout, grad, memory_format, *inline, pinned, state = match.groups()
        number, given, called = inline
        made = self.value(kind, memo)
        if made is not PropertiesRecord and made is not OldPropertiesRecord:
            return None
        form = self.value(memory_format, memo)
        added = gone(new)
        if number is not None:
            if form is not MEMORY_FORMAT or number[1] > 3:
                return None
            form = MEMORY_FORMAT(number[1])
            added += gone(given)
            if len(called) > 1:
                added += (form,)
        added += gone(state)
        record = PropertiesRecord() if made is PropertiesRecord else OldPropertiesRecord()
        record.take_state(
            (
                self.value(dtype, memo),
                self.value(layout, memo),
                grad == b"\x88",
                form,
                pinned == b"\x88",
            )
        )
        if not sound_properties(record):
            return None
        found = (record, added)
        if len(self._properties) < _FEW:
            self._properties[raw] = found
        return found


def number_of(raw: bytes) -> int:
    op = raw[0]
    if op == 0x4B:  # BININT1
        return raw[1]
    if op == 0x4D:  # BININT2
        return raw[1] | raw[2] << 8
    return int.from_bytes(raw[2:] if op == 0x8A else raw[1:], "little", signed=True)


_WIDTHS = {0x4B: 2, 0x4D: 3, 0x4A: 5}


def end_of(raw: bytes) -> int:
    """Return where the reference ends that some opcodes begin with."""
    return 2 if raw[0] == 0x68 else 5


def gone(opcodes: bytes) -> Added:
    """Return what opcodes without arguments add to the memo, of what nothing refers to again."""
    return (GONE,) * opcodes.count(b"\x94")


def _numbers(raw: bytes, position: int) -> tuple[Shape | None, int]:
    """Return the numbers behind a reference, and the position of what makes them a size."""
    found: list[int] = []
    position += raw[position] == 0x28  # MARK
    while (op := raw[position]) in _WIDTHS or op == 0x8A:
        stop = position + (_WIDTHS.get(op) or 2 + raw[position + 1])
        found.append(number_of(raw[position:stop]))
        position = stop
    return (tuple(found) if all(number >= 0 for number in found) else None), position


def _shape(value: object) -> Shape | None:
    """Return a tuple of sizes that fit 63 bits, or None."""
    if type(value) is not tuple or len(value) > 64:
        return None
    return value if all(type(n) is int and 0 <= n < _WORD for n in value) else None
