"""Is a file the same as in another checkpoint where it should not be, and to which does it belong?

Equal bytes need not mean a copied file: frozen parameters do not change, nor do rows of an embedding
that nobody looked up. What is trained elsewhere and stands still here cannot be explained like that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from ckptctl.dataclass import dataclass, field
from ckptctl.model.checkpoint import rank_of
from ckptctl.provenance.counters import Stamp, looked_up, moment_of, parameter_of, tails_of
from ckptctl.provenance.evidence import Likeness, Neighbour

_WEIGHTS = 3
"""Weights that stand still in one file and moved in others, before it is no coincidence."""


class Proof(enum.IntEnum):
    """How surely files were copied from one checkpoint to the other."""

    NONE = 0
    EXPLAINED = 1
    LIKELY = 2
    CERTAIN = 3


class Home(enum.Enum):
    """To which of two checkpoints files belong that are equal in both."""

    HERE = "here"
    THERE = "there"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Alike:
    """Files that are equal in a neighbour while others differ; ``moved`` are keys that tell."""

    neighbour: str
    step: int | None
    files: tuple[str, ...]
    proof: Proof
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tie:
    """What was compared with one neighbour: files alike, or everything."""

    neighbour: Neighbour
    everything: bool = False
    moving: bool = False
    alike: tuple[Alike, ...] = field(default_factory=tuple)


def compare(neighbour: Neighbour, files: Sequence[str]) -> Tie:
    """Sort out what is equal in a neighbour, rank by rank, and else file by file."""
    equal = {path for path in files if path in neighbour.alike}
    if not equal:
        return Tie(neighbour)
    if not neighbour.unlike:
        moving = any(p.equal and p.kind is not Likeness.WEIGHT for p in neighbour.probes)
        return Tie(neighbour, everything=True, moving=moving)
    ranks: dict[int | str, list[str]] = {}
    for path in files:
        if path in neighbour.alike or path in neighbour.unlike:
            rank = rank_of(path)
            ranks.setdefault(path if rank is None else rank, []).append(path)
    groups = []
    for members in ranks.values():
        if all(path in equal for path in members):
            groups.append(tuple(members))
        else:
            groups.extend((path,) for path in members if path in equal)
    alike = tuple(_prove(neighbour, group) for group in groups)
    return Tie(neighbour, alike=alike)


def _prove(neighbour: Neighbour, group: tuple[str, ...]) -> Alike:
    """Ask whether what stands still in these files moved in others."""
    inside = [probe for probe in neighbour.probes if probe.file in group]
    moved_fqns = {p.fqn for p in neighbour.probes if p.file not in group and not p.equal}
    stepped = {
        parameter_of(p.fqn)
        for p in neighbour.probes
        if p.kind is Likeness.COUNT and not p.equal and p.fqn.endswith("step")
    }
    trained = {tail for fqn in moved_fqns if moment_of(fqn) is None for tail in tails_of(fqn)}
    trained |= {parts[0] for fqn in moved_fqns if (parts := moment_of(fqn)) is not None}
    moments: set[str] = set()
    weights: set[str] = set()
    for probe in inside:
        if probe.kind is Likeness.MOMENT:
            parts = moment_of(probe.fqn)
            steps = parts is not None and (parts[0] in stepped or parts[0] in trained)
            if probe.fqn in moved_fqns or steps:
                moments.add(probe.fqn)
        elif probe.kind is Likeness.WEIGHT and (
            probe.fqn in moved_fqns or not trained.isdisjoint(tails_of(probe.fqn))
        ):
            weights.add(probe.fqn)
    # weights that stand still though others moved, and their own moments did too
    learned = {parts[0] for fqn in moved_fqns if (parts := moment_of(fqn)) is not None}
    lone = any(moment_of(fqn) is None for fqn in moved_fqns) and any(
        probe.fine and probe.fqn in weights and not learned.isdisjoint(tails_of(probe.fqn))
        for probe in inside
    )
    moved = tuple(sorted(moments | weights))
    dense = {fqn for fqn in moments | weights if not looked_up(fqn)}
    sure = bool(dense & moments) or (bool(dense) and len(moments | weights) >= _WEIGHTS)
    if sure:
        proof = Proof.CERTAIN
    elif len(weights) > 1 or (weights and moments) or (lone and dense):
        proof = Proof.LIKELY
    else:
        proof = Proof.EXPLAINED if moments | weights else Proof.NONE
    return Alike(neighbour.name, neighbour.step, group, proof, moved)


def home_of(
    alike: Alike,
    *,
    common: int | None,
    stamps: Iterable[Stamp],
    estimates: Mapping[str, Sequence[float]],
    strays: frozenset[str],
    dissenting: frozenset[str],
    odd_here: Mapping[str, float],
    odd_there: Mapping[str, float],
) -> tuple[Home, str]:
    """Decide to which checkpoint files belong that are equal in both, and say by what.

    ``estimates`` are the steps that a rank's own counters are worth, ``strays`` the files with a
    counter that all peers have alike and they have not, ``dissenting`` those that contradict the
    rest here; the odd are out of line by their times.
    """
    said = {stamp.step for stamp in stamps if stamp.file in alike.files}
    here = common is not None and common in said
    there = alike.step in said or any(path in dissenting for path in alike.files)
    if here != there:
        return (Home.HERE, "it says so") if here else (Home.THERE, "it says another step")
    if common is not None and alike.step is not None and common != alike.step:
        for worth in (one for path in alike.files for one in estimates.get(path, ())):
            near = abs(worth - common) < abs(worth - alike.step)
            return (
                (Home.HERE if near else Home.THERE),
                f"its own counters are worth step {worth:.4g}",
            )
    if any(path in strays for path in alike.files):
        return Home.THERE, "its own counters differ from what all its peers have"
    by_time = (
        [path in odd_here for path in alike.files],
        [path in odd_there for path in alike.files],
    )
    if all(by_time[0]) and not any(by_time[1]):
        return Home.THERE, "its time is out of line here and not there"
    if all(by_time[1]) and not any(by_time[0]):
        return Home.HERE, "its time is out of line there and not here"
    return Home.OPEN, ""
