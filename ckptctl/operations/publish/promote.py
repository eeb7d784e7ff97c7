"""``ckptctl promote``: prove a committed checkpoint once more and move the pointer to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptctl import protocol
from ckptctl.checks import AUDIT_CHECKS
from ckptctl.completeness.audit import Wanted
from ckptctl.errors import (
    CkptctlError,
    Findings,
    MalformedData,
    Refused,
    StorageError,
    UsageError,
)
from ckptctl.model.finding import Gap, Report, Stage
from ckptctl.model.manifest import LATEST, MANIFEST, Manifest, PointerRevision
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.progress import Progress
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, verify
from ckptctl.storage import WritableStore


@dataclass(frozen=True, slots=True)
class Promoted(Answer):
    """A pointer that was moved; ``moved`` is false where it named the checkpoint already.

    ``courtesy`` says what went wrong with the plain text copy, which nothing depends on.
    ``values_unseen`` says why the values of so many tensors could not be looked at.
    """

    pointer: str
    revision: int
    target: str
    step: int | None
    moved: bool = True
    dry_run: bool = False
    courtesy: str = ""
    values_unseen: tuple[Gap, ...] = ()


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
    progress: Progress | None = None,
) -> Promoted:
    """Verify a committed checkpoint against its manifest, then move the pointer to it.

    With ``values`` the numbers in its tensors are looked at as well, even if the pointer names it.
    It must hold what ``wanted`` requires: by default, all that an exact resume needs.
    Raises ``Refused`` for one that is not committed or quarantined, that is older than what the
    pointer names (unless ``rollback``), or where the pointer is not at revision ``expect``;
    ``Conflict`` where somebody else moved it first; ``Findings`` for one that does not verify.
    """
    if quick and values:
        raise UsageError("`values` has to read what tensors hold, which `quick` leaves out")
    manifest = _sealed(store, place)
    pointer = protocol.read_pointer(store, tolerant=True)  # a new revision mends an unreadable one
    current = pointer.revision
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
        if not values:
            return named
    older = (
        current is not None
        and current.step is not None
        and (manifest.step is None or manifest.step < current.step)
    )
    if older and not rollback and current is not None:
        raise Refused(
            f"{place.path} is of step {manifest.step} and pointer {LATEST} names step "
            f"{current.step} ({current.target}); `rollback` moves it back; nothing was changed"
        )
    options = Options(
        quick=quick,
        sizes_only=quick,
        require_manifest=True,
        values=values,
        wanted=wanted if wanted is not None else Wanted("resume"),
    )
    if workers is not None:
        options = options.with_workers(workers)
    outcome = verify(store, place, options=_without_pointer(options), progress=progress)
    if outcome.verdict is Verdict.FINDINGS:
        raise Findings(_refusal(place, outcome.report, options))
    if outcome.verdict is Verdict.SUSPECT and outcome.doubt is not None:
        doubt = outcome.doubt
        raise Findings(
            f"{place.path} is suspect, so the pointer was not moved: {doubt.check}: "
            f"{doubt.where.file or ''}: {doubt.message}"
        )
    if outcome.verdict not in (Verdict.OK, Verdict.SUSPECT):
        unread = outcome.verdict is Verdict.UNFINISHED
        raise (StorageError if unread else Refused)(
            f"{place.path} could not be verified: {outcome.why}; nothing was changed"
        )
    unseen = tuple(
        gap for row in outcome.report.coverage if row.stage == Stage.VALUES for gap in row.gaps
    )
    if named is not None:
        return replace(named, values_unseen=unseen)
    revision = PointerRevision(
        name=LATEST,
        revision=pointer.last + 1,
        target=place.path,
        step=manifest.step,
        manifest=manifest.digest,
        rollback=older,
        passed_over=_passed_over(store, manifest, current, rollback=older),
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
    )
    if dry_run:
        return result
    store.prove()
    protocol.point(store, revision)
    try:
        protocol.refresh_courtesy_copy(store, place.path)
    except CkptctlError as error:
        return replace(result, courtesy=str(error))
    return result


def _refusal(place: Place, report: Report, options: Options) -> str:
    """Say why a checkpoint is not promoted: the first damage, else all that is missing."""
    bad = [finding for finding in report.findings if finding.severity >= options.fail_on]
    audited = {check.id for check in AUDIT_CHECKS}
    first = next((finding for finding in bad if finding.check not in audited), None)
    if first is not None:
        return (
            f"{place.path} does not verify, so the pointer was not moved: {first.check}: "
            f"{first.where.file or ''}: {first.message}"
        )
    return (
        f"{place.path} does not hold all that `require={options.wanted.profile}` asks for, so the "
        f"pointer was not moved: {'; '.join(finding.message for finding in bad)}"
    )


def _without_pointer(options: Options) -> Options:
    # the pointer may name another manifest of this very checkpoint: that is what is being mended
    return replace(options, ignore=options.ignore | {"pointer-mismatch"})


def _sealed(store: WritableStore, place: Place) -> Manifest:
    try:
        manifest = protocol.read_manifest(store, place.records)
    except MalformedData as error:
        raise Findings(f"{place.path}: its manifest cannot be used: {error}") from None
    if manifest is None:
        raise Refused(
            f"{place.path} is not committed; `ckptctl commit` verifies and seals it; nothing was "
            "changed"
        )
    seal = protocol.read_seal(store, place.records, name=place.name.text)
    if seal.quarantined:
        why = seal.quarantine_problem or (seal.quarantine.reason if seal.quarantine else "")
        raise Refused(f"{place.path} is quarantined: {why}; nothing was changed")
    return manifest


def _passed_over(
    store: WritableStore, manifest: Manifest, current: PointerRevision | None, *, rollback: bool
) -> tuple[str, ...]:
    """Name the commits that this and earlier rollbacks turned their backs on."""
    found = set(current.passed_over if current is not None else ())
    for place in find(store) if rollback else ():
        if any(entry.name == MANIFEST for entry in place.entries):
            try:
                other = protocol.read_manifest(store, place.records)
            except MalformedData:
                continue
            if other is not None and (other.step or -1) > (manifest.step or -1):
                found.add(other.digest)
    return tuple(sorted(found - {manifest.digest}))
