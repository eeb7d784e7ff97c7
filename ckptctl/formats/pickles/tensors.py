"""The ``data.pkl`` of a saved tensor: which storage it views, and how.

Source: ``torch/_utils.py`` (``_rebuild_tensor_v2``, ``_rebuild_tensor_v3``).
"""

from __future__ import annotations

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.formats.pickles.unpickler import Function, Opaque, load, size
from ckptctl.model.dtypes import STORAGE_DTYPE, item_size
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


def _tensor(storage: object, dtype: object, view: tuple[object, ...], flags: object) -> TensorRef:
    offset, shape, stride = _numbers((view[0],)), _numbers(view[1]), _numbers(view[2])
    if not isinstance(storage, StorageRef) or len(shape) != len(stride):
        raise MalformedData("a tensor has no storage, or as many strides as it has dimensions")
    if isinstance(dtype, type) and issubclass(dtype, Opaque):
        dtype = dtype.name
    if not isinstance(dtype, str):
        raise MalformedData("a tensor's dtype is not one")
    names = flags if isinstance(flags, dict) else {}
    if len(names) > 64 or not all(isinstance(name, str) for name in names):
        raise MalformedData("a tensor's flags are not named")
    set_ = tuple(name for name, value in names.items() if value is True)
    return TensorRef(storage, dtype, offset[0], shape, stride, set_)


def _rebuild_v2(
    storage: object,
    offset: object,
    shape: object,
    stride: object,
    requires_grad: object = False,
    hooks: object = None,
    flags: object = None,
) -> TensorRef:
    dtype = storage.dtype if isinstance(storage, StorageRef) and storage.dtype else "?"
    return _tensor(storage, dtype, (offset, shape, stride), flags)


def _rebuild_v3(
    storage: object,
    offset: object,
    shape: object,
    stride: object,
    requires_grad: object,
    hooks: object,
    dtype: object,
    flags: object = None,
) -> TensorRef:
    return _tensor(storage, dtype, (offset, shape, stride), flags)


def persistent_storage(pid: object) -> StorageRef:
    """Resolve ``('storage', class, key, location, count)``."""
    if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
        raise MalformedData("a persistent id does not name a storage")
    _, kind, key, _, count = pid
    if isinstance(kind, type) and issubclass(kind, Opaque):
        kind = kind.name
    if not isinstance(kind, str) or not isinstance(key, str) or type(count) is not int or count < 0:
        raise MalformedData("a persistent id does not name a storage")
    return StorageRef(None if kind == "UntypedStorage" else kind, key, count)


TABLE: dict[tuple[str, str], object] = {
    ("torch._utils", "_rebuild_tensor_v2"): Function(_rebuild_v2),
    ("torch._utils", "_rebuild_tensor_v3"): Function(_rebuild_v3),
    ("torch._utils", "_rebuild_parameter"): Function(lambda data, *_: data),
    ("torch.storage", "UntypedStorage"): "UntypedStorage",
    ("torch", "UntypedStorage"): "UntypedStorage",
    ("torch.storage", "TypedStorage"): "UntypedStorage",
    ("torch", "Size"): Function(size),
    ("collections", "OrderedDict"): dict,
    **{
        (module, name): dtype
        for name, dtype in STORAGE_DTYPE.items()
        for module in ("torch", "torch.storage")
    },
}


def parse_tensor(data: bytes) -> Payload:
    """Read the ``data.pkl`` of a tensor item.

    Raises ``MalformedData`` where it is no tensor at all. A tensor subclass or a layout other
    than strided comes back with its class as ``kind`` and nothing else filled in.
    """
    value, unpickler, end = load(data, TABLE, persistent=persistent_storage)
    if unpickler.dangerous:
        raise MalformedData(
            f"data.pkl asks its reader to run {', '.join(unpickler.dangerous[:4])}; nothing was run"
        )
    if end != len(data):
        raise MalformedData(f"{len(data) - end} bytes follow the pickle in data.pkl")
    if isinstance(value, Opaque):
        return Payload(kind=value.label())
    if not isinstance(value, TensorRef):
        raise MalformedData(f"data.pkl holds a {type(value).__name__} where a tensor was expected")
    width = item_size(value.dtype)
    size = value.storage.byte_size
    if width is not None and size is not None and all(value.shape):
        steps = zip(value.shape, value.stride, strict=True)
        reach = value.offset + 1 + sum((extent - 1) * stride for extent, stride in steps)
        if reach * width > size:
            raise MalformedData(
                f"the tensor reaches {reach * width} bytes into a storage of {size} bytes"
            )
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
