"""Tensors inside of values: where a tensor is there and cannot be read, or not be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, StorageError, Unsupported
from ckptctl.formats.items import transforms
from ckptctl.formats.pickles.tensors import TABLE, StorageRef, TensorRef
from ckptctl.formats.pickles.unpickler import Opaque
from ckptctl.formats.torch.reader import unpickle
from ckptctl.model.checkpoint import Item, TensorEntry
from ckptctl.operations.content.digest import object_records
from ckptctl.operations.content.tensors import TensorSource

_DEEPEST = 200
_REBUILT = ("torch._utils._rebuild", "torch._tensor._rebuild", "torch.nn.parameter.")
"""Of tensors whose bytes may lie in an array, or nowhere: on other devices, quantized, sparse."""


@dataclass(slots=True)
class Held:
    """What a value holds: tensors in plain containers, and classes that hold tensors of their own.

    What is ``text`` holds none, and no other format has a place for it.
    """

    tensors: int = 0
    container: str = ""
    unknown: str = ""
    text: bool = False
    seen: set[int] = field(default_factory=set)


def held(value: object) -> Held:
    """Look for tensors in a value that was unpickled without running anything."""
    found = Held()
    _walk(value, found, "", "", 0)
    return found


def _walk(value: object, found: Held, inside: str, within: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise MalformedData("it nests too deeply")
    if not isinstance(value, str | int | float):
        if id(value) in found.seen:
            return  # what is pickled once may stand in many places
        found.seen.add(id(value))
    if isinstance(value, StorageRef) or (isinstance(value, TensorRef) and inside):
        found.unknown = found.unknown or inside or "a bare storage"
    elif isinstance(value, TensorRef):
        found.tensors += 1
        found.container = found.container or within
    elif isinstance(value, Opaque):
        label = inside or value.label()
        if label.startswith(_REBUILT):
            found.unknown = found.unknown or label
        for part in (value.args, value.items, value.state):
            _walk(part, found, label, within, depth + 1)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _walk(key, found, inside, "a mapping", depth + 1)
            _walk(inner, found, inside, "a mapping", depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _walk(inner, found, inside, f"a {type(value).__name__}", depth + 1)


def _value(source: TensorSource, fqn: str) -> Held:
    """Look into one value, of the metadata or of an item that has storages beside its pickle."""
    if fqn in source.checkpoint.values:
        return held(source.checkpoint.values[fqn])
    for item in source.items_of(fqn):
        names: list[str] = []
        pickled = b""
        for name, _, blocks in object_records(source, item):
            names.append(name)
            if name == "data.pkl":
                pickled = b"".join(blocks)
        if names == [""]:
            return Held(text=True)
        if names != ["data.pkl"]:
            found = held(unpickle(pickled, table=TABLE))
            if found.tensors or found.unknown:
                return found
            return Held(unknown="what it is made of")
    return Held()


def held_in(source: TensorSource, fqn: str) -> str:
    """Say which tensors a value holds, so that nobody takes it for one without; empty for none."""
    try:
        found = _value(source, fqn)
    except (MalformedData, StorageError):
        return ""
    if found.unknown:
        return f"it holds tensors that cannot be read: {found.unknown}"
    if found.tensors:
        count = f"{found.tensors} tensor" + ("s" if found.tensors > 1 else "")
        return f"it holds {count} in {found.container}, which this format cannot take over"
    return ""


@dataclass(slots=True)
class Unread:
    """Keys that cannot be taken over, and why: what there is no reader for, and what is damaged."""

    unsupported: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, str]:
        """Both."""
        return {**self.unsupported, **self.damaged}


def unreadable(source: TensorSource, fqns: Iterable[str], *, layouts: bool) -> Unread:
    """Find tensors that cannot be read, alone or in values, and say why of each.

    A tensor with attributes is one, or one of a subclass, or a model that was pickled as a whole.
    With ``layouts`` the items of tensors are looked into for subclasses.
    """
    found = Unread()
    for fqn in fqns:
        if isinstance(source.checkpoint.entries[fqn], TensorEntry):
            why = next(
                filter(None, (_form(source, i, layouts=layouts) for i in source.items_of(fqn))), ""
            )
            if why:
                found.unsupported[fqn] = f"{why}: not supported"
            continue
        try:
            value = _value(source, fqn)
        except Unsupported as error:
            found.unsupported[fqn] = f"{error}: not supported"
        except (MalformedData, StorageError) as error:
            found.damaged[fqn] = f"it holds tensors that cannot be read: {error}"
        else:
            unknown = value.unknown
            if value.text:
                why = "it is text in an unknown encoding, which is no torch.save item"
                found.damaged[fqn] = why  # or was written over
            elif unknown:
                found.unsupported[fqn] = f"it holds tensors that cannot be read: {unknown}"
    return found


def _form(source: TensorSource, item: Item, *, layouts: bool) -> str:
    """Say what an item of a tensor has that is not supported; of what is damaged, nothing."""
    why = transforms.unreadable(item.transforms)
    if why or not layouts or item.stored is not None:
        return why
    try:
        with ExitStack() as stack:
            kind = source.stored(item, stack)[1].kind
    except (MalformedData, StorageError):
        return ""
    return "" if kind == "plain" else f"the layout of {kind} is not interpreted"
