"""What pickle itself would make of bytes, told without letting it import or call anything.

It is Python's own unpickler over torch's own classes, as torch uses them, but only over those in a
list. Whatever else is named becomes a stand-in, and what would be called is noted and not called.
"""

from __future__ import annotations

import codecs
import collections
import io
import pathlib
import pickle
import sys
import types
from typing import Any, ClassVar, NoReturn

import torch
from torch.distributed.checkpoint import filesystem, metadata


class Refuses(Exception):
    """Torch or pickle would raise here."""


class _Frozen(type):
    """A class of classes that notes calls and that no pickle can change."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise Refuses(f"the pickle changes {cls.__name__}.{name}")

    def __delattr__(cls, name: str) -> NoReturn:
        raise Refuses(f"the pickle changes {cls.__name__}.{name}")


class _Counted(_Frozen):
    """A stand-in's class: calling it is what a pickle must not be able to do in silence."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        cls.seen.add((cls.module, cls.name))  # type: ignore[attr-defined]
        return object.__new__(cls)


class StandIn(metaclass=_Counted):
    """What a pickle names and the list does not have."""

    __slots__ = ()
    module = name = ""
    seen: ClassVar[set[tuple[str, str]]] = set()

    def __new__(cls, *_: object, **__: object) -> StandIn:
        if is_function(cls.module, cls.name):
            raise TypeError("NEWOBJ class argument must be a type")
        return object.__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Take any state."""

    def __setitem__(self, key: object, value: object) -> None:
        """Take any member."""

    def append(self, item: object) -> None:
        """Take any member."""

    add = extend = append

    def __call__(self, *_: object) -> StandIn:
        type(self).seen.add((type(self).module, f"{type(self).name}()"))
        return self


class _Call:
    """A function of the list, which a pickle may call and not change."""

    __slots__ = ("_function",)

    def __init__(self, function: Any) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise Refuses("the pickle changes a function")


def _mine(kind: type) -> type:
    """Derive a class that behaves as torch's does and that no pickle can change."""
    return _Frozen(kind.__name__, (kind,), {"__hash__": kind.__hash__})


def _plain(kind: Any, *allowed: type) -> _Call:
    def build(*args: Any) -> Any:
        if not all(isinstance(one, allowed) or one is None for one in args):
            raise Refuses(f"{kind.__name__} is given something else")
        return kind(*args)

    return _Call(build)


def _encode(words: Any, encoding: Any = "utf-8") -> bytes:
    if not isinstance(words, str) or encoding not in ("utf-8", "latin1", "latin-1", "ascii"):
        raise Refuses("another encoding, for which a module would be imported")
    return codecs.encode(words, encoding)


def _default(*args: Any) -> Any:
    if args and args[0] is not None and not (isinstance(args[0], (type, _Call))):
        raise Refuses("first argument must be callable or None")
    return collections.defaultdict(None, *args[1:])


_ENUM = _Call(metadata._MEM_FORMAT_ENCODING)


def _member(holder: object, name: object) -> object:
    if holder is not _ENUM or not isinstance(name, str):
        raise Refuses("getattr of something else")
    return metadata._MEM_FORMAT_ENCODING[name]


_META = metadata.__name__
PATHS = {
    (module, name)
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "Path", "PurePath")
}
METADATA: dict[tuple[str, str], Any] = {
    **{
        (_META, kind.__name__): _mine(kind)
        for kind in (
            metadata.Metadata,
            metadata.TensorStorageMetadata,
            metadata.BytesStorageMetadata,
            metadata.ChunkStorageMetadata,
            metadata.MetadataIndex,
            metadata.StorageMeta,
            metadata.TensorProperties,
        )
    },
    (filesystem.__name__, "_StorageInfo"): _mine(filesystem._StorageInfo),
    (_META, "_MEM_FORMAT_ENCODING"): _ENUM,
    ("builtins", "getattr"): _Call(_member),
    ("__builtin__", "getattr"): _Call(_member),
    ("_codecs", "encode"): _Call(_encode),
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _Call(torch.serialization._get_layout),
    **dict.fromkeys(PATHS, _plain(pathlib.PurePosixPath, str)),
}
METADATA.update(
    {
        ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"): METADATA[
            _META, "TensorProperties"
        ],
        ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): _ENUM,
    }
)
VALUES: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Call(torch._utils._rebuild_tensor_v2),
    ("torch._utils", "_rebuild_tensor_v3"): _Call(torch._utils._rebuild_tensor_v3),
    ("torch._utils", "_rebuild_parameter"): _Call(torch._utils._rebuild_parameter),
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    ("torch", "UntypedStorage"): torch.UntypedStorage,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "Counter"): collections.Counter,
    ("collections", "defaultdict"): _Call(_default),
    ("collections", "deque"): _plain(collections.deque, list, tuple, int),
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("__builtin__", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
    ("__builtin__", "complex"): complex,
    ("_codecs", "encode"): _Call(_encode),
}


class Guard(pickle.Unpickler):
    """Python's unpickler over a list of globals; ``called`` has what it would have called besides."""

    table: dict[tuple[str, str], Any] = VALUES

    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, **options)
        self.stand_ins: dict[tuple[str, str], type] = {}
        self.called: set[tuple[str, str]] = set()
        LAST.append(self)
        del LAST[:-1]

    def find_class(self, module: str, name: str) -> Any:
        found = self.table.get((module, name))
        if found is None and module == "torch" and isinstance(name, str):
            known = vars(torch).get(name)
            found = known if isinstance(known, torch.dtype) else None
        if found is None:
            found = self.stand_ins.get((module, name))
        if found is None:
            found = self.stand_ins[module, name] = _Counted(
                "StandIn",
                (StandIn,),
                {"__slots__": (), "module": module, "name": name, "seen": self.called},
            )
        return found


class _MetadataGuard(Guard):
    table = METADATA


LAST: list[Guard] = []
"""The guard that ran last: torch makes its own from the class."""


def _load(file: Any, **options: Any) -> object:
    return Guard(file, **options).load()


MODULE = types.SimpleNamespace(
    __name__="guarded pickle", Unpickler=Guard, load=_load, UnpicklingError=pickle.UnpicklingError
)
"""What ``torch.load`` takes for a pickle module."""


def metadata_of(data: bytes) -> tuple[object, Guard]:
    """Read metadata as torch does; raises whatever torch would raise."""
    guard = _MetadataGuard(io.BytesIO(data))
    return guard.load(), guard


def exists(module: str, name: str) -> bool | None:
    """Tell whether a global is there; None where only an import could tell."""
    found = sys.modules.get(module)
    if found is None:
        return None
    for part in name.split("."):
        if part not in (members := getattr(found, "__dict__", {})):
            return False
        found = members[part]
    return True


def is_function(module: str, name: str) -> bool:
    """Tell whether what would be called is known to be a function and no class."""
    found: Any = sys.modules.get({"__builtin__": "builtins"}.get(module, module))
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found is not None and callable(found) and not isinstance(found, type)
