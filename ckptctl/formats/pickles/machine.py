"""The machine that reads pickles: every opcode, nothing run, and work bounded by a budget.

It builds plain containers, numbers and text itself. What a pickle names comes from a table or is an
opaque stand-in; what it calls is in the table or on the list of ``allowed``, and otherwise the
pickle is refused. Semantics are those of ``pickle.Unpickler`` in C. Source: ``pickletools`` and
``Modules/_pickle.c`` of Python 3.8 to 3.14.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from ckptctl.errors import MalformedData, TooDeep, TooLarge, UnsafeData
from ckptctl.formats.budget import Budget
from ckptctl.formats.pickles.effects import Effects
from ckptctl.formats.pickles.opcodes import WIDTHS, Sparse, bytes_of, text_value
from ckptctl.formats.pickles.shortcuts import GONE, Detour, Shortcuts

_SLICE = 1 << 15
"""Bytes between two looks at the budget."""

_MOST_MEMO = 1 << 23
_MOST_MARKS = 20_000


class Machine(Effects):
    """Reads one pickle; afterwards ``unknown`` lists the globals that no table names.

    ``tolerated`` lists functions and methods of other packages that were called, which is allowed
    only with ``foreign``: where the loader refuses them anyway.
    """

    def __init__(
        self,
        data: bytes,
        table: Mapping[tuple[str, str], object],
        *,
        budget: Budget,
        persistent: Callable[[object], object] | None = None,
        opcodes: frozenset[int] | None = None,
        foreign: bool = False,
    ) -> None:
        """Take a pickle, what its globals mean, and the only opcodes that may occur, if not all."""
        super().__init__(table, budget, persistent, foreign=foreign)
        self.data, self._opcodes = data, opcodes
        self.end = 0
        self.shortcuts: Shortcuts | None = None

    def run(self) -> object:
        """Return what the pickle describes; ``end`` is then the position behind it.

        Raises ``MalformedData`` for bytes that are no whole pickle, ``RunsCode`` for one that calls
        what is not allowed, ``TooLarge`` and ``TooDeep`` for one that asks for too much.
        """
        try:
            return self._run()
        except MalformedData:
            raise
        except IndexError:
            message = "the pickle ends in the middle of an opcode or pops too much"
            raise MalformedData(message) from None
        except struct.error:
            raise MalformedData("the pickle ends in the middle of an opcode") from None
        except MemoryError:
            raise TooLarge("what it describes takes more memory than there is") from None
        except RecursionError:
            raise TooDeep("it nests too deeply to be compared") from None
        except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
            detail = str(error) or type(error).__name__
            raise MalformedData(f"not a readable pickle: {detail[:200]}") from None

    def _run(self) -> object:
        data, size, budget = self.data, len(self.data), self.budget
        opcodes, shortcuts = self._opcodes, self.shortcuts
        stack: list[Any] = []
        stacks: list[list[Any]] = []
        memo: Any = []  # a list until an index is left out
        unpack = struct.unpack_from
        position = 0
        held = fresh = 0
        most = max(size, _MOST_MEMO)
        while position < size:
            if len(stacks) > _MOST_MARKS:
                raise TooDeep(f"it nests containers more than {_MOST_MARKS} deep")
            self._held += held
            remembered = (9 if type(memo) is list else 90) * len(memo)
            budget.fits(self._held + remembered + 8 * (len(stack) + sum(map(len, stacks))))
            held = 0
            limit = position + _SLICE
            while position < limit:
                op = data[position]
                position += 1
                if opcodes is not None and op not in opcodes:
                    raise MalformedData(
                        f"byte {position - 1}: opcode 0x{op:02x} is none that torch's own reader knows"
                    )
                if op == 0x94:  # MEMOIZE
                    memo.append(stack[-1])
                elif op == 0x68:  # BINGET
                    top = memo[data[position]]
                    if top is GONE:
                        raise Detour
                    stack.append(top)
                    position += 1
                elif op == 0x6A:  # LONG_BINGET
                    top = memo[unpack("<I", data, position)[0]]
                    if top is GONE:
                        raise Detour
                    stack.append(top)
                    position += 4
                elif op == 0x4B:  # BININT1
                    stack.append(data[position])
                    position += 1
                elif op == 0x4D:  # BININT2
                    stack.append(data[position] | data[position + 1] << 8)
                    position += 2
                elif op == 0x28:  # MARK
                    stacks.append(stack)
                    stack = []
                    if shortcuts is not None and len(stacks) == 2:
                        position = shortcuts.opened(position, fresh, stack, stacks[-1], memo)
                elif op == 0x8C or op == 0x58:  # SHORT_BINUNICODE BINUNICODE
                    if op == 0x8C:
                        low = position + 1
                        position = low + data[position]
                    else:
                        low = position + 4
                        position = low + unpack("<I", data, position)[0]
                    if position > size:
                        raise self._claims(low, position)
                    stack.append(data[low:position].decode("utf-8", "surrogatepass"))
                    held += 56 + position - low
                elif op == 0x71:  # BINPUT
                    memo = self._put(memo, data[position], stack[-1])
                    position += 1
                elif op == 0x72:  # LONG_BINPUT
                    index = unpack("<I", data, position)[0]
                    if index > most:
                        raise self._far(index)
                    memo = self._put(memo, index, stack[-1])
                    position += 4
                elif op == 0x85:  # TUPLE1
                    stack[-1] = (stack[-1],)
                    held += 64
                elif op == 0x52:  # REDUCE
                    args = stack.pop()
                    stack[-1] = self._call(stack[-1], args)
                    held += 200
                elif op == 0x62:  # BUILD
                    state = stack.pop()
                    held += self._build(stack[-1], state)
                    if shortcuts is not None and len(stacks) == 2:
                        position = shortcuts.filled(position, stack, memo)
                elif op == 0x81:  # NEWOBJ
                    args = stack.pop()
                    stack[-1] = self._new(stack[-1], args)
                    held += 150
                elif op == 0x29:  # EMPTY_TUPLE
                    stack.append(())
                elif op == 0x7D:  # EMPTY_DICT
                    stack.append({})
                    fresh = position
                    held += 64
                elif op == 0x75:  # SETITEMS
                    items = stack
                    stack = stacks.pop()
                    self.set_items(stack[-1], items)
                    held += 50 * len(items)
                    if shortcuts is not None and len(stacks) == 1:
                        shortcuts.closed(stack[-1], position, memo)
                elif op == 0x86:  # TUPLE2
                    top = stack.pop()
                    stack[-1] = (stack[-1], top)
                    held += 72
                elif op == 0x87:  # TUPLE3
                    third, second = stack.pop(), stack.pop()
                    stack[-1] = (stack[-1], second, third)
                    held += 80
                elif op == 0x74:  # TUPLE
                    items = stack
                    stack = stacks.pop()
                    stack.append(tuple(items))
                    held += 56 + 8 * len(items)
                elif op == 0x4A:  # BININT
                    stack.append(unpack("<i", data, position)[0])
                    position += 4
                    held += 32
                elif op == 0x4E:  # NONE
                    stack.append(None)
                elif op == 0x88:  # NEWTRUE
                    stack.append(True)
                elif op == 0x89:  # NEWFALSE
                    stack.append(False)
                elif op == 0x93:  # STACK_GLOBAL
                    name, module = stack.pop(), stack.pop()
                    stack.append(self._global(module, name))
                elif op == 0x63:  # GLOBAL
                    module, position = self._line(position)
                    name, position = self._line(position)
                    stack.append(self._global(module.decode("utf-8"), name.decode("utf-8")))
                elif op == 0x47:  # BINFLOAT
                    stack.append(unpack(">d", data, position)[0])
                    position += 8
                    held += 24
                elif op == 0x5D:  # EMPTY_LIST
                    stack.append([])
                    held += 72
                elif op == 0x65:  # APPENDS
                    items = stack
                    stack = stacks.pop()
                    self._extend(stack[-1], items)
                    held += 9 * len(items)
                elif op == 0x61:  # APPEND
                    top = stack.pop()
                    self._extend(stack[-1], [top])
                    held += 40
                elif op == 0x73:  # SETITEM
                    top = stack.pop()
                    key = stack.pop()
                    self.set_items(stack[-1], [key, top])
                    held += 150
                elif op == 0x51:  # BINPERSID
                    stack[-1] = self._resolve(stack[-1])
                    held += 100
                elif op == 0x8A:  # LONG1
                    low = position + 1
                    position = low + data[position]
                    stack.append(int.from_bytes(data[low:position], "little", signed=True))
                    held += 32 + position - low
                elif op == 0x95:  # FRAME
                    if unpack("<Q", data, position)[0] > size - position - 8:
                        raise MalformedData("a frame of the pickle is cut short")
                    position += 8
                elif op == 0x80:  # PROTO
                    self._protocol = data[position]
                    if self._protocol > 5:
                        raise MalformedData(f"pickle protocol {self._protocol} is not known")
                    position += 1
                elif op == 0x2E:  # STOP
                    if position > size:
                        raise IndexError
                    self.end = position
                    if shortcuts is not None:
                        shortcuts.finish()
                    return stack.pop()
                elif op == 0x8F:  # EMPTY_SET
                    stack.append(set())
                    held += 232
                elif op == 0x90:  # ADDITEMS
                    items = stack
                    stack = stacks.pop()
                    self._add(stack[-1], items)
                    held += 60 * len(items)
                elif op == 0x91:  # FROZENSET
                    items = stack
                    stack = stacks.pop()
                    members: set[Any] = set()
                    self._add(members, items)
                    stack.append(frozenset(members))
                    held += 232 + 60 * len(items)
                elif op in (0x30, 0x31, 0x32) and shortcuts is not None:
                    raise Detour
                elif op == 0x30:  # POP
                    if stack:
                        stack.pop()
                    else:
                        stack = stacks.pop()
                elif op == 0x31:  # POP_MARK
                    stack = stacks.pop()
                elif op == 0x32:  # DUP
                    stack.append(stack[-1])
                elif op in WIDTHS:
                    width = WIDTHS[op]
                    low = position + width
                    length = int.from_bytes(data[position:low], "little", signed=op == 0x8B)
                    position = low + length
                    if position > size or length < 0:
                        raise self._claims(low, position)
                    stack.append(bytes_of(op, data[low:position]))
                    held += 64 + 2 * length
                elif op == 0x6C:  # LIST
                    items = stack
                    stack = stacks.pop()
                    stack.append(items)
                    held += 72 + 8 * len(items)
                elif op == 0x64:  # DICT
                    items = stack
                    stack = stacks.pop()
                    made: dict[Any, Any] = {}
                    self.set_items(made, items)
                    stack.append(made)
                    held += 64 + 50 * len(items)
                elif op == 0x6F:  # OBJ
                    items = stack
                    stack = stacks.pop()
                    stack.append(self._call(items[0], tuple(items[1:])))
                    held += 200
                elif op == 0x69:  # INST
                    module, position = self._line(position)
                    name, position = self._line(position)
                    items = stack
                    stack = stacks.pop()
                    found = self._global(module.decode("ascii"), name.decode("ascii"))
                    stack.append(self._call(found, tuple(items)))
                    held += 200
                elif op == 0x92:  # NEWOBJ_EX
                    keywords, args = stack.pop(), stack.pop()
                    if type(keywords) is not dict or type(args) is not tuple:
                        raise MalformedData("NEWOBJ_EX is not given arguments")
                    given = (*args, *keywords.items()) if keywords else args
                    stack[-1] = self._new(stack[-1], given)
                    held += 200
                elif op in (0x70, 0x67):  # PUT GET
                    text, position = self._line(position)
                    if not text.strip().isdigit():
                        raise MalformedData(f"{text[:32]!r} is not a memo index")
                    if len(text) > 18:
                        raise self._far(most + 1)
                    if op == 0x70:
                        index = int(text)
                        if index > most:
                            raise self._far(index)
                        memo = self._put(memo, index, stack[-1])
                    elif memo[int(text)] is GONE:
                        raise Detour
                    else:
                        stack.append(memo[int(text)])
                elif op in (0x46, 0x49, 0x4C, 0x53, 0x56):  # FLOAT INT LONG STRING UNICODE
                    text, position = self._line(position)
                    stack.append(text_value(op, text))
                    held += 64 + 4 * len(text)
                elif op == 0x50:  # PERSID
                    text, position = self._line(position)
                    stack.append(self._resolve(text.decode("ascii")))
                elif op in (0x82, 0x83, 0x84, 0x97, 0x98):
                    message = "it uses extension codes or buffers that are kept elsewhere"
                    raise MalformedData(f"byte {position - 1}: {message}")
                else:
                    raise MalformedData(f"byte {position - 1}: 0x{op:02x} is not a pickle opcode")
        raise MalformedData(f"the pickle ends without STOP after {size} bytes: it is cut short")

    def _put(self, memo: Any, index: int, value: object) -> Any:
        """Remember a value by number; return the memo, which is a mapping after a gap."""
        if self.shortcuts is not None:
            raise Detour
        if index == len(memo) and type(memo) is list:
            memo.append(value)
            return memo
        if type(memo) is list and index > len(memo):
            memo = Sparse(enumerate(memo))
        memo[index] = value
        return memo

    def _claims(self, low: int, stop: int) -> UnsafeData:
        return TooLarge(
            f"byte {low}: a value claims {stop - low} bytes, more than the {len(self.data)} bytes "
            "of the file"
        )

    def _far(self, index: int) -> UnsafeData:
        return TooLarge(
            f"memo index {index} in a file of {len(self.data)} bytes; loading it would take "
            f"{16 * index} bytes of memory"
        )

    def _line(self, position: int) -> tuple[bytes, int]:
        end = self.data.find(b"\n", position)
        if end < 0:
            raise MalformedData(f"byte {position}: a text argument has no end")
        return self.data[position:end], end + 1
