"""Uniting the parts of one checkpoint: directories or files that were each read by themselves.

A part's files keep their place below the checkpoint. Keys stay as they are; where two parts have
the same one, each gets the name of its part in front.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

from ckptctl.dataclass import dataclass, replace
from ckptctl.model.checkpoint import (
    Checkpoint,
    Entry,
    Fault,
    File,
    Item,
    Items,
    SaveIdentity,
    Stored,
)
from ckptctl.model.geometry import Shape
from ckptctl.model.paths import join


@dataclass(frozen=True, slots=True)
class Read:
    """One part that was read: what its keys are called after, and its directory ('' for none)."""

    role: str
    path: str
    checkpoint: Checkpoint

    def place(self, path: str) -> str:
        """Return a file's path below the checkpoint."""
        return join(self.path, path)


def unite(
    format_name: str, files: Mapping[str, File], parts: Sequence[Read], faults: Sequence[Fault] = ()
) -> Checkpoint:
    """Return the parts as one checkpoint with all ``files``; ``faults`` come before the parts' own."""
    seen = Counter(key for part in parts for key in part.checkpoint.entries)
    taken = set(seen)
    recorded = any(part.checkpoint.paths_in_state for part in parts)
    entries: dict[str, Entry] = {}
    paths_in_state: dict[str, tuple[str | int, ...]] = {}
    fqns: list[str] = []
    origins: list[Shape | None] = []
    paths: list[str] = []
    offsets, lengths = array("q"), array("q")
    transforms: dict[int, tuple[str, ...]] = {}
    stored: dict[int, Stored] = {}
    values: dict[str, object] = {}
    value_files: dict[str, tuple[str, ...]] = {}
    copies: list[Item] = []
    shared: dict[str, str] = {}
    found = list(faults)
    for part in parts:
        own = part.checkpoint
        names: dict[str, str] = {}
        for key, entry in own.entries.items():
            names[key] = name = key if seen[key] == 1 else _free(f"{part.role}.{key}", taken)
            entries[name] = entry if name == key else replace(entry, fqn=name)
            path = own.paths_in_state.get(key)
            if path is None and recorded and not own.paths_in_state:
                path = tuple(key.split("."))  # of a part whose planner kept none for any key
            if path is not None:
                paths_in_state[name] = path if name == key else (part.role, *path)
        base = len(fqns)
        transforms.update({base + i: one for i, one in own.items.transforms.items()})
        stored.update({base + i: one for i, one in own.items.stored.items()})
        values.update({names[key]: value for key, value in own.values.items()})
        value_files.update(
            {names[key]: tuple(map(part.place, at)) for key, at in own.value_files.items()}
        )
        copies += [
            replace(one, fqn=names.get(one.fqn, one.fqn), path=part.place(one.path))
            for one in own.copies
        ]
        shared.update({names[key]: names[other] for key, other in own.shared.items()})
        fqns.extend(names.get(key, key) for key in own.items.fqns)
        origins.extend(own.items.origins)
        paths.extend(map(part.place, own.items.paths))
        offsets.extend(own.items.offsets)
        lengths.extend(own.items.lengths)
        found.extend(_moved(fault, part, names) for fault in own.faults)
    ids = [part.checkpoint.identity for part in parts]
    identity = SaveIdentity(
        torch_versions=next((i.torch_versions for i in ids if i.torch_versions), None)
    )
    if len(ids) == 1:
        identity = ids[0]
    return Checkpoint(
        format=format_name,
        files=files,
        sources=tuple(part.place(name) for part in parts for name in part.checkpoint.sources),
        entries=entries,
        items=Items(fqns, origins, paths, offsets, lengths, transforms, stored),
        identity=identity,
        paths_in_state=paths_in_state,
        opaque_classes=tuple(sorted({n for p in parts for n in p.checkpoint.opaque_classes})),
        faults=tuple(found),
        replicated=any(part.checkpoint.replicated for part in parts),
        values=values,
        value_files=value_files,
        copies=Items.of(copies),
        described=frozenset(part.place(at) for part in parts for at in part.checkpoint.described),
        shared=shared,
    )


def _free(name: str, taken: set[str]) -> str:
    """Return a name that no part has, and take it."""
    while name in taken:
        name = f"{name}'"
    taken.add(name)
    return name


def _moved(fault: Fault, part: Read, names: Mapping[str, str]) -> Fault:
    where = fault.where
    file = part.place(where.file) if where.file is not None else part.path or None
    fqn = names.get(where.fqn, where.fqn) if where.fqn is not None else None
    return replace(fault, where=replace(where, file=file, fqn=fqn))


def below(files: Mapping[str, File], path: str) -> dict[str, File]:
    """Return the files below a directory, by their paths relative to it."""
    prefix = f"{path}/"
    return {
        name.removeprefix(prefix): replace(file, path=name.removeprefix(prefix))
        for name, file in files.items()
        if name.startswith(prefix)
    }
