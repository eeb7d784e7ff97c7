"""``ckptctl promote``: prove a committed checkpoint once more and move the pointer to it."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl import protocol
from ckptctl.completeness.audit import Wanted
from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import (
    CkptctlError,
    Conflict,
    Findings,
    MalformedData,
    Refused,
    StorageError,
    UsageError,
)
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.finding import Finding, Gap, Stage
from ckptctl.model.manifest import LATEST, MANIFEST, Manifest, PointerRevision
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.operations.find import find, place_at
from ckptctl.operations.fitness import Flaw, Objection, held, loss_of, objection, shrunk
from ckptctl.operations.place import Place, read_manifest
from ckptctl.operations.progress import Progress
from ckptctl.operations.publish.accept import Fresh
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.verify.accepting import Accepting, way_round
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verification, verify
from ckptctl.storage import Store, WritableStore


@dataclass(frozen=True, slots=True)
class Promoted(Answer):
    """A pointer that was moved; ``moved`` is false where it named the checkpoint already.

    ``courtesy`` says what went wrong with the plain text copy, which nothing depends on.
    ``values_unseen`` says why the values of so many tensors could not be looked at. ``accepted`` is
    what was accepted just now, which amendment ``amendment`` records, and ``unmatched`` what was to
    be accepted and fits no finding.
    """

    pointer: str
    revision: int
    target: str
    step: int | None
    moved: bool = True
    dry_run: bool = False
    courtesy: str = ""
    values_unseen: tuple[Gap, ...] = ()
    accepted: tuple[Acceptance, ...] = ()
    amendment: int = 0
    unmatched: tuple[str, ...] = ()


def promote(
    store: WritableStore,
    place: Place,
    *,
    reason: str = "",
    quick: bool = False,
    values: bool = False,
    expect: int | None = None,
    rollback: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    wanted: Wanted | None = None,
    accepting: Accepting | None = None,
    progress: Progress | None = None,
) -> Promoted:
    """Verify a committed checkpoint against its manifest, then move the pointer to it.

    With ``values`` the numbers in its tensors are looked at as well, even if the pointer names it.
    It must hold what ``wanted`` requires: by default, all that an exact resume needs, and what the
    one that the pointer names now holds. What is wrong with it and is accepted by ``accepting`` is
    recorded in an amendment before the pointer moves. Marks, manifest and pointer are read again right before
    the pointer moves. Raises ``Refused`` for one that is not committed or quarantined, that is
    older than what the pointer names (unless ``rollback``), or where the pointer is not at revision
    ``expect``; ``Conflict`` where somebody else moved it first; ``Findings`` for one that does not
    verify.
    """
    if quick and values:
        raise UsageError("`values` has to read what tensors hold, which `quick` leaves out")
    accepting = accepting or Accepting()
    amended = protocol.last_amendment(store, place.records) if accepting.wishes else 0
    manifest = _sealed(store, place)
    # a new revision mends one that cannot be used
    pointer = protocol.read_pointer(store)
    current = pointer.decided
    known = [one for one in (pointer.revision, pointer.copy) if one is not None]
    if expect is not None and pointer.last != expect:
        who = f": {current.actor} moved it to {current.target}" if current is not None else ""
        raise Refused(
            f"pointer {LATEST} is at revision {pointer.last}, not {expect}{who}; nothing was changed"
        )
    # whoever made these records may have died before they were durable
    store.make_durable([join(place.records, MANIFEST)])
    named: Promoted | None = None
    if current is not None and current.target == place.path and current.manifest == manifest.digest:
        store.make_durable([current.path])
        named = Promoted(LATEST, current.revision, place.path, manifest.step, moved=False)
    known = [_as_amended(store, one) for one in known]
    newer = next((one for one in known if _is_older(manifest, one)), None)
    if newer is not None and not rollback:
        raise Refused(
            f"{place.path} is of step {manifest.step} and pointer {LATEST} names step "
            f"{newer.step} ({newer.target}); `rollback` moves it back; nothing was changed"
        )
    options = Options(
        quick=quick,
        sizes_only=quick,
        require_manifest=True,
        values=values,
        wanted=wanted if wanted is not None else Wanted("resume"),
        # the pointer may name another manifest of this very checkpoint: that is being mended
        ignore=frozenset({"pointer-mismatch"}),
        accepting=accepting,
    )
    if workers is not None:
        options = options.with_workers(workers)
    outcome = verify(store, place, options=options, progress=progress)
    flaw = objection(outcome, options) or loss_of(manifest)
    if flaw is None and newer is None and current is not None and named is None:
        flaw = _shrunk(store, place, current, outcome.wanted(options.wanted))
    if flaw is not None:
        raise _refusal(place, flaw, options, way_round(_against(outcome, flaw, options)))
    unseen = tuple(
        gap for row in outcome.report.coverage if row.stage == Stage.VALUES for gap in row.gaps
    )
    fresh = Fresh.of(accepting, outcome.report.findings, after=amended)
    passed = _passed_over(store, manifest, known, rollback=rollback or bool(pointer.problems))
    if named is not None and current is not None and set(passed) <= set(current.passed_over):
        _ask_again(store, place, manifest, pointer)
        if not dry_run and fresh.accepted:
            store.prove()
            fresh.record(store, place, manifest, reason)
        return replace(named, values_unseen=unseen, dry_run=dry_run, **fresh.told())
    revision = PointerRevision(
        name=LATEST,
        revision=pointer.last + 1,
        target=place.path,
        step=manifest.step,
        manifest=manifest.digest,
        rollback=rollback,
        passed_over=passed,
        time=now(),
        actor=actor(),
        reason=reason,
    )
    result = Promoted(
        LATEST,
        revision.revision,
        place.path,
        manifest.step,
        dry_run=dry_run,
        values_unseen=unseen,
        **fresh.told(),
    )
    if not dry_run:
        store.prove()
    _ask_again(store, place, manifest, pointer)
    if dry_run:
        return result
    fresh.record(store, place, manifest, reason)
    try:
        protocol.point(store, revision)
    except Conflict as error:
        raise Conflict(fresh.kept(str(error))) from None
    _look_after(store, place)
    try:
        protocol.refresh_courtesy_copy(store, place.path)
    except CkptctlError as error:
        return replace(result, courtesy=str(error))
    return result


def _look_after(store: WritableStore, place: Place) -> None:
    """Bring back what was moved away in that very moment; prune looks for the pointer after its move."""
    try:
        there = protocol.read_manifest(store, place.records) is not None
    except (MalformedData, StorageError):  # the pointer has moved, and nobody says that it is gone
        there = True
    if there:
        return
    from ckptctl.operations.retention.trash import undelete

    try:
        undelete(store, place.path)
    except CkptctlError as error:
        raise Refused(
            f"pointer {LATEST} names {place.path} now, and that was moved away in the same moment: "
            f"bring it back with `ckptctl undelete`, or promote another ({error})"
        ) from None


def _as_amended(store: Store, revision: PointerRevision) -> PointerRevision:
    """Return a revision with the step that its target has by now, where that is the one it means."""
    try:
        found = protocol.read_manifest(store, revision.target)
    except (MalformedData, StorageError):
        return revision
    if found is None or found.digest != revision.manifest:
        return revision
    return replace(revision, step=found.step)


def _is_older(manifest: Manifest, revision: PointerRevision) -> bool:
    return revision.step is not None and (manifest.step is None or manifest.step < revision.step)


def _shrunk(
    store: Store, place: Place, current: PointerRevision, wanted: Wanted
) -> Objection | None:
    """Compare with the one that the pointer names now, where that can still be read."""
    before = None
    if place.members is None and current.target != place.path:
        try:
            before = place_at(store, current.target, place.layout)
        except StorageError:
            before = None
    if before is None:
        return None
    return shrunk(held(store, place), held(store, before), wanted)


def _ask_again(store: Store, place: Place, manifest: Manifest, pointer: protocol.Pointer) -> None:
    """Refuse what was marked, sealed anew, deleted or overtaken while it was being verified."""
    now_sealed = _sealed(store, place, gone=f"{place.path} is not there any more, or not committed")
    if now_sealed.digest != manifest.digest:
        raise Refused(f"{place.path} was sealed again meanwhile; nothing was changed")
    moved = protocol.read_pointer(store)
    if moved.last != pointer.last or moved.decided != pointer.decided:
        who = moved.decided
        by = f" by {who.actor} to {who.target}" if who is not None else ""
        raise Conflict(f"pointer {LATEST} was moved meanwhile{by}; nothing was changed")


def _against(outcome: Verification, flaw: Objection, options: Options) -> list[Finding]:
    """Return the findings for which a checkpoint is refused."""
    if flaw.flaw is Flaw.SUSPECT:
        return [outcome.doubt] if outcome.doubt is not None else []
    return [one for one in outcome.report.findings if one.severity >= options.fail_on]


def _refusal(place: Place, flaw: Objection, options: Options, way_round: str) -> CkptctlError:
    """Say why a checkpoint is not promoted, and which kind of error that is."""
    if flaw.flaw is Flaw.DAMAGED:
        return Findings(
            f"{place.path} does not verify, so the pointer was not moved: {flaw.text}{way_round}"
        )
    if flaw.flaw is Flaw.SUSPECT:
        return Findings(
            f"{place.path} is suspect, so the pointer was not moved: {flaw.text}{way_round}"
        )
    if flaw.flaw is Flaw.LACKING:
        asked = options.wanted.profile or "none"
        return Findings(
            f"{place.path} does not hold all that `require={asked}` asks for, so the pointer was "
            f"not moved: {flaw.text}"
        )
    unread = flaw.flaw is Flaw.UNFINISHED
    return (StorageError if unread else Refused)(
        f"{place.path} could not be verified: {flaw.text}; nothing was changed"
    )


def _sealed(store: Store, place: Place, *, gone: str = "") -> Manifest:
    """Read the manifest of what may be promoted, and its marks."""
    seal = protocol.read_seal(store, place.records, name=place.name.text)
    if seal.problem:
        raise Findings(f"{place.path}: its manifest cannot be used: {seal.problem}")
    if seal.manifest is None:
        what = gone or f"{place.path} is not committed; `ckptctl commit` verifies and seals it"
        raise Refused(f"{what}; nothing was changed")
    if seal.quarantined:
        why = seal.quarantine_problem or (seal.quarantine.reason if seal.quarantine else "")
        raise Refused(f"{place.path} is quarantined: {why}; nothing was changed")
    return seal.manifest


def _passed_over(
    store: Store, manifest: Manifest, known: Iterable[PointerRevision], *, rollback: bool
) -> tuple[str, ...]:
    """Name the commits that this and earlier rollbacks turned their backs on."""
    found = {digest for one in known for digest in one.passed_over}
    for place in find(store) if rollback else ():
        if any(entry.name == MANIFEST for entry in place.entries):
            try:
                other = read_manifest(store, place)
            except MalformedData:
                continue
            if other is not None and (other.step or -1) > (manifest.step or -1):
                found.add(other.digest)
    return tuple(sorted(found - {manifest.digest}))
