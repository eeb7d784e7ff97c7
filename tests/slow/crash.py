"""Crashes of a file system: what a program did, and every disk that it may leave behind.

A ``Recorder`` stands where the operating system is and writes down each call. A ``Disk`` replays
the calls and knows what of them is durable. It is as hard as POSIX allows it to be:

- the content of a file that was not synced may be empty, torn, zeros of the right size, or there;
- a change of names (create, link, rename, unlink, mkdir, rmdir) that was not followed by a sync of
  its directory may be kept or lost, whatever became of its neighbours; only changes of one name
  keep their order, and a rename within a directory is one change;
- syncing a file says nothing about its name, and syncing a directory nothing about its own name.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from ckptctl.errors import (
    MalformedData,
    NotFound,
    NothingThere,
    RootMissing,
    ShortRead,
    StorageError,
)
from ckptctl.model.manifest import MANIFEST, Manifest, decode
from ckptctl.operations.catalog.resolve import NoneUsable, ResolveOptions, resolve
from ckptctl.storage import Entry
from ckptctl.storage.system import RealSystem

Answers: TypeAlias = frozenset[str | None]
"""Checkpoints that may be resumed from; None stands for a refusal to name any."""

NOTHING: Answers = frozenset([None])
MOST = 256
"""States per crash up to which all are visited; beyond it corners and a seeded sample."""

# ---------------------------------------------------------------------------------- recording


class Killed(BaseException):
    """The process is gone: nothing it would still have done happens."""


@dataclass(frozen=True, slots=True)
class Op:
    """One call; paths are relative to the recorder's root."""

    kind: str
    path: str
    other: str = ""
    data: bytes = b""

    def __str__(self) -> str:
        return " ".join(word for word in (self.kind, self.path, self.other) if word)


@dataclass(frozen=True, slots=True)
class Moment:
    """A crash after so many calls, and what may be resumed from then."""

    ops: int
    allowed: Answers
    doing: str


def remember_all(op: Op) -> bool:
    """The honest recorder leaves nothing out."""
    return True


class Recorder:
    """A ``System`` that does everything for real, but for the syncing, and writes it down.

    ``remember`` makes mutants: a call that it denies is done but not durable, as if the program
    had left it out. With ``lives`` the process is killed after so many more calls.
    """

    def __init__(self, root: Path, *, remember: Callable[[Op], bool] = remember_all) -> None:
        self._root, self._real, self._remember = root, RealSystem(), remember
        self.ops: list[Op] = []
        self.moments: list[Moment] = [Moment(0, NOTHING, "nothing yet")]
        self.lives: int | None = None

    def expect(self, allowed: Answers, doing: str) -> None:
        """Say what may be resumed from after a crash from now on."""
        self.moments.append(Moment(len(self.ops), allowed, doing))

    def make_directory(self, path: Path) -> None:
        self._do("mkdir", path, call=lambda: self._real.make_directory(path))

    def write(self, path: Path, data: bytes) -> None:
        self._do("write", path, data=bytes(data), call=lambda: self._real.write(path, data))

    def sync_file(self, path: Path) -> None:
        self._do("sync_file", path, call=lambda: _must_be(path.is_file()))

    def sync_directory(self, path: Path) -> None:
        self._do("sync_directory", path, call=lambda: _must_be(path.is_dir()))

    def link(self, source: Path, target: Path) -> None:
        self._do("link", source, target, call=lambda: self._real.link(source, target))

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", source, target, call=lambda: self._real.rename(source, target))

    def unlink(self, path: Path) -> None:
        self._do("unlink", path, call=lambda: self._real.unlink(path))

    def remove_directory(self, path: Path) -> None:
        self._do("rmdir", path, call=lambda: self._real.remove_directory(path))

    def _do(
        self,
        kind: str,
        path: Path,
        other: Path | None = None,
        *,
        data: bytes = b"",
        call: Callable[[], None],
    ) -> None:
        if self.lives == 0:
            raise Killed
        call()
        if self.lives is not None:
            self.lives -= 1
        if not path.is_relative_to(self._root):
            assert kind == "sync_directory", f"{kind} outside of the recorder's root"
            return
        op = Op(kind, self._name(path), self._name(other) if other else "", data)
        if self._remember(op):
            self.ops.append(op)
            last = self.moments[-1]
            self.moments.append(Moment(len(self.ops), last.allowed, last.doing))

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self._root).as_posix()
        return "" if relative == "." else relative


def _must_be(there: bool) -> None:
    if not there:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


# ---------------------------------------------------------------------------------- the disk

_TOP = 0
WHOLE = "whole"
VARIANTS = (WHOLE, "empty", "torn", "zeros")

Change: TypeAlias = tuple[tuple[int, str, int | None], ...]
"""Names that change in one step: directory, name, and what it names then."""


@dataclass(frozen=True)
class Tree:
    """One disk after a crash: files by path, each a file number and what its content became."""

    files: Mapping[str, tuple[int, str]]
    directories: frozenset[str]

    @property
    def key(self) -> frozenset[object]:
        """What makes two disks equal."""
        return frozenset(self.files.items()) | self.directories


@dataclass
class Disk:
    """What is on its way to a disk and what has arrived."""

    names: dict[int, dict[str, int]] = field(default_factory=lambda: {_TOP: {}})
    durable: dict[int, dict[str, int]] = field(default_factory=lambda: {_TOP: {}})
    contents: dict[int, bytes] = field(default_factory=dict)
    unsynced: list[int] = field(default_factory=list)
    pending: list[Change] = field(default_factory=list)

    def apply(self, op: Op) -> None:
        """Do one call."""
        getattr(self, f"_{op.kind}")(op)

    def _mkdir(self, op: Op) -> None:
        number = self._new()
        self.names[number], self.durable[number] = {}, {}
        self._change((*self._place(op.path), number))

    def _write(self, op: Op) -> None:
        number = self._new()
        self.contents[number] = op.data
        self.unsynced.append(number)
        self._change((*self._place(op.path), number))

    def _sync_file(self, op: Op) -> None:
        number = self._find(op.path)
        self.unsynced = [other for other in self.unsynced if other != number]

    def _sync_directory(self, op: Op) -> None:
        directory = self._find(op.path)
        for change in self.pending:
            if change[0][0] == directory:
                _carry_out(change, self.durable)
        self.pending = [change for change in self.pending if change[0][0] != directory]

    def _link(self, op: Op) -> None:
        self._change((*self._place(op.other), self._find(op.path)))

    def _rename(self, op: Op) -> None:
        number = self._find(op.path)
        old, new = self._place(op.path), self._place(op.other)  # one step, as in any journal
        self._change((*old, None), (*new, number))

    def _unlink(self, op: Op) -> None:
        self._change((*self._place(op.path), None))

    _rmdir = _unlink

    def _new(self) -> int:
        return len(self.names) + len(self.contents)

    def _find(self, path: str) -> int:
        number = _TOP
        for part in filter(None, path.split("/")):
            number = self.names[number][part]
        return number

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self._find(parent), name

    def _change(self, *change: tuple[int, str, int | None]) -> None:
        _carry_out(change, self.names)
        self.pending.append(change)

    def content(self, number: int, variant: str) -> bytes:
        """Return what a file holds if this became of it."""
        data = self.contents[number]
        if variant == WHOLE:
            return data
        return {"empty": b"", "torn": data[: len(data) // 2], "zeros": bytes(len(data))}[variant]

    def crashes(self, chance: random.Random) -> Iterator[Tree]:
        """Yield the disks that a crash now may leave; the same one may come more than once."""
        earlier = self._dependencies()
        for kept, variants in self._choices(chance):
            if all(not kept >> i & 1 or kept & mask == mask for i, mask in enumerate(earlier)):
                yield self._tree(kept, dict(zip(self.unsynced, variants, strict=True)))

    def _dependencies(self) -> list[int]:
        """Return for each pending change, as bits, which earlier ones it cannot do without."""
        touched = [{(d, name) for d, name, _ in change} for change in self.pending]
        return [
            sum(1 << i for i in range(j) if touched[i] & touched[j]) for j in range(len(touched))
        ]

    def _choices(self, chance: random.Random) -> Iterator[tuple[int, tuple[str, ...]]]:
        names, files = len(self.pending), len(self.unsynced)
        if 2**names * len(VARIANTS) ** files <= MOST:
            yield from itertools.product(range(2**names), itertools.product(VARIANTS, repeat=files))
            return
        everything = 2**names - 1
        corners = {0, everything, *(2**i - 1 for i in range(names))}
        corners |= {everything & ~(1 << i) for i in range(names)} | {1 << i for i in range(names)}
        for kept in sorted(corners):
            for variant in VARIANTS if files else (WHOLE,):
                yield kept, (variant,) * files
        for _ in range(MOST):
            yield self._closed(chance.getrandbits(names)), tuple(chance.choices(VARIANTS, k=files))

    def _closed(self, kept: int) -> int:
        """Drop the changes whose forerunners are dropped."""
        for i, mask in enumerate(self._dependencies()):
            if kept & mask != mask:
                kept &= ~(1 << i)
        return kept

    def _tree(self, kept: int, variants: Mapping[int, str]) -> Tree:
        names = {number: dict(inside) for number, inside in self.durable.items()}
        for i, change in enumerate(self.pending):
            if kept >> i & 1:
                _carry_out(change, names)
        files: dict[str, tuple[int, str]] = {}
        directories: set[str] = set()
        queue = [("", _TOP)]
        while queue:
            path, number = queue.pop()
            directories.add(path)
            for name, below in names[number].items():
                if below in names:
                    queue.append((posixpath.join(path, name), below))
                else:
                    files[posixpath.join(path, name)] = below, variants.get(below, WHOLE)
        return Tree(files, frozenset(directories))


def _carry_out(change: Change, names: dict[int, dict[str, int]]) -> None:
    for directory, name, number in change:
        if number is None:
            names[directory].pop(name, None)
        else:
            names[directory][name] = number


# ---------------------------------------------------------------------------------- reading it


@dataclass(frozen=True, slots=True)
class BytesReader:
    """A ``Reader`` of bytes at hand."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        if stop > len(self.data):
            raise ShortRead("past the end")
        return self.data[start:stop]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None:
        pass

    def __enter__(self) -> BytesReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class TreeStore:
    """A ``Store`` that shows one disk, or the directory ``base`` of it."""

    url = "run"

    def __init__(self, tree: Tree, disk: Disk, base: str = "") -> None:
        self._disk = disk
        prefix = f"{base}/" if base else ""
        self._files = {
            path.removeprefix(prefix): what
            for path, what in tree.files.items()
            if path.startswith(prefix)
        }
        self._below: dict[str, list[str]] = {}
        if base in tree.directories:
            self._below[""] = []
        for path in tree.directories:
            if path != base and path.startswith(prefix):
                self._below[path.removeprefix(prefix)] = []
        for path in [*self._files, *filter(None, self._below)]:
            self._below[path.rpartition("/")[0]].append(path)

    def entries(self, path: str = "") -> list[Entry]:
        if path not in self._below:
            raise NotFound(path)
        return [self.stat(below) for below in sorted(self._below[path])]

    def stat(self, path: str = "") -> Entry:
        if path in self._below:
            return Entry(path, "directory", 4096)
        return Entry(path, "file", len(self._data(path)))

    def open(self, path: str) -> BytesReader:
        if path in self._below:
            raise StorageError(f"{path} is not a regular file")
        return BytesReader(self._data(path))

    def _data(self, path: str) -> bytes:
        if path not in self._files:
            raise NotFound(path)
        return self._disk.content(*self._files[path])


def materialise(tree: Tree, disk: Disk, target: Path) -> None:
    """Make a real directory of one disk."""
    for path in sorted(tree.directories):
        (target / path).mkdir(parents=True, exist_ok=True)
    for path, what in tree.files.items():
        (target / path).write_bytes(disk.content(*what))


# ---------------------------------------------------------------------------------- judging it

Truth: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""What was committed under each name: its files."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader makes of one disk: answers to a quick and a full look, and what is false."""

    quick: str | None
    full: str | None
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """A disk on which a promise is broken."""

    moment: Moment
    after: str
    what: str
    tree: Tree

    def __str__(self) -> str:
        where = f"{self.moment.doing}, after call {self.moment.ops} ({self.after})"
        return f"{where}: {self.what}; on disk: {', '.join(sorted(self.tree.files))}"


@dataclass
class Census:
    """How many disks were visited, how many of them differ, and what was wrong."""

    moments: int = 0
    visited: int = 0
    distinct: int = 0
    violations: list[Violation] = field(default_factory=list)
    trees: list[tuple[Tree, Seen]] = field(default_factory=list)
    disk: Disk = field(default_factory=Disk)

    def __str__(self) -> str:
        return (
            f"{self.moments} crashes, {self.visited} disks, {self.distinct} of them different, "
            f"{len(self.violations)} violations"
        )


def answer(store: TreeStore, *, full: bool) -> str | None:
    """Ask what to resume from; whatever else is raised goes through."""
    try:
        return resolve(store, options=ResolveOptions(full=full, workers=1)).name
    except (NothingThere, NoneUsable, RootMissing):
        return None


class Judge:
    """Looks at each different disk once."""

    def __init__(self, disk: Disk, truth: Truth, base: str = "") -> None:
        self._disk, self._truth, self._base = disk, truth, base
        self._seen: dict[frozenset[object], Seen] = {}
        self._manifests: dict[tuple[int, str], bool] = {}

    @property
    def trees(self) -> int:
        """How many different disks there were."""
        return len(self._seen)

    def look(self, tree: Tree) -> tuple[Seen, bool]:
        """Return what a reader makes of a disk, and whether it is a new one."""
        key = tree.key
        if key in self._seen:
            return self._seen[key], False
        self._seen[key] = found = self._ask(tree)
        return found, True

    def _ask(self, tree: Tree) -> Seen:
        wrong = [f"{name} has a manifest and is not whole" for name in self._lying(tree)]
        answers: list[str | None] = []
        for full in (False, True):
            try:
                found = answer(TreeStore(tree, self._disk, self._base), full=full)
            except Exception as error:  # any is a violation
                wrong.append(f"resolve raised {error!r}")
                found = None
            if found is not None and not self._whole(tree, found):
                wrong.append(f"resolve chose {found}, which is not what was committed")
            answers.append(found)
        return Seen(answers[0], answers[1], tuple(wrong))

    def _lying(self, tree: Tree) -> Iterator[str]:
        for name in self._truth:
            what = tree.files.get(posixpath.join(self._base, name, MANIFEST))
            if what is not None and self._readable(what) and not self._whole(tree, name):
                yield name

    def _readable(self, what: tuple[int, str]) -> bool:
        if what not in self._manifests:
            try:
                decode(Manifest, self._disk.content(*what))
                self._manifests[what] = True
            except MalformedData:
                self._manifests[what] = False
        return self._manifests[what]

    def _whole(self, tree: Tree, name: str) -> bool:
        for path, data in self._truth.get(name, {"": b""}).items():
            what = tree.files.get(posixpath.join(self._base, name, path))
            if what is None or self._disk.content(*what) != data:
                return False
        return True


def go_through(violation: Violation) -> bool:
    """No violation is enough."""
    return False


def survey(
    ops: Iterable[Op],
    moments: Iterable[Moment],
    truth: Truth,
    *,
    base: str = "",
    seed: int = 0,
    enough: Callable[[Violation], bool] = go_through,
) -> Census:
    """Crash at every moment, visit every disk that may be left, and judge each.

    The first violation that is ``enough`` ends it.
    """
    log, chance = list(ops), random.Random(seed)
    disk, done = Disk(), 0
    judge, census = Judge(disk, truth, base), Census(disk=disk)
    for moment in moments:
        for op in log[done : moment.ops]:
            disk.apply(op)
        done = moment.ops
        census.moments += 1
        for tree in disk.crashes(chance):
            seen, new = judge.look(tree)
            census.visited += 1
            census.distinct = judge.trees
            if new:
                census.trees.append((tree, seen))
            after = str(log[moment.ops - 1]) if moment.ops else "none"
            for what in _broken(seen, moment):
                census.violations.append(Violation(moment, after, what, tree))
                if enough(census.violations[-1]):
                    return census
    return census


def _broken(seen: Seen, moment: Moment) -> Iterator[str]:
    yield from seen.wrong
    for how, found in (("resolve", seen.quick), ("resolve --full", seen.full)):
        if found not in moment.allowed:
            allowed = ", ".join(sorted(map(str, moment.allowed)))
            yield f"{how} says {found}, and {allowed} was promised"
