"""Is there really nothing? Only then may a launcher start from nothing.

A root without checkpoints may hold what launchers and trainers put there before the first save:
logs, configurations, notes. Whatever else lies there may be what is left of a run.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import CkptctlError, Findings, NotFound, NothingThere, RootMissing
from ckptctl.model.manifest import LATEST, POINTERS, TRASH
from ckptctl.model.names import parse_name
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.place import FILES, RECORDS
from ckptctl.operations.pointers import is_pointer
from ckptctl.pattern import pattern
from ckptctl.storage import Entry, Store
from ckptctl.words import listed

_DEPTH = 8
_MOST = 10_000
_MOST_NAMED = 12
_PEEK = 4096
_OF_STATE = (
    *FILES,
    ".distcp",
    ".pickle",
    ".npz",
    ".npy",
    ".h5",
    ".hdf5",
    ".msgpack",
    ".gguf",
    ".onnx",
    ".tar",
    ".zip",
    ".zarr",
    ".index",
)
"""Endings of files in which state is kept, so that they are something whatever they hold."""
_HARMLESS = pattern(
    r".*tfevents.*|.*\.(?:log|out|err|txt|md|rst|json|jsonl|ya?ml|toml|cfg|ini|csv|tsv|html?|xml|py|pyc"
    r"|sh|ipynb|lock|pid|png|jpe?g|gif|svg|pdf|wandb|db|sqlite|so|nsys-rep|ncu-rep|swp"
    r"|(?:log|txt|jsonl?|csv|trace)\.(?:gz|zst|xz|bz2))(?:\.\d+)?|\.DS_Store|tokenizer\.model"
    r"|spiece\.model|core(?:\.\d+)?",
    re.IGNORECASE,
)
"""Names of what no trainer takes for its state, though it need not be text."""
_MIGHT_NAME = pattern(
    r"(?:step|checkpoint|ckpt|iter(?:ation)?|epoch|update|save)s?[\W_]*\d|\d[\W_]*(?:steps?|iters?)",
    re.IGNORECASE,
)
"""Names that somebody meant for a checkpoint, whatever else stands in them and whatever they are."""
_SYSTEM = frozenset({".git", ".snapshot", "__pycache__", "lost+found", "node_modules"})
_TEXT = bytes({7, 8, 9, 10, 11, 12, 13, 27} | set(range(0x20, 0x100)))


@dataclass(frozen=True, slots=True)
class Vacancy(Answer):
    """What a root without checkpoints holds: what was listed, and what may be left of a run."""

    root: str = field(metadata=PATH)
    listed: tuple[str, ...]
    remains: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What may be left of a run is no fresh start."""
        return Verdict.FINDINGS if self.remains else Verdict.OK


def nothing_here(store: Store) -> CkptctlError:
    """Return how to end where a root holds no checkpoint: ``NothingThere``, or ``Findings``.

    Raises ``RootMissing`` where it is not there, ``StorageError`` where a part of it cannot be
    listed.
    """
    try:
        top = store.entries()
    except NotFound:
        raise RootMissing(f"{store.url}: no such directory") from None
    names = tuple(entry.name for entry in top)
    remains = tuple(_Look(store).below(top, _DEPTH))
    what = Vacancy(store.url, names, remains)
    error: CkptctlError
    if remains:
        error = Findings(
            f"{store.url}: no checkpoint is left here, and it is no new root: "
            f"{'; '.join(remains[:_MOST_NAMED])}"
        )
    else:
        seen = listed(names, _MOST_NAMED) if names else "nothing"
        error = NothingThere(
            f"{store.url}: no checkpoint here or below, nor what could be one; listed: {seen}"
        )
    error.result = what
    return error


class _Look:
    """One look at everything below a root."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = 0
        self._real = {self._resolved("")}

    def below(self, entries: list[Entry], depth: int) -> Iterator[str]:
        """Say what may be left of a run, and why."""
        for entry in entries:
            self._seen += 1
            if self._seen > _MOST:
                yield f"more than {_MOST:,} files were not looked at"
                return
            if entry.kind == "directory":
                yield from self._folder(entry, depth)
            elif entry.kind == "other":
                if entry.target is not None and not self._is_mere(entry):
                    yield f"{entry.path} is a link to {entry.target}, which is not there"
                elif _named(entry.name) or entry.name.lower().endswith(_OF_STATE):
                    yield f"{entry.path} is named like a checkpoint and is no file"
            else:
                yield from self._file(entry)

    def _is_mere(self, entry: Entry) -> bool:
        """Tell whether a link that leads nowhere is a log's or an editor's, which once led in here."""
        inside = self._resolved(entry.path).startswith(f"{self._resolved('')}/")
        state = is_pointer(entry.name) or _named(entry.name)
        return inside and not state and _HARMLESS.fullmatch(entry.name) is not None

    def _folder(self, entry: Entry, depth: int) -> Iterator[str]:
        if entry.name in _SYSTEM or depth == 0:
            return
        if entry.target is not None:
            real = self._resolved(entry.path)
            if any(known == real or known.startswith(f"{real}/") for known in self._real):
                yield f"{entry.path} is a link that leads back to {real}"
                return
            self._real.add(real)
        try:
            inside = self._store.entries(entry.path)
        except NotFound:
            return
        if entry.name.startswith("ckptctl.") or entry.name.endswith(RECORDS):
            yield from self._ours(entry, inside)
        elif not inside and _named(entry.name):
            yield f"{entry.path} is named like a checkpoint and is empty"
        elif parse_name(entry.name.lstrip(".")).recognised and entry.name.startswith("."):
            yield f"{entry.path} is named like a save that was not finished"
        else:
            yield from self.below(inside, depth - 1)

    def _ours(self, entry: Entry, inside: list[Entry]) -> Iterator[str]:
        """Say what records of ours are left in a directory."""
        if not any(self._files(one, 3) for one in inside):
            if entry.name == POINTERS:
                yield f"{entry.path} is empty, and only a promotion makes it"
        elif entry.name == TRASH:
            yield f"{entry.path} holds what `ckptctl prune` moved aside (`ckptctl undelete`)"
        elif entry.name == POINTERS:
            yield f"{entry.path} holds a pointer that says that there were some"
        else:
            yield f"{entry.path} holds records of a checkpoint"

    def _files(self, entry: Entry, depth: int) -> bool:
        if entry.kind != "directory" or entry.target is not None:
            return True
        return depth == 0 or any(
            self._files(one, depth - 1) for one in self._store.entries(entry.path)
        )

    def _file(self, entry: Entry) -> Iterator[str]:
        name = entry.name
        if name.startswith(".ckptctl-"):
            return
        if is_pointer(name) or name == LATEST:
            yield f"{entry.path} is a pointer that says that there were some"
        elif name.startswith("ckptctl."):
            yield f"{entry.path} is a record of a checkpoint"
        elif entry.size == 0:
            return
        elif name.lower().endswith(_OF_STATE):
            yield f"{entry.path} may hold state"
        elif not _HARMLESS.fullmatch(name) and not self._is_text(entry):
            yield f"{entry.path} ({entry.size} bytes) is no text, so it may hold state"

    def _is_text(self, entry: Entry) -> bool:
        try:
            with self._store.open(entry.path) as reader:
                data = reader.read(0, min(reader.size, _PEEK))
        except NotFound:
            return True
        if data.translate(None, _TEXT):
            return False
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return error.start > len(data) - 4  # a character that the limit cut
        return True

    def _resolved(self, path: str) -> str:
        url = self._store.url
        return path if "://" in url else os.path.realpath(posixpath.join(url, path))


def _named(name: str) -> bool:
    return parse_name(name.strip()).recognised or bool(_MIGHT_NAME.search(name))
