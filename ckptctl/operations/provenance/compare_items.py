"""Comparing files item by item with another checkpoint, each item found by its key and its box."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from threading import Lock
from typing import TypeAlias

from ckptctl.checks import Context
from ckptctl.errors import MalformedData, NotFound
from ckptctl.formats.items.crc_summary import says_something, summary_of
from ckptctl.model.checkpoint import BoxIndex, Checkpoint, File, Item, TensorEntry
from ckptctl.operations.located import Located
from ckptctl.operations.provenance.collect import Plan
from ckptctl.provenance.counters import moment_of, parameter_of, tails_of
from ckptctl.provenance.evidence import Likeness, Probe
from ckptctl.storage import Reader
from ckptctl.storage.traffic import ahead

_MOST_ITEMS = 32
_ELSEWHERE = 3
_MOST_METADATA = 64 << 20
_BYTES_PER_FILE = 256
"""So much metadata weighs as much as a file that is listed, where what was read is kept."""


Twins: TypeAlias = dict[tuple[str, tuple[int, ...] | None], Item]
"""Items of another checkpoint by key and origin."""


def compare_items(
    own: Located, context: Context, plan: Plan, beside: Located, paths: Iterable[str]
) -> list[Probe]:
    """Compare up to 32 items of each file, and pieces of the same tensors in other files.

    Raises ``StorageError`` where either checkpoint cannot be read, ``MalformedData`` where the
    other's metadata cannot be used.
    """
    chosen = _choose(context, plan, set(paths))
    other = readable_beside(beside)
    twins = twins_of(other, {item.fqn for item in chosen})
    boxes = BoxIndex(other)
    lock = Lock()
    with ExitStack() as stack:
        readers: dict[tuple[bool, str], Reader] = {}

        def opened(where: Located, path: str, files: Mapping[str, File]) -> Reader:
            key = where is own, path
            with lock:
                if key not in readers:
                    if len(readers) > _MOST_ITEMS:
                        stack.pop_all().close()
                        readers.clear()
                    readers[key] = stack.enter_context(where.open(path, files, ahead=False))
                return readers[key]

        def probe_of(item: Item) -> Probe | None:
            twin = twins.get((item.fqn, item.offsets))
            if twin is None or item.transforms or twin.transforms:
                return None
            here, there = context.boxes.box(item), boxes.box(twin)
            if (here and here.sizes) != (there and there.sizes):
                return None
            try:
                reader = opened(own, item.path, context.checkpoint.files)
                mine = summary_of(reader, item.offset, item.length)
                reader = opened(beside, twin.path, other.files)
                theirs = summary_of(reader, twin.offset, twin.length)
            except (MalformedData, NotFound):
                return None
            kind = plan.kind(item.fqn)
            if mine is None or theirs is None or kind is None:
                return None
            if (
                kind is not Likeness.COUNT
                and not says_something(mine)
                and not says_something(theirs)
            ):
                return None
            entry = context.checkpoint.entries.get(item.fqn)
            fine = isinstance(entry, TensorEntry) and entry.dtype in ("float32", "float64")
            return Probe(item.path, item.fqn, kind, mine == theirs, fine)

        probes = (told() for told in ahead(own.store, probe_of, chosen))
        return [probe for probe in probes if probe is not None]


def _choose(context: Context, plan: Plan, paths: set[str]) -> list[Item]:
    """Choose what to compare: items of these files, then of the same tensors elsewhere."""
    items = context.checkpoint.items
    held: dict[str, list[int]] = {}
    for index, path in enumerate(items.paths):
        if path in paths and path in context.present and plan.kind(items.fqns[index]) is not None:
            held.setdefault(path, []).append(index)
    chosen: list[int] = []
    for members in held.values():
        chosen += _spread(members, context, plan)
    fqns = {items.fqns[index] for index in chosen}
    parameters = {parts[0] for fqn in fqns if (parts := moment_of(fqn)) is not None}
    weights = {fqn for fqn in fqns if plan.kind(fqn) is Likeness.WEIGHT}
    tails = {tail for fqn in weights for tail in tails_of(fqn)}
    elsewhere: dict[str, int] = {}
    for index, fqn in enumerate(items.fqns):
        if items.paths[index] not in context.present:
            continue
        inside = items.paths[index] in paths
        steps = (
            plan.kind(fqn) is Likeness.COUNT
            and fqn.endswith("step")
            and parameter_of(fqn) in parameters
        )
        # the weights that belong to moments, and the moments of weights, lie in another part
        moment = None if inside or fqn in fqns else moment_of(fqn)
        partner = not inside and (
            moment[0] in tails
            if moment is not None
            else plan.kind(fqn) is Likeness.WEIGHT and not parameters.isdisjoint(tails_of(fqn))
        )
        if (steps and fqn not in fqns) or (not inside and fqn in fqns) or partner:
            elsewhere[fqn] = elsewhere.get(fqn, 0) + 1
            if elsewhere[fqn] <= _ELSEWHERE:
                chosen.append(index)
    return [items[index] for index in sorted(chosen, key=lambda i: (items.paths[i], i))]


def _spread(members: list[int], context: Context, plan: Plan) -> list[int]:
    """Choose the largest moments and weights, some spread over the rest, and the counters."""
    items = context.checkpoint.items
    by_kind: dict[Likeness, list[int]] = {}
    for index in sorted(members, key=lambda i: (-items.lengths[i], items.fqns[i])):
        kind = plan.kind(items.fqns[index])
        if kind is not None:
            by_kind.setdefault(kind, []).append(index)
    found = by_kind.get(Likeness.COUNT, [])[: _MOST_ITEMS // 4]
    moments, weights = by_kind.get(Likeness.MOMENT, []), by_kind.get(Likeness.WEIGHT, [])
    for group, most in ((moments, _MOST_ITEMS // 2), (weights, _MOST_ITEMS - 20)):
        first, rest = group[: most // 2], group[most // 2 :]
        stride = max(1, len(rest) // max(1, most - len(first)))
        found = [*found, *first, *rest[::stride][: most - len(first)]]
    return found


def readable_beside(beside: Located) -> Checkpoint:
    """Read the metadata of another checkpoint; raises ``MalformedData`` where it cannot be used.

    That of a small one is kept for the next checkpoint whose neighbour it is.
    """
    place = beside.place
    key = "metadata", beside.store.url, place.path, place.format
    found: Checkpoint = beside.around.once(key, lambda: _read_beside(beside), _weight)
    return found


def _weight(checkpoint: Checkpoint) -> int:
    return sum(checkpoint.files[path].size for path in checkpoint.sources) // _BYTES_PER_FILE


def _read_beside(beside: Located) -> Checkpoint:
    files, layout = beside.files(), beside.place.layout
    sources = layout.metadata(files)
    if not sources:
        raise MalformedData("it has no metadata")
    if files[sources[0]].size > _MOST_METADATA:
        raise MalformedData("its metadata is too large to compare with")
    other = layout.read(beside.store, beside.base, files)
    if not other.readable:
        raise MalformedData("its metadata cannot be read")
    return other


def twins_of(other: Checkpoint, fqns: set[str]) -> Twins:
    """Return the items of some keys by key and origin."""
    items = other.items
    return {
        (fqn, items.origins[index]): items[index]
        for index, fqn in enumerate(items.fqns)
        if fqn in fqns
    }
