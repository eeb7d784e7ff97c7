"""What damage touches: the keys that are left out when the rest is to be taken all the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckptctl.dataclass import dataclass
from ckptctl.model.checkpoint import Checkpoint, FaultKind, Items
from ckptctl.model.finding import Finding, Touched


@dataclass(frozen=True, slots=True)
class Damage:
    """What findings touch.

    ``keys`` are left out, whether the metadata still has them or not. ``unnamed`` says where
    something was lost of which nothing tells the key. ``altered`` are files that are not those
    which were committed: of what lies in them, only what a CRC proves is taken.
    """

    keys: frozenset[str] = frozenset()
    unnamed: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()


def damage_of(errors: Iterable[Finding], checkpoint: Checkpoint) -> Damage | None:
    """Gather what findings touch, or None where one of them is about the whole."""
    keys: set[str] = set()
    unnamed: set[str] = set()
    altered: set[str] = set()
    items, by_path = checkpoint.items, checkpoint.items.by_path()
    for finding in errors:
        path = finding.where.file
        if finding.check == FaultKind.ALTERED_FILE.value and path in by_path:
            altered.add(path)
            continue
        touched = finding.touched or _there(finding, items, by_path)
        if touched is None:
            return None
        held = {items.fqns[index] for path in touched.files for index in by_path.get(path, ())}
        if touched.files and not held:
            return None
        keys |= touched.keys | held
        unnamed |= touched.unnamed
    return Damage(frozenset(keys), frozenset(unnamed), frozenset(altered))


def _there(finding: Finding, items: Items, by_path: Mapping[str, list[int]]) -> Touched | None:
    """Return what lies where a finding is: its key, or the items of its bytes or its file."""
    where = finding.where
    if where.fqn is not None:
        return Touched.of((where.fqn,))
    inside = by_path.get(where.file or "", [])
    if not inside:
        return None
    start, stop = where.start, where.stop
    if start is not None and stop is not None:
        ends = {index: items.offsets[index] + items.lengths[index] for index in inside}
        inside = [i for i in inside if items.offsets[i] < stop and ends[i] > start] or inside
    return Touched.of(items.fqns[index] for index in inside)
