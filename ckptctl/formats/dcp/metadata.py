"""The ``.metadata`` pickle of PyTorch DCP, torch 2.0 to 2.13, read without torch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, TooDeep, TooLarge
from ckptctl.formats.budget import Budget, fault_kind
from ckptctl.formats.dcp.classes import (
    TABLE,
    BytesRecord,
    ChunkRecord,
    IndexRecord,
    MetadataRecord,
    OldPropertiesRecord,
    Record,
    StorageMetaRecord,
    StorageRecord,
    TensorRecord,
    dtype_name,
    is_derived,
    is_stock,
    requires_grad,
    sound_properties,
)
from ckptctl.formats.dcp.runs import Runs, SeenItems, SeenTensor
from ckptctl.formats.pickles.machine import Machine
from ckptctl.formats.pickles.shortcuts import Detour, Shortcuts
from ckptctl.formats.pickles.stand_ins import DtypeName
from ckptctl.formats.pickles.unpickler import Opaque, load
from ckptctl.model.checkpoint import (
    Entry,
    Fault,
    FaultKind,
    Items,
    ObjectEntry,
    SaveIdentity,
    TensorEntry,
)
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Boxes, Shape

INDEX_FIELDS = frozenset({"fqn", "index", "offset"})
"""The fields of ``MetadataIndex``; another name means that torch would not find the offset."""


_WORD = 1 << 63


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

    def fault(self, kind: FaultKind, message: str, *, fqn: str | None = None) -> None:
        """Note something that could not be accepted."""
        self.faults.append(Fault(kind, message, Location(file=self.source, fqn=fqn)))


def parse(data: bytes, source: str) -> Parsed:
    """Read one metadata file; what is wrong with it becomes faults, never an exception."""
    budget = Budget(len(data))
    try:
        usual = read_usual(data, source, budget)
        return usual if usual is not None else read_carefully(data, source, budget.again())
    except MalformedData as error:
        return unreadable(source, error)


def unreadable(source: str, error: MalformedData) -> Parsed:
    """Return what is known of a metadata file whose pickle could not be read."""
    parsed = Parsed(source, readable=False)
    parsed.fault(fault_kind(error), str(error))
    return parsed


def read_usual(data: bytes, source: str, budget: Budget) -> Parsed | None:
    """Read metadata by way of shortcuts; None for what has to be read carefully.

    Raises ``TooLarge`` and ``TooDeep`` for what is out of all proportion also without them.
    """
    if data[:2] not in (b"\x80\x04", b"\x80\x05"):
        return None  # earlier protocols number what they remember by hand
    try:
        parsed = _read(data, source, budget, Runs)
    except (TooLarge, TooDeep):
        raise
    except (MalformedData, Detour):
        return None
    return None if parsed.faults else parsed


def read_carefully(data: bytes, source: str, budget: Budget) -> Parsed:
    """Read metadata opcode by opcode, without any shortcut.

    Raises ``MalformedData`` for what is no pickle, asks for too much, or calls what it must not.
    """
    return _read(data, source, budget, None)


def _read(
    data: bytes,
    source: str,
    budget: Budget,
    shortcuts: Callable[[Machine], Shortcuts] | None,
) -> Parsed:
    if not data:
        raise MalformedData("the file is empty")
    parsed = Parsed(source)
    root, machine, end = load(data, TABLE, budget=budget, shortcuts=shortcuts)
    state = root_state(root)
    describe_globals(parsed, machine)
    gone = [f"{module}.{name}" for module, name in machine.unknown if is_stock(module)]
    if gone:
        parsed.readable = False
        parsed.fault(
            FaultKind.UNREADABLE_METADATA, f"it names {gone[0]}, which torch does not have"
        )
        return parsed
    if end != len(data):
        parsed.fault(
            FaultKind.TRAILING_METADATA, f"{len(data) - end} bytes follow the end of the pickle"
        )
    if state is None:
        parsed.readable = False
        what = root.label() if isinstance(root, Opaque) else type(root).__name__
        parsed.fault(
            FaultKind.UNREADABLE_METADATA,
            f"it holds a {what[:200]}, not the Metadata of a DCP checkpoint",
        )
        return parsed
    _read_entries(parsed, state.get("state_dict_metadata"))
    _read_storage(parsed, state.get("storage_data"))
    read_rest(parsed, state, old_properties=_old_properties(state))
    return parsed


def root_state(root: object) -> dict[str, object] | None:
    """Return the fields of a ``Metadata`` or of a class derived from it, else None."""
    if not (isinstance(root, MetadataRecord) or is_derived(root, "Metadata")):
        return None
    state = getattr(root, "state", None)
    if isinstance(state, dict) and "state_dict_metadata" in state:
        return state
    return None


def describe_globals(parsed: Parsed, machine: Machine) -> None:
    """Record which classes were not understood."""
    parsed.opaque_classes = tuple(sorted(f"{m}.{n}" for m, n in machine.unknown))


def _shape(value: object) -> Shape | None:
    """Return a tuple of sizes that fit 63 bits, or None."""
    if isinstance(value, tuple) and len(value) <= 64:
        for number in value:
            if type(number) is not int or not 0 <= number < 1 << 63:
                return None
        return value
    return None


def _fields(found: object, kind: type[Record]) -> dict[str, object] | None:
    """Return the fields of a record of exactly this kind."""
    state = found.state if isinstance(found, kind) else None
    return state if isinstance(state, dict) else None


def _read_entries(parsed: Parsed, mapping: object) -> None:
    if not isinstance(mapping, dict):
        parsed.fault(FaultKind.MALFORMED_ENTRY, "state_dict_metadata is not a mapping")
        return
    for fqn, record in mapping.items():
        if type(fqn) is not str:
            parsed.fault(FaultKind.MALFORMED_ENTRY, f"a key is a {type(fqn).__name__}, not a name")
        elif isinstance(record, SeenTensor):
            parsed.entries[fqn] = TensorEntry(
                fqn, record.dtype, record.shape, record.boxes, record.requires_grad
            )
        elif isinstance(record, BytesRecord):
            parsed.entries[fqn] = ObjectEntry(fqn)
        elif isinstance(record, TensorRecord):
            _read_tensor(parsed, fqn, record)
        else:
            kind = record.label() if isinstance(record, Opaque) else type(record).__name__
            parsed.fault(
                FaultKind.MALFORMED_ENTRY, f"described by a {kind}, not as tensor or bytes", fqn=fqn
            )


def _read_tensor(parsed: Parsed, fqn: str, record: TensorRecord) -> None:
    state = getattr(record, "state", None)
    shape = _shape(state.get("size")) if isinstance(state, dict) else None
    chunks = state.get("chunks") if isinstance(state, dict) else None
    properties = state.get("properties") if isinstance(state, dict) else None
    if shape is None or not isinstance(chunks, list) or not sound_properties(properties):
        message = "its size, properties or list of chunks is not readable"
        parsed.fault(FaultKind.MALFORMED_ENTRY, message, fqn=fqn)
        return
    offsets, sizes = array("q"), array("q")
    count = 0
    for chunk in chunks:
        fields = _fields(chunk, ChunkRecord)
        origin = _shape(fields.get("offsets")) if fields is not None else None
        extent = _shape(fields.get("sizes")) if fields is not None else None
        if origin is None or extent is None or not len(origin) == len(extent) == len(shape):
            parsed.fault(
                FaultKind.MALFORMED_ENTRY,
                f"one of its chunks does not fit a tensor of {len(shape)} dimensions",
                fqn=fqn,
            )
            continue
        offsets.extend(origin)
        sizes.extend(extent)
        count += 1
    parsed.entries[fqn] = TensorEntry(
        fqn,
        dtype_name(properties),
        shape,
        Boxes(len(shape), count, offsets, sizes),
        requires_grad(properties),
    )


def _read_storage(parsed: Parsed, mapping: object) -> None:
    if not isinstance(mapping, dict):
        parsed.fault(FaultKind.MALFORMED_ENTRY, "storage_data is not a mapping")
        return
    items = parsed.items
    transforms: dict[int, tuple[str, ...]] = {}
    for index, info in mapping.items():
        if type(index) is SeenItems:
            transforms.update((len(items) + at, one) for at, one in index.transforms.items())
            items.fqns.extend(index.fqns)
            items.origins.extend(index.origins)
            items.paths.extend(index.paths)
            items.offsets.extend(index.offsets)
            items.lengths.extend(index.lengths)
            continue
        key, place = _fields(index, IndexRecord), _fields(info, StorageRecord)
        fqn = key.get("fqn") if key is not None else None
        if (
            key is None
            or place is None
            or type(fqn) is not str
            or set(key) - INDEX_FIELDS
            or not isinstance(key.get("index"), int | None)
        ):
            parsed.fault(FaultKind.MALFORMED_ENTRY, "an entry of storage_data is not readable")
            continue
        origin = key.get("offset")
        path, start, length = (place.get(k) for k in ("relative_path", "offset", "length"))
        if not (
            type(path) is str
            and type(start) is int
            and type(length) is int
            and 0 <= start < _WORD
            and 0 <= length < _WORD
            and (origin is None or _shape(origin) is not None)
        ):
            parsed.fault(FaultKind.MALFORMED_ENTRY, "where its bytes lie is not readable", fqn=fqn)
            continue
        names = place.get("transform_descriptors")
        if names:
            listed = names if isinstance(names, list) else [None]
            known = all(isinstance(name, str) for name in listed)
            transforms[len(items)] = tuple(map(str, listed)) if known else ("?",)
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
            if type(fqn) is str
            and isinstance(path, tuple)
            and all(
                type(element) is str or (type(element) is int and -_WORD < element < _WORD)
                for element in path
            )
        }
    meta = state.get("storage_meta")
    fields = getattr(meta, "state", None)
    made_otherwise = isinstance(meta, Opaque) and bool(meta.args)  # what its state means is its own
    fields = fields if isinstance(fields, dict) and not made_otherwise else {}
    derived = isinstance(meta, StorageMetaRecord | None) or is_derived(meta, "StorageMeta")
    if not derived or not isinstance(fields.get("checkpoint_id"), str | Opaque | None):
        parsed.fault(
            FaultKind.MALFORMED_ENTRY, "what it says of the save it belongs to is not readable"
        )
    parsed.identity = SaveIdentity(
        _text(fields.get("save_id")),
        _text(fields.get("checkpoint_id")),
        _written_by(state, fields, old_properties=old_properties),
    )


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str) and not isinstance(value, DtypeName) else None


def _written_by(
    state: Mapping[str, object], fields: Mapping[object, object], *, old_properties: bool
) -> str:
    """Tell from the fields present which torch releases write such metadata."""
    rules: tuple[tuple[Callable[[], bool], str], ...] = (
        (lambda: old_properties, "2.0-2.2"),
        (lambda: "version" in state, "2.9 or later"),
        (lambda: state.get("storage_meta") is None, "2.3 or earlier"),
        (lambda: "modules" in fields, "2.7-2.8"),
    )
    return next((name for holds, name in rules if holds()), "2.4-2.6")


def _old_properties(state: Mapping[str, object]) -> bool:
    mapping = state.get("state_dict_metadata")
    if not isinstance(mapping, dict):
        return False
    for record in mapping.values():
        if isinstance(record, SeenTensor):
            return record.old
        fields = getattr(record, "state", None)
        if isinstance(record, TensorRecord) and isinstance(fields, dict):
            return isinstance(fields.get("properties"), OldPropertiesRecord)
    return False
