"""What is newer than the answer: every checkpoint that was not taken, in whatever state it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import StorageError
from ckptctl.model.commit_state import State
from ckptctl.model.manifest import Manifest, is_record
from ckptctl.operations.catalog.list import state_of
from ckptctl.operations.catalog.resolution import Lost, Skipped
from ckptctl.operations.place import Place
from ckptctl.sharding.record import temporary
from ckptctl.storage import Store

_SAME_MOMENT = 2.0
"""Seconds within which two saves are not told apart by their times."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer: its place and the step that it is of."""

    place: Place
    step: int | None


def newer_than(
    store: Store,
    answer: Answered,
    places: Iterable[Place],
    manifests: Mapping[str, Manifest],
    skipped: Iterable[Skipped],
    gone: Iterable[Skipped] = (),
) -> tuple[tuple[Skipped, ...], Lost]:
    """Complete what was skipped by all that is newer than the answer, and say what is lost.

    Newer is what is of a later step; what gives no step, or the same one, is newer where its files
    were written later. ``gone`` are checkpoints that are only spoken of.
    """
    reasons = {one.name: one for one in skipped}
    mine = saved_at(store, answer.place)
    found: list[Skipped] = []
    for place in places:
        if place.path == answer.place.path:
            continue
        if temporary(place.path.rpartition("/")[2]):
            continue  # an unfinished copy of a checkpoint in another form: no later state
        name = place.path or "."
        sealed = manifests.get(place.path)
        step = sealed.step if sealed is not None and sealed.step is not None else place.name.step
        known = step is not None and answer.step is not None
        if known and (step or 0) < (answer.step or 0):
            continue
        saved = saved_at(store, place)
        same = known and step == answer.step
        told = saved is not None and mine is not None
        if (same or not known) and told and (saved or 0.0) <= (mine or 0.0) + _SAME_MOMENT:
            continue
        if same and saved is None and not place.problem:
            continue
        seen = state_of(store, place, check=False)
        before = reasons.pop(place.path, None) or reasons.pop(name, None)
        reason = before.reason if before is not None else _reason(seen.state, seen.reason)
        found.append(Skipped(name, step, reason, seen.state.value, newer=True, saved=saved))
    for one in gone:
        known = one.step is not None and answer.step is not None
        if one.name not in {other.name for other in found} and (
            not known or (one.step or 0) > (answer.step or 0)
        ):
            reasons.pop(one.name, None)
            found.append(replace(one, newer=True))
    found.sort(key=_order, reverse=True)
    return (*found, *reasons.values()), _lost(answer.step, mine, found)


def _order(one: Skipped) -> tuple[bool, int, float]:
    return one.step is not None, one.step or 0, one.saved or 0.0


def _lost(step: int | None, saved: float | None, newer: list[Skipped]) -> Lost:
    if not newer:
        return Lost()
    last = newer[0]
    steps = last.step - step if last.step is not None and step is not None else None
    times = [one.saved for one in newer if one.saved is not None]
    span = max(0.0, max(times) - saved) if times and saved is not None else None
    return Lost(steps, span, len(newer), last.name)


def saved_at(store: Store, place: Place) -> float | None:
    """Return when the newest file of a checkpoint was written, our records left out."""
    try:
        files = place.files(store)
    except StorageError:
        return None
    times = [one.modified for path, one in files.items() if not is_record(path)]
    return max((when for when in times if when is not None), default=None)


def _reason(state: State, why: str) -> str:
    said = f"{state.value}{': ' if why else ''}{why}"
    if state is State.COMPLETE:
        return "complete, and not committed: `ckptctl commit` verifies and seals it"
    return said if state is State.COMMITTED else f"not committed ({said})"
