"""State of which each rank has its own: random generators and positions in the data.

Such state belongs to a rank and not to a tensor, so that another number of ranks has too much of
it or too little. Which keys they are is told by their names (``rng.rank_3.torch``), by Megatron's
(``rng_state/shard_0.1_2.2``), and in rank-local checkpoints by each rank having saved the key.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from ckptctl.completeness.classifier import Classifier, Key
from ckptctl.dataclass import dataclass
from ckptctl.model.checkpoint import Checkpoint
from ckptctl.model.components import rank_element
from ckptctl.pattern import pattern

COMPONENTS = ("rng", "data")
"""Components whose state per rank needs a decision when the ranks change."""

Path: TypeAlias = tuple[str | int, ...]
_MOST = 1 << 20
_AXES = {"global": "", "world": "", "local": "", "data_parallel": "dp"}
_NUMBER = pattern(r"\d{1,7}")
_NUMBERED = pattern(r"(?:rng|rng_states?|random_states?)_(\d{1,7})")
_PLACE = pattern(r"\(\d{1,7}(?:, ?\d{1,7})*,?\)")
_SHARD = pattern(r".*/shard_(\d+(?:\.\d+)*)_(\d+(?:\.\d+)*)$")


@dataclass(frozen=True, slots=True)
class RankKey:
    """A key of one rank; ``element``, from ``start`` on in its name, names the rank.

    It is empty where all ranks use one name.
    """

    fqn: str
    rank: int
    start: int = 0
    element: str = ""

    @property
    def slot(self) -> str:
        """What the keys of all ranks for the same thing have in common."""
        return self._with("*") if self.element else self.fqn

    def of(self, rank: int) -> str:
        """Return the name of the same state of another rank."""
        return self._with(_renumbered(self.element, rank))

    def path_of(self, rank: int, path: Path) -> Path:
        """Return the path in the nested state of the same state of another rank."""
        position, found = 0, list(path)
        for index, part in enumerate(path):
            text = str(part)
            local = self.start - position
            if local >= 0 and text[local : local + len(self.element)] == self.element:
                new = _renumbered(self.element, rank)
                text = text[:local] + new + text[local + len(self.element) :]
                found[index] = int(text) if isinstance(part, int) else text
                break
            position += len(text) + 1
        return tuple(found)

    def _with(self, text: str) -> str:
        return self.fqn[: self.start] + text + self.fqn[self.start + len(self.element) :]


def _renumbered(element: str, rank: int) -> str:
    """Return what names another rank: ``dp_rank_5`` for ``dp_rank_0``."""
    return element.rstrip("0123456789") + str(rank)


@dataclass(frozen=True, slots=True)
class Family:
    """The keys of a component of which each rank has its own.

    ``axis`` says which ranks (``dp``, ``tp``, or empty for all); ``ranks`` how many there are. With
    ``shared`` all ranks saved theirs under one name; with ``fixed`` the names hold the number of
    ranks itself, so that they cannot be made for others.
    """

    component: str
    axis: str
    ranks: int
    keys: tuple[RankKey, ...] = ()
    shared: bool = False
    fixed: bool = False

    @property
    def present(self) -> frozenset[int]:
        """The ranks that have any state here."""
        return frozenset(key.rank for key in self.keys)


@dataclass(frozen=True, slots=True)
class _Named:
    """What a key's name says of a rank."""

    rank: int
    axis: str = ""
    ranks: int = 0
    index: int = 0
    element: str = ""
    fixed: bool = False


def families(checkpoint: Checkpoint, classifier: Classifier) -> tuple[Family, ...]:
    """Find the state that is kept per rank, of the components that need a decision."""
    wanted = [key for key in classifier if key.component in COMPONENTS]
    copies = _copies(checkpoint, {key.fqn for key in wanted})
    found: dict[tuple[str, str, bool, bool], list[RankKey]] = {}
    counts: dict[tuple[str, str, bool, bool], int] = {}
    grids: dict[tuple[str, str, bool, bool], dict[str, int]] = {}
    for key in wanted:
        named = _named(key)
        if named is not None:
            group = (key.component, named.axis, False, named.fixed)
            rank, start = named.rank, _position(key, named.index, named.element)
            if named.fixed and named.element:
                places = grids.setdefault(group, {})
                rank = places.setdefault(named.element, len(places))
            found.setdefault(group, []).append(RankKey(key.fqn, rank, start, named.element))
            counts[group] = max(counts.get(group, 0), named.ranks, rank + 1)
        elif len(copies.get(key.fqn, ())) > 1:
            group = (key.component, "", True, False)
            ranks = copies[key.fqn]
            found.setdefault(group, []).extend(RankKey(key.fqn, rank) for rank in ranks)
            counts[group] = max(counts.get(group, 0), max(ranks) + 1)
    return tuple(
        Family(component, axis, counts[group], tuple(keys), shared, fixed)
        for group, keys in sorted(found.items())
        for component, axis, shared, fixed in [group]
    )


def _named(key: Key) -> _Named | None:
    """Read the rank in a key's name."""
    match = _SHARD.fullmatch(key.fqn)
    if match is not None:
        return _in_grid(match[1].split("."), match[2].split("."))
    for index, element in enumerate(key.path):
        named = rank_element(element)
        if named is not None:
            axis, rank = named
            axis = _AXES.get(axis, axis)
            return _Named(rank, axis, index=index, element=str(element)) if rank < _MOST else None
        text = str(element)
        if key.component != "rng":
            continue
        if index == key.depth > 0 and index + 1 < len(key.path) and _NUMBER.fullmatch(text):
            return _Named(int(text), index=index, element=text)
        if index < key.depth and (numbered := _NUMBERED.fullmatch(text)):
            return _Named(int(numbered[1]), index=index, element=text)
        if _PLACE.fullmatch(text):
            return _Named(0, index=index, element=text, fixed=True)
    return None


def _in_grid(place: list[str], shape: list[str]) -> _Named | None:
    """Number a place of Megatron's grids of objects; None where it has one place or is too large."""
    if len(place) != len(shape) or any(len(number) > 7 for number in [*place, *shape]):
        return None
    rank, count = 0, math.prod(map(int, shape))
    for index, extent in zip(map(int, place), map(int, shape), strict=True):
        rank = rank * extent + index
    return _Named(rank, ranks=count, fixed=True) if 1 < count < _MOST and rank < count else None


def _position(key: Key, index: int, element: str) -> int:
    """Find where in a key's name the element of its path stands."""
    tail = ".".join(map(str, key.path[index:]))
    if key.fqn.endswith(tail):
        return len(key.fqn) - len(tail)
    return max(0, key.fqn.find(element))


def _copies(checkpoint: Checkpoint, fqns: set[str]) -> dict[str, tuple[int, ...]]:
    """Return which ranks saved each of these keys, where each saved its own."""
    if not checkpoint.replicated:
        return {}
    found: dict[str, set[int]] = {}
    for item in checkpoint.items:
        if item.fqn in fqns:
            found.setdefault(item.fqn, set()).add(item.rank or 0)
    return {fqn: tuple(sorted(ranks)) for fqn, ranks in found.items()}
