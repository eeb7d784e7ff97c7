"""The ``data.pkl`` of a saved tensor: which storage it views, and how.

Source: ``torch/_utils.py`` (``_rebuild_tensor_v2``, ``_rebuild_tensor_v3``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.pickles.effects import Attribute
from ckptctl.formats.pickles.opcodes import STRICT_OPCODES
from ckptctl.formats.pickles.stand_ins import layout
from ckptctl.formats.pickles.unpickler import Function, Opaque, Ordered, load, ordered, size
from ckptctl.model.dtypes import FLOATING, ITEM_SIZE, STORAGE_DTYPE, item_size
from ckptctl.model.observation import Payload


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage by its persistent id; ``dtype`` is None where it is untyped and counts bytes."""

    dtype: str | None
    key: str
    count: int

    @property
    def byte_size(self) -> int | None:
        """Bytes of the whole storage, None for a dtype whose elements are not whole bytes."""
        if self.dtype is None:
            return self.count
        width = item_size(self.dtype)
        return None if width is None else self.count * width


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as pickled: a view of a storage, offset and stride in elements."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    flags: tuple[str, ...] = ()


def _numbers(value: object) -> tuple[int, ...]:
    if (
        type(value) is tuple
        and len(value) <= 64
        and all(type(n) is int and 0 <= n < 1 << 63 for n in value)
    ):
        return value
    raise MalformedData("a tensor's shape, stride or offset is not made of sizes")


def _flags(found: object) -> tuple[str, ...]:
    """Return the bits that a tensor's metadata sets: torch asks whether they are there, not how."""
    if found is None:
        return ()
    if type(found) not in (dict, Ordered) or len(found) > 64:  # type: ignore[arg-type]
        raise MalformedData("a tensor's flags are not named")
    for name, value in found.items():  # type: ignore[attr-defined]
        if type(name) is not str or type(value) not in (bool, int):
            raise MalformedData("a tensor's flags are not named")
    return tuple(found)  # type: ignore[arg-type]


def _tensor(
    storage: object,
    dtype: object,
    view: tuple[object, ...],
    grad: object = False,
    hooks: object = None,
    flags: object = None,
) -> TensorRef:
    offset, shape, stride = _numbers((view[0],)), _numbers(view[1]), _numbers(view[2])
    if not isinstance(storage, StorageRef) or len(shape) != len(stride):
        raise MalformedData("a tensor has no storage, or as many strides as it has dimensions")
    if isinstance(dtype, type) and issubclass(dtype, Opaque):
        dtype = dtype.name if dtype.module == "torch" else None
    if dtype is None or not isinstance(dtype, str):
        raise MalformedData("a tensor's dtype is not one")
    dtype = str(dtype)
    if type(grad) is not bool or (grad and dtype in ITEM_SIZE and dtype not in FLOATING):
        raise MalformedData(f"whether a gradient is wanted of a tensor of {dtype} is not readable")
    if not (hooks is None or type(hooks) in (dict, Ordered)):
        raise MalformedData("a tensor's hooks are no mapping")
    bits = _flags(flags)
    if "conj" in bits and dtype in ITEM_SIZE and not dtype.startswith("complex"):
        raise MalformedData(f"a tensor of {dtype} is marked as a conjugate")
    return _within(TensorRef(storage, dtype, offset[0], shape, stride, bits))


def _within(found: TensorRef) -> TensorRef:
    """Refuse a view of more than its storage has, as torch does wherever the tensor is kept."""
    width, size = item_size(found.dtype), found.storage.byte_size
    if width is not None and size is not None and all(found.shape):
        steps = zip(found.shape, found.stride, strict=True)
        reach = found.offset + 1 + sum((extent - 1) * stride for extent, stride in steps)
        if reach * width > size:
            raise MalformedData(
                f"the tensor reaches {reach * width} bytes into a storage of {size} bytes"
            )
    return found


def _dtype_of(storage: object) -> str:
    """Return the dtype of a storage's elements: torch takes bytes for those of an untyped one."""
    return (storage.dtype or "uint8") if isinstance(storage, StorageRef) else "?"


def _rebuild(*args: object) -> TensorRef:
    storage, *view = args
    return _tensor(storage, _dtype_of(storage), (view[0], view[1], view[2]))


def _rebuild_v2(*args: object) -> TensorRef:
    storage, offset, shape, stride, grad, hooks, *flags = args
    return _tensor(storage, _dtype_of(storage), (offset, shape, stride), grad, hooks, *flags)


def _rebuild_v3(*args: object) -> TensorRef:
    storage, offset, shape, stride, grad, hooks, dtype, *flags = args
    if type(dtype) is str:
        raise MalformedData("a tensor's dtype is not one")
    return _tensor(storage, dtype, (offset, shape, stride), grad, hooks, *flags)


def _parameter(*args: object) -> object:
    data, grad, hooks = args
    if not isinstance(data, TensorRef | Opaque) or type(grad) is not bool:
        raise MalformedData("a parameter holds no tensor")
    whole = isinstance(data, TensorRef) and data.dtype in ITEM_SIZE and data.dtype not in FLOATING
    if grad and whole:
        raise MalformedData("a gradient is wanted of a parameter of whole numbers")
    if not (hooks is None or type(hooks) in (dict, Ordered)):
        raise MalformedData("a parameter's hooks are no mapping")
    return data


class Storages:
    """Resolves persistent ids of one pickle; torch takes a storage's first description for all."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known: dict[str, StorageRef] = {}

    def __call__(self, pid: object) -> StorageRef:
        """Resolve ``('storage', class, key, location, count)``."""
        if not (type(pid) is tuple and len(pid) == 5 and pid[0] == "storage"):
            raise MalformedData("a persistent id does not name a storage")
        _, kind, key, location, count = pid
        if (
            not isinstance(kind, _StorageClass)
            or type(key) is not str
            or type(location) is not str
            or type(count) is not int
            or not 0 <= count < 1 << 63
        ):
            raise MalformedData("a persistent id does not name a storage")
        found = StorageRef(kind.dtype, key, count)
        if self._known.setdefault(key, found) != found:
            raise MalformedData(f"it describes the storage {key[:40]} in two ways")
        return found

    def problem(self, sizes: Mapping[str, int]) -> str:
        """Say which storage is not there as it is described, or return the empty string.

        ``sizes`` holds the bytes of the zip's records by name.
        """
        for key, storage in self._known.items():
            size, declared = sizes.get(f"data/{key}"), storage.byte_size
            if size is None:
                return f"the record of the storage {key[:40]} is not there"
            if declared is not None and declared != size:
                return f"the storage {key[:40]} has {size} bytes, and {declared} are declared"
        return ""


@dataclass(frozen=True, slots=True)
class _StorageClass:
    """A class of storages, as a pickle names it; ``dtype`` is None for bytes."""

    dtype: str | None


def _arity(least: int, most: int, call: Callable[..., object]) -> Function:
    def checked(*args: object) -> object:
        if not least <= len(args) <= most:
            raise MalformedData(f"a tensor is made of {len(args)} parts")
        return call(*args)

    return Function(checked)


TABLE: dict[tuple[str, str], object] = {
    ("torch._utils", "_rebuild_tensor"): _arity(4, 4, _rebuild),
    ("torch._utils", "_rebuild_tensor_v2"): _arity(6, 7, _rebuild_v2),
    ("torch._utils", "_rebuild_tensor_v3"): _arity(7, 8, _rebuild_v3),
    ("torch._utils", "_rebuild_parameter"): _arity(3, 3, _parameter),
    ("torch.storage", "UntypedStorage"): _StorageClass(None),
    ("torch", "Size"): _arity(1, 1, size),
    ("torch.serialization", "_get_layout"): Function(layout),
    ("collections", "OrderedDict"): _arity(0, 1, ordered),
    ("builtins", "getattr"): Attribute(lambda *_: None),
    **{
        (module, name): _StorageClass(dtype)
        for name, dtype in STORAGE_DTYPE.items()
        for module in ("torch", "torch.storage")
    },
}


def parse_tensor(data: bytes) -> Payload:
    """Read the ``data.pkl`` of a tensor item, which torch reads with its weights-only unpickler.

    Raises ``MalformedData`` where it is no tensor at all. A tensor subclass or a layout other
    than strided comes back with its class as ``kind`` and nothing else filled in.
    """
    value, machine, end = load(
        data, TABLE, persistent=Storages(), opcodes=STRICT_OPCODES, foreign=True
    )
    if end != len(data):
        raise MalformedData(f"{len(data) - end} bytes follow the pickle in data.pkl")
    if isinstance(value, Opaque):
        return Payload(kind=_kind(value))
    refused = [*machine.tolerated, *(f"{module}.{name}" for module, name in machine.unknown)]
    if refused:
        raise MalformedData(f"data.pkl names {refused[0][:200]}, which torch refuses to load")
    if not isinstance(value, TensorRef):
        raise MalformedData(f"data.pkl holds a {type(value).__name__} where a tensor was expected")
    size = value.storage.byte_size
    return Payload(
        "plain",
        value.dtype,
        value.shape,
        value.stride,
        value.offset,
        value.storage.key,
        -1 if size is None else size,
        value.flags,
    )


def _kind(value: Opaque) -> str:
    """Name what a tensor of another class is: the class it is rebuilt as, where it says that."""
    if value.label() == "torch._tensor._rebuild_from_type_v2" and len(value.args) == 4:
        named = value.args[1]
        if isinstance(named, type) and issubclass(named, Opaque):
            return named.label()
    return value.label()
