"""Runs of entries that are alike: nearly all of ``.metadata``, recognised by their bytes.

torch writes each tensor, and each item with the place where it lies, by the same opcodes; only
names, numbers and what is remembered differ. One expression recognises such an entry exactly, and
what it holds goes into columns at once: nothing is built that only the pickle itself needs.
Anything else is left to the machine, which also reads the first entry of each kind.
"""

from __future__ import annotations

import re
from array import array
from typing import Any

from ckptctl.dataclass import dataclass
from ckptctl.formats.dcp.alike import (
    CHUNK,
    ITEM,
    NAME,
    OBJECT,
    TENSOR,
    Added,
    Memo,
    Parts,
    end_of,
    gone,
    number_of,
)
from ckptctl.formats.dcp.classes import (
    BytesRecord,
    ChunkRecord,
    IndexRecord,
    OldPropertiesRecord,
    StorageRecord,
    TensorRecord,
    dtype_name,
    requires_grad,
)
from ckptctl.formats.pickles.machine import Machine
from ckptctl.formats.pickles.shortcuts import GONE, Detour, Fence
from ckptctl.model.geometry import Boxes, Shape

_LOOK = 1024
"""Entries between two looks at the budget."""

_NEXT = frozenset(b"uhj\x8cX\x95")
"""What may follow an entry: the end, or the next one, which begins with a name."""


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """What is said of one tensor besides its name."""

    dtype: str
    shape: Shape
    boxes: Boxes
    requires_grad: bool
    old: bool


@dataclass(frozen=True, slots=True)
class SeenItems:
    """A run of items and of the places where they lie, in columns as those of ``Items``."""

    fqns: list[str]
    origins: list[Shape | None]
    paths: list[str]
    offsets: array[int]
    lengths: array[int]
    transforms: dict[int, tuple[str, ...]]

    __hash__ = object.__hash__  # it is a key in the place of many


@dataclass(frozen=True, slots=True)
class _Block:
    """The bytes of one description of a tensor, what it says, and what it adds to the memo."""

    data: bytes
    seen: SeenTensor
    added: Added


_ONE_OBJECT = BytesRecord()
_NOWHERE: tuple[None, Added] = (None, ())
_PREFIX = 48
"""Bytes by which descriptions of tensors are told apart before they are compared."""


class Runs:
    """The shortcuts through one ``.metadata``."""

    def __init__(self, machine: Machine) -> None:
        """Take the machine whose pickle it is."""
        self._data, self._budget, self._put = machine.data, machine.budget, machine.set_items
        self._target: dict[Any, Any] | None = None
        self._at = self._ended = -1
        self._fences: list[Fence] = []
        self._parts = Parts()
        self._good: dict[Added, tuple[Added, Added]] = {}
        self._blocks: dict[bytes, list[_Block]] = {}
        self._room = len(self._data) // 8 + (1 << 20)

    # --- where runs may be ------------------------------------------------------------------------

    def opened(
        self, position: int, made: int, stack: list[Any], below: list[Any], memo: Memo
    ) -> int:
        """Begin the keys and values of a mapping that nothing but the stack and the memo holds."""
        target = below[-1] if below else None
        if type(target) is not dict:
            self._target = None
            return position
        if self._leads(made, b"\x94(", position):
            self._target, self._at = target, len(memo) - 1
        elif self._leads(made, b"(", position):
            self._target, self._at = target, -1
        elif target is not self._target or not self._leads(self._ended, b"(", position):
            self._target = None
            return position
        if self._at >= 0:
            memo[self._at] = GONE  # until its end: a look at it now would see more than there is
        return self._read(position, stack, memo)

    def filled(self, position: int, stack: list[Any], memo: Memo) -> int:
        """Look for more of what was just read by the machine."""
        if self._target is None or type(stack[-1]) not in (TensorRecord, StorageRecord):
            return position
        return self._read(position, stack, memo)

    def closed(self, target: object, position: int, memo: Memo) -> None:
        """End the keys and values of a mapping."""
        if self._target is not None and target is self._target:
            if self._at >= 0:
                memo[self._at] = target
            self._ended = position

    def finish(self) -> None:
        """Raise ``Detour`` where keys and values did not go where they were put."""
        if not all(fence.closed for fence in self._fences):
            raise Detour("its keys and values go elsewhere")

    def _leads(self, position: int, opcodes: bytes, end: int) -> bool:
        """Tell whether just these opcodes lie between two places, but for the heads of frames."""
        data = self._data
        for op in opcodes:
            while data[position] == 0x95:
                position += 9
            if data[position] != op:
                return False
            position += 1
        return position == end

    def _read(self, position: int, stack: list[Any], memo: Memo) -> int:
        """Read what is alike from here on, and put it into the mapping."""
        target = self._target
        start = position
        items = SeenItems([], [], [], array("q"), array("q"), {})
        tensors: dict[str, SeenTensor | BytesRecord] = {}
        position = self._read_items(position, memo, items)
        if position == start:
            position = self._read_tensors(position, memo, tensors)
        if position == start or target is None:
            return position
        if self._data[position] not in _NEXT:
            raise Detour("an entry is followed by something unusual")
        fence = stack[0] if stack and type(stack[0]) is Fence else None
        self._put(target, stack[1:] if fence is not None else stack)
        if fence is None:
            fence = Fence(target)
            self._fences.append(fence)
        stack[:] = [fence]
        if items.fqns:
            target[items] = None
        target.update(tensors)
        return position

    # --- items and where they lie -----------------------------------------------------------------

    def _read_items(self, position: int, memo: Memo, found: SeenItems) -> int:
        """Read items into columns; return the position behind them."""
        match, data, parts = ITEM.match, self._data, self._parts
        sizes, texts = parts.sizes, parts.texts
        fqns, origins, paths = found.fqns.append, found.origins.append, found.paths.append
        starts, lengths = found.offsets.append, found.lengths.append
        before: Added = ()
        marks: tuple[Added, Added] | None = None
        while one := match(data, position):
            (index, fqn, hint, key, origin, place, path, start_key, start, length_key, length) = (
                one.group(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
            )
            heads = (index, hint, key, place, start_key, length_key)
            if heads != before:
                marks = self._is_item(heads, memo)
                before = heads
            if marks is None:
                break
            name = texts.get(fqn) or parts.text(fqn, memo)
            where = texts.get(path) or parts.text(path, memo)
            shape: tuple[Shape | None, Added] | None = _NOWHERE
            if origin is not None:
                shape = sizes.get(origin) or parts.size(origin, memo)
            begin, extent, first = number_of(start), number_of(length), len(memo)
            if name is None or where is None or shape is None or begin < 0 or extent < 0:
                break
            memo += marks[0] + name[1] + shape[1] + marks[1] + where[1]
            if one[12] is not None and not self._transform(one, memo, found):
                del memo[first:]
                break
            fqns(name[0])
            origins(shape[0])
            paths(where[0])
            starts(begin)
            lengths(extent)
            position = one.end()
            if not len(found.fqns) % _LOOK:
                self._budget.hold(_LOOK * 120)
                self._budget.fits(0)
        return position

    def _is_item(self, heads: Added, memo: Memo) -> tuple[Added, Added] | None:
        """Return what an index and its place add to the memo; None where they are something else."""
        parts = self._parts
        found = self._good.get(heads)
        if found is not None:
            return found
        index, hint, key, place, start_key, length_key = heads
        one, other = parts.kind(index, memo), parts.kind(place, memo)
        good = (
            one[:2] == (IndexRecord, "fqn")
            and other[:2] == (StorageRecord, "relative_path")
            and parts.named(hint, memo) == "index"
            and (key is None or parts.named(key, memo) == "offset")
            and parts.named(start_key, memo) == "offset"
            and parts.named(length_key, memo) == "length"
        )
        if not good:
            return None
        found = one[2], other[2]
        if len(self._good) < _LOOK:
            self._good[heads] = found
        return found

    def _transform(self, item: re.Match[bytes], memo: Memo, found: SeenItems) -> bool:
        """Note the name of what was done to an item; tell whether it is readable."""
        parts = self._parts
        key, listed, name = item.group(12, 13, 14)
        memo += gone(listed)
        text = parts.text(name, memo)
        if text is None or parts.named(key, memo) != "transform_descriptors":
            return False
        memo += text[1]
        found.transforms[len(found.fqns)] = (text[0],)
        return True

    # --- tensors and objects ----------------------------------------------------------------------

    def _read_tensors(
        self, position: int, memo: Memo, found: dict[str, SeenTensor | BytesRecord]
    ) -> int:
        """Read descriptions of tensors and objects; return the position behind them."""
        data, match, parts = self._data, NAME.match, self._parts
        while one := match(data, position):
            name = parts.text(one[1], memo)
            if name is None:
                break
            begin = one.end()
            block = next(
                (
                    block
                    for block in self._blocks.get(data[begin : begin + _PREFIX], ())
                    if data.startswith(block.data, begin)
                ),
                None,
            ) or self._tensor(begin, memo, name[1])
            if block is None:
                an_object = OBJECT.match(data, begin)
                if an_object is None or data[an_object.end()] not in _NEXT:
                    break
                made = an_object[1]
                if parts.value(made[: end_of(made)], memo) is not BytesRecord:
                    break
                memo += name[1] + gone(made[-1:])
                found[name[0]] = _ONE_OBJECT
                position = an_object.end()
            else:
                memo += name[1]
                memo += block.added
                found[name[0]] = block.seen
                position = begin + len(block.data)
            if not len(found) % _LOOK:
                self._budget.hold(_LOOK * 200)
                self._budget.fits(0)
        return position

    def _tensor(self, begin: int, memo: Memo, before: Added) -> _Block | None:
        """Read the description of a tensor, whose name adds something to the memo before it."""
        data, parts = self._data, self._parts
        head = TENSOR.match(data, begin)
        if head is None:
            return None
        kind, properties, size_key, extent, chunks_key, listed = head.groups()
        record, field, added = parts.kind(kind, memo)
        first = len(memo)
        memo += before
        try:
            whole = parts.size(extent, memo)
            what = parts.properties(properties, memo)
            if (
                whole is None
                or what is None
                or (record, field) != (TensorRecord, "properties")
                or parts.named(size_key, memo) != "size"
                or parts.named(chunks_key, memo) != "chunks"
            ):
                return None
            shape = whole[0]
            memo += added + what[1] + whole[1] + gone(listed)
            found = self._chunks(head.end(), memo, len(shape))
            if found is None:
                return None
            boxes, position = found
            block = _Block(
                data[begin:position],
                SeenTensor(
                    dtype_name(what[0]),
                    shape,
                    boxes,
                    requires_grad(what[0]),
                    isinstance(what[0], OldPropertiesRecord),
                ),
                tuple(memo[first + len(before) :]),
            )
        finally:
            del memo[first:]
        self._budget.hold(300 + 40 * boxes.count * (1 + boxes.ndim))
        self._keep(block)
        return block

    def _keep(self, block: _Block) -> None:
        """Keep the bytes of a description, as many tensors are described alike."""
        self._room -= len(block.data) + 8 * len(block.added)
        if self._room > 0:
            alike = self._blocks.setdefault(block.data[:_PREFIX], [])
            alike.insert(0, block)
            del alike[8:]

    def _chunks(self, position: int, memo: Memo, ndim: int) -> tuple[Boxes, int] | None:
        """Read a list of chunks and the end of its tensor; return boxes and the position behind."""
        data, match, parts = self._data, CHUNK.match, self._parts
        offsets, sizes = array("q"), array("q")
        many = data[position] == 0x28  # MARK
        position += many
        count = 0
        before: Added = ()
        added: Added = ()
        while one := match(data, position):
            kind, origin, key, extent = one.groups()
            if (kind, key) != before:
                record, field, added = parts.kind(kind, memo)
                if (record, field, parts.named(key, memo)) != (ChunkRecord, "offsets", "sizes"):
                    return None
                before = (kind, key)
            low = parts.sizes.get(origin) or parts.size(origin, memo)
            if low is None:
                return None
            memo += added + low[1]
            wide = parts.sizes.get(extent) or parts.size(extent, memo)
            if wide is None or not len(low[0]) == len(wide[0]) == ndim:
                return None
            memo += wide[1]
            offsets.extend(low[0])
            sizes.extend(wide[0])
            position = one.end()
            count += 1
            if not many:
                break
            if not count % _LOOK:
                self._budget.hold(_LOOK * 160)
                self._budget.fits(0)
        end = (b"eub" if many else b"aub") if count else b"ub"
        if (many and not count) or not data.startswith(end, position):
            return None
        return Boxes(ndim, count, offsets, sizes), position + len(end)
