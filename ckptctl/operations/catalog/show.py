"""``ckptctl show``: what a person wants to know of one checkpoint first."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator

from ckptctl.completeness.classifier import NAMES, Classifier
from ckptctl.dataclass import dataclass
from ckptctl.errors import CkptctlError, MalformedData, NothingThere, StorageError
from ckptctl.formats.items.scan import scan_items
from ckptctl.model.checkpoint import (
    BoxIndex,
    Checkpoint,
    FaultKind,
    Item,
    ObjectEntry,
    TensorEntry,
    rank_of,
)
from ckptctl.model.dtypes import item_size
from ckptctl.model.geometry import Box, Shape
from ckptctl.operations.catalog.sealed import Sealed, sealed_as
from ckptctl.operations.content.value import read_value
from ckptctl.operations.place import Place, address, read_checkpoint
from ckptctl.storage import Store, open_listed

_PROGRESS = ("progress", "scheduler")
_MOST_STEPS = 256
_MOST_PROGRESS = 64


@dataclass(frozen=True, slots=True)
class Component:
    """What one component holds; ``size`` is bytes of tensor data, not of files."""

    name: str
    tensors: int
    objects: int
    parameters: int
    size: int
    dtypes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank; ``rank`` is None for files that no rank's name is on."""

    rank: int | None
    files: int
    items: int
    size: int


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file; ``items`` is None for a file the metadata does not refer to."""

    path: str
    rank: int | None
    size: int
    items: int | None
    modified: float | None


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor and how it is cut: ``grid`` parts along each dimension, over which ranks."""

    fqn: str
    shape: Shape
    dtype: str
    size: int | None
    component: str
    chunks: int
    grid: tuple[int, ...] | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """One value that is not a tensor, decoded without running anything, or why it is not."""

    fqn: str
    component: str
    rank: int | None
    value: object = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BoxRow:
    """One box of one tensor and where it is stored; several rows where replicas were kept."""

    box: Box
    rank: int | None
    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each box of one tensor lies."""

    tensor: TensorRow
    boxes: tuple[BoxRow, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint at a glance."""

    checkpoint: str
    format: str
    layout: str
    step: int | None
    save_id: str | None
    saved_as: str | None
    metadata_by: str | None
    items_by: tuple[str, ...]
    world_size: int | None
    keys: int
    items: int
    size: int
    progress: tuple[tuple[str, object], ...]
    optimizer_steps: tuple[tuple[float, int], ...]
    components: tuple[Component, ...]
    ranks: tuple[RankFiles, ...]
    problems: tuple[str, ...]
    sealed: Sealed | None = None


class Viewer:
    """One checkpoint opened for looking."""

    def __init__(self, store: Store, place: Place) -> None:
        """Read listing and metadata.

        Raises ``NothingThere`` where there is no metadata to look at, ``StorageError`` where the
        storage does not answer.
        """
        self._store, self._place = store, place
        self._url = address(store, place.path)
        self.checkpoint: Checkpoint = read_checkpoint(store, place)
        if not self.checkpoint.readable:
            faults = "; ".join(
                f"{fault.where.file}: {fault.message}"
                for fault in self.checkpoint.problems
                if fault.kind is not FaultKind.MISSING_METADATA
            )
            raise _unreadable(self._url, faults)
        self._classes = Classifier(self.checkpoint)

    def component(self, fqn: str) -> str:
        """Classify one key."""
        return self._classes.component(fqn)

    def describe(self) -> Description:
        """Sum up the checkpoint; a few small items are read for step and versions."""
        checkpoint, identity = self.checkpoint, self.checkpoint.identity
        progress, steps, problems = self._progress()
        sealed = sealed_as(self._store, self._place, problems)
        return Description(
            checkpoint=self._url,
            format=self._place.format,
            layout=self._place.layout.title,
            step=self._place.name.step,
            save_id=identity.save_id,
            saved_as=identity.checkpoint_id,
            metadata_by=identity.torch_versions,
            items_by=self._item_versions(),
            world_size=len(checkpoint.sources) if checkpoint.replicated else None,
            keys=len(checkpoint.entries),
            items=len(checkpoint.items),
            size=sum(file.size for file in checkpoint.files.values()),
            progress=progress,
            optimizer_steps=steps,
            components=tuple(self._components()),
            ranks=tuple(self._ranks()),
            problems=(*(fault.message for fault in checkpoint.problems), *problems),
            sealed=sealed,
        )

    def _components(self) -> Iterator[Component]:
        tensors: dict[str, list[TensorEntry]] = {}
        objects: dict[str, int] = {}
        for fqn, entry in self.checkpoint.entries.items():
            name = self.component(fqn)
            if isinstance(entry, TensorEntry):
                tensors.setdefault(name, []).append(entry)
            else:
                objects[name] = objects.get(name, 0) + 1
        for name in NAMES:
            if name in tensors or name in objects:
                entries = tensors.get(name, [])
                dtypes: dict[str, int] = {}
                for entry in entries:
                    dtypes[entry.dtype] = dtypes.get(entry.dtype, 0) + 1
                yield Component(
                    name,
                    len(entries),
                    objects.get(name, 0),
                    sum(entry.numel for entry in entries),
                    sum(_bytes(entry) or 0 for entry in entries),
                    tuple(sorted(dtypes.items(), key=lambda pair: (-pair[1], pair[0]))),
                )

    def files(self) -> list[FileRow]:
        """List the files, the metadata first."""
        counts: dict[str, int] = {}
        for path in self.checkpoint.items.paths:
            counts[path] = counts.get(path, 0) + 1
        return [
            FileRow(path, rank_of(path), file.size, counts.get(path), file.modified)
            for path, file in sorted(self.checkpoint.files.items())
        ]

    def _ranks(self) -> Iterator[RankFiles]:
        groups: dict[int | None, list[FileRow]] = {}
        for row in self.files():
            if row.items is not None:
                groups.setdefault(row.rank, []).append(row)
        for rank, rows in sorted(groups.items(), key=lambda pair: (pair[0] is None, pair[0] or 0)):
            yield RankFiles(
                rank, len(rows), sum(row.items or 0 for row in rows), sum(row.size for row in rows)
            )

    def tensors(self, pattern: str = "*") -> list[TensorRow]:
        """List the tensors whose name matches a shell pattern."""
        ranks: dict[str, set[int]] = {}
        items = self.checkpoint.items
        known: dict[str, int | None] = {}
        for fqn, path in zip(items.fqns, items.paths, strict=True):
            if path not in known:
                known[path] = rank_of(path)
            rank = known[path]
            if rank is not None:
                ranks.setdefault(fqn, set()).add(rank)
        return [
            TensorRow(
                fqn,
                entry.shape,
                entry.dtype,
                _bytes(entry),
                self.component(fqn),
                len(entry.boxes),
                _grid(entry),
                tuple(sorted(ranks.get(fqn, ()))),
            )
            for fqn, entry in self.checkpoint.entries.items()
            if isinstance(entry, TensorEntry) and fnmatch.fnmatchcase(fqn, pattern)
        ]

    def layout(self, fqn: str) -> Layout:
        """Say where each box of one tensor lies; raises ``NothingThere`` for an unknown name."""
        entry = self.checkpoint.entries.get(fqn)
        if not isinstance(entry, TensorEntry):
            kind = "an object, which has no layout" if entry is not None else "not in it"
            raise NothingThere(
                f"{self._url}: {fqn} is {kind}; `ckptctl show {self._url} --tensors` "
                "lists the tensors"
            )
        index = BoxIndex(self.checkpoint)
        rows = []
        for item in self.checkpoint.items:
            box = index.box(item) if item.fqn == fqn else None
            if box is not None:
                rows.append(BoxRow(box, item.rank, item.path, item.offset, item.length))
        rows.sort(key=lambda row: (row.box.offsets, row.path))
        row = next(row for row in self.tensors(_escape(fqn)) if row.fqn == fqn)
        return Layout(row, tuple(rows))

    def objects(self, pattern: str = "*") -> list[ObjectRow]:
        """Decode the values that are not tensors and whose name matches a shell pattern."""
        return [
            self._decode(item)
            for item in self.checkpoint.items
            if isinstance(self.checkpoint.entries.get(item.fqn), ObjectEntry)
            and fnmatch.fnmatchcase(item.fqn, pattern)
        ] + [
            ObjectRow(fqn, self.component(fqn), None, value)
            for fqn, value in self.checkpoint.values.items()
            if fnmatch.fnmatchcase(fqn, pattern)
        ]

    def _decode(self, item: Item) -> ObjectRow:
        base = ObjectRow(item.fqn, self.component(item.fqn), item.rank)
        problem, value = "", None
        try:
            value = read_value(self._store, self._place.path, self.checkpoint, item)
        except (MalformedData, StorageError) as error:
            problem = str(error)
        return ObjectRow(base.fqn, base.component, base.rank, value, problem)

    def _progress(
        self,
    ) -> tuple[tuple[tuple[str, object], ...], tuple[tuple[float, int], ...], list[str]]:
        """Decode counters: small objects of progress and scheduler, and Adam's step tensors."""
        values: dict[str, object] = {}
        steps: dict[float, int] = {}
        problems: list[str] = []
        read = 0
        for item in self.checkpoint.items:
            entry = self.checkpoint.entries.get(item.fqn)
            component = self.component(item.fqn)
            scalar = isinstance(entry, TensorEntry) and entry.shape == ()
            counter = component in _PROGRESS and len(values) < _MOST_PROGRESS
            adam = component == "optimizer" and scalar and _is_step(item.fqn) and read < _MOST_STEPS
            if not (adam or (counter and (scalar or isinstance(entry, ObjectEntry)))):
                continue
            row = self._decode(item)
            if row.problem:
                problems.append(f"{item.fqn}: {row.problem}")
            elif adam and isinstance(row.value, int | float) and abs(row.value) < 1 << 63:
                read += 1
                steps[float(row.value)] = steps.get(float(row.value), 0) + 1
            elif counter and isinstance(row.value, int | float | str | bool):
                values[item.fqn] = row.value
        for fqn, value in self.checkpoint.values.items():
            wanted = self.component(fqn) in _PROGRESS and len(values) < _MOST_PROGRESS
            if wanted and isinstance(value, int | float | str | bool):
                values[fqn] = value
        return tuple(values.items()), tuple(sorted(steps.items())), problems

    def _item_versions(self) -> tuple[str, ...]:
        """Tell the torch releases that can have written the first item of each file."""
        found: set[str] = set()
        for path, indices in self.checkpoint.items.by_path().items():
            item = self.checkpoint.items[indices[0]]
            file = self.checkpoint.files.get(path)
            if file is None or not file.is_file or item.end > file.size or item.transforms:
                continue
            try:
                whole = f"{self._place.path}/{path}" if self._place.path else path
                with open_listed(self._store, whole, file.size) as reader:
                    seen = next(
                        scan_items(
                            reader,
                            [item],
                            content=False,
                            is_tensor=lambda _: False,
                            expected_bytes=lambda _: None,
                        )
                    )
            except CkptctlError:
                continue
            if not seen.faults:
                found.add(seen.torch_versions)
        return tuple(sorted(found - {""}))


def _unreadable(url: str, faults: str) -> CkptctlError:
    if not faults:
        return NothingThere(
            f"{url}: no metadata to show; `ckptctl verify {url}` says what is there"
        )
    return MalformedData(f"{url}: {faults}; `ckptctl verify {url}` says more")


def _is_step(fqn: str) -> bool:
    return fqn == "step" or fqn.endswith(".step") or ".state.step." in fqn


def _bytes(entry: TensorEntry) -> int | None:
    width = item_size(entry.dtype)
    return None if width is None else entry.numel * width


def _grid(entry: TensorEntry) -> tuple[int, ...] | None:
    """Return in how many parts each dimension is cut, or None where the boxes form no grid."""
    cuts: list[set[int]] = [set() for _ in entry.shape]
    solid = 0
    for box in entry.boxes:
        if box.volume:
            solid += 1
            for d, offset in enumerate(box.offsets):
                cuts[d].add(offset)
    grid = tuple(max(1, len(cut)) for cut in cuts)
    return grid if math.prod(grid) == max(1, solid) else None


def _escape(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)
