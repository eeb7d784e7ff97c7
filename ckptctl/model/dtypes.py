"""The dtypes of torch 2.13 by name, and what their storages are called inside a pickle."""

from __future__ import annotations

ITEM_SIZE: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
}
"""Bytes of one element, for every dtype whose elements are whole bytes."""

FLOATING = frozenset(name for name in ITEM_SIZE if name.startswith(("float", "bfloat", "complex")))
CAST = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Dtypes of which one is read as another: as loading into a tensor of that dtype would cast it."""
"""Dtypes that have bit patterns which are no finite number."""

SUB_BYTE = frozenset(
    [
        "float4_e2m1fn_x2",
        "quint4x2",
        "quint2x4",
        "bits1x8",
        "bits2x4",
        "bits4x2",
        "bits8",
        "bits16",
        *(f"int{bits}" for bits in range(1, 8)),
        *(f"uint{bits}" for bits in range(1, 8)),
    ]
)
"""Dtypes that pack several values into a byte, or whose packing torch leaves open.

Their payload is kept as opaque bytes: compared, hashed and copied, never interpreted.
"""

ALIASES: dict[str, str] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "long": "int64",
    "int": "int32",
    "short": "int16",
}
"""Other names that torch gives to the same dtype objects."""

NAMES = frozenset(ITEM_SIZE) | SUB_BYTE | frozenset(ALIASES)

STORAGE_DTYPE: dict[str, str] = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}
"""Typed storages by the class name that ``torch.save`` writes into ``data.pkl``."""


def canonical(name: str) -> str:
    """Return the one name of a dtype, e.g. ``float`` becomes ``float32``."""
    return ALIASES.get(name, name)


def item_size(dtype: str) -> int | None:
    """Return the bytes of one element, or None where they are not whole bytes."""
    return ITEM_SIZE.get(dtype)
