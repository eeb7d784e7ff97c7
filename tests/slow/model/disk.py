"""What really is on a disk, read without ckptctl and judged by what was written and said before.

``Memory`` is what the model knows for certain: the bytes that were saved, what each manifest
sealed, what each record said when it was written. ``Sight`` is one look at a root through it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from conftest import FIXTURES

Files: TypeAlias = Mapping[str, bytes]

SMALL_FILE = 4096
"""What ``resolve`` takes for a small file here: of one kind of save the data are larger."""

DATA = 705
"""Where in each of these shards the numbers of a tensor lie."""

MANIFEST, MARKS, POINTERS, TRASH = (
    "ckptctl.manifest.json",
    "ckptctl.quarantine",
    "ckptctl.pointers/latest_committed",
    "ckptctl.trash",
)


def _source(case: str) -> Files:
    return {path.name: path.read_bytes() for path in sorted((FIXTURES / case).iterdir())}


KINDS: tuple[Files, ...] = (
    _source("dedup_lowest_rank/step-12"),
    _source("thread_count_3/step-12"),
    _source("no_crc/step-1"),
)
"""Saves of one set of tensors: one large shard, small shards, and one without CRCs."""
BARE = 2
"""The kind without CRCs: what is flipped in it before a commit nobody can see."""


@dataclass(frozen=True)
class Saved:
    """What a trainer wrote under a name: its files, and whether any was left out."""

    kind: int
    left_out: str = ""

    @property
    def files(self) -> Files:
        return {name: data for name, data in KINDS[self.kind].items() if name != self.left_out}


@dataclass(frozen=True)
class Said:
    """One revision of the pointer: what it names, and the manifests that it turns its back on.

    ``maybe`` are those that were sealed while it was made: they came before it, or after it.
    """

    number: int
    target: str
    manifest: bytes | None
    passed: frozenset[bytes] = frozenset()
    maybe: frozenset[bytes] = frozenset()


@dataclass
class Memory:
    """What was written and said; records are known by their bytes."""

    saved: dict[str, Saved] = field(default_factory=dict)
    sealed: dict[bytes, Files] = field(default_factory=dict)
    marks: dict[bytes, bool] = field(default_factory=dict)
    pointers: dict[bytes, Said] = field(default_factory=dict)
    hints: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """Numbered records by number, and the numbers of which only the copy is left."""

    records: Mapping[int, bytes]
    copies: frozenset[int] = frozenset()

    @property
    def last(self) -> int:
        return max((*self.records, *self.copies), default=0)

    @property
    def newest(self) -> bytes | None:
        """The record of the highest number that there was; None where it is gone."""
        return self.records.get(self.last)


@dataclass(frozen=True)
class Seen:
    """One checkpoint as it lies there; files are read through links."""

    name: str
    files: Files
    links: Mapping[str, str]
    inodes: frozenset[int]
    manifest: bytes | None
    marks: Series
    memory: Memory

    @property
    def staging(self) -> bool:
        return self.name.endswith(".tmp")

    @property
    def step(self) -> int:
        return int(self.name.removesuffix(".tmp").partition("-")[2])

    @property
    def seal(self) -> Files | None:
        """What its manifest sealed; None without one, and for one that is not as it was written."""
        return self.memory.sealed.get(self.manifest) if self.manifest is not None else None

    @property
    def marked(self) -> bool:
        """True if its newest mark says so, or cannot be read."""
        if not self.marks.last:
            return False
        return self.memory.marks.get(self.marks.newest or b"", True)

    def good(self, *, full: bool) -> bool:
        """Tell whether it is what its manifest sealed, as far as a look of that kind can see."""
        return self.seal is not None and all(
            self.files.get(name) == data
            or (not full and len(data) > SMALL_FILE and len(self.files.get(name, b"")) == len(data))
            for name, data in self.seal.items()
        )

    def usable(self, *, full: bool) -> bool:
        """Tell whether it may be handed out as committed and proven."""
        return self.good(full=full) and not self.marked and not self.staging

    @property
    def whole(self) -> bool:
        """True if every file is as the trainer wrote it, and none was left out."""
        saved = self.memory.saved.get(self.name)
        return (
            saved is not None
            and not saved.left_out
            and all(self.files.get(name) == data for name, data in saved.files.items())
        )

    @property
    def kind(self) -> int:
        saved = self.memory.saved.get(self.name)
        return saved.kind if saved is not None else -1

    def proven(self, *, full: bool) -> bool:
        """Tell whether it counts as kept: by its manifest, or by its CRCs where it has none."""
        if self.manifest is not None:
            return self.usable(full=full)
        return self.whole and self.kind != BARE and not self.marked and not self.staging


@dataclass(frozen=True)
class Sight:
    """One look at a root."""

    checkpoints: Mapping[str, Seen]
    trash: Mapping[str, tuple[Files, ...]]
    revisions: Series
    copy: str
    records: Mapping[str, bytes]
    strays: tuple[str, ...]
    memory: Memory

    @property
    def pointer(self) -> Said | None:
        """What the newest revision said; None where there is none, or it is damaged."""
        return self.memory.pointers.get(self.revisions.newest or b"")

    @property
    def pointer_damaged(self) -> bool:
        return bool(self.revisions.last) and self.pointer is None

    @property
    def doubtful(self) -> bool:
        """True if the plain text beside it says something else: a newer one may be gone."""
        said = self.pointer.target if self.pointer is not None else ""
        return self.copy not in ("", said)

    def usable(self, *, full: bool) -> list[Seen]:
        """List what may be handed out, the newest first."""
        said = self.pointer
        passed = said.passed | said.maybe if said is not None else frozenset()
        found = [one for one in self.checkpoints.values() if one.usable(full=full)]
        return sorted(
            (one for one in found if one.manifest not in passed and not self.other(one)),
            key=lambda one: -one.step,
        )

    def other(self, seen: Seen) -> bool:
        """Tell whether the pointer names another commit of this very checkpoint."""
        said = self.pointer
        return said is not None and said.target == seen.name and said.manifest != seen.manifest

    @property
    def empty(self) -> bool:
        """True if nothing could be taken for a checkpoint, and nothing says that there was one."""
        return not (self.checkpoints or self.revisions.last or self.strays or self.trash)

    def shape(self) -> object:
        """What makes two states equal, without times and random ids."""
        rows = tuple(
            (
                name,
                one.kind,
                one.whole,
                one.manifest is not None,
                one.good(full=True),
                one.good(full=False),
                one.marked,
                tuple(one.marks.records),
                tuple(sorted(one.links.items())),
                tuple(sorted((path, len(data)) for path, data in one.files.items())),
            )
            for name, one in sorted(self.checkpoints.items())
        )
        trash = tuple((name, len(copies)) for name, copies in sorted(self.trash.items()))
        target = self.pointer.target if self.pointer is not None else None
        hints = tuple(sorted(self.memory.hints.items()))
        return rows, trash, tuple(self.revisions.records), target, self.pointer_damaged, hints


def look(root: Path, memory: Memory) -> Sight:
    """Read all of a root."""
    found, strays = {}, []
    for entry in sorted(os.scandir(root), key=lambda one: one.name):
        if entry.name.startswith("step-") and entry.is_dir(follow_symlinks=False):
            found[entry.name] = seen_at(Path(entry.path), memory)
        elif not entry.name.startswith(("ckptctl.", "latest", "LATEST", ".ckptctl-")):
            strays.append(entry.name)
    trash: dict[str, list[Files]] = {}
    for place in sorted((root / TRASH).glob("*/step-*")):
        trash.setdefault(place.name, []).append(_bytes_below(place))
    return Sight(
        found,
        {name: tuple(copies) for name, copies in trash.items()},
        _series(root / POINTERS),
        _text(root / "latest_committed"),
        dict(_records(root)),
        tuple(strays),
        memory,
    )


def seen_at(path: Path, memory: Memory) -> Seen:
    """Look at one checkpoint."""
    files, links, inodes = {}, {}, set()
    for place in sorted(path.iterdir()):
        if place.is_symlink():
            links[place.name] = os.readlink(place)
        elif place.is_file():
            status = place.stat()
            if status.st_nlink > 1:
                inodes.add(status.st_ino)
        if place.is_file():
            files[place.name] = place.read_bytes()
    manifest = files.pop(MANIFEST, None)
    marks = _series(path / MARKS)
    return Seen(path.name, files, links, frozenset(inodes), manifest, marks, memory)


def _series(folder: Path) -> Series:
    records, copies = {}, set()
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if place.suffix == ".json":
            records[int(place.stem)] = place.read_bytes()
        elif place.suffix == ".copy":
            copies.add(int(place.stem))
    return Series(records, frozenset(copies))


def _text(place: Path) -> str:
    return place.read_text().strip() if place.is_file() else ""


def _bytes_below(place: Path) -> dict[str, bytes]:
    """Return all files of a directory, links by their text."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if path.is_symlink():
            found[name] = b"-> " + os.fsencode(os.readlink(path))
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def everything(root: Path, name: str) -> dict[str, bytes]:
    """Return all files of a checkpoint, its records too, links by their text."""
    return _bytes_below(root / name)


def _records(root: Path) -> Iterator[tuple[str, bytes]]:
    for place in sorted((*root.rglob("*.json"), *root.rglob("*.copy"))):
        name = place.relative_to(root).as_posix()
        if place.is_file() and not name.startswith(TRASH):
            yield name, place.read_bytes()
