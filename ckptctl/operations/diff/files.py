"""Files that no key of a checkpoint lies in: states of an optimizer or a schedule beside the tensors.

What may hold state is compared byte by byte; what only one side has is missing on the other. The
rest, such as a configuration or a tokenizer, is named as not compared.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptctl.comparison.consequences import Consequence
from ckptctl.comparison.difference import ContentRow, KeyChange, Verdict, consequence_in
from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import StorageError
from ckptctl.formats.items.runs import block_of
from ckptctl.hashing import Hasher
from ckptctl.model.components import component_of, elements
from ckptctl.model.paths import join
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.unread import files_apart, holds_state


@dataclass(frozen=True, slots=True)
class FilesSeen:
    """How the files beside the keys compare; ``apart`` are those that were not compared."""

    removed: tuple[KeyChange, ...] = ()
    added: tuple[KeyChange, ...] = ()
    rows: tuple[ContentRow, ...] = ()
    equal: int = 0
    apart: tuple[str, ...] = ()


def compare_files(a: Opened, b: Opened, wanted: Callable[[str], bool], *, quick: bool) -> FilesSeen:
    """Compare what lies beside the keys of two checkpoints."""
    ours, theirs = files_apart(a), files_apart(b)
    names = sorted(path for path in ours.keys() | theirs.keys() if wanted(path))
    states = [path for path in names if holds_state(path)]
    rows = [_row(a, b, path, quick=quick) for path in states if path in ours and path in theirs]
    return FilesSeen(
        tuple(_change(path) for path in states if path not in theirs),
        tuple(_change(path) for path in states if path not in ours),
        tuple(row for row in rows if row.verdict is not Verdict.EQUAL),
        sum(row.verdict is Verdict.EQUAL for row in rows),
        tuple(path for path in names if not holds_state(path)),
    )


def _component(path: str) -> str:
    stem = path.rpartition("/")[2].partition(".")[0]
    return component_of(elements(stem.replace("-", ".")), tensor=False)


def _change(path: str) -> KeyChange:
    component = _component(path)
    breaks = component in ("model", "optimizer", "other")
    worst = Consequence.BREAKS_LOAD if breaks else consequence_in(component)
    return KeyChange(path, component, worst, tensor=False)


def _row(a: Opened, b: Opened, path: str, *, quick: bool) -> ContentRow:
    component = _component(path)
    row = ContentRow(
        path, path, component, Verdict.UNKNOWN, "", consequence_in(component), tensor=False
    )
    one, other = a.checkpoint.files[path], b.checkpoint.files[path]
    if one.size != other.size:
        return replace(row, verdict=Verdict.DIFFERS, how="its bytes")
    if quick:
        return replace(row, how="only reading would tell")
    try:
        equal = _digest(a, path) == _digest(b, path)
    except StorageError as error:
        return replace(row, problem=str(error))
    return replace(row, verdict=Verdict.EQUAL if equal else Verdict.DIFFERS, how="its bytes")


def _digest(side: Opened, path: str) -> str:
    hasher = Hasher()
    with side.store.open(join(side.base, path)) as reader:
        block = block_of(reader)
        for start in range(0, reader.size, block):
            hasher.update(reader.read(start, min(start + block, reader.size)))
    return hasher.text()
