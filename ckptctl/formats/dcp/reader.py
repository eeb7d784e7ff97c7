"""PyTorch Distributed Checkpoint directories: ``.metadata`` and ``__R_n.distcp`` files.

Also what Megatron, torchtitan, Lightning and others add around them, and checkpoints whose ranks
saved on their own (``use_collectives=False``), each with a ``__R.metadata`` of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise

from ckptctl.errors import NotFound
from ckptctl.formats import listing
from ckptctl.formats.dcp.apart import parse_metadata
from ckptctl.formats.dcp.metadata import Parsed
from ckptctl.model.belonging import foreign
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    Fault,
    FaultKind,
    File,
    Items,
    SaveIdentity,
    TensorEntry,
    rank_of,
)
from ckptctl.model.finding import Location
from ckptctl.model.geometry import Boxes, Shape
from ckptctl.model.paths import join
from ckptctl.pattern import pattern
from ckptctl.storage import Store, open_listed

NAME = "dcp"
METADATA = ".metadata"
LEFTOVER = ".metadata.tmp"
_BACKUP = ".metadata.bck"
_SUFFIX = ".distcp"
_RANK_METADATA = pattern(r"__(\d{1,9})\.metadata")
_SHARD = pattern(r".*__\d+_\d+\.distcp")
_MOST_MISSING = 1000
COMPANIONS = ("common.pt", "metadata.json", "integrity.json", "meta.pt", _BACKUP)


def detect(names: Iterable[str]) -> bool:
    """Tell by the names in a directory whether it is a DCP checkpoint, whole or not."""
    return any(
        name in (METADATA, LEFTOVER) or _RANK_METADATA.fullmatch(name) or _SHARD.fullmatch(name)
        for name in names
    )


def metadata_files(names: Iterable[str]) -> list[str]:
    """Return the metadata files to read, as torch would choose them; rank-local ones in rank order."""
    present = set(names)
    if METADATA in present:
        return [METADATA]
    local = [name for name in present if _RANK_METADATA.fullmatch(name)]
    if local:
        return sorted(local, key=rank_of_metadata)
    return [LEFTOVER] if LEFTOVER in present else []


def rank_of_metadata(name: str) -> int:
    """Return the rank in ``__R.metadata``."""
    match = _RANK_METADATA.fullmatch(name)
    return int(match[1]) if match else -1


def is_shard(path: str) -> bool:
    """Tell whether a file has the name of a shard."""
    return _SHARD.fullmatch(path.rpartition("/")[2]) is not None


def must_be_file(path: str) -> bool:
    """Tell by its name whether something is a shard or metadata, whatever stands there."""
    return is_shard(path) or path.endswith("metadata")


def list_files(store: Store, path: str) -> dict[str, File]:
    """List everything below a checkpoint, by path relative to it."""
    return listing.list_files(store, path, is_one=must_be_file)


def read(store: Store, path: str, files: Mapping[str, File] | None = None) -> Checkpoint:
    """Read what listing and metadata say; damage becomes faults of the checkpoint.

    Raises ``StorageError`` only where the storage does not answer.
    """
    files = list_files(store, path) if files is None else files
    sources = metadata_files(files)
    parsed: list[Parsed] = []
    faults: list[Fault] = []
    for name in sources:
        if not files[name].is_file:
            message = "a directory or a special file stands where the metadata should be"
            faults.append(Fault(FaultKind.NOT_A_FILE, message, Location(file=name)))
            continue
        try:
            with open_listed(store, join(path, name), files[name].size) as reader:
                parsed.append(parse_metadata(reader, name))
        except NotFound:
            faults.append(
                Fault(
                    FaultKind.MISSING_METADATA, "it vanished while it was read", Location(file=name)
                )
            )
    faults.extend(fault for one in parsed for fault in one.faults)
    readable = [one for one in parsed if one.readable]
    if not readable and not faults:
        faults.append(_nothing_to_read(files))
    return assemble(files, readable, faults)


def assemble(files: Mapping[str, File], parsed: list[Parsed], faults: list[Fault]) -> Checkpoint:
    """Build the checkpoint from its readable metadata files, merging rank-local ones."""
    local = bool(parsed) and _RANK_METADATA.fullmatch(parsed[0].source) is not None
    entries, items = parsed[0].entries if parsed else {}, parsed[0].items if parsed else Items()
    if local:
        entries, more = _merge_entries(parsed)
        faults.extend(more)
        items = _merge_items(parsed)
    identity = SaveIdentity()
    if parsed:
        own = parsed[0].identity
        # each rank draws a save id of its own, so rank-local metadata has none in common
        identity = SaveIdentity(
            None if local else own.save_id, own.checkpoint_id, own.torch_versions
        )
    faults.extend(_faults_of_files(files, parsed, items))
    return Checkpoint(
        format=NAME,
        files=files,
        sources=tuple(one.source for one in parsed),
        entries=entries,
        items=items,
        identity=identity,
        paths_in_state={k: v for one in parsed for k, v in one.paths_in_state.items()},
        opaque_classes=tuple(sorted({name for one in parsed for name in one.opaque_classes})),
        faults=tuple(faults),
        replicated=local,
    )


def _nothing_to_read(files: Mapping[str, File]) -> Fault:
    shards = sum(path.endswith(_SUFFIX) for path in files)
    message = (
        f"no .metadata, only {shards} shard files: the save never finished, or this is one "
        "node's part of a checkpoint"
        if shards
        else "neither metadata nor shards: what is left of a checkpoint that was deleted, or "
        "never written"
    )
    loss = "everything: nothing can be loaded without the metadata, which holds the names"
    return Fault(FaultKind.MISSING_METADATA, message, Location(file=METADATA), loss)


def _faults_of_files(
    files: Mapping[str, File], parsed: list[Parsed], items: Items
) -> Iterator[Fault]:
    """Find what lies there beside what the metadata speaks of, and what should and does not."""
    sources = {one.source for one in parsed}
    if LEFTOVER in sources:
        yield Fault(
            FaultKind.UNCOMMITTED_METADATA,
            "only .metadata.tmp is there: the save died, or is still running, between writing its "
            "metadata and giving it its name; everything below was checked against the "
            "temporary file",
            Location(file=LEFTOVER),
            remedy="if nothing else is found here and no save is running, `mv .metadata.tmp "
            ".metadata` in {checkpoint} completes the save; otherwise choose another with "
            "`ckptctl list {root}`",
        )
    used = set(items.paths)
    for path, file in files.items() if parsed else ():
        if path in used or file.behind or _SUFFIX not in path:
            continue
        strange = foreign(path)
        if strange:
            yield Fault(
                FaultKind.FOREIGN_FILE,
                f"{file.size} bytes, {strange}: no part of the checkpoint; loading ignores it",
                Location(file=path),
            )
        elif path.endswith(_SUFFIX) and file.size:
            yield Fault(
                FaultKind.UNREFERENCED_FILE,
                f"{file.size} bytes that the metadata does not speak of: left over from an earlier "
                "save into the same directory; loading ignores it",
                Location(file=path, rank=rank_of(path)),
            )
    for name in (LEFTOVER, _BACKUP):
        if name in files and name not in sources:
            message = "left over from a save that did not finish"
            yield Fault(FaultKind.LEFTOVER_FILE, message, Location(file=name))
    shadowed = [name for name in files if name.startswith("__") and name.endswith(METADATA)]
    if shadowed and METADATA in sources:
        yield Fault(
            FaultKind.LEFTOVER_FILE,
            f"{len(shadowed)} rank-local metadata files lie beside .metadata, which is the one "
            "that loading takes",
            Location(file=shadowed[0]),
        )
    if sources and all(map(_RANK_METADATA.fullmatch, sources)):
        yield from _missing_ranks(files, {rank_of_metadata(name) for name in sources})


def _missing_ranks(files: Mapping[str, File], ranks: set[int]) -> Iterator[Fault]:
    """Find ranks that saved on their own and of which no metadata is there."""
    shards = {rank_of(path) for path in files if path.endswith(_SUFFIX)}
    named = ranks | {rank for rank in shards if rank is not None}
    # a name may hold any number, so gaps are counted and not walked through to their end
    missing = (
        rank
        for low, high in pairwise([-1, *sorted(named)])
        for rank in (*range(low + 1, min(high, low + 1 + _MOST_MISSING)), high)
        if rank not in ranks
    )
    for rank in islice(missing, _MOST_MISSING):
        if f"__{rank}{METADATA}" not in files:  # else it is unreadable, which is said by itself
            yield Fault(
                FaultKind.MISSING_RANK,
                f"the ranks saved each on its own, and rank {rank} left no metadata "
                f"(there is metadata of {len(ranks)} ranks)",
                Location(file=f"__{rank}{METADATA}", rank=rank),
                f"everything that only rank {rank} held",
            )


def _merge_entries(parsed: list[Parsed]) -> tuple[dict[str, Entry], list[Fault]]:
    """Unite what the ranks say of each tensor; replicas of one box are one box."""
    merged: dict[str, Entry] = {}
    faults: list[Fault] = []
    for one in parsed:
        for fqn, entry in one.entries.items():
            before = merged.setdefault(fqn, entry)
            if before is entry:
                continue
            where = Location(file=one.source, fqn=fqn)
            if not isinstance(before, TensorEntry) or not isinstance(entry, TensorEntry):
                if type(before) is not type(entry):
                    message = "a tensor on one rank and an object on another"
                    faults.append(Fault(FaultKind.MALFORMED_ENTRY, message, where))
                continue
            if (before.shape, before.dtype) != (entry.shape, entry.dtype):
                message = (
                    f"{entry.dtype} {list(entry.shape)} here, but {before.dtype} "
                    f"{list(before.shape)} on another rank"
                )
                faults.append(Fault(FaultKind.MALFORMED_ENTRY, message, where))
                continue
            known: set[tuple[Shape, Shape]] = {(b.offsets, b.sizes) for b in before.boxes}
            new = [b for b in entry.boxes if (b.offsets, b.sizes) not in known]
            if new:
                boxes = Boxes.of(len(before.shape), [*before.boxes, *new])
                merged[fqn] = TensorEntry(
                    fqn, before.dtype, before.shape, boxes, before.requires_grad
                )
    return merged, faults


def _merge_items(parsed: list[Parsed]) -> Items:
    transforms: dict[int, tuple[str, ...]] = {}
    fqns: list[str] = []
    origins: list[Shape | None] = []
    paths: list[str] = []
    offsets, lengths = array("q"), array("q")
    for one in parsed:
        base = len(fqns)
        transforms.update({base + i: names for i, names in one.items.transforms.items()})
        fqns.extend(one.items.fqns)
        origins.extend(one.items.origins)
        paths.extend(one.items.paths)
        offsets.extend(one.items.offsets)
        lengths.extend(one.items.lengths)
    return Items(fqns, origins, paths, offsets, lengths, transforms)
