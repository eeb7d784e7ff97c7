"""How components fall short: of optimizer state, of parameters, of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptctl.completeness.audit import Gap, Lack
from ckptctl.completeness.optimizer_state import Moments
from ckptctl.completeness.world_size import MOST_RANKS, Group, Holdings, World
from ckptctl.words import listed, ranges

SHOWN = 16
"""Names and ranks that a gap lists; it counts the rest."""

_NOUNS = {"data": "data position", "rng": "generator state"}


def _gap(lack: Lack, message: str, names: Sequence[str]) -> Gap:
    return Gap(lack, message, names=tuple(names[:SHOWN]), count=len(names))


def optimizer_evidence(found: Moments, *, empty: bool) -> list[str]:
    if found.opaque:
        return [f"{found.opaque[0]} was not looked into"]
    if found.empty:
        return [] if empty else ["SGD without momentum keeps no state"]
    if found.method == "names":
        number = found.parameters - len(found.stateless)
        return [f"state of {number} of {found.parameters} parameters, by their names"]
    if found.method == "sizes" and found.short is None:
        return ["state of all parameters, by their sizes"]
    return [f"state of {found.states} parameters"]


def optimizer_gaps(found: Moments, values: Mapping[str, object]) -> list[Gap]:
    if found.empty:
        momentum = [value for key, value in values.items() if key.endswith("momentum")]
        if momentum and all(value == 0 for value in momentum):
            return []
        message = "it has settings (param_groups) and no state of any parameter"
        if "momentum" in found.settings and "betas" not in found.settings:
            message += "; they are SGD's, which keeps none if its momentum is 0"
        return [Gap(Lack.EMPTY, message)]
    gaps = []
    if found.lacking:
        message = (
            f"{_counted(len(found.lacking), 'parameter')} without all of the moments and steps "
            f"that the others have: {listed(found.lacking)}"
        )
        gaps.append(_gap(Lack.MOMENTS, message, found.lacking))
    if found.irregular:
        message = (
            f"no state for {listed(found.irregular)}, though the same parameter of other layers "
            "has it, and others of its layer: lost, or never used"
        )
        gaps.append(_gap(Lack.GONE, message, found.irregular))
    plain = [name for name in found.stateless if name not in set(found.irregular)]
    if plain:
        message = (
            f"no state for {len(plain)} of {found.parameters} parameters, which are frozen, unused "
            f"or lost: {listed(plain)}"
        )
        gaps.append(_gap(Lack.STATELESS, message, plain))
    if found.short is not None:
        have, want = found.short
        message = f"state for {have:,} of the model's {want:,} elements: the rest is frozen or lost"
        gaps.append(Gap(Lack.STATELESS, message))
    return gaps


def model_gaps(found: Moments) -> list[Gap]:
    if not found.orphans:
        return []
    names = found.orphans
    message = f"the optimizer has state for {_counted(len(names), 'parameter')} that the model "
    if found.certain:
        return [_gap(Lack.ORPHANS, f"{message}does not have: {listed(names)}", names)]
    message += f"does not have under that name: {listed(names)}"
    return [_gap(Lack.UNCERTAIN_ORPHANS, message, names)]


def rank_gaps(
    name: str, holding: Holdings, world: World, values: Mapping[str, object], *, alone: bool
) -> list[Gap]:
    noun = _NOUNS.get(name, f"{name} state")
    gaps: list[Gap] = []
    for group in holding.groups.values():
        gaps += _group_gaps(name, noun, group, world, _stated(name, group, values))
    for grid in holding.grids.values():
        if not grid.whole:
            shape = "x".join(map(str, grid.shape))
            message = f"{grid.name} has {len(grid.taken)} of its {shape} shards"
            gaps.append(Gap(Lack.RANKS, message))
    single = alone and not holding.groups and not holding.grids and holding.shared
    if single and name in _NOUNS and world.size is not None and world.size > 1:
        message = f"one {noun} is kept for all {world.size} ranks"
        if name == "rng":
            message += ", and which rank's it is is left to chance"
        gaps.append(_gap(Lack.SHARED, message, holding.shared))
    return gaps


def _stated(name: str, group: Group, values: Mapping[str, object]) -> int | None:
    """Return how many ranks share the data, as the data loader itself says."""
    if name != "data" or group.kind not in ("", "dp", "data_parallel"):
        return None
    sizes = [value for key, value in values.items() if key.endswith(("world_size", "num_replicas"))]
    found = [value for value in sizes if type(value) is int and 0 < value <= MOST_RANKS]
    return max(found, default=None)


def _group_gaps(name: str, noun: str, group: Group, world: World, stated: int | None) -> list[Gap]:
    gaps: list[Gap] = []
    word = f"{group.kind} rank" if group.kind else "rank"
    count = max(group.count, stated or 0)
    missing = [*group.holes, *range(group.count, count)]
    if missing:
        message = (
            f"{_named(word, missing)} of {count} {_have(missing)} no {noun}: "
            f"{group.stem}{missing[0]} is not there, and {_named(word, group.ranks)} "
            f"{_have(group.ranks)} one"
        )
        if stated is not None and not group.holes:
            message += f" (the data is shared by {stated} ranks, as the checkpoint says)"
        gaps.append(Gap(Lack.RANKS, message, tuple(missing[:SHOWN]), count=len(missing)))
    elif name in _NOUNS and stated is None and not group.fills(world.size):
        message = f"{noun} of {_named(word, group.ranks)} alone, and {world.size} ranks saved"
        later = tuple(range(group.count, min(world.size or 0, group.count + SHOWN)))
        gaps.append(Gap(Lack.LATER_RANKS, message, later, count=(world.size or 0) - group.count))
    if name == "rng":
        all_parts = set().union(*group.parts.values())
        for rank, parts in sorted(group.parts.items()):
            if parts and parts != all_parts and len(gaps) < SHOWN:
                names = sorted(all_parts - parts)
                message = f"{word} {rank} has no {', '.join(names)}, and others have it"
                gaps.append(Gap(Lack.PARTS, message, (rank,), tuple(names), len(names)))
    return gaps


def _named(word: str, ranks: Sequence[int]) -> str:
    return f"{word}{'' if len(ranks) == 1 else 's'} {ranges(ranks, 8)}"


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
