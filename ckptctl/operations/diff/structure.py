"""Comparing two checkpoints without reading any content: facts, counters, keys, shapes, dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from ckptctl.comparison.consequences import Consequence, rule_of, standard_facts, without_doubles
from ckptctl.comparison.difference import (
    Counter,
    EntryChange,
    FactChange,
    KeyChange,
    Renamed,
    Structure,
    consequence_in,
)
from ckptctl.comparison.renaming import match_renamed
from ckptctl.model.checkpoint import Checkpoint, Entry, TensorEntry
from ckptctl.model.components import component_of, elements
from ckptctl.model.geometry import Shape
from ckptctl.model.run_facts import CONFIG, CONFIG_DIGEST, Plain, same
from ckptctl.operations.provenance.facts import Facts

Wanted = Callable[[str], bool]
_CHECKED = frozenset({"model", "optimizer"})
"""Components of which loading fails if a key is missing."""


def compare_facts(a: Facts, b: Facts, wanted: Wanted) -> tuple[list[FactChange], int]:
    """Compare what is recorded of both runs; return what differs and how many facts both have.

    A fact that one side does not record may still be the same. Only inside the configuration,
    where both record that of one framework, is it a difference.
    """
    one, other = _all(a.identity), _all(b.identity)
    configured = _comparable(one, other)
    both = [name for name in one if name in other and wanted(name)]
    differing = [name for name in both if not same(one[name], other[name])]
    changed: dict[str, str] = dict.fromkeys(without_doubles(differing), "")
    spelled = {x for n, (_, x) in [*_standard(a), *_standard(b)] if n in one and n in other}
    for side, own, rest in (("a", a.identity, other), ("b", b.identity, one)):
        for name in own:
            if name not in rest and name not in spelled and wanted(name):
                within = configured and name.startswith(f"{CONFIG}.")
                changed[name] = "" if within else side
    if any(name.startswith(f"{CONFIG}.") for name in changed):
        changed.pop(CONFIG_DIGEST, None)
    rows = []
    for name, only in changed.items():
        rule = rule_of(name)
        rows.append(
            FactChange(
                name,
                one.get(name),
                other.get(name),
                rule.consequence if rule else Consequence.UNKNOWN,
                rule.about if rule else "",
                only,
            )
        )
    rows.sort(key=lambda row: (bool(row.only), row.consequence.rank, row.name))
    return rows, len(both)


def _all(identity: Mapping[str, Plain]) -> dict[str, Plain]:
    """Add the standard facts that are there under another name."""
    return {**{n: value for n, (value, _) in standard_facts(identity).items()}, **identity}


def _standard(facts: Facts) -> Iterable[tuple[str, tuple[Plain, str]]]:
    return standard_facts(facts.identity).items()


def _comparable(a: Mapping[str, Plain], b: Mapping[str, Plain]) -> bool:
    """Tell whether both record a configuration, and of one framework: most names are the same."""
    ours = {name for name in a if name.startswith(f"{CONFIG}.")}
    theirs = {name for name in b if name.startswith(f"{CONFIG}.")}
    return bool(ours and theirs) and 2 * len(ours & theirs) >= min(len(ours), len(theirs))


def compare_progress(
    a: Mapping[str, Plain], b: Mapping[str, Plain], wanted: Wanted
) -> list[Counter]:
    """Compare counters: steps, samples, epochs."""
    rows = []
    for name in sorted({*a, *b}, key=lambda one: (one != "step", one)):
        if not wanted(name):
            continue
        one, other = a.get(name), b.get(name)
        apart: float | None = None
        if isinstance(one, int | float) and isinstance(other, int | float):
            try:
                apart = other - one
            except OverflowError:  # a fraction and a number beyond any
                apart = math.inf if other > one else -math.inf
        rows.append(Counter(name, one, other, apart))
    return rows


def compare_structure(
    a: Checkpoint, b: Checkpoint, wanted: Wanted
) -> tuple[Structure, list[tuple[str, str]]]:
    """Compare keys, kinds, shapes, dtypes and sharding; return that and the keys that correspond."""
    left, right = a.entries, b.entries
    gone = [fqn for fqn in left if fqn not in right]
    came = [fqn for fqn in right if fqn not in left]

    def alike(one: str, other: str) -> bool:
        x, y = left[one], right[other]
        if isinstance(x, TensorEntry) and isinstance(y, TensorEntry):
            return x.shape == y.shape
        return type(x) is type(y)

    renamed: list[Renamed] = []
    taken: set[str] = set()
    for group in match_renamed(gone, came, alike):
        taken.update(name for pair in group.pairs for name in pair)
        chosen = tuple(pair for pair in group.pairs if any(map(wanted, pair)))
        if chosen:
            renamed.append(Renamed(group.old, group.new, chosen))
    pairs = [(fqn, fqn) for fqn in left if fqn in right and wanted(fqn)]
    pairs += [pair for group in renamed for pair in group.pairs]
    removed = [fqn for fqn in gone if fqn not in taken and wanted(fqn)]
    changed = [change for one, other in pairs for change in _changes(left[one], right[other])]
    touched = {change.fqn for change in changed if change.what != "sharding"}
    structure = Structure(
        removed=tuple(_keys(a, removed)),
        added=tuple(_keys(b, [fqn for fqn in came if fqn not in taken and wanted(fqn)])),
        renamed=tuple(renamed),
        changed=tuple(changed),
        keys=len(pairs) + len(removed),
        same=len(pairs) - len(touched),
    )
    return structure, pairs


def component_in(checkpoint: Checkpoint, fqn: str) -> str:
    """Classify a key of a checkpoint."""
    tensor = isinstance(checkpoint.entries.get(fqn), TensorEntry)
    return component_of(elements(fqn, checkpoint.paths_in_state.get(fqn)), tensor=tensor)


def _keys(checkpoint: Checkpoint, fqns: list[str]) -> list[KeyChange]:
    rows = []
    for fqn in fqns:
        component = component_in(checkpoint, fqn)
        worst = Consequence.BREAKS_LOAD if component in _CHECKED else consequence_in(component)
        tensor = isinstance(checkpoint.entries[fqn], TensorEntry)
        rows.append(KeyChange(fqn, component, worst, tensor))
    return rows


def _changes(a: Entry, b: Entry) -> list[EntryChange]:
    fqn = a.fqn
    if not isinstance(a, TensorEntry) or not isinstance(b, TensorEntry):
        if type(a) is type(b):
            return []
        kinds = ("tensor", "object") if isinstance(a, TensorEntry) else ("object", "tensor")
        return [EntryChange(fqn, "kind", *kinds, Consequence.BREAKS_LOAD)]
    found = []
    if a.shape != b.shape:
        shapes = (str(list(a.shape)), str(list(b.shape)))
        found.append(EntryChange(fqn, "shape", *shapes, Consequence.BREAKS_LOAD))
    if a.dtype != b.dtype:
        found.append(EntryChange(fqn, "dtype", a.dtype, b.dtype, Consequence.NUMERICS))
    if a.shape == b.shape and not same_boxes(a, b):
        found.append(EntryChange(fqn, "sharding", cut(a), cut(b), Consequence.HARMLESS))
    return found


def solid(entry: TensorEntry) -> set[tuple[Shape, Shape]]:
    """Return the boxes that hold anything."""
    return {(box.offsets, box.sizes) for box in entry.boxes if box.volume}


def same_boxes(a: TensorEntry, b: TensorEntry) -> bool:
    """Tell whether two tensors of one shape are cut alike."""
    if (a.boxes.offsets, a.boxes.sizes) == (b.boxes.offsets, b.boxes.sizes):
        return True
    return solid(a) == solid(b)


def cut(entry: TensorEntry) -> str:
    """Say how a tensor is cut: ``4 x 1``, ``whole``, ``7 irregular``; ``-`` for a scalar."""
    boxes = solid(entry)
    if len(boxes) <= 1:
        return "whole"
    counts = [len({offsets[d] for offsets, _ in boxes}) for d in range(len(entry.shape))]
    if math.prod(counts) != len(boxes):
        return f"{len(boxes)} irregular"
    return " x ".join(map(str, counts))
