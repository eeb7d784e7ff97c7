"""The classes that ``.metadata`` pickles name, and our stand-ins for them.

Source of the names: ``torch/distributed/checkpoint/{metadata,filesystem}.py``, torch 2.0 to 2.13.
"""

from __future__ import annotations

from typing import ClassVar

from ckptctl.errors import MalformedData
from ckptctl.formats.pickles.allowed import is_platform
from ckptctl.formats.pickles.effects import Attribute
from ckptctl.formats.pickles.forms import looks_like_class
from ckptctl.formats.pickles.stand_ins import DtypeName, Layout, layout
from ckptctl.formats.pickles.unpickler import Function, Opaque, Stateful, size

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
SHARDED_TENSOR = "torch.distributed._shard.sharded_tensor.metadata"
OLMO_FILESYSTEM = "olmo_core.distributed.checkpoint.filesystem"
"""OLMo-core derives ``_StorageInfo`` under the same name."""


STOCK_MODULES = frozenset(
    {METADATA, FILESYSTEM, SHARDED_TENSOR, "torch.serialization", "pathlib", "pathlib._local"}
)
"""Modules that are torch's or Python's own: a name in them that the table lacks does not exist."""


def is_stock(module: str) -> bool:
    """Tell whether a module is torch's or Python's own, or such a name with one letter damaged."""
    return any(
        len(module) == len(stock) and sum(map(str.__ne__, module, stock)) <= 1
        for stock in STOCK_MODULES
    )


_HASHED = frozenset({str, int, bool, float, type(None)})


def _is_hashed(value: object) -> bool:
    kind = type(value)
    if kind is not tuple:
        return kind in _HASHED
    return len(value) <= 64 and _HASHED.issuperset(map(type, value))  # type: ignore[arg-type, call-overload]


class Record(Stateful):
    """Base of our stand-ins for the metadata classes: they keep the fields they were filled with."""

    __slots__ = ("state",)
    state: object
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as of torch's own dataclasses

    def __init__(self) -> None:
        """Begin without any field."""
        self.state = None

    def take_state(self, state: object) -> None:
        """Add fields, as unpickling copies them into an object's dictionary."""
        if type(state) is not dict or not all(type(name) is str for name in state):
            raise MalformedData(f"the fields of a {type(self).__name__} are not named")
        before = self.state
        self.state = {**before, **state} if type(before) is dict else state.copy()


class MetadataRecord(Record):
    """``Metadata``."""

    __slots__ = ()


class TensorRecord(Record):
    """``TensorStorageMetadata``."""

    __slots__ = ()


class BytesRecord(Record):
    """``BytesStorageMetadata``; it has no state."""

    __slots__ = ()


class ChunkRecord(Record):
    """``ChunkStorageMetadata``."""

    __slots__ = ()


class IndexRecord(Record):
    """``MetadataIndex``; hashed by identity, as two ranks' replicas may be equal."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        """Refuse where torch, which hashes the fields, could not; they are looked at elsewhere."""
        state = self.state
        if type(state) is not dict or "fqn" not in state:
            raise MalformedData("an index without a name is a key")
        if not all(map(_is_hashed, state.values())):
            raise MalformedData("an index is a key whose fields cannot be hashed")
        return object.__hash__(self)


class StorageRecord(Record):
    """``_StorageInfo``."""

    __slots__ = ()


class StorageMetaRecord(Record):
    """``StorageMeta``."""

    __slots__ = ()


class PropertiesRecord(Record):
    """``TensorProperties`` since torch 2.3, which sets its own state."""

    __slots__ = ()

    def take_state(self, state: object) -> None:
        """Keep the state: a tuple, so that it cannot change."""
        if type(state) is not tuple:
            raise MalformedData("the properties of a tensor are no tuple")
        self.state = state


class OldPropertiesRecord(PropertiesRecord):
    """``TensorProperties`` up to torch 2.2, of another module."""

    __slots__ = ()


class MemoryFormat:
    """A memory format."""

    __slots__ = ()


def _memory_format(*args: object) -> MemoryFormat:
    if len(args) != 1 or type(args[0]) is not int or args[0] not in (0, 1, 2):
        raise MalformedData("it names a memory format that torch does not have")
    return MemoryFormat()


MEMORY_FORMAT = Function(_memory_format)
SIZE = Function(size)
_MEMORY_FORMATS = frozenset(
    {"TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT"}
)


def _member(*args: object) -> MemoryFormat | None:
    """Return a member of the one enum that metadata has: so Python 3.11.0 to 3.11.3 pickle it."""
    if len(args) == 2 and args[0] is MEMORY_FORMAT and args[1] in _MEMORY_FORMATS:
        return MemoryFormat()
    return None


class PathText(str):
    """A path object as text; no plain text, so that it cannot stand in for a name."""

    __slots__ = ()


def _join_path(*parts: object) -> PathText:
    if len(parts) > 256 or not all(type(part) is str and len(part) < 4096 for part in parts):
        raise MalformedData("a path is not made of names")
    text = "/".join(map(str, parts))
    if len(text) > 4 * 4096:
        raise MalformedData("a path is longer than any")
    return PathText("/" + text.lstrip("/") if text.startswith("/") else text)


TABLE: dict[tuple[str, str], object] = {
    (METADATA, "Metadata"): MetadataRecord,
    (METADATA, "TensorStorageMetadata"): TensorRecord,
    (METADATA, "BytesStorageMetadata"): BytesRecord,
    (METADATA, "ChunkStorageMetadata"): ChunkRecord,
    (METADATA, "MetadataIndex"): IndexRecord,
    (METADATA, "StorageMeta"): StorageMetaRecord,
    (METADATA, "TensorProperties"): PropertiesRecord,
    (METADATA, "_MEM_FORMAT_ENCODING"): MEMORY_FORMAT,
    (SHARDED_TENSOR, "TensorProperties"): OldPropertiesRecord,
    (SHARDED_TENSOR, "MEM_FORMAT_ENCODING"): MEMORY_FORMAT,
    (FILESYSTEM, "_StorageInfo"): StorageRecord,
    (OLMO_FILESYSTEM, "_StorageInfo"): StorageRecord,
    ("builtins", "getattr"): Attribute(_member),
    ("torch", "Size"): SIZE,
    ("torch.serialization", "_get_layout"): Function(layout),
    **{
        (module, name): Function(_join_path)
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath")
    },
    **{
        (module, "PureWindowsPath"): Function(_join_path)
        for module in ("pathlib", "pathlib._local")
    },
}


def is_derived(found: object, stock: str) -> bool:
    """Tell whether an object may be of a class that a writer derived from a stock one.

    A class of the stock name in another module is none: one flipped bit makes such a name.
    """
    return (
        isinstance(found, Opaque)
        and found.name != stock
        and looks_like_class(found.name)
        and not is_platform(found.module)
        and not is_stock(found.module)
    )


def dtype_name(properties: object) -> str:
    """Return the dtype in a pickled ``TensorProperties``."""
    state = getattr(properties, "state", None)
    dtype = state[0] if isinstance(state, tuple) and state else None
    if isinstance(dtype, DtypeName):
        return str(dtype)
    if isinstance(dtype, type) and issubclass(dtype, Opaque):
        return dtype.name
    return "?"


def requires_grad(properties: object) -> bool:
    """Return the flag of that name in a pickled ``TensorProperties``."""
    state = getattr(properties, "state", None)
    return isinstance(state, tuple) and len(state) > 2 and state[2] is True


def sound_properties(properties: object) -> bool:
    """Tell whether pickled ``TensorProperties`` are the five fields that torch unpacks."""
    state = getattr(properties, "state", None)
    if not isinstance(properties, PropertiesRecord) or not isinstance(state, tuple):
        return False
    if len(state) != 5:
        return False
    dtype, layout, grad, memory_format, pinned = state
    known = isinstance(dtype, DtypeName) or (
        isinstance(dtype, type) and issubclass(dtype, Opaque) and dtype.module == "torch"
    )
    return (
        known
        and isinstance(layout, Layout)
        and type(grad) is bool
        and isinstance(memory_format, MemoryFormat)
        and type(pinned) is bool
    )
