"""What goes on as before on another number of ranks, and what does not, as far as is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckptctl.comparison.consequences import standard_facts
from ckptctl.dataclass import dataclass
from ckptctl.model.run_facts import Plain
from ckptctl.sharding.rank_policy import Outcome

_PER_RANK = {"rng": "random numbers", "data": "data position"}


@dataclass(frozen=True, slots=True)
class Aspect:
    """One thing that a user cares about: ``kept``, ``changed`` or ``unknown``, and why."""

    name: str
    verdict: str
    why: str


def continuity(
    facts: Mapping[str, Plain],
    components: Iterable[str],
    outcomes: Iterable[Outcome],
    *,
    ranks: tuple[int, int],
    data_ranks: tuple[int, int],
) -> tuple[Aspect, ...]:
    """Say what becomes of everything that a reshard touches or does not.

    ``facts`` are what the manifest recorded of the run; ``ranks`` and ``data_ranks`` are how many
    there were and will be, all of them and data-parallel ones.
    """
    present = set(components)
    known = {name: value for name, (value, _) in standard_facts(facts).items()}
    found = [
        Aspect(name, "kept", "bit for bit; proven before the result is committed")
        for name in ("model", "optimizer")
        if name in present
    ]
    batch = _global_batch(known, *data_ranks)
    found += [batch, _accumulation(known, batch), _learning_rate(present, batch)]
    found.append(_sample_order(known, present, *data_ranks))
    outcomes = tuple(outcomes)
    for outcome in outcomes:
        name = _PER_RANK.get(outcome.component, outcome.component)
        same = outcome.verdict == "merged" or (outcome.verdict == "kept" and ranks[0] == ranks[1])
        open_ = outcome.verdict == "refused"
        verdict = "unknown" if open_ else "kept" if same else "changed"
        word = "to be decided" if open_ else outcome.verdict
        found.append(Aspect(name, verdict, f"{word}, {outcome.why}"))
    shown = {outcome.component for outcome in outcomes}
    for component, name in _PER_RANK.items():
        if component not in shown:
            held = component in present
            why = "one state for all ranks" if held else "the checkpoint holds none"
            found.append(Aspect(name, "unknown", why))
    return tuple(found)


def _count(value: Plain) -> int | None:
    return value if type(value) is int and value > 0 else None


def _global_batch(known: Mapping[str, Plain], before: int, after: int) -> Aspect:
    name = "global batch"
    if before == after:
        return Aspect(name, "kept", f"{after} data-parallel ranks as before")
    micro, steps = _count(known.get("micro_batch")), _count(known.get("accumulation"))
    total = _count(known.get("global_batch"))
    if total is not None:
        each = f", {total // after} for each of {after} ranks" if total % after == 0 else ""
        return Aspect(
            name,
            "kept" if total % after == 0 else "changed",
            f"{total} is recorded as the batch of all ranks"
            + (each or f", which {after} ranks cannot share evenly"),
        )
    if micro is not None:
        steps = steps or 1
        was, now = micro * steps * before, micro * steps * after
        return Aspect(
            name, "changed", f"{was} before, {now} with the same settings on {after} ranks"
        )
    return Aspect(name, "unknown", "the manifest records neither it nor the batch of one rank")


def _accumulation(known: Mapping[str, Plain], batch: Aspect) -> Aspect:
    steps = _count(known.get("accumulation"))
    if steps is None:
        return Aspect("accumulation", "unknown", "the manifest does not record it")
    if batch.verdict == "kept":
        return Aspect("accumulation", "kept", f"{steps} steps, if the program is set so")
    return Aspect(
        "accumulation", "unknown", f"{steps} steps; another number keeps the global batch"
    )


def _learning_rate(present: set[str], batch: Aspect) -> Aspect:
    if "scheduler" not in present and "optimizer" not in present:
        return Aspect("learning rate", "unknown", "the checkpoint holds no schedule")
    if batch.verdict == "kept":
        return Aspect("learning rate", "kept", "its schedule goes on for the same batch")
    return Aspect(
        "learning rate",
        "unknown",
        f"its schedule goes on as it was; whether it fits depends on the global batch, which is "
        f"{batch.verdict}",
    )


def _sample_order(known: Mapping[str, Plain], present: set[str], before: int, after: int) -> Aspect:
    if before == after:
        return Aspect("sample order", "kept", "each rank draws what it would have drawn")
    seed = f" (seed {known['seed']})" if "seed" in known else ""
    where = "" if "data" in present else "; no position in the data is in the checkpoint"
    return Aspect(
        "sample order",
        "changed",
        f"{after} ranks divide the samples among them in another way than {before}{seed}{where}",
    )
