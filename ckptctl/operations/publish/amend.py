"""``ckptctl commit --amend``: say more of a committed checkpoint, and promise the same bytes as before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ckptctl import protocol
from ckptctl.dataclass import replace
from ckptctl.errors import Findings, MalformedData, Refused, StorageError, UsageError
from ckptctl.model.amendment import Amendment
from ckptctl.model.manifest import Manifest, Receipt
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.facts import Facts, with_given
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.publish.again import NOT_OF_BYTES
from ckptctl.operations.publish.given import (
    given_run,
    given_step,
    given_world_size,
    refuse_other_step,
)
from ckptctl.operations.publish.options import CommitOptions, Committed, result_of
from ckptctl.operations.publish.receipts import receipts_of
from ckptctl.operations.verify.accepting import way_round
from ckptctl.operations.verify.beside import Companions
from ckptctl.operations.verify.options import Options as VerifyOptions
from ckptctl.operations.verify.stages import STAGES, Content, Identity, Structure, run_stages
from ckptctl.operations.verify.work import Work, begin
from ckptctl.storage import WritableStore


def amend_checkpoint(
    store: WritableStore,
    place: Place,
    *,
    options: CommitOptions,
    reason: str = "",
    progress: Progress | None = None,
) -> Committed:
    """Create the next amendment of a committed checkpoint: step, run, number of ranks, facts.

    What it promises is never changed. It is verified as what it is to be called: in full where
    the step changes or something is accepted, by sizes and small files elsewhere. Raises ``UsageError`` where nothing is to be
    amended, ``Refused`` for what is not committed or what name or receipts contradict, ``Findings``
    where it is not what was sealed, or its files say another step, ``Conflict`` where somebody
    else amends it at the same time.
    """
    if options.publish_as is not None:
        raise UsageError("`publish_as` gives a name before the commit; `amend` comes after it")
    located, accepting = Located(store, place), options.accepting
    last = protocol.last_amendment(store, place.records)
    manifest, damaged = _sealed(store, place)
    given = (options.step, options.run_id, options.world_size)
    told = options.identity or accepting.wishes or damaged
    if all(one is None for one in given) and not told:
        raise UsageError(
            "say what to amend: `step`, `run_id`, `world_size`, `identity` or `accept`"
        )
    verifying = VerifyOptions(workers=options.workers, ignore=NOT_OF_BYTES, accepting=accepting)
    work = begin(located, verifying, progress=progress)
    receipts = receipts_of(located, work.context.checkpoint)
    record = _amendment(place, work, manifest, receipts, options)
    after = record.applied(manifest)
    if after != manifest or damaged or accepting.wishes:
        given_now = options.step if after.step != manifest.step else None
        found = _prove(work, after, given=given_now).report.findings
        record = replace(record, accepted=(*record.accepted, *accepting.acceptances(found)))
        after = record.applied(manifest)
    else:
        found = ()
    result = replace(
        result_of(store, place.path, after, options),
        amendment=last,
        unmatched=accepting.unmatched(found),
    )
    if after == manifest and not damaged:
        return replace(result, changed=False)
    record = replace(record, revision=last + 1, reason=reason, time=now(), actor=actor())
    if not options.dry_run:
        store.prove()
        protocol.amend(store, place.records, record)
    return replace(result, amendment=record.revision)


def _sealed(store: WritableStore, place: Place) -> tuple[Manifest, bool]:
    """Read what the manifest says by now, and whether that is known from a copy only."""
    try:
        found = protocol.read_manifest(store, place.records)
    except MalformedData as error:
        with suppress(MalformedData):
            first = protocol.read_sealed(store, place.records)
            by_copy = first and protocol.mended(store, place.records, first)
            if by_copy:
                return by_copy, True
        raise Findings(f"{place.path}: its manifest cannot be used: {error}") from None
    if found is None:
        raise Refused(
            f"{place.path} is not committed, so there is nothing to amend: `ckptctl commit` seals "
            "it; nothing was changed"
        )
    return found, False


def _amendment(
    place: Place,
    work: Work,
    manifest: Manifest,
    receipts: Sequence[Receipt],
    options: CommitOptions,
) -> Amendment:
    """Put together what is to be said from now on; raises ``Refused`` where records contradict."""
    step = given_step(place, receipts, options) if options.step is not None else manifest.step
    run = given_run(place, receipts, options) if options.run_id else manifest.run_id
    size = manifest.world_size
    if options.world_size is not None:
        size = given_world_size(place, work.context.checkpoint, receipts, options)
    facts = with_given(
        Facts(dict(manifest.identity), dict(manifest.progress)),
        options.identity,
        step=step,
        world_size=size,
    )
    return Amendment(
        revision=1,
        manifest=manifest.digest,
        step=step,
        run_id=run,
        world_size=size,
        identity=facts.identity,
        progress=facts.progress,
        accepted=manifest.accepted,
    )


def _prove(work: Work, after: Manifest, *, given: int | None) -> Work:
    """Verify the checkpoint as what it is to be called; ``given`` is its step where that changes."""
    seal = replace(work.context.seal, manifest=after, problem="")
    work = replace(work, context=replace(work.context, seal=seal))
    if work.options.accepting.wishes:
        work = run_stages(work, STAGES)
    elif given is None:
        quick = replace(work.options, quick=True, sizes_only=True)
        work = run_stages(replace(work, options=quick), (Structure(), Companions(), Content()))
    else:
        work = run_stages(work, (Structure(), Companions(), Content(), Identity()))
    place = work.located.place
    if work.problem:
        raise StorageError(f"{place.path}: {work.problem}; nothing was changed")
    if work.errors:
        first = work.errors[0]
        where = f"{first.where.file}: " if first.where.file else ""
        raise Findings(
            f"{place.path} does not verify, so it was not amended: {first.check}: {where}"
            f"{first.message}; nothing was changed{way_round(work.errors)}"
        )
    if given is not None:
        refuse_other_step(place, work, given)
    return work
