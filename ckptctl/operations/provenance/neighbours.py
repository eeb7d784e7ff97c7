"""Comparing a checkpoint with others of its root: sizes, digests in manifests, CRCs in items' ends.

Of the others only names, small metadata and the last bytes of a few items are read, never a payload.
First two or three items of each file are compared where they lie here; only files of which all of
these are equal are compared closely, item by item through the other checkpoint's own metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckptctl.checks import Context
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import CkptctlError, MalformedData, StorageError
from ckptctl.formats.items.crc_summary import CrcSummary, summary_of
from ckptctl.model.manifest import MANIFEST, Manifest
from ckptctl.operations.located import Located
from ckptctl.operations.place import read_manifest
from ckptctl.operations.provenance.collect import Plan, Spot
from ckptctl.operations.provenance.compare_items import compare_items
from ckptctl.operations.provenance.exchanges import exchanges_with
from ckptctl.operations.provenance.lacking import lacking_beside
from ckptctl.operations.provenance.siblings import Sibling, Siblings, counts, nearest, siblings_of
from ckptctl.operations.provenance.steps import steps_in
from ckptctl.provenance.counters import Stamp
from ckptctl.provenance.evidence import Lacking, Neighbour
from ckptctl.storage.traffic import ahead, is_remote, tasks

MOST_NEIGHBOURS = 4
_MOST_OPENED = 8000
_MOST_CLOSE = 64
_SAVE_ID_TAIL = 64 << 10


@dataclass(frozen=True, slots=True)
class Compared:
    """Neighbours that were compared, of how many, and the keys that all older ones have."""

    neighbours: tuple[Neighbour, ...] = ()
    total: int = 0
    lacking: Lacking = field(default_factory=Lacking)


def neighbours_of(
    located: Located,
    context: Context,
    plan: Plan,
    summaries: Mapping[tuple[str, int], CrcSummary],
    *,
    workers: int | None = 1,
    numbers: bool = False,
    counted: Iterable[Stamp] = (),
    older_than: int | None = None,
) -> Compared:
    """Compare a checkpoint with up to four others of its root, the nearest by step and in content.

    ``summaries`` are those that were picked up of its own items; with ``numbers`` those of a few
    items are read here and there. ``counted`` are steps that contradict each other; the others are asked for
    theirs. What cannot be read of another
    checkpoint is said in its ``problem``; nothing is raised for it.
    """
    stamps = tuple(counted)
    most = max(1, min(MOST_NEIGHBOURS, _MOST_OPENED // max(1, len(context.present))))
    found: list[Neighbour] = []
    every, lacking = Siblings(), Lacking()

    def compared(sibling: Sibling) -> Neighbour:
        one = _compare(located, context, plan, summaries, sibling, workers)
        if numbers and not one.problem:
            one = _with_exchanges(one, located, context, plan, sibling)
        if stamps and not one.problem:
            one = _with_steps(one, sibling, stamps)
        if one.alike and one.unlike:
            one = replace(one, kin=_kin(sibling, every.known, plan, one.alike | one.unlike))
        return one

    try:
        every = siblings_of(located)
        chosen = nearest(every.known, context, plan, summaries, most)
        found += [told() for told in ahead(located.store, compared, chosen)]
        lacking = lacking_beside(context.checkpoint, every.known, older_than)
    except CkptctlError as error:
        above = located.place.path.rpartition("/")[0] or "."
        found.append(Neighbour(above, problem=str(error)))
    return Compared(tuple(found), max(every.total, len(found)), lacking)


def _with_exchanges(
    one: Neighbour, located: Located, context: Context, plan: Plan, sibling: Sibling
) -> Neighbour:
    try:
        found = exchanges_with(located, context, plan, sibling.located)
    except CkptctlError as error:
        return replace(one, problem=str(error))
    matched = frozenset(found.matched)
    return replace(one, matched=matched, exchanged=tuple(found.exchanged))


def _with_steps(one: Neighbour, sibling: Sibling, stamps: Iterable[Stamp]) -> Neighbour:
    try:
        return replace(one, stamps=tuple(steps_in(sibling.located, stamps)))
    except CkptctlError as error:
        return replace(one, problem=str(error))


def _kin(
    sibling: Sibling, known: Iterable[Sibling], plan: Plan, files: frozenset[str]
) -> dict[str, frozenset[str]]:
    """Find what a checkpoint that shares some files shares with others: it may be the mixed one."""
    found: dict[str, frozenset[str]] = {}
    spots = [plan.spots[path][0] for path in sorted(files)[:_MOST_CLOSE]]
    own = dict(_summaries_at(sibling, spots))
    for other in known:
        if other.path != sibling.path:
            theirs = dict(_summaries_at(other, [spot for spot in spots if spot.path in own]))
            found[other.path] = frozenset(p for p, one in theirs.items() if own[p] == one)
    return found


def _summaries_at(sibling: Sibling, spots: list[Spot]) -> Iterator[tuple[str, CrcSummary]]:
    for spot in spots:
        entry = sibling.files.get(spot.path)
        if entry is None or entry.size < spot.offset + spot.length:
            continue
        try:
            with sibling.open(spot.path) as reader:
                found = summary_of(reader, spot.offset, spot.length)
        except (StorageError, MalformedData):
            continue
        if found is not None and counts(spot.kind, found):
            yield spot.path, found


def _compare(
    located: Located,
    context: Context,
    plan: Plan,
    summaries: Mapping[tuple[str, int], CrcSummary],
    sibling: Sibling,
    workers: int | None,
) -> Neighbour:
    times = {n: e.modified for n, e in sibling.files.items() if e.modified is not None}
    found = Neighbour(sibling.path, sibling.step, modified=times)
    try:
        manifest = _manifest(sibling)
        if manifest is not None and manifest.step is not None:
            found = replace(found, step=manifest.step)
        found = replace(found, saved_as_one=_saved_as_one(sibling, context))
        answers = _by_digest(context.seal.manifest, manifest, plan)
        rest = [path for path in plan.spots if path in context.present and path not in answers]
        answers |= _by_summaries(sibling, context, plan, summaries, rest, workers)
        alike = sorted(path for path, equal in answers.items() if equal)
        unlike = {path for path, equal in answers.items() if not equal}
        if alike:
            close = alike[: 8 if not unlike else _MOST_CLOSE]
            probes = compare_items(located, context, plan, sibling.located, close)
            differ = {probe.file for probe in probes if not probe.equal}
            same = {probe.file for probe in probes if probe.equal}
            proven = set(alike[len(close) :]) | (same - differ)
            alike = [path for path in alike if path in proven]
            found = replace(found, probes=tuple(probes))
            unlike |= differ & set(close)
        return replace(found, alike=frozenset(alike), unlike=frozenset(unlike))
    except CkptctlError as error:
        return replace(found, problem=str(error))


def _manifest(sibling: Sibling) -> Manifest | None:
    if MANIFEST not in sibling.files:
        return None
    try:
        return read_manifest(sibling.located.store, sibling.located.place)
    except MalformedData:
        return None  # said where that checkpoint is verified


def _saved_as_one(sibling: Sibling, context: Context) -> bool:
    """Tell whether the other metadata carries the same save id; it stands near the end."""
    own = context.checkpoint.identity.save_id
    if own is None:
        return False
    with sibling.open(sibling.metadata()) as reader:
        return own.encode() in reader.read(max(0, reader.size - _SAVE_ID_TAIL), reader.size)


def _by_digest(own: Manifest | None, other: Manifest | None, plan: Plan) -> dict[str, bool]:
    """Compare what two manifests promise; reads nothing."""
    if own is None or other is None:
        return {}
    theirs = {record.path: record for record in other.files}
    found = {}
    for record in own.files:
        twin = theirs.get(record.path)
        if record.path not in plan.spots or not record.size or twin is None:
            continue
        if record.digest.partition(":")[0] == twin.digest.partition(":")[0]:
            found[record.path] = (record.size, record.digest) == (twin.size, twin.digest)
    return found


def _by_summaries(
    sibling: Sibling,
    context: Context,
    plan: Plan,
    summaries: Mapping[tuple[str, int], CrcSummary],
    paths: list[str],
    workers: int | None,
) -> dict[str, bool]:
    """Compare two or three items of each file, where they lie here."""

    def look(path: str) -> tuple[str, bool | None]:
        own = [
            (spot, found)
            for spot in plan.spots[path]
            if (found := summaries.get((path, spot.offset))) is not None
            and counts(spot.kind, found)
        ]
        if not own:
            return path, None
        entry = sibling.files.get(path)
        if entry is None or entry.size != context.present[path]:
            return path, False
        with sibling.open(path) as reader:
            for spot, found in own:
                try:
                    if summary_of(reader, spot.offset, spot.length) != found:
                        return path, False
                except MalformedData:  # another layout: nothing of it lies where it lies here
                    return path, False
        return path, True

    answers: Iterable[tuple[str, bool | None]]
    # from a local disk threads are no faster: what is read is small and there already
    store = sibling.located.store
    if workers != 1 and len(paths) > 1 and is_remote(store):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(paths), tasks(store, workers))) as pool:
            answers = list(pool.map(look, paths))
    else:
        answers = map(look, paths)
    return {path: equal for path, equal in answers if equal is not None}
