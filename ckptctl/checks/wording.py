"""How findings of identity name ranks, steps and what says so."""

from __future__ import annotations

from collections.abc import Sequence

from ckptctl.model.checkpoint import rank_of
from ckptctl.model.companion import Kind
from ckptctl.provenance.assessment import Assessment
from ckptctl.provenance.consensus import Dissent
from ckptctl.provenance.counters import Stamp, parameter_of
from ckptctl.words import listed, runs_of

MOST_NAMES = 8


def what(members: Sequence[Dissent]) -> str:
    """Say by which of its values files vote, and what supports it."""
    names: list[str] = []
    parameters: list[str] = []
    for stamp in (stamp for one in members for stamp in one.stamps):
        if stamp.kind is Kind.OPTIMIZER:
            parameters.append(parameter_of(stamp.key))
        elif stamp.key not in names:
            names.append(stamp.key)
    if parameters:
        names.append(f"optimizer step of {listed(list(dict.fromkeys(parameters)), 4)}")
    support = [one.support for one in members if one.support]
    return "; ".join((listed(names, 6), *support[:1]))


def whose(stamps: Sequence[Stamp]) -> str:
    """Name the parameters, or the groups of them, whose steps these are."""
    names = dict.fromkeys(
        parameter_of(one.key) if one.kind is Kind.OPTIMIZER else one.key for one in stamps
    )
    return listed(list(names), 3)


def others(found: Assessment, step: int) -> str:
    """Say what the other files vote."""
    by_step: dict[int, list[str]] = {}
    silent: list[str] = []
    for one in found.identity.files if found.identity.step is not None else ():
        if not one.steps:
            silent.append(one.file)
        elif one.steps[0] != step:
            by_step.setdefault(one.steps[0], []).append(one.file)
    heard = {rank_of(path) for files in by_step.values() for path in files}
    silent = [path for path in silent if rank_of(path) is None or rank_of(path) not in heard]
    parts = [f"{votes(files)} {other}" for other, files in sorted(by_step.items())]
    if silent:
        parts.append(f"{who(silent)} {verb(silent, 'does', 'do')} not vote")
    return ", ".join(parts) or f"the directory says {found.step}"


def votes(files: Sequence[str]) -> str:
    """Begin a sentence about what files vote for."""
    return f"{who(files)} {verb(files, 'votes', 'vote')}"


def verb(files: Sequence[str], one: str, many: str) -> str:
    """Choose a word for one rank or for several."""
    ranks = {rank_of(path) for path in files}
    count = len(files) if None in ranks else len(ranks)
    return one if count == 1 else many


def who(files: Sequence[str]) -> str:
    """Name files by their ranks, where the names have them."""
    numbers = {rank_of(path) for path in files}
    if None in numbers:
        return listed(sorted(set(files)), MOST_NAMES)
    ranks = sorted(rank for rank in numbers if rank is not None)
    parts = runs_of(ranks, shortest=3)
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(parts, MOST_NAMES)}"
