"""``ckptctl resolve``: the one checkpoint to resume from, proven, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptctl import protocol
from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.commit_state import State
from ckptctl.model.manifest import LATEST, Manifest, PointerRevision
from ckptctl.operations.catalog.behind import Answered, newer_than
from ckptctl.operations.catalog.candidates import Root
from ckptctl.operations.catalog.judging import Judge
from ckptctl.operations.catalog.list import state_of
from ckptctl.operations.catalog.resolution import (
    Choice,
    Lost,
    NoneUsable,
    Resolution,
    ResolveOptions,
    Skipped,
    TooMuchLost,
    Undecided,
    between,
)
from ckptctl.operations.decision import Decision, decide
from ckptctl.operations.find import find
from ckptctl.operations.place import Place, address
from ckptctl.operations.progress import Progress
from ckptctl.operations.vacancy import nothing_here
from ckptctl.storage import Store

__all__ = ["NoneUsable", "Resolution", "ResolveOptions", "Skipped", "resolve"]

_TRIES = 4


def resolve(
    store: Store,
    *,
    options: ResolveOptions | None = None,
    progress: Progress | None = None,
    places: Sequence[Place] | None = None,
) -> Resolution:
    """Choose the newest committed checkpoint that verifies and fits.

    The pointer is asked first; a checkpoint that was committed after it was last moved is newer
    news where it holds all that the one before it holds, one that a rollback turned its back on is
    not. What fails is skipped for the next older one. Raises ``NothingThere`` if nothing exists,
    ``NoneUsable`` if nothing is good, ``TooMuchLost`` if the best is too far behind, ``Undecided``
    if it is not known what the pointer names, ``StorageError`` if that could not be found out.
    """
    for _ in range(_TRIES):
        choice = _Choice(store, options or ResolveOptions(), progress, places)
        found = choice.choose()
        if choice.still_so():
            return found
        places = None  # marked, moved or deleted while it was being verified
    raise StorageError(f"{store.url}: checkpoints, marks or the pointer change all the time")


class _Choice:
    """One choice, with what was passed over and noticed on the way."""

    def __init__(
        self,
        store: Store,
        options: ResolveOptions,
        progress: Progress | None,
        places: Sequence[Place] | None,
    ) -> None:
        self._store, self._options = store, options
        self._root = Root(find(store) if places is None else list(places))
        self._judge = Judge(store, options, progress)
        self._decision = Decision()
        self._blocked: tuple[PointerRevision, str] | None = None
        self._taken: tuple[Place, Manifest | None] | None = None

    def choose(self) -> Resolution:
        """Ask one after the other, from the newest on."""
        if not self._root.places:
            raise nothing_here(self._store)
        root = self._root = Root.read(self._store, self._root.places)
        newest = root.newest()
        first = newest[0][0].path if newest else None
        self._decision = decide(self._store, root.paths, newest=first)
        revision = self._decided(first)
        if revision is not None and revision.target in root.unread:
            self._blocked = revision, root.unread[revision.target]
        candidates = root.in_order(newest, revision)
        root.notes += root.disagreements(self._store, revision)
        for number, candidate in enumerate(candidates):
            reason, failed = self._judge.committed(candidate, candidates[number + 1 :], revision)
            root.troubles.append(failed)
            if not reason:
                root.notes += self._judge.doubts
                return self._answer(candidate.place, candidate.manifest, candidate.how)
            if candidate.named and failed and revision is not None:
                self._blocked = revision, reason
            root.skip(candidate.place, candidate.manifest.step, reason)
        return self._uncommitted()

    def still_so(self) -> bool:
        """Read pointer, manifest and marks once more: tell whether the answer still holds."""
        if self._taken is None:
            return True
        place, manifest = self._taken
        try:
            if decide(self._store, self._root.paths).last != self._decision.last:
                return False
            now = protocol.read_manifest(self._store, place.records)
            if (now and now.digest) != (manifest and manifest.digest):
                return False
            if manifest is None and not place.files(self._store):
                return False
        except (MalformedData, StorageError):
            return False
        return not self._judge.quarantined(place)[0]

    def _decided(self, newest: str | None) -> PointerRevision | None:
        """Return the revision that counts; raise ``Undecided`` where that is not known."""
        decision = self._decision
        if not decision.problem:
            return decision.revision
        if self._options.pointer_fallback:
            self._root.notes.append(f"{decision.said}; `pointer_fallback` takes the older decision")
            return decision.older
        steps = {place.path: place.name.step for place in self._root.places}
        choices = []
        if decision.older is not None:
            why = f"revision {decision.older.revision} names it, which `pointer_fallback` takes"
            choices.append(Choice(decision.older.target, decision.older.step, why))
        elif newest is not None:
            why = "the newest committed one, which `pointer_fallback` takes"
            choices.append(Choice(newest, steps.get(newest), why))
        other = decision.newer or newest or ""
        if other and other not in {choice.name for choice in choices}:
            why = "the newest revision may have named it" if decision.newer else "newest committed"
            choices.append(Choice(other, steps.get(other), why))
        text = " or ".join(f"{one.name} ({one.why})" for one in choices)
        settle = f"`ckptctl promote {address(self._store, 'NAME')}` settles it"
        raise Undecided(
            f"{decision.said}; choose {text}: {settle}",
            self._root.skipped,
            self._root.notes,
            choices,
        )

    def _uncommitted(self) -> Resolution:
        """Go on to those that nobody committed, where they are asked for; else say what they are."""
        root = self._root
        known = {*root.manifests, *(skip.name for skip in root.skipped)}
        rest = [place for place in reversed(root.places) if place.path not in known]
        if self._options.allow_uncommitted:
            readable = [place for place in rest if place.readable]
            for number, place in enumerate(readable):
                reason, failed = self._judge.uncommitted(place, readable[number + 1 :])
                root.troubles.append(failed)
                if not reason:
                    root.notes += self._judge.doubts
                    how = "newest whole one; it was never committed, so nothing proves its identity"
                    return self._answer(place, None, how)
                root.skip(place, place.name.step, reason)
            odd = next((place for place in readable if place.path in self._judge.odd), None)
            if odd is not None:  # one of an odd name goes before none at all
                root.skipped = [one for one in root.skipped if one.name != odd.path]
                root.notes.append(f"{odd.path or '.'} is {self._judge.odd[odd.path]}")
                how = "newest whole one, and it is suspect; it was never committed"
                return self._answer(odd, None, how)
        known |= {skip.name for skip in root.skipped}
        for place in rest:
            if place.path not in known:
                seen = state_of(self._store, place)
                hint = "; `allow_uncommitted` takes such" if seen.state is State.COMPLETE else ""
                why = f"{seen.state.value}{': ' if seen.reason else ''}{seen.reason}"
                root.skip(place, place.name.step, f"not committed ({why}){hint}")
        reasons = [trouble for trouble in root.troubles if trouble]
        where = self._store.url
        if reasons:
            raise StorageError(f"{where}: no checkpoint could be proven good: {reasons[0]}")
        raise NoneUsable(f"{where}: checkpoints exist and none is usable", root.skipped, root.notes)

    def _answer(self, place: Place, manifest: Manifest | None, how: str) -> Resolution:
        """Give the answer, with all that is newer and what is lost by it."""
        step = manifest.step if manifest is not None else place.name.step
        name = place.path or "."
        self._ask_about_target(name, step)
        skipped, lost = newer_than(
            self._store,
            Answered(place, step),
            self._root.places,
            {path: sealed for path, (_, sealed) in self._root.manifests.items()},
            self._root.skipped,
            self._gone(),
        )
        self._refuse_loss(name, step, skipped, lost)
        self._taken = place, manifest
        return Resolution(
            name,
            address(self._store, place.path),
            step,
            how,
            self._proof(manifest),
            manifest is not None,
            skipped,
            tuple(self._root.notes),
            lost,
            manifest.accepted if manifest is not None else (),
        )

    def _ask_about_target(self, name: str, step: int | None) -> None:
        if self._blocked is None or self._options.pointer_fallback:
            return
        revision, why = self._blocked
        if revision.step is not None and step is not None and step > revision.step:
            return  # newer news than what cannot be read
        choices = (
            Choice(revision.target, revision.step, "the pointer names it, and it cannot be read"),
            Choice(name, step, "the next one that is good, which `pointer_fallback` takes"),
        )
        raise Undecided(
            f"pointer {LATEST} (revision {revision.revision}) names {revision.target}, which cannot "
            f"be read: {why}; choose: make it readable, or take {name} with `pointer_fallback`",
            self._root.skipped,
            self._root.notes,
            choices,
        )

    def _gone(self) -> Iterator[Skipped]:
        """Yield what the pointer names where that is not there at all."""
        revision = self._decision.revision or self._decision.older
        if revision is not None and revision.target not in self._root.paths:
            reason = (
                f"pointer {LATEST} (revision {revision.revision}) names it, and it is not there: "
                "deleted, moved, or on a disk that is not mounted"
            )
            yield Skipped(revision.target, revision.step, reason, state="missing")

    def _refuse_loss(
        self, name: str, step: int | None, skipped: tuple[Skipped, ...], lost: Lost
    ) -> None:
        why = self._options.max_loss.exceeded(lost)
        if why:
            choice = Choice(name, step, f"the best that is good; {between(lost)} are lost with it")
            raise TooMuchLost(
                f"{self._store.url}: {name} is the best that is good, and {lost.newest} is newer by "
                f"{why}",
                skipped,
                self._root.notes,
                choices=(choice,),
                lost=lost,
            )

    def _proof(self, manifest: Manifest | None) -> str:
        if manifest is None:
            if self._options.quick:
                return "structure checked; its content was not looked at (`quick`)"
            return "structure checked, and every CRC that it has"
        if self._options.full:
            return "every byte checked"
        return "sizes of all files and digests of small ones checked (`full` checks every byte)"
