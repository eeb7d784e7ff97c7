"""What the pointer decides, and whether that is known: asked by whoever chooses, lists or deletes."""

from __future__ import annotations

from collections.abc import Collection

from ckptctl import protocol
from ckptctl.dataclass import dataclass
from ckptctl.errors import StorageError
from ckptctl.formats.base import read_small
from ckptctl.model.manifest import LATEST, PointerRevision
from ckptctl.operations.pointers import in_one_line, in_text
from ckptctl.storage import Store
from ckptctl.storage.traffic import both

_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pointer decides: ``revision`` counts, or ``problem`` says why that is not known.

    ``older`` is the newest revision that can be read, ``newer`` the checkpoint that the newest
    may have named, empty where nothing tells. ``last`` is the highest number of a revision.
    """

    revision: PointerRevision | None = None
    last: int = 0
    problem: str = ""
    older: PointerRevision | None = None
    newer: str = ""

    @property
    def said(self) -> str:
        """What is not known, in one sentence."""
        older = "no other can be read"
        if self.older is not None:
            older = f"revision {self.older.revision} names {self.older.target}"
        newer = f", and the newest may have named {self.newer}" if self.newer else ""
        return f"pointer {LATEST}: {self.problem}; {older}{newer}"


def decide(store: Store, paths: Collection[str], *, newest: str | None = None) -> Decision:
    """Read the pointer; ``paths`` are the checkpoints of the root, ``newest`` the newest committed.

    The plain text copy is never trusted, but where it names a checkpoint that no revision names,
    a revision is gone. Raises ``StorageError`` where the revisions cannot be listed.
    """
    pointer, copy = both(
        store, lambda: protocol.read_pointer(store), lambda: _courtesy(store, paths)
    )
    problem, newer = pointer.problems[0] if pointer.problems else "", ""
    if problem:
        newer = pointer.copy.target if pointer.copy is not None else copy
    elif copy and _unknown(store, pointer, copy, newest):
        problem = (
            f"the text in {LATEST} names {copy}, which no revision names: the newest may be gone"
        )
        newer = copy
    if not problem:
        return Decision(pointer.revision, pointer.last)
    if pointer.revision is not None and newer == pointer.revision.target and not pointer.copy:
        newer = ""
    return Decision(None, pointer.last, problem, pointer.revision, newer)


def _courtesy(store: Store, paths: Collection[str]) -> str:
    """Return the checkpoint that the plain text copy names; empty where it names none here."""
    try:
        text = in_one_line(in_text(read_small(store, LATEST, _LIMIT) or b""))
    except StorageError:
        return ""
    return text if text in paths else ""


def _unknown(store: Store, pointer: protocol.Pointer, copy: str, newest: str | None) -> bool:
    """Tell whether no revision names what the copy names."""
    if copy == (newest if pointer.revision is None else pointer.revision.target):
        return False
    found = protocol.revisions(store)
    return not any(isinstance(one, PointerRevision) and one.target == copy for one in found)
