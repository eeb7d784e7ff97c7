"""Whose state is there: ranks that keys name, and the world size with what says so."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from ckptctl.completeness.classifier import Key
from ckptctl.dataclass import dataclass, field
from ckptctl.model.checkpoint import Checkpoint, rank_of
from ckptctl.model.components import rank_element
from ckptctl.model.manifest import RECEIPTS
from ckptctl.pattern import pattern

MOST_RANKS = 1 << 20
"""Ranks above which a number in a name is not taken for a rank."""

RANKED = frozenset({"data", "rng", "progress", "scheduler", "scaler"})
"""Components of which each rank may keep its own."""

_SIZES = frozenset({"world_size", "dp_world_size", "num_replicas"})
_ABOUT = _SIZES | {"version", "num_workers"}
_OF_ALL = frozenset({"", "global", "world"})
_SHARD = pattern(r"/shard_(\d+(?:\.\d+)*)_(\d+(?:\.\d+)*)$")
_TUPLE = pattern(r"\((\d+(?:, ?\d+)*),?\)$")
_NUMBERED = pattern(r"\d{1,7}$")
_RNG_NUMBER = pattern(r"(?:rng|rng_state|rng_states|random_state|random_states)_(\d{1,7})$")
_RECEIPT = pattern(rf"{re.escape(RECEIPTS)}/rank-(\d+)\.json$")


@dataclass(frozen=True, slots=True)
class World:
    """The number of ranks that saved, and what says so; ``size`` is None where nothing does."""

    size: int | None = None
    evidence: tuple[str, ...] = ()


@dataclass(slots=True)
class Group:
    """The ranks of one component under one kind of name.

    ``kind`` is what stands before ``rank`` (``dp`` in ``dp_rank_3``); ``parts`` hold what each rank
    has, by the name right below it; ``stem`` is the text before the number.
    """

    kind: str
    stem: str
    parts: dict[int, set[str]] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have something."""
        return tuple(sorted(self.parts))

    @property
    def count(self) -> int:
        """One more than the highest rank."""
        return max(self.parts) + 1

    @property
    def holes(self) -> tuple[int, ...]:
        """Ranks below the highest that have nothing."""
        return tuple(rank for rank in range(self.count) if rank not in self.parts)

    @property
    def text(self) -> str:
        """Write the range of ranks as keys have it: ``dataloader.dp_rank_0 to 3``."""
        first = min(self.parts)
        return f"{self.stem}{first}" + (f" to {self.count - 1}" if self.count - 1 > first else "")

    def fills(self, world: int | None) -> bool:
        """True if these ranks are all there are: data-parallel ones may be fewer, evenly."""
        if world is None or self.count >= world:
            return True
        return self.kind not in _OF_ALL and world % self.count == 0


@dataclass(slots=True)
class Grid:
    """Objects that Megatron cuts into a grid: the places taken, of how many in each dimension."""

    name: str
    shape: tuple[int, ...]
    taken: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """True if every place is taken."""
        return len(self.taken) >= math.prod(self.shape)


@dataclass(slots=True)
class Holdings:
    """What one component has for which ranks; ``shared`` are keys of no rank in particular."""

    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    grids: dict[str, Grid] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    about: list[str] = field(default_factory=list)

    @property
    def main(self) -> Group | None:
        """The group with the most ranks."""
        return max(self.groups.values(), key=lambda group: len(group.parts), default=None)


def holdings(keys: Iterable[Key]) -> dict[str, Holdings]:
    """Sort the keys of the components that ranks keep by rank."""
    found: dict[str, Holdings] = {}
    for key in keys:
        if key.component in RANKED:
            _add(found.setdefault(key.component, Holdings()), key)
    return found


def size_keys(keys: Iterable[Key]) -> list[str]:
    """Return the keys whose small values say how many ranks share the data."""
    return [key.fqn for key in keys if key.component == "data" and str(key.path[-1]) in _SIZES]


def _add(into: Holdings, key: Key) -> None:
    match = _SHARD.search(key.fqn)
    if match:
        _add_shard(into, key.fqn[: match.start()], match[1], match[2])
        return
    for index, element in enumerate(key.path):
        named = rank_element(element)
        if named is not None:
            _add_rank(into, key, index, *named)
            return
        if key.component == "rng":
            number = _rng_number(key, index)
            if number is not None:
                _add_rank(into, key, index, "", number)
                return
            place = _TUPLE.match(str(element))
            if place:
                _add_place(into, str(key.path[0]), place[1])
                return
    about = key.component == "data" and str(key.path[-1]) in _ABOUT
    (into.about if about else into.shared).append(key.fqn)


def _rng_number(key: Key, index: int) -> int | None:
    """Read ``rng.3.torch`` and ``rng_state_3.torch``: the number is a rank."""
    text = str(key.path[index])
    if index + 1 < len(key.path) and index == key.depth and key.depth:
        return int(text) if _NUMBERED.match(text) else None
    match = _RNG_NUMBER.match(text) if index < key.depth else None
    return int(match[1]) if match else None


def _add_rank(into: Holdings, key: Key, index: int, kind: str, rank: int) -> None:
    if rank >= MOST_RANKS:
        into.shared.append(key.fqn)
        return
    before = ".".join(map(str, key.path[:index]))
    stem = re.sub(r"\d+$", "", str(key.path[index]))
    stem = f"{before}.{stem}" if before else stem
    group = into.groups.setdefault((kind, stem), Group(kind, stem))
    below = key.path[max(index + 1, key.depth) :]
    group.parts.setdefault(rank, set()).add(str(below[0]) if below else "")


def _add_shard(into: Holdings, name: str, place: str, shape: str) -> None:
    at, of = (tuple(int(n) for n in text.split(".")[:8] if len(n) < 8) for text in (place, shape))
    if len(at) == len(of) and all(a < b for a, b in zip(at, of, strict=True)):
        grid = into.grids.setdefault(name, Grid(name, of))
        grid.taken.add(at)


def _add_place(into: Holdings, name: str, place: str) -> None:
    at = tuple(int(n) for n in place.split(",") if len(n) < 8)
    grid = into.grids.setdefault(name, Grid(name, tuple(n + 1 for n in at)))
    if len(at) == len(grid.shape):
        grid.taken.add(at)
        grid.shape = tuple(max(a + 1, b) for a, b in zip(at, grid.shape, strict=True))


def world_of(
    checkpoint: Checkpoint,
    held: Mapping[str, Holdings],
    *,
    promised: int | None = None,
) -> World:
    """Infer how many ranks saved, from all that names ranks; ``promised`` is the manifest's word.

    Data-parallel ranks may be fewer than all ranks, so the largest number counts.
    """
    votes: list[tuple[int, str]] = []
    if promised is not None:
        votes.append((promised, "the manifest"))
    receipts = {int(match[1]) for path in checkpoint.files if (match := _RECEIPT.match(path))}
    if receipts and max(receipts) < MOST_RANKS:
        votes.append((max(receipts) + 1, f"receipts of {_range('rank ', receipts)}"))
    if checkpoint.replicated:
        votes.append((len(checkpoint.sources), "metadata that each rank saved on its own"))
    files = _file_ranks(checkpoint, empty=not any(one.groups for one in held.values()))
    if files:
        last = max(files)
        text = files[min(files)] + (f" to {files[last]}" if len(files) > 1 else "")
        holes = "" if len(files) == last + 1 else f" ({len(files)} ranks)"
        votes.append((last + 1, f"{'file' if len(files) == 1 else 'files'} {text}{holes}"))
    for name, holding in sorted(held.items()):
        votes.extend((group.count, group.text) for group in holding.groups.values())
        if name == "progress":
            votes.extend(
                (grid.shape[0], f"{grid.name}/shard_*_{grid.shape[0]}")
                for grid in holding.grids.values()
                if len(grid.shape) == 1 and grid.shape[0] > 1
            )
    size = promised if promised is not None else max((vote for vote, _ in votes), default=None)
    return World(size, tuple(dict.fromkeys(text for vote, text in votes if vote == size)))


def _file_ranks(checkpoint: Checkpoint, *, empty: bool) -> dict[int, str]:
    """Return the ranks of files in use, each with the name of one, and of ``empty`` ones: a rank may have nothing to save.

    A rank that has state of its own saves it, so that with such state an empty file is a stray.
    """
    used = set(checkpoint.items.paths)
    if empty:
        used |= {path for path, file in checkpoint.files.items() if file.size == 0}
    ranks: dict[int, str] = {}
    for path in sorted(used):
        rank = rank_of(path)
        if rank is not None and rank < MOST_RANKS:
            ranks.setdefault(rank, path.rpartition("/")[2])
    return ranks


def _range(stem: str, ranks: set[int]) -> str:
    low, high = min(ranks), max(ranks)
    return f"{stem}{low}" + (f" to {high}" if high > low else "")
