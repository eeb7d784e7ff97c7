"""What the opcodes of a pickle do to objects: name, call, make, fill in; each only as allowed."""

from __future__ import annotations

import _compat_pickle
from collections.abc import Callable, Mapping
from typing import Any

from ckptctl.errors import MalformedData, RunsCode, TooLarge
from ckptctl.formats.budget import Budget
from ckptctl.formats.pickles.allowed import (
    is_platform,
    makes,
    makes_first,
    may_call,
    may_fill,
    may_make,
    may_name,
)
from ckptctl.formats.pickles.keys import check_key
from ckptctl.formats.pickles.shortcuts import Fence
from ckptctl.formats.pickles.stand_ins import (
    DtypeName,
    Function,
    Opaque,
    Ordered,
    Stateful,
    opaque_class,
)
from ckptctl.model.dtypes import NAMES, canonical

_MOST_UNKNOWN = 10_000
_MOST_SAID = 8
_MISSING = object()
_KEYS = frozenset({str, bool, bytes, type(None)})
"""Keys that neither collide on purpose nor take long to hash."""

_SIZED = frozenset({tuple, list, dict, set, frozenset, Ordered})
_FEW = 64
_LOOK = 256


class Attribute(Function):
    """``getattr``, given first to a function of ours; what that leaves is named and not looked up."""

    __slots__ = ()


class Effects:
    """The objects that one pickle may reach, and what may be done to them."""

    def __init__(
        self,
        table: Mapping[tuple[str, str], object],
        budget: Budget,
        persistent: Callable[[object], object] | None,
        *,
        foreign: bool,
    ) -> None:
        """Take what globals mean and what persistent ids stand for."""
        self._table, self.budget = table, budget
        self._persistent, self._foreign = persistent, foreign
        self._protocol = 0
        self._held = self._keys = self._wide = 0
        self.unknown: dict[tuple[str, str], type[Opaque]] = {}
        self.tolerated: list[str] = []
        self.unsafe: list[str] | None = None

    def _refuse(self, message: str) -> None:
        """Refuse the pickle; where unsafe calls are gathered, note it and go on with a stand-in."""
        if self.unsafe is None:
            raise RunsCode(message)
        if len(self.unsafe) < _MOST_SAID:
            self.unsafe.append(message)

    def _resolve(self, pid: object) -> object:
        if self._persistent is None:
            raise MalformedData("the pickle refers to something outside itself (a persistent id)")
        return self._persistent(pid)

    def _global(self, module: object, name: object) -> object:
        """Resolve a global by the table, a torch dtype by its name, anything else as opaque."""
        if type(module) is not str or type(name) is not str:
            raise MalformedData("a global is not named by text")
        key = (module, name)
        if self._protocol < 3:
            if key in _compat_pickle.NAME_MAPPING:
                key = _compat_pickle.NAME_MAPPING[key]
            else:
                key = (_compat_pickle.IMPORT_MAPPING.get(module, module), name)
        found = self._table.get(key, _MISSING)
        if found is not _MISSING:
            return found
        if key[0] == "torch" and name in NAMES:
            return DtypeName(canonical(name))
        return self._named(key)

    def _named(self, key: tuple[str, str]) -> type[Opaque]:
        found = self.unknown.get(key)
        if found is None:
            if len(self.unknown) >= _MOST_UNKNOWN:
                raise TooLarge(f"it names more than {_MOST_UNKNOWN} different classes")
            found = self.unknown[key] = opaque_class(*key)
            self._held += 1200
        return found

    def _call(self, function: object, args: object) -> object:
        if type(args) is not tuple:
            raise MalformedData("a function is not given a tuple of arguments")
        self._given(args)
        if type(function) is Function:
            made = function(*args)
            if isinstance(made, str | bytes) and len(made) > _FEW:
                self.budget.hold(len(made))
            return made
        if type(function) is Attribute:
            return self._attribute(function, args)
        if isinstance(function, type) and issubclass(function, Opaque):
            module, name = function.module, function.name
            if may_call(module, name, args):
                made = makes_first(module, name, args)
                return function(*args) if made is None else made
            if self._foreign and not is_platform(module):
                self.tolerated.append(function.label())
                return function(*args)
            self._refuse(f"it asks its reader to run {function.label()[:200]}; nothing was run")
            return function(*args)
        if isinstance(function, Opaque) and not args and makes(function):
            return Opaque(function)
        if isinstance(function, type) and issubclass(function, Stateful):
            raise MalformedData(f"it calls {function.__name__}, which torch never does")
        raise RunsCode(f"it asks its reader to call a {type(function).__name__}; nothing was run")

    def _given(self, args: tuple[object, ...]) -> None:
        """Count what is looked at, and may be copied, each time that something is called."""
        count = len(args)
        for one in args:
            if type(one) in _SIZED:
                count += len(one) * (2 if isinstance(one, dict) else 1)  # type: ignore[arg-type]
        self.budget.take(count)
        if count > _FEW:
            self.budget.hold(40 * count)

    def _attribute(self, function: Attribute, args: tuple[object, ...]) -> object:
        found = function(*args)
        if found is not None:
            return found
        holder, name = args if len(args) == 2 else (None, None)
        key = may_name(holder, name)
        if key is not None:
            return self._named(key)
        what = "builtins.getattr"
        what += f" for {name[:40]!r}" if type(name) is str else ""
        raise RunsCode(f"it asks its reader to run {what}; nothing was run")

    def _new(self, kind: object, args: object) -> object:
        if type(args) is not tuple:
            raise MalformedData("an object is not given a tuple of arguments")
        if args:
            self._given(args)
        if not isinstance(kind, type):
            raise MalformedData(f"it makes an object of a {type(kind).__name__}")
        if issubclass(kind, Opaque):
            if not may_make(kind.module, kind.name, args):
                self._refuse(f"it asks its reader to run {kind.label()[:200]}; nothing was run")
            return kind(*args)
        if issubclass(kind, Stateful) and not args:
            return kind()
        raise MalformedData(f"it makes a {kind.__name__} of arguments, which torch never does")

    def _build(self, target: object, state: object) -> int:
        """Fill an object in; return how many bytes of memory that took."""
        if isinstance(target, Stateful):
            return self._fill(target, state)
        if isinstance(target, type | Function):
            raise RunsCode("it changes something that it only names; nothing was run")
        if type(target) is Ordered and (state is None or type(state) is dict):
            return 0  # what torch hangs on it (``_metadata``) is let go
        raise MalformedData(f"it fills in a {type(target).__name__}, which has no state")

    def _fill(self, target: Stateful, state: object) -> int:
        """Give an object its state, which is copied, and what it has by now as well."""
        count = len(state) if type(state) is dict else 0
        if type(state) is tuple and len(state) == 2:
            count = sum(len(part) for part in state if type(part) is dict)
        before = getattr(target, "state", None)
        if type(before) is dict:
            count += len(before)
        self.budget.take(count)
        if count <= _FEW:
            target.take_state(state)
            return 64 + 60 * count if count else 0
        self.budget.hold(64 + 60 * count)
        target.take_state(state)
        self.budget.fits(0)  # so that few large ones cannot take long
        return 0

    def set_items(self, target: object, items: list[Any]) -> None:
        """Put keys and values, one after the other, into a mapping or what stands for one."""
        if len(items) % 2:
            if type(items[0]) is Fence:
                items[0].close(target)
                items = items[1:]
            if len(items) % 2:
                raise MalformedData("a mapping is given a key without a value")
        if isinstance(target, dict):
            for index in range(0, len(items), 2):
                key = items[index]
                if type(key) not in _KEYS:
                    self._check_key(key)
                target[key] = items[index + 1]
        else:
            record = self._stand_in(target)
            record.extend(zip(items[::2], items[1::2], strict=True))

    def _extend(self, target: object, items: list[Any]) -> None:
        if type(target) is list:
            target.extend(items)
        else:
            self._stand_in(target).extend(items)

    def _add(self, target: object, items: list[Any]) -> None:
        if type(target) is set:
            for one in items:
                self._check_key(one)
                target.add(one)
        else:
            self._stand_in(target).extend(items)

    def _stand_in(self, target: object) -> list[object]:
        """Return where members of an object of another package are noted."""
        if isinstance(target, Opaque) and may_fill(target.module, target.name):
            return target.items
        if isinstance(target, type | Function | Opaque):
            raise RunsCode("it puts members into what it only names; nothing was run")
        raise MalformedData(f"it puts members into a {type(target).__name__}")

    def _check_key(self, key: object) -> None:
        """Refuse what cannot be hashed, or only by following very many references."""
        self._keys += 1
        if not self._keys % _LOOK:
            self.budget.fits(0)
        if check_key(key, self.budget.take):
            self._wide += 1
            self.budget.take(self._wide)  # where all have one hash, each is compared with all
