"""Picking up what tells of step and run while a checkpoint's bytes go by, so that none is read twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckptctl.checks import Context
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import MalformedData, UnsafeData
from ckptctl.formats.items.crc_summary import TAIL, CrcSummary, summary_from, summary_in
from ckptctl.formats.pickles.values import MAX_VALUE, decode_item, decode_number, decode_pickle
from ckptctl.model.checkpoint import Checkpoint, Entry, Item, TensorEntry
from ckptctl.model.companion import UPDATES, Form
from ckptctl.model.components import KeyName, elements
from ckptctl.model.observation import ItemSeen
from ckptctl.provenance.counters import (
    MOST_BYTES,
    Counter,
    Path,
    RunMark,
    Stamp,
    counts_steps,
    moment_of,
    stamps_beside,
    stamps_of,
    tells,
)
from ckptctl.provenance.evidence import Likeness

_MOST_STEPS, _MOST_OBJECTS, _MOST_KEPT = 32, 64, 512
_MOST_TAIL = 4 * TAIL


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an item lies whose content is compared with its like in other checkpoints."""

    path: str
    offset: int
    length: int
    fqn: str
    kind: Likeness


@dataclass(frozen=True, slots=True)
class Collected:
    """What was picked up in one file: what it says, summaries by offset, and who wrote its items."""

    path: str
    says: tuple[Stamp | Counter | RunMark, ...] = ()
    summaries: Mapping[int, CrcSummary] = field(default_factory=dict)
    makers: frozenset[str] = frozenset()


class Plan:
    """Which items of a checkpoint to pick up; derived from names and lengths alone."""

    def __init__(self, context: Context) -> None:
        """Choose counters by their names, and for each file a few items to compare."""
        checkpoint = context.checkpoint
        self._entries = checkpoint.entries
        self._paths = checkpoint.paths_in_state
        self._alone = checkpoint.replicated
        self.companions, self.tied = checkpoint.companions, checkpoint.tied
        self._kinds: dict[str, tuple[bool, Likeness | None]] = {}
        self.kept: dict[str, dict[int, Item]] = {}
        self.spots: dict[str, list[Spot]] = {}
        items = checkpoint.items
        small: dict[tuple[str, Likeness | None, str], list[int]] = {}
        best: dict[str, dict[Likeness, list[tuple[int, int]]]] = {}
        for index, (fqn, path) in enumerate(zip(items.fqns, items.paths, strict=True)):
            wanted, kind = self._look(fqn)
            length = items.lengths[index]
            if wanted and length <= MOST_BYTES:
                first = fqn.partition(".")[0] if kind is Likeness.COUNT else ""
                small.setdefault((path, kind, first), []).append(index)
            if kind is not None and index not in items.transforms and index not in items.stored:
                held = best.setdefault(path, {}).setdefault(kind, [])
                held.append((-length, index))
                if len(held) > 8:
                    held.sort()
                    del held[2:]
        for (path, kind, _), indices in small.items():
            chosen = _spread(indices, _MOST_STEPS) if kind is Likeness.COUNT else indices
            kept = self.kept.setdefault(path, {})
            for index in chosen[:_MOST_OBJECTS] if len(kept) < _MOST_KEPT else ():
                kept[items.offsets[index]] = items[index]
        for item in checkpoint.copies:
            if self._look(item.fqn)[0] and item.length <= MOST_BYTES:
                self.kept.setdefault(item.path, {})[item.offset] = item
        for path, one in checkpoint.companions.items():
            file = checkpoint.files[path]
            whole = one.form is Form.TORCH and not checkpoint.enclosed(path)
            if whole and one.state and 0 < file.size <= MAX_VALUE:
                self.kept.setdefault(path, {})[0] = Item("", None, path, 0, file.size)
        for path, by_kind in best.items():
            chosen = [
                index
                for kind, most in ((Likeness.MOMENT, 2), (Likeness.WEIGHT, 1), (Likeness.COUNT, 1))
                for _, index in sorted(by_kind.get(kind, ()))[:most]
            ]
            self.spots[path] = [self.spot(items[index]) for index in chosen[:3]]

    def told(self, checkpoint: Checkpoint) -> Iterator[Collected]:
        """Yield what values say that the metadata itself holds, and files where rules know of it."""
        values = checkpoint.values
        for fqn, value in values.items():
            for path in checkpoint.value_files.get(fqn, ()) if self._look(fqn)[0] else ():
                says = stamps_of(path, self.path_of(fqn), value, alone=self._alone)
                yield Collected(path, tuple(self.scheme(one) for one in says))
        for path, one in checkpoint.companions.items():
            if one.told and checkpoint.enclosed(path):
                below = {
                    elements(fqn, self._paths.get(fqn))[len(one.prefix) :]: value
                    for fqn, value in values.items()
                    if path in checkpoint.value_files.get(fqn, ())
                }
                yield Collected(path, tuple(stamps_beside(one, nested(below))))

    def scheme(self, one: Stamp | Counter | RunMark) -> Stamp | Counter | RunMark:
        """Say in which way a step was counted, where companions count in it too."""
        tied = isinstance(one, Stamp) and one.kind in self.tied
        return replace(one, scheme=UPDATES) if isinstance(one, Stamp) and tied else one

    def _look(self, fqn: str) -> tuple[bool, Likeness | None]:
        known = self._kinds.get(fqn)
        if known is None:
            known = self._classify(fqn, self._entries.get(fqn))
            self._kinds[fqn] = known
        return known

    def path_of(self, fqn: str) -> Path:
        """Return the elements of a key."""
        return elements(fqn, self._paths.get(fqn))

    def _classify(self, fqn: str, entry: Entry | None) -> tuple[bool, Likeness | None]:
        name = KeyName.of(self.path_of(fqn))
        if isinstance(entry, TensorEntry) and entry.shape != ():
            if not entry.dtype.startswith(("float", "bfloat")) or not entry.numel:
                return False, None
            kind = Likeness.WEIGHT if name.holds_state else None
            return False, Likeness.MOMENT if moment_of(fqn) is not None else kind
        wanted = entry is not None and tells(name, scalar=isinstance(entry, TensorEntry))
        return wanted, Likeness.COUNT if wanted and counts_steps(name) else None

    def kind(self, fqn: str) -> Likeness | None:
        """Return what an item of this key proves where it is equal, None for nothing."""
        return self._look(fqn)[1]

    def spot(self, item: Item) -> Spot:
        """Describe where an item lies."""
        kind = self.kind(item.fqn) or Likeness.WEIGHT
        return Spot(item.path, item.offset, item.length, item.fqn, kind)

    def collector(self, path: str) -> Collector:
        """Return what picks up in one file."""
        return Collector(self, path, alone=self._alone)


def _spread(indices: list[int], most: int) -> list[int]:
    """Choose so many, the first and the last among them: what is torn parts them somewhere between."""
    last, gaps = len(indices) - 1, most - 1
    return indices if last < most else [indices[last * n // gaps] for n in range(most)]


class Collector:
    """Picks up in one file, or in a part of it."""

    def __init__(self, plan: Plan, path: str, *, alone: bool) -> None:
        """Start empty."""
        self._plan, self._path, self._alone = plan, path, alone
        self._kept = plan.kept.get(path, {})
        self._spots = {spot.offset: spot for spot in plan.spots.get(path, ())}
        self._says: list[Stamp | Counter | RunMark] = []
        self._summaries: dict[int, CrcSummary] = {}
        self._makers: set[str] = set()

    def wants(self, item: Item) -> bool:
        """Tell whether the whole of an item is to be kept."""
        return item.offset in self._kept

    @property
    def offsets(self) -> frozenset[int]:
        """Where the items begin of which something is to be picked up."""
        return frozenset(self._kept) | frozenset(self._spots)

    def add_makers(self, torch_versions: Iterable[str]) -> None:
        """Take which releases of torch wrote items that were passed because they are like others."""
        self._makers.update(torch_versions)

    def add(self, seen: ItemSeen) -> None:
        """Take what an item that was looked at says."""
        if seen.faults or seen.unread:
            return
        if seen.torch_versions:
            self._makers.add(seen.torch_versions)
        if seen.item.offset in self._spots:
            self._note(seen.item.offset, summary_from(seen.records))
        if seen.body:
            self._decode(seen.item.fqn, seen.body)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the byte ranges of the file to keep where it is only hashed, in order."""
        found = {(item.offset, item.end) for item in self._kept.values() if not item.transforms}
        for spot in self._spots.values():
            found.add((spot.offset + max(0, spot.length - _MOST_TAIL), spot.offset + spot.length))
        return sorted(found)

    def add_bytes(self, pieces: Mapping[tuple[int, int], bytes]) -> None:
        """Take what was kept of a file that was only hashed."""
        for spot in self._spots.values():
            start = spot.offset + max(0, spot.length - _MOST_TAIL)
            tail = pieces.get((start, spot.offset + spot.length), b"")
            try:
                self._note(spot.offset, summary_in(tail, spot.length))
            except MalformedData:
                continue  # damage is reported by the digest
        for item in self._kept.values():
            body = pieces.get((item.offset, item.end))
            if body and item.stored is not None:
                self._take(item.fqn, decode_number(item.stored, body))
            elif body:
                self._decode(item.fqn, body)

    def _note(self, offset: int, found: CrcSummary | None) -> None:
        if found is not None:
            self._summaries[offset] = found

    def _decode(self, fqn: str, body: bytes) -> None:
        companion = None if fqn else self._plan.companions.get(self._path)
        try:
            if companion is not None:
                value = decode_item(body, attributes=True)
                self._says.extend(stamps_beside(companion, value))
                return
            value = decode_item(body)
            if isinstance(value, bytes) and value[:1] == b"\x80":
                value = decode_pickle(value)
        except (MalformedData, UnsafeData):
            return  # reported elsewhere; it says nothing here
        self._take(fqn, value)

    def _take(self, fqn: str, value: object) -> None:
        says = stamps_of(self._path, self._plan.path_of(fqn), value, alone=self._alone)
        self._says.extend(map(self._plan.scheme, says))

    def done(self) -> Collected:
        """Return what was picked up."""
        return Collected(self._path, tuple(self._says), self._summaries, frozenset(self._makers))


@dataclass(slots=True)
class Collection:
    """What was picked up in all files, each thing once though its file was looked at twice."""

    plan: Plan | None = None
    stamps: dict[Stamp, None] = field(default_factory=dict)
    counters: dict[Counter, None] = field(default_factory=dict)
    runs: dict[RunMark, None] = field(default_factory=dict)
    makers: dict[str, frozenset[str]] = field(default_factory=dict)
    summaries: dict[tuple[str, int], CrcSummary] = field(default_factory=dict)

    def add(self, collected: Collected | None) -> None:
        """Add what one worker picked up."""
        if collected is None:
            return
        for one in collected.says:
            if isinstance(one, Stamp):
                self.stamps[one] = None
            elif isinstance(one, Counter):
                self.counters[one] = None
            else:
                self.runs[one] = None
        before = self.makers.get(collected.path, frozenset())
        self.makers[collected.path] = before | collected.makers
        self.summaries.update(
            {(collected.path, at): one for at, one in collected.summaries.items()}
        )


def nested(flat: Mapping[Path, object]) -> dict[str | int, object]:
    """Return a state again from values by their paths."""
    found: dict[str | int, object] = {}
    for path, value in flat.items():
        inside = found
        for part in path[:-1]:
            below = inside.setdefault(part, {})
            if not isinstance(below, dict):
                break
            inside = below
        else:
            inside[path[-1] if path else ""] = value
    return found


class Catcher:
    """Cuts byte ranges out of a file's blocks as they stream by; no block is kept whole."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        """Take ranges in the order of their starts; they may overlap."""
        self._waiting = list(reversed(ranges))
        self._open: dict[tuple[int, int], bytearray] = {}
        self.pieces: dict[tuple[int, int], bytes] = {}
        self._position = 0

    def feed(self, block: memoryview) -> None:
        """Take the bytes that follow."""
        start, stop = self._position, self._position + len(block)
        self._position = stop
        while self._waiting and self._waiting[-1][0] < stop:
            self._open[self._waiting.pop()] = bytearray()
        for one in list(self._open):
            low, high = max(one[0], start), min(one[1], stop)
            self._open[one] += block[low - start : high - start]
            if one[1] <= stop:
                self.pieces[one] = bytes(self._open.pop(one))
