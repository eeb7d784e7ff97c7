"""The other checkpoints of a run: where they lie, and which of them are the nearest to one.

The nearest by step come first. Of many the last to be compared are chosen by content: a file that was
copied from a checkpoint far away is found where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ckptctl.checks import Context
from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData, NotFound, StorageError
from ckptctl.formats.items.crc_summary import CrcSummary, says_something, summary_of
from ckptctl.model.checkpoint import File
from ckptctl.model.names import CheckpointName, parse_name
from ckptctl.model.paths import join
from ckptctl.operations.find import place_at
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place, split
from ckptctl.operations.provenance.collect import Plan, Spot
from ckptctl.operations.surroundings import Surroundings
from ckptctl.provenance.evidence import Likeness
from ckptctl.storage import Reader, Store, open_store
from ckptctl.storage.traffic import ahead, is_remote

_MOST_NEAR, _MOST_AFAR, _MOST_FILES = 64, 16, 8000
"""Others that are listed, each a request where the storage is remote, and files in all of them."""

_MOST_PROBES = 512
_BY_NUMBER = 2
_UPWARDS = 3


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another checkpoint of the same root: where it is, and its files by name."""

    located: Located
    step: int | None
    files: Mapping[str, File]

    @property
    def path(self) -> str:
        """Where it lies, which is its name too."""
        return self.located.place.path

    def open(self, path: str) -> Reader:
        """Open one of its files."""
        return self.located.open(path, self.files, ahead=False)

    def metadata(self) -> str:
        """The first file of its metadata."""
        return self.located.place.layout.metadata(self.files)[0]


@dataclass(frozen=True, slots=True)
class Siblings:
    """The others that were looked at, the nearest by step first, and how many there are in all."""

    known: tuple[Sibling, ...] = ()
    total: int = 0


def named_part(store: Store, place: Place) -> tuple[str, int | None]:
    """Return the part of a checkpoint's path that names its step, and the step; else its own name."""
    parts = place.path.split("/") if place.path else []
    root = split(store.url)[1]
    for part in reversed([root, *parts]):
        step = parse_name(part).step
        if step is not None and (step == place.name.step or not part.isdigit()):
            return part, step
    return parts[-1] if parts else root, place.name.step


@dataclass(frozen=True, slots=True)
class _Level:
    """Where the checkpoints of a run lie beside each other: ``tail`` leads from there into each."""

    store: Store
    above: str
    own: str
    tail: str


def siblings_of(located: Located) -> Siblings:
    """Look at the other checkpoints of its layout, the nearest by step first.

    Those without a step come last. A checkpoint that was opened as a root by itself has none.
    """
    store, place, around = located.store, located.place, located.around
    if not place.path:
        return Siblings()
    level = _level(store, place.path, around)
    own = named_part(store, place)[1]
    # of another kind of name only all names together tell the steps
    series = own is not None and parse_name(level.own).step is None
    order = around.order(level.store, level.above, series=series)
    most = _MOST_AFAR if is_remote(level.store) else _MOST_NEAR
    known: list[Sibling] = []
    files, stepped = 0, order.stepped_beside(level.own)

    def opened(one: tuple[CheckpointName, str]) -> Sibling | None:
        name, above = one
        path = join(above, level.tail) if level.tail else above
        found: Sibling | None = around.once(
            (level.store.url, path, place.format),
            partial(_opened, level.store, path, name, located),
            lambda made: len(made.files) if made is not None else 0,
        )
        return found

    chosen = order.nearest(level.own, own, most)
    for (name, _), told in zip(chosen, ahead(level.store, opened, chosen), strict=False):
        stepped -= name.step is not None
        one = told()
        if one is not None:
            known.append(one)
            files += len(one.files)
        if files > _MOST_FILES:
            break
    return Siblings(tuple(known), len(known) + stepped)


def _opened(store: Store, path: str, name: CheckpointName, own: Located) -> Sibling | None:
    try:
        beside = place_at(store, path, own.place.layout)
        files = beside.files(store) if beside is not None else {}
    except NotFound:
        return None
    if beside is None or not beside.layout.metadata(files):
        return None
    whole = {path: file for path, file in files.items() if file.is_file}
    return Sibling(Located(store, beside, own.around), name.step, whole)


def _level(store: Store, path: str, around: Surroundings) -> _Level:
    """Find the directory whose name has the step, if it is not the checkpoint's own: ``step-9/dist``.

    It may lie above what was opened. Where others lie beside the checkpoint, theirs is the level.
    """
    above, _, own = path.rpartition("/")
    here = _Level(store, above, own, "")
    if parse_name(own).step is not None or around.order(store, above, series=False).tells_steps:
        return here
    parts = path.split("/")
    for at in range(len(parts) - 2, -1, -1):
        if parse_name(parts[at]).step is not None:
            above, tail = "/".join(parts[:at]), "/".join(parts[at + 1 :])
            return _Level(store, above, parts[at], tail)
    url, tail = store.url, path
    for _ in range(_UPWARDS):
        parent, name = split(url)
        if not parent or not name:
            break
        if parse_name(name).step is not None:
            try:
                outer = open_store(parent)
                around.entries(outer, "")
            except StorageError:
                break  # it may be read no further up
            return _Level(outer, "", name, tail)
        url, tail = parent, f"{name}/{tail}"
    return here


def nearest(
    siblings: Sequence[Sibling],
    context: Context,
    plan: Plan,
    summaries: Mapping[tuple[str, int], CrcSummary],
    most: int,
) -> list[Sibling]:
    """Choose those to compare with: the nearest by step, and of all the nearest in content.

    Those whose files are called and are as long as the files here come first. In a remote storage
    no item is read for the choice.
    """
    if len(siblings) <= most:
        return list(siblings)
    equal = dict.fromkeys(range(len(siblings)), 0)
    if not is_remote(siblings[0].located.store):
        equal |= _equal(siblings, context, plan, summaries)
    other = [not _same_shape(one, context) for one in siblings]
    numbers = range(len(siblings))
    by_number = sorted(numbers, key=lambda i: (other[i], i))[: min(_BY_NUMBER, most - 1)]
    by_content = sorted(numbers, key=lambda i: (-equal[i], other[i], i))
    chosen = list(dict.fromkeys([*by_number, *by_content]))[:most]
    return [siblings[i] for i in sorted(chosen)]


def _same_shape(one: Sibling, context: Context) -> bool:
    """Tell whether most files are there under the same names and as long."""
    same = sum(
        path in one.files and one.files[path].size == size for path, size in context.present.items()
    )
    return 2 * same >= len(context.present)


def _equal(
    siblings: Sequence[Sibling],
    context: Context,
    plan: Plan,
    summaries: Mapping[tuple[str, int], CrcSummary],
) -> dict[int, int]:
    """Count the files of each of which one item is equal there, within a budget of reads."""
    spots: list[tuple[Spot, CrcSummary]] = []
    for path, held in plan.spots.items():
        if path in context.present:
            for spot in held:
                own = summaries.get((path, spot.offset))
                if own is not None and counts(spot.kind, own):
                    spots.append((spot, own))
                    break
    budget = max(1, _MOST_PROBES // len(siblings))
    stride = max(1, -(-len(spots) // budget))
    found = {}
    for number, one in enumerate(siblings):
        found[number] = sum(_is_equal(one, spot, own, context) for spot, own in spots[::stride])
    return found


def _is_equal(one: Sibling, spot: Spot, own: CrcSummary, context: Context) -> bool:
    file = one.files.get(spot.path)
    if file is None or file.size != context.present[spot.path]:
        return False
    try:
        with one.open(spot.path) as reader:
            return summary_of(reader, spot.offset, spot.length) == own
    except (StorageError, MalformedData):
        return False


def counts(kind: Likeness, found: CrcSummary) -> bool:
    """Tell whether equality with such a summary says anything: zeros are equal everywhere."""
    return kind is Likeness.COUNT or says_something(found)
