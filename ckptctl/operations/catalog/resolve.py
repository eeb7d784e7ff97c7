"""``ckptctl resolve``: the one checkpoint to resume from, proven, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ckptctl import protocol
from ckptctl.errors import Findings, MalformedData, NothingThere, StorageError
from ckptctl.model.commit_state import State
from ckptctl.model.finding import Severity
from ckptctl.model.manifest import LATEST, MANIFEST, Manifest
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.catalog.list import state_of
from ckptctl.operations.find import find
from ckptctl.operations.place import Place, address
from ckptctl.operations.pointers import pointers
from ckptctl.operations.progress import Progress
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, verify
from ckptctl.storage import Store


@dataclass(frozen=True, slots=True)
class ResolveOptions:
    """What the checkpoint must be; ``full`` reads every byte of it instead of the small files."""

    full: bool = False
    world_size: int | None = None
    min_step: int | None = None
    run_id: str | None = None
    allow_uncommitted: bool = False
    workers: int = field(default_factory=lambda: Options().workers)

    def with_workers(self, workers: int) -> ResolveOptions:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was not taken, by its name below the root, and why."""

    name: str
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Resolution(Answer):
    """The checkpoint to resume from; ``how`` says why this one, ``proof`` how it was checked."""

    name: str
    path: str = field(metadata=PATH)
    step: int | None
    how: str
    proof: str
    committed: bool
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    place: Place
    manifest: Manifest
    how: str


@dataclass(frozen=True, slots=True)
class Unresolved(Answer):
    """What was passed over where nothing could be chosen, and why."""

    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Checkpoints exist and none is good: that is no fresh start."""
        return Verdict.FINDINGS


class NoneUsable(Findings):
    """Checkpoints exist and none can be used; says what was skipped and why."""

    def __init__(self, message: str, skipped: Iterable[Skipped], notes: Iterable[str]) -> None:
        """Keep the reasons."""
        super().__init__(message)
        self.skipped, self.notes = tuple(skipped), tuple(notes)
        self.result = Unresolved(self.skipped, self.notes)


def resolve(
    store: Store,
    *,
    options: ResolveOptions | None = None,
    progress: Progress | None = None,
    places: Sequence[Place] | None = None,
) -> Resolution:
    """Choose the newest committed checkpoint that verifies and fits.

    The pointer is asked first; a checkpoint that was committed after it was last moved is newer
    news, one that a rollback turned its back on is not. What fails is skipped for the next older
    one. Raises ``NothingThere`` if no checkpoint exists, ``NoneUsable`` if none of them is good,
    ``StorageError`` if that could not be found out.
    """
    options = options or ResolveOptions()
    places = find(store) if places is None else list(places)
    # not tolerant: the newest revision may be a rollback, which an older one must not undo
    pointer = protocol.read_pointer(store)
    if not places:
        if pointer.last or pointers(store, places):
            raise NoneUsable(
                f"{store.url}: no checkpoint is left, though a pointer says that there were some",
                (),
                pointer.problems,
            )
        raise NothingThere(f"{store.url}: no checkpoint exists here")
    notes = [f"pointer {LATEST}: {problem}" for problem in pointer.problems]
    skipped: list[Skipped] = []
    troubles: list[str] = [place.problem for place in places if place.problem]
    hidden = {place.path for place in places if place.problem}
    manifests = _manifests(store, places, skipped, troubles)
    candidates = _order(manifests, hidden, pointer, skipped, notes)
    notes += _disagreements(store, places, hidden, manifests, pointer)
    for candidate in candidates:
        reason, failed = _unfit(store, candidate, options)
        if not reason:
            reason, failed = _check(store, candidate.place, options, progress, notes=notes)
        troubles.append(failed)
        if not reason:
            how = candidate.how
            return _resolution(
                store, candidate.place, candidate.manifest.step, how, options, skipped, notes
            )
        skipped.append(Skipped(candidate.place.path, candidate.manifest.step, reason))
    if options.allow_uncommitted:
        taken = {*manifests, *(skip.name for skip in skipped)}
        for place in reversed([p for p in places if p.path not in taken and p.readable]):
            reason, failed = _check_uncommitted(store, place, options, progress)
            troubles.append(failed)
            if not reason:
                how = "newest whole one; it was never committed, so nothing proves its identity"
                return _resolution(store, place, place.name.step, how, options, skipped, notes)
            skipped.append(Skipped(place.path, place.name.step, reason))
    else:
        known = {skip.name for skip in skipped}
        for place in reversed(places):
            if place.path not in manifests and place.path not in known:
                seen = state_of(store, place)
                hint = "; `allow_uncommitted` takes such" if seen.state is State.COMPLETE else ""
                why = f"not committed ({seen.state.value}{': ' if seen.reason else ''}{seen.reason}){hint}"
                skipped.append(Skipped(place.path, place.name.step, why))
    reasons = [trouble for trouble in troubles if trouble]
    if reasons:
        raise StorageError(f"{store.url}: no checkpoint could be proven good: {reasons[0]}")
    raise NoneUsable(f"{store.url}: checkpoints exist and none is usable", skipped, notes)


def _manifests(
    store: Store, places: list[Place], skipped: list[Skipped], troubles: list[str]
) -> dict[str, tuple[Place, Manifest]]:
    found = {}
    for place in places:
        if place.problem:
            skipped.append(Skipped(place.path, place.name.step, f"unreadable: {place.problem}"))
        if not any(entry.name == MANIFEST for entry in place.entries):
            continue
        try:
            manifest = protocol.read_manifest(store, place.records)
        except MalformedData as error:
            skipped.append(Skipped(place.path, place.name.step, f"its manifest: {error}"))
            continue
        except StorageError as error:
            reason = f"its manifest could not be read: {error}"
            skipped.append(Skipped(place.path, place.name.step, reason))
            troubles.append(str(error))
            continue
        if manifest is not None:
            found[place.path] = (place, manifest)
    return found


def _order(
    manifests: dict[str, tuple[Place, Manifest]],
    hidden: set[str],
    pointer: protocol.Pointer,
    skipped: list[Skipped],
    notes: list[str],
) -> list[_Candidate]:
    """Sort the committed checkpoints, newest first, around the one that the pointer names."""
    newest = sorted(
        manifests.values(),
        key=lambda pair: (-1 if pair[1].step is None else pair[1].step, pair[1].time, pair[0].path),
        reverse=True,
    )
    revision = pointer.revision
    if revision is None:
        how = "newest committed one; there is no pointer"
        return [_Candidate(place, manifest, how) for place, manifest in newest]
    target = manifests.get(revision.target)
    if target is None and revision.target not in hidden:
        notes.append(
            f"pointer {LATEST} (revision {revision.revision}) is dangling: it names "
            f"{revision.target}, which is not there or not committed"
        )
    candidates = []
    before = True
    for place, manifest in newest:
        if target is not None and place.path == revision.target:
            before = False
            how = f"named by pointer {LATEST}, revision {revision.revision}"
            candidates.append(_Candidate(place, manifest, how))
        elif manifest.digest in revision.passed_over:
            reason = f"passed over by the rollback at revision {revision.revision}"
            skipped.append(Skipped(place.path, manifest.step, reason))
        elif before and target is not None:
            notes.append(
                f"pointer {LATEST} (revision {revision.revision}) is stale: it names "
                f"{revision.target}, and {place.path} was committed since"
            )
            candidates.append(_Candidate(place, manifest, "committed after the pointer last moved"))
        else:
            candidates.append(_Candidate(place, manifest, "newest committed one that is good"))
    return candidates


def _unfit(store: Store, candidate: _Candidate, options: ResolveOptions) -> tuple[str, str]:
    """Say why a committed checkpoint is not what is asked for, and which failure that rests on."""
    manifest, place = candidate.manifest, candidate.place
    if options.min_step is not None and (manifest.step is None or manifest.step < options.min_step):
        return f"step {manifest.step} is before {options.min_step}", ""
    if options.run_id is not None and manifest.run_id != options.run_id:
        return f"of run {manifest.run_id or 'unknown'}, not {options.run_id}", ""
    if options.world_size is not None and manifest.world_size != options.world_size:
        return f"saved by {manifest.world_size or 'an unknown number of'} ranks", ""
    return _quarantined(store, place)


def _quarantined(store: Store, place: Place) -> tuple[str, str]:
    """Say that a checkpoint is or may be quarantined, and which failure of the storage that rests on."""
    try:
        record = protocol.read_quarantine(store, place.records)
    except (MalformedData, StorageError) as error:
        failed = str(error) if isinstance(error, StorageError) else ""
        return f"it may be quarantined; its record cannot be read: {error}", failed
    if record is not None and record.quarantined:
        return f"quarantined by {record.actor} at {record.time}: {record.reason}", ""
    return "", ""


def _check(
    store: Store,
    place: Place,
    options: ResolveOptions,
    progress: Progress | None,
    *,
    notes: list[str] | None = None,
) -> tuple[str, str]:
    """Verify; return why it is not good and, if the storage was the reason, what it said.

    A committed one that is only suspected to be mixed is taken, which ``notes`` say.
    """
    quick, sealed = not options.full, notes is not None
    outcome = verify(
        store,
        place,
        options=Options(
            quick=quick,
            sizes_only=quick and sealed,
            require_manifest=sealed,
            workers=options.workers,
        ),
        progress=progress,
    )
    if outcome.verdict is Verdict.FINDINGS:
        worst = [f for f in outcome.report.findings if f.severity is Severity.ERROR]
        more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
        where = f"{worst[0].where.file}: " if worst[0].where.file else ""
        return f"{worst[0].check}: {where}{worst[0].message}{more}", ""
    if outcome.verdict is Verdict.UNFINISHED:
        return f"could not be checked: {outcome.why}", outcome.why
    if outcome.verdict in (Verdict.NOTHING, Verdict.NOT_EXAMINED):
        return f"{outcome.verdict.value}: {outcome.why}", ""
    if outcome.verdict is Verdict.SUSPECT and outcome.doubt is not None:
        doubt = outcome.doubt
        reason = f"suspect: {doubt.check}: {doubt.where.file or place.path}: {doubt.message}"
        if notes is None:
            return reason, ""
        notes.append(f"{place.path} is {reason}")
    return "", ""


def _check_uncommitted(
    store: Store, place: Place, options: ResolveOptions, progress: Progress | None
) -> tuple[str, str]:
    if place.name.staging:
        return "under a temporary name: a save may be running", ""
    if options.min_step is not None and (place.name.step or -1) < options.min_step:
        return f"step {place.name.step} is before {options.min_step}", ""
    if options.run_id is not None or options.world_size is not None:
        return "never committed, so its run and world size are not known", ""
    quarantined, failed = _quarantined(store, place)
    if quarantined:
        return quarantined, failed
    return _check(store, place, options, progress)


def _resolution(
    store: Store,
    place: Place,
    step: int | None,
    how: str,
    options: ResolveOptions,
    skipped: list[Skipped],
    notes: list[str],
) -> Resolution:
    committed = any(entry.name == MANIFEST for entry in place.entries)
    if options.full:
        proof = "every byte checked"
    elif committed:
        proof = "sizes of all files and digests of small ones checked (`full` checks every byte)"
    else:
        proof = "structure checked (`full` checks every byte)"
    url = address(store, place.path)
    return Resolution(
        place.path or ".", url, step, how, proof, committed, tuple(skipped), tuple(notes)
    )


def _disagreements(
    store: Store,
    places: list[Place],
    hidden: set[str],
    manifests: dict[str, tuple[Place, Manifest]],
    pointer: protocol.Pointer,
) -> Iterator[str]:
    """Say which frameworks' pointers name something else than what is committed."""
    steps = {place.path: place.name.step for place in places}
    newest = max(
        (manifest.step for _, manifest in manifests.values() if manifest.step is not None),
        default=None,
    )
    for found in pointers(store, places):
        if found.target is None:
            if found.name != LATEST or pointer.revision is None:
                text = found.text or "nothing"
                yield f"{found.name} is dangling: it names {text}, which is not here"
        elif found.target in hidden:
            continue
        elif found.target not in manifests:
            yield f"{found.name} names {found.target}, which is not committed"
        elif newest is not None and (steps[found.target] or 0) < newest:
            yield f"{found.name} is stale: it names {found.target}, and step {newest} is committed"
