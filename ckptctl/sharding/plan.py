"""The plan of a reshard as plain data: what each target file holds and where its bytes come from."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ckptctl.dataclass import dataclass, field
from ckptctl.model.checkpoint import Entry, Items, TensorEntry
from ckptctl.model.geometry import Box
from ckptctl.model.manifest import canonical

_BASE = 64 << 20
_PER_STEP = 1 << 10
_PER_WORKER = 8 << 20
_PER_GROUP = 24 << 20
"""Bytes of the buffers of files that are written at the same time."""


def _fingerprint(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Copy:
    """One source item copied as it is, under the key ``fqn``; ``box`` is None for an object."""

    fqn: str
    box: Box | None
    item: int
    length: int
    transforms: tuple[str, ...] = ()

    @property
    def read(self) -> int:
        """Bytes read from the source."""
        return self.length


@dataclass(frozen=True, slots=True)
class Write:
    """One box written anew from the source items ``pieces`` that overlap it.

    ``read`` is what it reads of them by itself. Where that would read bytes which other boxes need
    as well, ``shared`` names the box of the tensor that is read once for all of them, and ``whole``
    the bytes of each piece.
    """

    fqn: str
    box: Box
    pieces: tuple[int, ...]
    length: int
    read: int
    transforms: tuple[str, ...] = ()
    shared: Box | None = None
    whole: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Give:
    """One object whose pickle is at hand, of a source that has no item of its own for it."""

    fqn: str
    pickle: bytes
    length: int
    box: Box | None = None
    transforms: tuple[str, ...] = ()

    @property
    def read(self) -> int:
        """Bytes read from the source."""
        return 0


Step: TypeAlias = Copy | Write | Give


@dataclass(frozen=True, slots=True)
class TargetFile:
    """One file of the result: its items in the order of their bytes, without gaps."""

    path: str
    rank: int
    steps: tuple[Step, ...]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(step.length for step in self.steps)

    @property
    def counts(self) -> tuple[int, int]:
        """How many items are copied as they are, and how many are written anew."""
        copies = sum(isinstance(step, Copy) for step in self.steps)
        return copies, len(self.steps) - copies

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"path": self.path, "rank": self.rank, "steps": list(map(_step, self.steps))}


MOST_TOGETHER = 128
"""Files that are written at the same time at most: each is open, and has a buffer."""


class Groups:
    """Numbers put into groups by naming pairs that belong together."""

    def __init__(self, count: int) -> None:
        """Begin with each number by itself."""
        self._parent = list(range(count))

    def _root(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = number = self._parent[self._parent[number]]
        return number

    def join(self, one: int, other: int) -> None:
        """Put two numbers into one group."""
        roots = self._root(one), self._root(other)
        self._parent[max(roots)] = min(roots)

    def all(self) -> list[list[int]]:
        """Return all groups, their numbers in ascending order."""
        found: dict[int, list[int]] = {}
        for number in range(len(self._parent)):
            found.setdefault(self._root(number), []).append(number)
        return list(found.values())


def bytes_read(files: Iterable[TargetFile]) -> int:
    """Return the bytes read to write some files at the same time."""
    total = 0
    pieces: dict[int, int] = {}
    for file in files:
        for step in file.steps:
            if isinstance(step, Write) and step.shared is not None:
                pieces.update(zip(step.pieces, step.whole, strict=True))
            else:
                total += step.read
    return total + sum(pieces.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a reshard does, decided before anything is done.

    ``source`` names the save that it is a plan for. ``entries`` and ``paths`` are the result's keys
    and their paths in the nested state; ``dropped`` names the keys left out and ``copied`` maps
    keys that the source does not have to those whose items they get. ``beside`` are small files that
    the framework needs beside the shards, by name and size, copied as they are.
    """

    source: str
    world_size: int
    mesh: str
    files: tuple[TargetFile, ...]
    entries: Mapping[str, Entry]
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    copied: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, int] = field(default_factory=dict)

    @property
    def written(self) -> int:
        """Bytes of all files but the metadata."""
        return sum(file.size for file in self.files)

    @property
    def read(self) -> int:
        """Bytes read from the source to write them: payloads, and items that are copied."""
        return sum(bytes_read(files) for files in self.together())

    def together(self, most: int = MOST_TOGETHER) -> list[tuple[TargetFile, ...]]:
        """Group the files: those that are fed by the same reads are written at the same time.

        Where that would be more than ``most`` files, their source is read for each so many.
        """
        groups = Groups(len(self.files))
        first: dict[int, int] = {}
        for number, file in enumerate(self.files):
            for step in file.steps:
                if isinstance(step, Write) and step.shared is not None:
                    for piece in step.pieces:
                        groups.join(number, first.setdefault(piece, number))
        return [
            tuple(self.files[i] for i in members[low : low + most])
            for members in groups.all()
            for low in range(0, len(members), most)
        ]

    @property
    def counts(self) -> tuple[int, int]:
        """How many items are copied as they are, and how many are written anew."""
        counts = [file.counts for file in self.files]
        return sum(copied for copied, _ in counts), sum(written for _, written in counts)

    def memory(self, *, workers: int) -> int:
        """Estimate the bytes of memory that carrying it out takes at most."""
        steps = sum(len(file.steps) for file in self.files)
        several = sum(len(files) > 1 for files in self.together())
        shared = _PER_GROUP * min(workers, several)
        return _BASE + _PER_STEP * steps + _PER_WORKER * workers + shared

    def items(self) -> Items:
        """Return where each item of the result lies."""
        result = Items(transforms={})
        transforms: dict[int, tuple[str, ...]] = {}
        offsets, lengths = array("q"), array("q")
        for file in self.files:
            position = 0
            for step in file.steps:
                if step.transforms:
                    transforms[len(result.fqns)] = step.transforms
                result.fqns.append(step.fqn)
                result.origins.append(None if step.box is None else step.box.offsets)
                result.paths.append(file.path)
                offsets.append(position)
                lengths.append(step.length)
                position += step.length
        return Items(result.fqns, result.origins, result.paths, offsets, lengths, transforms)

    def components(self, component: Callable[[str], str]) -> dict[str, list[int]]:
        """Return the ranks that hold each component; ``component`` tells that of a source's key."""
        found: dict[str, set[int]] = {}
        for file in self.files:
            for step in file.steps:
                name = component(self.copied.get(step.fqn, step.fqn))
                found.setdefault(name, set()).add(file.rank)
        return {name: sorted(ranks) for name, ranks in sorted(found.items())}

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield the plan as JSON documents: the head, then one for each file."""
        yield {
            "schema": "ckptctl/reshard-plan/1",
            "source": self.source,
            "world_size": self.world_size,
            "mesh": self.mesh,
            "policies": dict(self.policies),
            "dropped": list(self.dropped),
            "copied": dict(self.copied),
            "beside": dict(self.beside),
            "tensors": {
                fqn: [entry.dtype, list(entry.shape)]
                for fqn, entry in self.entries.items()
                if isinstance(entry, TensorEntry)
            },
        }
        for file in self.files:
            yield file.document()

    @property
    def digest(self) -> str:
        """The digest of the whole plan; equal plans for one save have equal digests."""
        import hashlib

        hasher = hashlib.sha256()
        for document in self.documents():
            hasher.update(canonical(document))
        return f"sha256:{hasher.hexdigest()}"


def _step(step: Step) -> list[Any]:
    if isinstance(step, Give):
        return ["give", step.fqn, _fingerprint(step.pickle), step.length]
    box = None if step.box is None else [list(step.box.offsets), list(step.box.sizes)]
    source: int | list[int] = step.item if isinstance(step, Copy) else list(step.pieces)
    return ["copy" if isinstance(step, Copy) else "write", step.fqn, box, source, step.length]
