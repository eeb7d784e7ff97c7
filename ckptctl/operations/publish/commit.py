"""``ckptctl commit``: prove a checkpoint whole and seal it, reading each byte once."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import suppress

from ckptctl import protocol
from ckptctl.checks import by_id
from ckptctl.completeness.classifier import Classifier
from ckptctl.dataclass import replace
from ckptctl.errors import CkptctlError, Conflict, Findings, Refused, StorageError
from ckptctl.model.amendment import AMENDMENTS
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.finding import Stage
from ckptctl.model.manifest import MANIFEST, FileRecord, Manifest, Receipt
from ckptctl.model.names import parse_name
from ckptctl.model.observation import Against
from ckptctl.model.paths import join
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place, not_read
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.facts import facts_of, with_given
from ckptctl.operations.provenance.losses import origin_of
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.publish.again import same_promises, still_the_same
from ckptctl.operations.publish.given import (
    given_run,
    given_step,
    given_world_size,
    only_given,
    refuse_other_step,
    stated_step,
)
from ckptctl.operations.publish.options import CommitOptions, Committed, result_of
from ckptctl.operations.publish.promises import promises_of
from ckptctl.operations.publish.receipts import compare_receipts, receipts_of
from ckptctl.operations.publish.stability import refuse_changes, settle
from ckptctl.operations.publish.stopping import told_when_stopped
from ckptctl.operations.publish.vanished import take_back
from ckptctl.operations.verify.accepting import way_round
from ckptctl.operations.verify.beside import Companions
from ckptctl.operations.verify.options import Options as VerifyOptions
from ckptctl.operations.verify.stages import Content, Identity, Structure, run_stages
from ckptctl.operations.verify.work import Sealing, Work, begin
from ckptctl.storage import WritableStore
from ckptctl.version import __version__

SEALING = (Structure(), Companions(), Content(), Identity())
"""The stages of a verification that a commit runs; in the second every file is hashed as well."""


def commit_checkpoint(
    store: WritableStore,
    place: Place,
    *,
    options: CommitOptions | None = None,
    progress: Progress | None = None,
) -> Committed:
    """Verify a checkpoint, hash every file in the same pass, and create its manifest.

    One that is committed already, with the same bytes and as the same thing, is left as it is.
    Raises ``Refused`` or ``Conflict`` if it is committed as something else, ``Findings`` if it is
    not whole, ``Refused`` if the store cannot commit or files changed meanwhile,
    ``OutcomeUnknown`` if the last answer was lost, ``Interrupted`` where somebody stopped it.
    """
    options = options or CommitOptions()
    final = _final_path(place, options)
    with told_when_stopped(store, place, final):
        return _committed(store, place, final, options, progress)


def _committed(
    store: WritableStore,
    place: Place,
    final: str,
    options: CommitOptions,
    progress: Progress | None,
) -> Committed:
    if place.committed:
        manifest, checked, unmatched = still_the_same(store, place, options, progress)
        return replace(
            result_of(store, place.path, manifest, options),
            changed=False,
            checked=checked,
            unmatched=unmatched,
        )
    if not place.readable and place.format:
        raise Refused(f"{place.path}: {not_read(place)}; nothing was changed")
    if protocol.last_amendment(store, place.records):
        raise Refused(
            f"{place.path} has amendments of a manifest that is gone ({AMENDMENTS}): restore the "
            "manifest, or move them away; nothing was changed"
        )
    if not options.dry_run:
        store.prove()
    located = Located(store, place)
    work = begin(
        located,
        VerifyOptions(workers=options.workers, accepting=options.accepting),
        sealing=Sealing(options.algorithm),
        progress=progress,
    )
    work = _refused(run_stages(work, SEALING[:1]))
    checkpoint = work.context.checkpoint
    receipts = receipts_of(located, checkpoint)
    origin = origin_of(store, located.base)
    promises = promises_of(place.path, place.layout, checkpoint, receipts)
    step = given_step(place, receipts, options)
    facts = with_given(
        facts_of(store, located.base, checkpoint),
        options.identity,
        step=step,
        world_size=options.world_size or (receipts[0].world_size if receipts else None),
    )
    if not options.dry_run:  # what was written through a mapping shows from now on
        store.make_durable(join(located.base, path) for path in sorted(promises.files))
    settle(checkpoint.files.values())
    work = replace(work, sealing=Sealing(options.algorithm, step, promises.files))
    work = _refused(run_stages(work, SEALING[1:]))
    if step is None:
        step = stated_step(work)
    elif only_given(place, receipts, options):
        refuse_other_step(place, work, step)
    against = dict.fromkeys(compare_receipts(place, receipts, work.digests), Against.RECEIPT)
    against = {
        path: by for path, by in {**work.checked, **against}.items() if work.digests[path][0]
    }
    manifest = _manifest(work, final, step, receipts, options)
    manifest = replace(
        manifest,
        identity=facts.identity,
        progress=facts.progress,
        unpromised=promises.unpromised,
        unchecked=tuple(sorted(path for path, by in against.items() if by is Against.NOTHING)),
        links=promises.links,
        provenance=origin,
        accepted=options.accepting.acceptances(work.report.findings),
    )
    checked = dict(Counter(by.value for by in against.values()))
    result = replace(
        result_of(store, final, manifest.sealed(), options),
        checked=checked,
        unmatched=options.accepting.unmatched(work.report.findings),
    )
    refuse_changes(located, checkpoint.files, promises.files, work.digests)
    if options.dry_run:
        return result
    if final != place.path:
        store.rename_directory(place.path, final)
    records = final if final != place.path else located.records
    try:
        protocol.seal(store, records, manifest)
    except Conflict:
        winner = None
        with suppress(CkptctlError):
            winner = protocol.read_manifest(store, records)
        if winner is None or not same_promises(manifest, winner, work.digests):
            raise
        return replace(
            result_of(store, final, winner, options), changed=False, checked=result.checked
        )
    take_back(store, replace(place, path=final), [join(records, MANIFEST)])
    return result


def _final_path(place: Place, options: CommitOptions) -> str:
    parent, _, name = place.path.rpartition("/")
    if options.publish_as is not None and place.members is not None:
        raise Refused(f"{place.path} is no directory; only directories are published by renaming")
    if options.publish_as is None:
        if place.name.staging:
            raise Refused(
                f"{place.path} has a temporary name; `publish_as=NAME` publishes it under its final one"
            )
        return place.path
    wanted = options.publish_as
    if "/" in wanted or wanted in ("", ".", "..") or wanted.startswith("ckptctl."):
        raise Refused(f"`publish_as` takes the name of a directory beside {name}, not {wanted!r}")
    if parse_name(wanted).staging:
        raise Refused(f"{wanted} is a temporary name itself; nothing was changed")
    return f"{parent}/{wanted}" if parent else wanted


def _refused(work: Work) -> Work:
    """Refuse what the stages so far found not to be whole, or not all of one save."""
    path, checkpoint = work.located.place.path, work.context.checkpoint
    if work.problem:
        raise StorageError(f"{path}: {work.problem}; nothing was changed")
    if work.unread:
        raise Refused(f"{path}: {work.unread[0]}; nothing was changed")
    bad = work.errors
    if bad or not checkpoint.readable:
        first = bad[0] if bad else None
        where = f"{first.where.file}: " if first and first.where.file else ""
        text = f"{first.check}: {where}{first.message}" if first else "its metadata is not readable"
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        mixed = first is not None and by_id()[first.check].stage is Stage.IDENTITY
        what = "is not all of one save" if mixed else "is not whole"
        raise Findings(
            f"{path} {what}, so it was not committed: {text}{more}; `ckptctl verify` says all"
            f"{way_round(bad)}"
        )
    if not checkpoint.entries:
        raise Refused(
            f"{path}: it holds no keys, so there is nothing to prove; nothing was changed"
        )
    return work


def _manifest(
    work: Work, final: str, step: int | None, receipts: list[Receipt], options: CommitOptions
) -> Manifest:
    checkpoint, place = work.context.checkpoint, work.located.place
    previous = protocol.read_pointer(work.located.store).decided
    components: dict[str, set[int]] = {}
    classes = Classifier(checkpoint, options.mapping)
    for item in checkpoint.items:
        name, rank = classes.component(item.fqn), item.rank
        components.setdefault(name, set()).update(() if rank is None else (rank,))
    steps = {record.path: record.step for one in receipts for record in one.files}
    return Manifest(
        name=final.rpartition("/")[2],
        step=step,
        files=tuple(
            FileRecord(path, size, digest, rank_of(path), steps.get(path, step))
            for path, (size, digest) in sorted(work.digests.items())
        ),
        commit_id=uuid.uuid4().hex,
        format=place.format,
        run_id=given_run(place, receipts, options),
        save_id=checkpoint.identity.save_id,
        world_size=given_world_size(place, checkpoint, receipts, options),
        torch=checkpoint.identity.torch_versions,
        time=now(),
        actor=actor(),
        tool=f"ckptctl {__version__}",
        components={name: sorted(ranks) for name, ranks in sorted(components.items())},
        previous=previous.target if previous is not None else None,
    )
