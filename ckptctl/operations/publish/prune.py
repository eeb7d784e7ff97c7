"""``ckptctl prune``: delete old checkpoints, and never one that somebody may still need."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ckptctl import protocol
from ckptctl.errors import Refused, UsageError
from ckptctl.formats import registry
from ckptctl.model.commit_state import State
from ckptctl.model.manifest import LATEST, MANIFEST
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.catalog.list import Row, list_checkpoints
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.pointers import pointers, recorded
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, verify
from ckptctl.storage import Store, WritableStore

DAY = 86400.0
_UNITS = {"m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}
_GOOD = (State.PROMOTED, State.COMMITTED, State.COMPLETE)
_UNFINISHED = (State.STAGING, State.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept: the last so many, every so many steps, everything younger than so many seconds."""

    keep_last: int | None = None
    keep_every: int | None = None
    older_than: float | None = None

    @classmethod
    def of(
        cls, keep_last: int | None, keep_every: int | None, older_than: float | str | None
    ) -> Policy:
        """Check what a user asked for; ages may be written as ``12h``.

        Raises ``UsageError`` for one that is no age, and where nothing says what is kept.
        """
        if keep_last is None and keep_every is None and older_than is None:
            raise UsageError("say what to keep: `keep_last`, `keep_every` or `older_than`")
        age = _seconds(older_than) if isinstance(older_than, str) else older_than
        return cls(keep_last, keep_every, age)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if match is None:
        raise UsageError(f"`older_than` takes an age such as 90m, 12h, 7d or 2w, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one checkpoint and why; ``size`` in bytes."""

    name: str
    step: int | None
    state: State
    size: int
    delete: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Plan(Answer):
    """The fate of every checkpoint of a root, oldest step first; ``done`` once it was carried out."""

    root: str = field(metadata=PATH)
    fates: tuple[Fate, ...]
    done: bool = False

    @property
    def doomed(self) -> tuple[Fate, ...]:
        """Those that are deleted."""
        return tuple(fate for fate in self.fates if fate.delete)


def plan(store: Store, policy: Policy, *, places: Sequence[Place] | None = None) -> Plan:
    """Decide which checkpoints a policy deletes; nothing is changed.

    Never deleted, whatever the policy: what any pointer names, the newest committed one that
    verifies, the newest whole one where none is committed, a save younger than a day, and what
    this release cannot read.
    """
    found = find(store) if places is None else list(places)
    listing = list_checkpoints(store, check=True, places=found)
    by_path = {place.path or ".": place for place in found}
    protected = _protected(store, by_path, listing.checkpoints)
    good = [row for row in listing.checkpoints if row.state in _GOOD]
    kept = (
        dict.fromkeys((row.name for row in good[-policy.keep_last :]), "")
        if policy.keep_last
        else {}
    )
    now = time.time()
    fates = []
    for row in listing.checkpoints:
        reason = _keep(row, policy, protected, kept, now)
        why = reason or _why(row, policy)
        fates.append(Fate(row.name, row.step, row.state, row.size, not reason, why))
    return Plan(store.url, tuple(fates))


def _keep(
    row: Row, policy: Policy, protected: dict[str, str], kept: dict[str, str], now: float
) -> str:
    """Say why a checkpoint is kept, or return the empty string."""
    age = now - row.modified if row.modified is not None else 0.0
    if row.name in protected:
        return protected[row.name]
    if row.linked:
        return "a link: what it leads to is not part of this root"
    if row.state in _UNFINISHED:
        return "a save may still be running: younger than a day" if age < DAY else ""
    if row.state not in (*_GOOD, State.QUARANTINED):
        return f"{row.state.value}: {row.reason}"
    if row.name in kept:
        return f"one of the last {policy.keep_last}"
    if policy.keep_every and row.step is not None and row.step % policy.keep_every == 0:
        return f"its step is a multiple of {policy.keep_every}"
    if policy.older_than is not None and age < policy.older_than:
        return "younger than `older_than`"
    if row.step is None:
        return "it has no step to order it by"
    return ""


def _why(row: Row, policy: Policy) -> str:
    if row.state in _UNFINISHED:
        return f"{row.state.value}, and older than a day"
    if policy.keep_last is not None:
        return f"not one of the last {policy.keep_last}"
    return "older than `older_than`" if policy.older_than is not None else "not kept by the policy"


def _protected(store: Store, places: dict[str, Place], rows: tuple[Row, ...]) -> dict[str, str]:
    """Return what no policy may delete, with the reason."""
    found: dict[str, str] = {}
    known = list(places.values())
    for pointer in (*pointers(store, known), *recorded(store, known)):
        if pointer.target is not None:
            found[pointer.target or "."] = f"{pointer.name} names it"
    promoted = protocol.read_pointer(store)
    if promoted.problems:
        raise Refused(
            f"{promoted.problems[0]}; what it names cannot be protected, so nothing is deleted: "
            "promote a checkpoint first"
        )
    revision = promoted.revision
    if revision is not None:
        found[revision.target] = f"pointer {LATEST} names it"
    for row in reversed(rows):
        if row.state not in (State.COMMITTED, State.PROMOTED):
            continue
        outcome = verify(
            store,
            places[row.name],
            options=Options(quick=True, sizes_only=True, ignore=frozenset({"pointer-mismatch"})),
        )
        good = outcome.verdict in (Verdict.OK, Verdict.SUSPECT) and outcome.doubt is None
        if good and outcome.manifest is not None:
            found.setdefault(row.name, "the newest committed one that verifies")
            return found
    whole = [row.name for row in rows if row.state is State.COMPLETE]
    if whole:
        found.setdefault(whole[-1], "the only whole copy of the newest step, though not committed")
    return found


def prune(
    store: WritableStore,
    policy: Policy,
    *,
    places: Sequence[Place] | None = None,
    dry_run: bool = False,
    confirm: Callable[[Plan], bool] | None = None,
) -> Plan:
    """Make a plan and carry it out, once ``confirm`` has agreed to it.

    Raises ``Refused`` where it has not.
    """
    chosen = plan(store, policy, places=places)
    if dry_run or not chosen.doomed:
        return chosen
    if confirm is not None and not confirm(chosen):
        raise Refused("not confirmed; nothing was changed")
    gone = {fate.name: fate for fate in carry_out(store, chosen)}
    return Plan(chosen.root, tuple(gone.get(fate.name, fate) for fate in chosen.fates), done=True)


def carry_out(store: WritableStore, chosen: Plan) -> Iterator[Fate]:
    """Delete what a plan dooms, records first and data after; yield each as it is gone.

    A checkpoint that a pointer has come to name since the plan was made is left alone.
    """
    places = {place.path or ".": place for place in find(store)} if chosen.doomed else {}
    for fate in chosen.doomed:
        if fate.name not in places:
            continue  # somebody else deleted it meanwhile
        revision = protocol.read_pointer(store).revision
        if revision is not None and revision.target == fate.name:
            yield replace(fate, delete=False, reason=f"pointer {LATEST} names it by now")
            continue
        _delete(store, places[fate.name])
        yield fate


def _delete(store: WritableStore, place: Place) -> None:
    """Delete one checkpoint so that at no moment a manifest promises what is gone already."""
    store.delete(join(place.records, MANIFEST), durable=True)
    files = place.files(store)
    for name in registry.metadata_of(place.format, files):
        store.delete(join(place.base, name), durable=True)
    if place.members is None:
        _delete_tree(store, place.path)
        return
    for name in files:
        store.delete(join(place.base, name))
    if any(entry.path.startswith(f"{place.records}/") for entry in place.entries):
        _delete_tree(store, place.records)


def _delete_tree(store: WritableStore, path: str) -> None:
    """Delete a directory with all that is in it, our records last; a link goes, not its target."""
    entries = store.entries(path)
    for entry in sorted(entries, key=lambda one: (one.name.startswith("ckptctl."), one.name)):
        if entry.kind == "directory" and entry.target is None:
            _delete_tree(store, entry.path)
        else:
            store.delete(entry.path)
    store.remove_directory(path)
