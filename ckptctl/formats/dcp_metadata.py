"""The ``.metadata`` pickle of PyTorch DCP, torch 2.0 to 2.13, read without torch.

Source of the class and field names: ``torch/distributed/checkpoint/{metadata,filesystem}.py``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ckptctl.errors import MalformedData
from ckptctl.formats.pickles import Function, Opaque, SafeUnpickler, Sealed, load
from ckptctl.model.checkpoint import (
    Entry,
    Fault,
    Items,
    ObjectEntry,
    SaveIdentity,
    TensorEntry,
)
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Boxes, Shape

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
SHARDED_TENSOR = "torch.distributed._shard.sharded_tensor.metadata"


class Record(metaclass=Sealed):
    """Base of our stand-ins for the metadata classes: they keep the pickled state as it is."""

    __slots__ = ("state",)
    state: object

    def __setstate__(self, state: object) -> None:
        """Keep the state."""
        self.state = state


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


class StorageRecord(Record):
    """``_StorageInfo``."""

    __slots__ = ()


class StorageMetaRecord(Record):
    """``StorageMeta``."""

    __slots__ = ()


class PropertiesRecord(Record):
    """``TensorProperties`` since torch 2.3."""

    __slots__ = ()


class OldPropertiesRecord(PropertiesRecord):
    """``TensorProperties`` up to torch 2.2, of another module."""

    __slots__ = ()


def _join_path(*parts: object) -> str:
    text = "/".join(str(part) for part in parts[:64])
    return "/" + text.lstrip("/") if text.startswith("/") else text


TABLE: dict[tuple[str, str], object] = {
    (METADATA, "Metadata"): MetadataRecord,
    (METADATA, "TensorStorageMetadata"): TensorRecord,
    (METADATA, "BytesStorageMetadata"): BytesRecord,
    (METADATA, "ChunkStorageMetadata"): ChunkRecord,
    (METADATA, "MetadataIndex"): IndexRecord,
    (METADATA, "StorageMeta"): StorageMetaRecord,
    (METADATA, "TensorProperties"): PropertiesRecord,
    (METADATA, "_MEM_FORMAT_ENCODING"): Function(lambda code=0: code),
    (SHARDED_TENSOR, "TensorProperties"): OldPropertiesRecord,
    (SHARDED_TENSOR, "MEM_FORMAT_ENCODING"): Function(lambda code=0: code),
    (FILESYSTEM, "_StorageInfo"): StorageRecord,
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): Function(lambda name="": name),
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


@dataclass(slots=True)
class Parsed:
    """One metadata file, understood as far as it goes."""

    source: str
    entries: dict[str, Entry] = field(default_factory=dict)
    items: Items = field(default_factory=Items)
    identity: SaveIdentity = field(default_factory=SaveIdentity)
    paths_in_state: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    opaque_classes: tuple[str, ...] = ()
    faults: list[Fault] = field(default_factory=list)
    readable: bool = True

    def fault(self, check: str, message: str, *, fqn: str | None = None) -> None:
        """Note something that could not be accepted."""
        self.faults.append(Fault(check, message, Location(file=self.source, fqn=fqn)))


def parse(data: bytes, source: str) -> Parsed:
    """Read one metadata file; what is wrong with it becomes faults, never an exception."""
    parsed = Parsed(source)
    if not data:
        parsed.readable = False
        parsed.fault("unreadable-metadata", "the file is empty")
        return parsed
    try:
        root, unpickler, end = load(data, TABLE)
        state = root_state(root)
    except MalformedData as error:
        parsed.readable = False
        parsed.fault("unreadable-metadata", str(error))
        return parsed
    describe_globals(parsed, unpickler)
    if end != len(data):
        parsed.fault("trailing-metadata", f"{len(data) - end} bytes follow the end of the pickle")
    if state is None:
        parsed.readable = False
        if not any(f.check == "unsafe-metadata" for f in parsed.faults):
            kind = root.label() if isinstance(root, Opaque) else type(root).__name__
            parsed.fault(
                "unreadable-metadata", f"it holds a {kind}, not the Metadata of a DCP checkpoint"
            )
        return parsed
    _read_entries(parsed, state.get("state_dict_metadata"))
    _read_storage(parsed, state.get("storage_data"))
    read_rest(parsed, state, old_properties=_old_properties(state))
    return parsed


def root_state(root: object) -> dict[str, object] | None:
    """Return the fields of a ``Metadata`` or of a class derived from it, else None."""
    state = getattr(root, "state", None) if isinstance(root, MetadataRecord | Opaque) else None
    if isinstance(state, dict) and "state_dict_metadata" in state:
        return state
    return None


def describe_globals(parsed: Parsed, unpickler: SafeUnpickler) -> None:
    """Record which classes were not understood, and whether one has no business there."""
    parsed.opaque_classes = tuple(sorted(f"{m}.{n}" for m, n in unpickler.unknown))
    if unpickler.dangerous:
        parsed.fault(
            "unsafe-metadata",
            f"it asks its reader to run {', '.join(unpickler.dangerous[:4])}; nothing was run",
        )


def _shape(value: object) -> Shape | None:
    """Return a tuple of sizes that fit 63 bits, or None."""
    if isinstance(value, tuple) and len(value) <= 64:
        for number in value:
            if type(number) is not int or not 0 <= number < 1 << 63:
                return None
        return value
    return None


def dtype_name(properties: object) -> str:
    """Return the dtype in a pickled ``TensorProperties``."""
    state = getattr(properties, "state", None)
    dtype = state[0] if isinstance(state, tuple) and state else None
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, type) and issubclass(dtype, Opaque):
        return dtype.name
    return "?"


def requires_grad(properties: object) -> bool:
    """Return the flag of that name in a pickled ``TensorProperties``."""
    state = getattr(properties, "state", None)
    return isinstance(state, tuple) and len(state) > 2 and state[2] is True


def _read_entries(parsed: Parsed, mapping: object) -> None:
    if not isinstance(mapping, dict):
        parsed.fault("malformed-entry", "state_dict_metadata is not a mapping")
        return
    for fqn, record in mapping.items():
        if not isinstance(fqn, str):
            parsed.fault("malformed-entry", f"a key is a {type(fqn).__name__}, not a name")
        elif isinstance(record, BytesRecord):
            parsed.entries[fqn] = ObjectEntry(fqn)
        elif isinstance(record, TensorRecord):
            _read_tensor(parsed, fqn, record)
        else:
            kind = record.label() if isinstance(record, Opaque) else type(record).__name__
            parsed.fault(
                "malformed-entry", f"described by a {kind}, not as tensor or bytes", fqn=fqn
            )


def _read_tensor(parsed: Parsed, fqn: str, record: TensorRecord) -> None:
    state = getattr(record, "state", None)
    shape = _shape(state.get("size")) if isinstance(state, dict) else None
    chunks = state.get("chunks") if isinstance(state, dict) else None
    if shape is None or not isinstance(chunks, list):
        parsed.fault("malformed-entry", "its size or its list of chunks is not readable", fqn=fqn)
        return
    offsets, sizes = array("q"), array("q")
    count = 0
    for chunk in chunks:
        fields = getattr(chunk, "state", None)
        origin = _shape(fields.get("offsets")) if isinstance(fields, dict) else None
        extent = _shape(fields.get("sizes")) if isinstance(fields, dict) else None
        if origin is None or extent is None or not len(origin) == len(extent) == len(shape):
            parsed.fault(
                "malformed-entry",
                f"one of its chunks does not fit a tensor of {len(shape)} dimensions",
                fqn=fqn,
            )
            continue
        offsets.extend(origin)
        sizes.extend(extent)
        count += 1
    properties = state.get("properties") if isinstance(state, dict) else None
    parsed.entries[fqn] = TensorEntry(
        fqn,
        dtype_name(properties),
        shape,
        Boxes(len(shape), count, offsets, sizes),
        requires_grad(properties),
    )


def _read_storage(parsed: Parsed, mapping: object) -> None:
    if not isinstance(mapping, dict):
        parsed.fault("malformed-entry", "storage_data is not a mapping")
        return
    items = parsed.items
    transforms: dict[int, tuple[str, ...]] = {}
    for index, info in mapping.items():
        key, place = getattr(index, "state", None), getattr(info, "state", None)
        fqn = key.get("fqn") if isinstance(key, dict) else None
        if not isinstance(key, dict) or not isinstance(place, dict) or not isinstance(fqn, str):
            parsed.fault("malformed-entry", "an entry of storage_data is not readable")
            continue
        origin = key.get("offset")
        path, start, length = (place.get(k) for k in ("relative_path", "offset", "length"))
        if not (
            isinstance(path, str)
            and type(start) is int
            and type(length) is int
            and 0 <= start < 1 << 62
            and 0 <= length < 1 << 62
            and (origin is None or _shape(origin) is not None)
        ):
            parsed.fault("malformed-entry", "where its bytes lie is not readable", fqn=fqn)
            continue
        names = place.get("transform_descriptors")
        if names:
            known = isinstance(names, list) and all(isinstance(name, str) for name in names)
            transforms[len(items)] = tuple(names) if known else ("?",)
        items.fqns.append(fqn)
        items.origins.append(origin if origin is None else _shape(origin))
        items.paths.append(path)
        items.offsets.append(start)
        items.lengths.append(length)
    parsed.items = Items(
        items.fqns, items.origins, items.paths, items.offsets, items.lengths, transforms
    )


def read_rest(parsed: Parsed, state: Mapping[str, object], *, old_properties: bool) -> None:
    """Read the save's identity and the paths in the nested state dict."""
    planner = state.get("planner_data")
    if isinstance(planner, dict):
        parsed.paths_in_state = {
            fqn: path
            for fqn, path in planner.items()
            if isinstance(fqn, str)
            and isinstance(path, tuple)
            and all(isinstance(element, str | int) for element in path)
        }
    meta = state.get("storage_meta")
    fields = getattr(meta, "state", None)
    fields = fields if isinstance(fields, dict) else {}
    parsed.identity = SaveIdentity(
        _text(fields.get("save_id")),
        _text(fields.get("checkpoint_id")),
        _written_by(state, fields, old_properties=old_properties),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _written_by(
    state: Mapping[str, object], fields: Mapping[object, object], *, old_properties: bool
) -> str:
    """Tell from the fields present which torch releases write such metadata."""
    rules: tuple[tuple[Callable[[], bool], str], ...] = (
        (lambda: old_properties, "2.0-2.2"),
        (lambda: "version" in state, "2.9 or later"),
        (lambda: not isinstance(state.get("storage_meta"), StorageMetaRecord), "2.3 or earlier"),
        (lambda: "modules" in fields, "2.7-2.8"),
    )
    return next((name for holds, name in rules if holds()), "2.4-2.6")


def _old_properties(state: Mapping[str, object]) -> bool:
    mapping = state.get("state_dict_metadata")
    if not isinstance(mapping, dict):
        return False
    for record in mapping.values():
        fields = getattr(record, "state", None)
        if isinstance(record, TensorRecord) and isinstance(fields, dict):
            return isinstance(fields.get("properties"), OldPropertiesRecord)
    return False
