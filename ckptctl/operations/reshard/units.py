"""Cutting a plan into small units of work that can be pickled, for threads or other processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ckptctl.dataclass import dataclass, replace
from ckptctl.model.checkpoint import Checkpoint, Entry, TensorEntry
from ckptctl.model.geometry import Boxes
from ckptctl.sharding.plan import Copy, Give, Plan, Step, TargetFile


@dataclass(frozen=True, slots=True)
class Unit:
    """Files to be written at the same time: what a worker needs to know, and nothing of the rest.

    ``checkpoint`` holds the source items that go into the files and no others; the steps of
    ``files`` number them. ``source`` and ``target`` are the URLs of stores, ``base`` and
    ``directory`` the checkpoints in them. ``noted`` asks for a log of what is read.
    """

    source: str
    base: str
    checkpoint: Checkpoint
    target: str
    directory: str
    files: tuple[TargetFile, ...]
    noted: bool = False

    @property
    def size(self) -> int:
        """Bytes to be written."""
        return sum(file.size for file in self.files)


def units_of(
    plan: Plan,
    checkpoint: Checkpoint,
    source: tuple[str, str],
    target: tuple[str, str],
    done: Collection[str] = (),
    *,
    noted: bool = False,
) -> Iterator[Unit]:
    """Cut a plan into units; ``source`` and ``target`` are pairs of store and directory in it.

    Files that are ``done`` are left out.
    """
    for files in plan.together():
        waiting = [file for file in files if file.path not in done]
        if waiting:
            part, own = _part_of(checkpoint, waiting)
            yield Unit(source[0], source[1], part, target[0], target[1], own, noted)


def _part_of(
    checkpoint: Checkpoint, files: Iterable[TargetFile]
) -> tuple[Checkpoint, tuple[TargetFile, ...]]:
    """Return the part of a checkpoint that some files read, and the files numbered for it."""
    numbers: dict[int, int] = {}
    boxes: dict[str, list[int]] = {}

    def numbered(step: Step) -> Step:
        if isinstance(step, Give):
            return step
        for index in (step.item,) if isinstance(step, Copy) else step.pieces:
            if index not in numbers:
                numbers[index] = len(numbers)
                boxes.setdefault(checkpoint.items.fqns[index], []).append(index)
        if isinstance(step, Copy):
            return replace(step, item=numbers[step.item])
        boxes.setdefault(step.fqn, [])
        return replace(step, pieces=tuple(numbers[i] for i in step.pieces))

    own = [replace(file, steps=tuple(map(numbered, file.steps))) for file in files]
    entries = {
        fqn: _entry_part(checkpoint.entries[fqn], [checkpoint.items.origins[i] for i in indices])
        for fqn, indices in boxes.items()
    }
    paths = {checkpoint.items.paths[index] for index in numbers}
    part = Checkpoint(
        checkpoint.format,
        {path: file for path, file in checkpoint.files.items() if path in paths},
        checkpoint.sources,
        entries,
        checkpoint.items.pick(list(numbers)),
        replicated=checkpoint.replicated,
    )
    return part, tuple(own)


def _entry_part(entry: Entry, origins: list[tuple[int, ...] | None]) -> Entry:
    if not isinstance(entry, TensorEntry):
        return entry
    wanted = set(origins)
    boxes = [box for box in entry.boxes if box.offsets in wanted]
    return replace(entry, boxes=Boxes.of(len(entry.shape), boxes))
