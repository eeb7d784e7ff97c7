"""Do two shards lie under each other's names? Nothing in them says whose they are, or of which keys.

Files with items at the same places can be exchanged without any trace but their numbers:
what training moved a little still looks like itself in the checkpoint before, and like nothing else.
Of the numbers of a few items the first thousands are read, here and there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ckptctl.checks import Context
from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, NotFound
from ckptctl.formats.items.casting import CASTABLE, widened
from ckptctl.formats.items.crc_summary import TAIL
from ckptctl.formats.torch import zip as torchzip
from ckptctl.model.checkpoint import Checkpoint, Item, TensorEntry
from ckptctl.operations.located import Located
from ckptctl.operations.provenance.collect import Plan
from ckptctl.operations.provenance.compare_items import Twins, readable_beside, twins_of
from ckptctl.pattern import pattern
from ckptctl.provenance.counters import moment_of
from ckptctl.provenance.evidence import Exchanged, Likeness
from ckptctl.storage import Reader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

_MOST_FILES, _MOST_ITEMS, _MOST_BYTES = 64, 4, 16 << 10
_FEWEST, _PADDING = 64, 128
_DIGITS = pattern(r"\d+")
_AFAR = 8
"""Files compared where each read is a request: a few reads of each are enough to wait for."""

_LIKE, _UNLIKE, _APART, _TELLS = 0.8, 0.5, 0.4, 0.15


@dataclass(slots=True)
class Exchanges:
    """What was compared with one other checkpoint: files that look like themselves, and others."""

    matched: set[str] = field(default_factory=set)
    exchanged: list[Exchanged] = field(default_factory=list)


def exchanges_with(own: Located, context: Context, plan: Plan, beside: Located) -> Exchanges:
    """Compare files that could be exchanged with those of another checkpoint.

    Raises ``StorageError`` where either cannot be read.
    """
    found = Exchanges()
    most = _AFAR if "://" in own.store.url else _MOST_FILES
    groups = [
        {path: chosen for path in group[:most] if (chosen := _telling(path, context, plan))}
        for group in _groups(context)
    ]
    groups = _within([items for items in groups if len(items) > 1], 4 * most)
    other = readable_beside(beside) if groups else None
    if other is None:
        return found
    wanted = {item.fqn for items in groups for chosen in items.values() for item in chosen}
    twins = twins_of(other, wanted)
    pairs: list[_Pair] = []
    for items in groups:
        mine = {
            path: _numbers(own, context.checkpoint, {item.offset: item for item in chosen}, context)
            for path, chosen in items.items()
        }
        theirs = {
            path: _numbers(
                beside, other, {i.offset: t for i in chosen if (t := _twin(i, twins))}, context
            )
            for path, chosen in items.items()
        }
        best = _compare(mine, theirs, found)
        pairs += [_Pair(path, one, items[path], mine, theirs) for path, one in best.items()]
    suspects = {pair.path for pair in pairs}
    for pair in pairs:
        here = _here(own, context, pair, suspects)
        found.exchanged.append(Exchanged(pair.path, pair.other, here))
    return found


@dataclass(frozen=True, slots=True)
class _Pair:
    """A file that looks like another, with the numbers of all that could have been exchanged."""

    path: str
    other: str
    items: list[Item]
    mine: Mapping[str, Mapping[int, Numbers]]
    theirs: Mapping[str, Mapping[int, Numbers]]


def _within(groups: list[dict[str, list[Item]]], most: int) -> list[dict[str, list[Item]]]:
    """Return the first groups, so many that they have at most so many files together."""
    chosen: list[dict[str, list[Item]]] = []
    for items in groups:
        most -= len(items)
        if most < 0:
            break
        chosen.append(items)
    return chosen


def _twin(item: Item, twins: Twins) -> Item | None:
    """Return the same piece of the same tensor there, wherever it lies, if it is as long."""
    twin = twins.get((item.fqn, item.offsets))
    return twin if twin is not None and not twin.transforms else None


def _groups(context: Context) -> Iterable[list[str]]:
    """Yield files whose items lie at the same places, be it the pieces of a key or different keys."""
    items = context.checkpoint.items
    alike: dict[tuple[str, int, int], list[str]] = {}
    for path, size in context.present.items():
        folder = _DIGITS.sub("#", path.rpartition("/")[0])  # each rank may have its own
        count = len(context.layouts[path].indices)
        alike.setdefault((folder, size, count), []).append(path)
    for paths in alike.values():
        exact: dict[tuple[tuple[int, int], ...], list[str]] = {}
        for path in paths if len(paths) > 1 else ():
            key = tuple((items.offsets[i], items.lengths[i]) for i in context.layouts[path].indices)
            exact.setdefault(key, []).append(path)
        yield from (sorted(group) for group in exact.values() if len(group) > 1)


def _telling(path: str, context: Context, plan: Plan) -> list[Item]:
    """Choose the largest weights of a file, else of its moments; they move little by little."""
    items, entries = context.checkpoint.items, context.checkpoint.entries
    held: dict[bool, list[Item]] = {}
    for index in context.layouts[path].indices:
        item, kind = items[index], plan.kind(items.fqns[index])
        entry = entries.get(item.fqn)
        plain = isinstance(entry, TensorEntry) and entry.dtype in CASTABLE
        moment = kind is Likeness.MOMENT
        if plain and not item.transforms and (kind is Likeness.WEIGHT or moment):
            held.setdefault(moment, []).append(item)
    chosen = held.get(False) or held.get(True) or []
    return sorted(chosen, key=lambda item: (-item.length, item.offset))[:_MOST_ITEMS]


def _numbers(
    where: Located, held: Checkpoint, items: Mapping[int, Item], context: Context
) -> dict[int, Numbers]:
    """Read the first numbers of items, by any key; those that cannot be read are left out."""
    found: dict[int, Numbers] = {}
    for key, item in items.items():
        try:
            with where.open(item.path, held.files, ahead=False) as reader:
                if item.end <= reader.size:
                    found[key] = _read(reader, item, context)
        except (MalformedData, NotFound):
            continue
    return found


def _read(reader: Reader, item: Item, context: Context) -> Numbers:
    entry = context.checkpoint.entries.get(item.fqn)
    if not isinstance(entry, TensorEntry) or entry.dtype not in CASTABLE:
        raise MalformedData("it holds no numbers that can be compared")
    width = CASTABLE[entry.dtype]
    if item.stored is not None:
        stop = item.offset + min(item.length, _MOST_BYTES) // width * width
        return widened(reader.read(item.offset, stop), entry.dtype)
    base = item.offset + max(0, item.length - TAIL)
    tail = reader.read(base, item.end)

    def read(start: int, stop: int) -> bytes:
        low, high = item.offset + start, item.offset + stop
        return tail[low - base : high - base] if low >= base else reader.read(low, high)

    heads = torchzip.read_directory(read, item.length).heads
    data = [head for head in heads if head.name.startswith("data/")]
    if len(data) != 1:
        raise MalformedData("it has more than one storage")
    head = data[0]
    size = min(head.size, _MOST_BYTES) // width * width
    before = torchzip.LOCAL_SIZE + len(head.raw_name) + _PADDING
    record = read(head.header, min(item.length, head.header + before + size))
    start = torchzip.data_start(record, head) - head.header
    if start + size > len(record):
        raise MalformedData("its bytes lie further on than torch puts them")
    return widened(record[start : start + size], entry.dtype)


def _compare(
    mine: Mapping[str, Mapping[int, Numbers]],
    theirs: Mapping[str, Mapping[int, Numbers]],
    found: Exchanges,
) -> dict[str, str]:
    """Note the files that look like themselves; return those that look like another, and which."""
    odd: list[str] = []
    for path in mine:
        like = _likeness(mine[path], theirs[path])
        if like is not None and like >= _LIKE:
            found.matched.add(path)
        elif like is not None and like < _UNLIKE:
            odd.append(path)
    best = {path: _best(path, odd, mine, theirs) for path in odd}
    return {path: other for path, other in best.items() if other and path in best.values()}


def _best(
    path: str,
    odd: list[str],
    mine: Mapping[str, Mapping[int, Numbers]],
    theirs: Mapping[str, Mapping[int, Numbers]],
) -> str:
    """Return the file there that one here looks like, if it looks like one and not like itself."""
    own = _likeness(mine[path], theirs[path]) or 0.0
    like = {other: _likeness(mine[path], theirs[other]) or 0.0 for other in odd if other != path}
    other = max(like, key=lambda one: like[one], default="")
    return other if other and like[other] >= max(_LIKE, own + _APART) else ""


def _likeness(one: Mapping[int, Numbers], other: Mapping[int, Numbers]) -> float | None:
    """Return the correlation over all items, each in its own scale; None where too little varies."""
    import numpy as np

    pairs = [
        (_scaled(one[at]), _scaled(other[at]))
        for at in one
        if at in other and one[at].shape == other[at].shape
    ]
    first = np.concatenate([a for a, b in pairs if a.size and b.size] or [np.zeros(0)])
    second = np.concatenate([b for a, b in pairs if a.size and b.size] or [np.zeros(0)])
    if first.size < _FEWEST:
        return None
    return float(np.mean(first * second))


def _scaled(numbers: Numbers) -> Numbers:
    """Return numbers around 0 with a spread of 1; none where they do not vary or are not finite."""
    import numpy as np

    if not numbers.size or not np.isfinite(numbers).all():
        return np.zeros(0)
    centred = numbers - numbers.mean()
    spread = float(np.sqrt(np.mean(centred * centred)))
    return centred / spread if np.isfinite(spread) and spread > 0 else np.zeros(0)


def _here(own: Located, context: Context, pair: _Pair, suspects: set[str]) -> bool | None:
    """Tell by the optimizer's moments of this place in which checkpoint files were exchanged.

    They point where the weights of the same rows went. None where nothing tells, as where they lie
    in the same files and went with them.
    """
    moments = _moments(own, context, pair.items, suspects)
    mine, theirs, path, other = pair.mine, pair.theirs, pair.path, pair.other
    if_here = _ways(moments, mine[other], theirs[path])
    if_there = _ways(moments, mine[path], theirs[other])
    here, there = _likeness(if_here, moments), _likeness(if_there, moments)
    if here is None or there is None or abs(abs(here) - abs(there)) < _TELLS:
        return None
    return abs(here) > abs(there)


def _ways(
    moments: Mapping[int, Numbers], after: Mapping[int, Numbers], before: Mapping[int, Numbers]
) -> dict[int, Numbers]:
    """Return how far weights went from one checkpoint to the other, where there are moments of them."""
    return {
        at: after[at] - before[at]
        for at in moments
        if at in after and at in before and after[at].shape == before[at].shape
    }


def _moments(
    own: Located, context: Context, weights: list[Item], suspects: set[str]
) -> dict[int, Numbers]:
    """Return the first moments of the same pieces of tensors, by the places of the weights."""
    columns, present = context.checkpoint.items, context.present
    wanted = {(item.fqn, item.offsets): item for item in weights}
    found: dict[int, Numbers] = {}
    for index, fqn in enumerate(columns.fqns):
        split = moment_of(fqn) if fqn.endswith("exp_avg") else None
        path = columns.paths[index]
        if split is None or path not in present or path in suspects:
            continue
        for (name, origin), item in wanted.items():
            same = name == split[0] or name.endswith(f".{split[0]}")
            if same and origin == columns.origins[index]:
                found |= _numbers(own, context.checkpoint, {item.offset: columns[index]}, context)
    return found
