"""What becomes of state that each rank has its own of, when the number of ranks changes."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.sharding.mesh import DATA_AXES, MODEL_AXES, REPLICA_AXES, Mesh
from ckptctl.sharding.rank_state import Family, RankKey
from ckptctl.words import ranks as ranks_in_words


class Policy(str, enum.Enum):
    """``keep`` what there is; ``drop`` it; ``merge`` what is equal on all ranks; or refuse."""

    KEEP = "keep"
    DROP = "drop"
    MERGE = "merge"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one family comes to: in one word, and in one sentence."""

    component: str
    verdict: str
    why: str


@dataclass(slots=True)
class Decision:
    """What the policies make of all families.

    ``dropped`` keys are left out, ``copied`` maps new keys to the key they are copies of and the rank
    they are for, and ``refusals`` say why nothing can be done yet.
    """

    dropped: set[str] = field(default_factory=set)
    copied: dict[str, tuple[RankKey, int]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def note(self, family: Family, verdict: str, why: str) -> None:
        """Add what one family comes to."""
        self.outcomes.append(Outcome(family.component, verdict, why))


Contents = Mapping[tuple[str, int | None], str]
"""Digest of what a key holds, by key and by the rank whose copy it is (None where there is one)."""


def decide(
    found: Iterable[Family],
    mesh: Mesh,
    policies: Mapping[str, Policy],
    contents: Contents,
    *,
    ranks: int,
) -> Decision:
    """Apply the policy of each component to the families whose ranks change.

    ``ranks`` is how many wrote the source: names that hold the number of ranks fit as many again.
    """
    decision = Decision()
    for family in found:
        wanted = ranks_wanted(family, mesh)
        if family.fixed and mesh.world_size == ranks:
            wanted = family.ranks
        if family.shared:
            _decide_shared(decision, family, policies[family.component], contents)
        elif family.present == frozenset(range(wanted)):
            decision.note(family, "kept", f"{_count(wanted)} as before, each with its own")
        else:
            _decide(decision, family, wanted, policies[family.component], contents)
    return decision


def suggest(
    found: Iterable[Family],
    mesh: Mesh,
    policies: Mapping[str, Policy],
    contents: Contents,
    *,
    ranks: int,
) -> dict[str, Policy]:
    """Return a policy that can be carried out for each component that has none and needs one.

    What loses least comes first: one state that all ranks had, the lowest rank's, none.
    """
    families, chosen = [*found], dict(policies)
    asked = decide(families, mesh, chosen, contents, ranks=ranks)
    refused = {one.component for one in asked.outcomes if one.verdict == "refused"}
    for name in sorted(refused):
        if policies[name] is not Policy.FAIL:
            continue
        own = [family for family in families if family.component == name]
        merging = [Policy.MERGE] if name == "data" else []
        keeping = [Policy.KEEP] if all(family.shared for family in own) else []
        for policy in (*merging, *keeping, Policy.DROP):
            trial = decide(own, mesh, {**chosen, name: policy}, contents, ranks=ranks)
            if not trial.refusals:
                chosen[name] = policy
                break
    return {name: policy for name, policy in chosen.items() if policy is not policies[name]}


def ranks_wanted(family: Family, mesh: Mesh) -> int:
    """Return how many ranks will look for state of a family on a mesh."""
    if not family.axis:
        return mesh.world_size
    if family.axis == "dp":
        return mesh.count(DATA_AXES | REPLICA_AXES)
    if family.axis in MODEL_AXES:
        return mesh.count(frozenset({family.axis}))
    return family.ranks


def _decide(
    decision: Decision, family: Family, wanted: int, policy: Policy, contents: Contents
) -> None:
    what, present = _names(family), family.present
    keys = {key.fqn for key in family.keys}
    lacking = [rank for rank in range(wanted) if rank not in present]
    surplus = sorted(rank for rank in present if rank >= wanted)
    gone = "is no more" if len(surplus) == 1 else "are no more"
    gap = (
        f"{ranks_in_words(lacking)} would find none"
        if lacking
        else f"{ranks_in_words(surplus)} {gone}"
    )
    if policy == Policy.FAIL:
        decision.refusals.append(
            f"{what} of {_count(len(present))} is there and {_count(wanted)} will look for it: {gap}; "
            f"`{family.component}` can be keep or drop"
            + (" or merge" if family.component == "data" and not family.fixed else "")
        )
        decision.note(family, "refused", gap)
    elif policy == Policy.DROP:
        decision.dropped |= keys
        decision.note(family, "dropped", f"all ranks start over; {len(keys)} keys are left out")
    elif policy == Policy.KEEP:
        decision.note(family, "kept", f"as it is, though {gap}")
    else:
        _merge(decision, family, wanted, contents)


def _merge(decision: Decision, family: Family, wanted: int, contents: Contents) -> None:
    """Give every rank the one state that all had, where they did have the same."""
    what = _names(family)
    slots: dict[str, dict[int, RankKey]] = {}
    for key in family.keys:
        slots.setdefault(key.slot, {})[key.rank] = key
    if family.fixed:
        decision.refusals.append(f"{what} names its number of ranks itself and cannot be merged")
        decision.note(family, "refused", "it cannot be merged")
        return
    for slot, by_rank in slots.items():
        held = {contents.get((key.fqn, None), key.fqn) for key in by_rank.values()}
        if len(held) > 1 or by_rank.keys() != family.present:
            decision.refusals.append(
                f"{what} is not the same on all ranks, so it cannot be merged: {slot} differs"
            )
            decision.note(family, "refused", f"{slot} differs from rank to rank")
            return
    for by_rank in slots.values():
        first = by_rank[min(by_rank)]
        decision.dropped |= {key.fqn for rank, key in by_rank.items() if rank >= wanted}
        for rank in range(wanted):
            if rank not in by_rank:
                decision.copied[first.of(rank)] = (first, rank)
    decision.note(family, "merged", f"it is the same on all ranks, and {_count(wanted)} get it")


def _decide_shared(decision: Decision, family: Family, policy: Policy, contents: Contents) -> None:
    """Decide on keys that every rank saved under the same name: one copy can stay."""
    what = _names(family)
    differing = sorted(
        slot
        for slot in {key.slot for key in family.keys}
        if len({contents.get((k.fqn, k.rank), str(k.rank)) for k in family.keys if k.slot == slot})
        > 1
    )
    if not differing:
        decision.note(family, "kept", "it is the same on all ranks")
    elif policy == Policy.FAIL or policy == Policy.MERGE:
        decision.refusals.append(
            f"{what} was saved by each of {family.ranks} ranks under one name, and {differing[0]} "
            f"is not the same on all; `{family.component}` can be keep (the lowest rank's) or drop"
        )
        decision.note(family, "refused", f"{differing[0]} differs from rank to rank")
    elif policy == Policy.DROP:
        decision.dropped |= {key.fqn for key in family.keys}
        decision.note(family, "dropped", "all ranks start over")
    else:
        lowest = min(family.present)
        decision.note(family, "kept", f"of rank {lowest}, which all ranks will find")


def _names(family: Family) -> str:
    name = {"rng": "the state of random generators", "data": "the position in the data"}
    axis = f" ({family.axis} ranks)" if family.axis else ""
    return name.get(family.component, family.component) + axis


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
