"""The seam for formats: a layout says which files make one checkpoint, an encoding what bytes mean.

A layout claims by names, from the top down, with a peek into a small file where names do not tell.
What it claims is one checkpoint, the unit of every command; nothing below it is looked at again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import cached_property
from typing import Protocol

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import NotFound, Refused, StorageError
from ckptctl.formats.listing import list_files
from ckptctl.model.belonging import belongs
from ckptctl.model.checkpoint import Checkpoint, File, Items
from ckptctl.model.checkpoint import Entry as EntryOfState
from ckptctl.model.commit_state import State
from ckptctl.model.names import CheckpointName, steps_of
from ckptctl.model.paths import join
from ckptctl.storage import Entry, Reader, Store

PEEK = 64 << 10
"""Bytes of a small file that a claim may look at."""


class Reads(enum.IntEnum):
    """How far this release reads a layout.

    ``NAMES``: it is claimed, and its contents are not read yet. ``TENSORS``: its tensors and values
    are read by digest, diff and convert. ``WHOLE``: it is verified and committed as well.
    """

    NAMES = 0
    TENSORS = 1
    WHOLE = 2


class StepKind(str, enum.Enum):
    """Where the step of a claim comes from."""

    NAMED = "named"
    RECORDED = "recorded"
    COUNTER = "a counter of saves"


class Sure(enum.IntEnum):
    """How surely names tell a layout: by a file's suffix, by a pattern, by a name no other has."""

    SUFFIX = 1
    PATTERN = 2
    MARKED = 3
    OWN = 4


@dataclass(frozen=True)
class Folder:
    """One directory as a layout sees it; listings and peeks are made once and remembered.

    ``name`` is read beside its siblings, ``beside`` are the names of all of them. ``asked`` is the
    file in it that a user named, if that is what is looked for.
    """

    store: Store
    path: str
    name: CheckpointName
    entries: tuple[Entry, ...]
    beside: frozenset[str] = frozenset()
    asked: str = ""
    _below: MutableMapping[str, Folder | None] = field(default_factory=dict)
    _peeks: MutableMapping[str, bytes | None] = field(default_factory=dict)

    @cached_property
    def files(self) -> frozenset[str]:
        """Names of everything in it that is no directory."""
        return frozenset(one.name for one in self.entries if one.kind != "directory")

    @cached_property
    def folders(self) -> frozenset[str]:
        """Names of the directories in it."""
        return frozenset(one.name for one in self.entries if one.kind == "directory")

    @property
    def names(self) -> frozenset[str]:
        """All names in it."""
        return self.files | self.folders

    @cached_property
    def suffixes(self) -> frozenset[str]:
        """What the names of files end in, without the dot: tells quickly what cannot be there."""
        return frozenset(name.rpartition(".")[2] for name in self.files)

    @cached_property
    def named(self) -> Mapping[str, CheckpointName]:
        """What the names in it say, each beside its siblings of the same kind."""
        found = [*steps_of(sorted(self.folders)), *steps_of(sorted(self.files))]
        return {one.text: one for one in found}

    @cached_property
    def checkpoints(self) -> frozenset[str]:
        """Names of the directories in it that trainers give to checkpoints."""
        return frozenset(name for name in self.folders if self.named[name].recognised)

    @cached_property
    def own_files(self) -> frozenset[str]:
        """Names of files in it, without links to others that lie beside them."""
        return frozenset(
            one.name
            for one in self.entries
            if one.kind == "file"
            and (one.target is None or one.target.removeprefix("./") not in self.names)
        )

    def join(self, name: str) -> str:
        """Return the path of something in it, relative to the store's root."""
        return join(self.path, name)

    def below(self, name: str) -> Folder | None:
        """Return a directory in it, or None where there is none that can be listed."""
        if name not in self._below:
            found = None
            if name in self.folders:
                try:
                    entries = tuple(self.store.entries(self.join(name)))
                    own = self.named[name]
                    found = Folder(self.store, self.join(name), own, entries, self.names)
                except StorageError:
                    found = None
            self._below[name] = found
        return self._below[name]

    def peek(self, name: str, limit: int = PEEK) -> bytes | None:
        """Return the first bytes of a file in it, or None where it cannot be read."""
        if name not in self._peeks:
            try:
                with self.store.open(self.join(name)) as reader:
                    self._peeks[name] = reader.read(0, min(reader.size, limit))
            except StorageError:
                self._peeks[name] = None
        return self._peeks[name]


@dataclass(frozen=True, slots=True)
class Claim:
    """One checkpoint as a layout claims it.

    ``path`` is what a user types and a trainer is given, relative to the store's root; of several
    files that make one checkpoint it is what they have in common. ``members`` are the names of
    those files in their directory; None means all that lies below ``path``. ``lacks`` are parts
    that should be there by the names of the others. ``staging`` says why it is not final yet.
    ``resume`` is what a trainer is given where that is not ``path`` (a template with ``{rank}``).
    ``number`` orders checkpoints that have no step, such as a counter of saves.
    """

    layout: str
    path: str
    sure: Sure
    members: tuple[str, ...] | None = None
    step: int | None = None
    epoch: int | None = None
    step_is: StepKind = StepKind.NAMED
    number: int | None = None
    staging: str = ""
    lacks: tuple[str, ...] = ()
    resume: str = ""


@dataclass(frozen=True, slots=True)
class PointerRule:
    """A name that a framework leaves for its newest checkpoint, as a pattern of the file's name.

    What is in the file is a checkpoint's name, its path or its step; a link is followed instead.
    With ``key`` it is a JSON file that every checkpoint has, and the last part of the path that it
    has under that key is the name of another checkpoint: the best one, not the newest.
    """

    pattern: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class StateSeen:
    """What a listing tells of one checkpoint, and why."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes ``[start, stop)`` of a file; ``crc`` is the recorded CRC-32, None where there is none.

    ``kind`` is payload, record (a value or a small record of a zip), header or padding.
    """

    path: str
    start: int
    stop: int
    kind: str
    crc: int | None = None


class Encoding(Protocol):
    """How the bytes of one file become tensors and values."""

    name: str

    def regions(self, reader: Reader, path: str) -> Iterator[Region]:
        """Yield every byte of the file in one region, in order; raises ``MalformedData``."""


class ShardWriter(Protocol):
    """How a sharded checkpoint is written: names of its files, and its metadata once they are."""

    file: str

    def shard(self, rank: int) -> str:
        """Return the name of the file of one rank."""
        ...

    def encode(
        self,
        entries: Mapping[str, EntryOfState],
        items: Items,
        paths: Mapping[str, tuple[str | int, ...]],
        *,
        save_id: str,
        checkpoint_id: str,
    ) -> Iterator[bytes]:
        """Yield the bytes of the metadata file."""


class Layout(Protocol):
    """Which files make one checkpoint; one class per framework, one file each.

    Only ``name``, ``title`` and ``claim`` are needed: a layout that cannot ``read`` is listed and
    said to be not examined.
    """

    name: str
    title: str
    reads: Reads = Reads.NAMES
    pointers: tuple[PointerRule, ...] = ()
    writer: ShardWriter | None = None

    def claim(self, folder: Folder) -> Iterable[Claim]:
        """Claim the directory as one checkpoint, or files in it as one or several.

        Asked of each directory from the top down. Only names are looked at, and small files by
        ``folder.peek``.
        """
        ...

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        """Read what listing and metadata say; damage becomes faults of the checkpoint.

        ``files`` are relative to ``base``. Raises ``StorageError`` only where the storage does not
        answer, and ``Refused`` where the layout is not read at all.
        """
        raise Refused(f"{self.title}: contents not read yet")

    def files(
        self, store: Store, base: str, members: Iterable[str] | None = None
    ) -> dict[str, File]:
        """List what belongs to a checkpoint by path relative to ``base``: all below it, or members."""
        return list_files(store, base, members, self.is_one)

    def is_one(self, path: str) -> bool:
        """Tell by its name whether something must be a file, even where a directory stands."""
        return False

    def belongs(self, path: str) -> bool:
        """Tell by its name whether a file that no item lies in is a part of the checkpoint.

        A commit promises such files; others that lie there may go or change.
        """
        return belongs(path)

    def metadata(self, files: Iterable[str]) -> list[str]:
        """Return the files without which nothing can be loaded; they are deleted first."""
        return []

    def state(
        self,
        store: Store,
        base: str,
        files: Mapping[str, File],
        known: MutableMapping[object, object],
        *,
        check: bool,
    ) -> StateSeen:
        """Tell from names, sizes and small metadata whether a checkpoint is whole.

        ``known`` is kept over one listing. Without ``check`` large metadata is not parsed.
        """
        checkpoint = self.read(store, base, files)
        if not checkpoint.readable:
            faults = "; ".join(fault.message for fault in checkpoint.faults)
            return StateSeen(State.UNREADABLE, faults or "its metadata cannot be read")
        items = checkpoint.items
        ends: dict[str, int] = {}
        for path, start, length in zip(items.paths, items.offsets, items.lengths, strict=True):
            ends[path] = max(ends.get(path, 0), start + length)
        for path, end in ends.items():
            file = files.get(path)
            if file is None or not file.is_file:
                return StateSeen(State.INCOMPLETE, f"{path} is not there")
            if file.size < end:
                return StateSeen(State.INCOMPLETE, f"{path} has {file.size} of {end} bytes")
        return StateSeen(State.COMPLETE)


def read_small(store: Store, path: str, limit: int = PEEK) -> bytes | None:
    """Return a small file whole, or None where it is not there or larger than ``limit`` bytes."""
    try:
        with store.open(path) as reader:
            return reader.read(0, reader.size) if reader.size <= limit else None
    except NotFound:
        return None
