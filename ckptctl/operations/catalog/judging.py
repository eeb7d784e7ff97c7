"""Judging one checkpoint that may be handed out: marks, what is asked for, verification, fitness."""

from __future__ import annotations

from collections.abc import Sequence

from ckptctl import protocol
from ckptctl.dataclass import replace
from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.manifest import PointerRevision
from ckptctl.operations import fitness
from ckptctl.operations.catalog.candidates import Candidate
from ckptctl.operations.catalog.resolution import ResolveOptions
from ckptctl.operations.place import Place
from ckptctl.operations.progress import Progress
from ckptctl.operations.surroundings import Surroundings
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verification, verify
from ckptctl.storage import Store

_ELSEWHERE = frozenset({"pointer-mismatch"})
"""What is asked here, of the revision that counts."""

Reason = tuple[str, str]
"""Why one is not taken, and what the storage said if that is why; both empty where it is good."""


class Judge:
    """Says why checkpoints are not taken; what each holds is read once."""

    def __init__(self, store: Store, options: ResolveOptions, progress: Progress | None) -> None:
        """Take what is asked for."""
        self._store, self._options, self._progress = store, options, progress
        self._around = Surroundings()
        self.doubts: list[str] = []
        self.odd: dict[str, str] = {}
        self._held: dict[str, fitness.Held | None] = {}

    def committed(
        self, candidate: Candidate, older: Sequence[Candidate], revision: PointerRevision | None
    ) -> Reason:
        """Say why a committed one is not taken; ``older`` are those after it."""
        unfit = self._unfit(candidate, revision)
        return unfit if unfit[0] else self._check(candidate, older, pointed=revision is not None)

    def _unfit(self, candidate: Candidate, revision: PointerRevision | None) -> Reason:
        """Say why a committed one is not what is asked for, and which failure that rests on."""
        manifest, options = candidate.manifest, self._options
        if options.min_step is not None and (
            manifest.step is None or manifest.step < options.min_step
        ):
            return f"step {manifest.step} is before {options.min_step}", ""
        if options.run_id is not None and manifest.run_id != options.run_id:
            return f"of run {manifest.run_id or 'unknown'}, not {options.run_id}", ""
        if options.world_size is not None and manifest.world_size != options.world_size:
            return f"saved by {manifest.world_size or 'an unknown number of'} ranks", ""
        if candidate.named and revision is not None and revision.manifest != manifest.digest:
            other = f"{revision.manifest}, and the one here is {manifest.digest}"
            return f"pointer-mismatch: revision {revision.revision} was moved to {other}", ""
        return self.quarantined(candidate.place)

    def quarantined(self, place: Place) -> Reason:
        """Say that one is or may be quarantined, and which failure of the storage that rests on."""
        try:
            record = protocol.read_quarantine(self._store, place.records)
        except (MalformedData, StorageError) as error:
            failed = str(error) if isinstance(error, StorageError) else ""
            return f"it may be quarantined; its record cannot be used: {error}", failed
        if record is not None and record.quarantined:
            return f"quarantined by {record.actor} at {record.time}: {record.reason}", ""
        return "", ""

    def _check(self, candidate: Candidate, older: Sequence[Candidate], *, pointed: bool) -> Reason:
        """Verify a committed one; say why it is not good, and what the storage said if that is why.

        One that is only suspected to be mixed is taken where somebody promoted it.
        """
        place, quick = candidate.place, not self._options.full
        before = self._before(candidate, older, pointed=pointed)
        options = Options(
            quick=quick,
            sizes_only=quick,
            require_manifest=True,
            workers=self._options.workers,
            ignore=_ELSEWHERE,
        )
        if candidate.newer:
            options = replace(options, wanted=fitness.bar(before))
        outcome = self._verify(place, options)
        flaw = fitness.objection(outcome, options) or fitness.loss_of(candidate.manifest)
        if flaw is None and before is not None:
            now = self._holds(place)
            if candidate.newer:
                flaw = fitness.shrunk(now, before, outcome.wanted(options.wanted))
            else:
                self._note_less(place, now, before)
        if flaw is None:
            return "", ""
        if flaw.flaw is fitness.Flaw.SUSPECT and not candidate.newer:
            self.doubts.append(f"{place.path} is {_said(flaw)}")
            return "", ""
        refused = "promote would refuse it: " if candidate.newer else ""
        failed = flaw.text if flaw.flaw is fitness.Flaw.UNFINISHED else ""
        return f"{refused}{_said(flaw)}", failed

    def _verify(self, place: Place, options: Options) -> Verification:
        return verify(
            self._store, place, options=options, progress=self._progress, around=self._around
        )

    def _before(
        self, candidate: Candidate, older: Sequence[Candidate], *, pointed: bool
    ) -> fitness.Held | None:
        """Return what the one before it holds: the promoted one, or else the next that can be read."""
        if candidate.named:
            return None
        if not candidate.newer:
            if pointed:
                return None
            return next((found for one in older[:1] if (found := self._holds(one.place))), None)
        named = [one for one in older if one.named]
        return next((found for one in (*named, *older) if (found := self._holds(one.place))), None)

    def _note_less(
        self, place: Place, now: fitness.Held | None, before: fitness.Held | None
    ) -> None:
        """Note what is gone beside one that nobody promoted: that may be a last save of weights."""
        less = fitness.emptied(now, before)
        if less is not None:
            self.doubts.append(f"{place.path}: {less.text}")

    def _holds(self, place: Place) -> fitness.Held | None:
        if place.path not in self._held:
            self._held[place.path] = fitness.held(self._store, place)
        return self._held[place.path]

    def uncommitted(self, place: Place, older: Sequence[Place]) -> Reason:
        """Verify one that nobody committed: structure and CRCs, unless that is not wanted."""
        options = self._options
        if place.name.staging:
            return "under a temporary name: a save may be running", ""
        if options.min_step is not None and (place.name.step or -1) < options.min_step:
            return f"step {place.name.step} is before {options.min_step}", ""
        if options.run_id is not None or options.world_size is not None:
            return "never committed, so its run and world size are not known", ""
        quarantined, failed = self.quarantined(place)
        if quarantined:
            return quarantined, failed
        asked = Options(quick=options.quick, workers=options.workers, ignore=_ELSEWHERE)
        outcome = self._verify(place, asked)
        flaw = fitness.objection(outcome, asked)
        odd = fitness.suspicion(outcome)
        if flaw is None and odd is not None:
            self.odd[place.path] = _said(odd)
            return _said(odd), ""
        if flaw is None:
            if older:
                self._note_less(place, self._holds(place), self._holds(older[0]))
            return "", ""
        return _said(flaw), flaw.text if flaw.flaw is fitness.Flaw.UNFINISHED else ""


def _said(flaw: fitness.Objection) -> str:
    if flaw.flaw is fitness.Flaw.SUSPECT:
        return f"suspect: {flaw.text}"
    return (
        f"could not be checked: {flaw.text}" if flaw.flaw is fitness.Flaw.UNFINISHED else flaw.text
    )
