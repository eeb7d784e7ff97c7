"""``ckptctl commit``: prove a checkpoint whole and seal it, reading each byte once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ckptctl import protocol
from ckptctl.checks import by_id
from ckptctl.completeness.classifier import Classifier
from ckptctl.errors import Conflict, Findings, Refused, StorageError
from ckptctl.hashing import DEFAULT
from ckptctl.model.checkpoint import Checkpoint, rank_of
from ckptctl.model.companion import Kind
from ckptctl.model.finding import Stage
from ckptctl.model.manifest import FileRecord, Manifest, Receipt, Unpromised
from ckptctl.model.names import parse_name
from ckptctl.model.observation import Against
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place, address, not_read
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.facts import facts_of, with_given
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.publish.again import same_promises, still_the_same
from ckptctl.operations.publish.promises import promises_of
from ckptctl.operations.publish.promote import Promoted
from ckptctl.operations.publish.receipts import compare_receipts, receipts_of
from ckptctl.operations.publish.stability import refuse_changes, settle
from ckptctl.operations.verify.beside import Companions
from ckptctl.operations.verify.options import Options as VerifyOptions
from ckptctl.operations.verify.stages import Content, Identity, Structure, run_stages
from ckptctl.operations.verify.work import Sealing, Work, begin
from ckptctl.provenance.evidence import Source
from ckptctl.storage import WritableStore
from ckptctl.version import __version__

SEALING = (Structure(), Companions(), Content(), Identity())
"""The stages of a verification that a commit runs; in the second every file is hashed as well."""


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What a commit is told that the files do not say; ``publish_as`` is the final name."""

    step: int | None = None
    run_id: str | None = None
    world_size: int | None = None
    publish_as: str | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = DEFAULT
    mapping: tuple[tuple[str, str], ...] = ()
    workers: int = field(default_factory=lambda: VerifyOptions().workers)
    dry_run: bool = False

    def with_workers(self, workers: int) -> CommitOptions:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)


@dataclass(frozen=True, slots=True)
class Committed(Answer):
    """A checkpoint that is sealed now; ``dry_run`` means that it only could be.

    ``by`` and ``time`` say who sealed it and when; ``changed`` is false where that was done before.
    ``unpromised`` lay there as well and is no part of it. ``checked`` counts files by what their
    bytes were checked against: CRCs, the receipt of a rank, or nothing, which ``unchecked`` names.
    ``links`` are links to files elsewhere, by what they say. ``promoted`` is what became of the
    pointer, where that was asked for as well.
    """

    checkpoint: str = field(metadata=PATH)
    name: str
    step: int | None
    manifest: str
    files: int
    size: int
    unpromised: tuple[Unpromised, ...] = ()
    checked: Mapping[str, int] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
    time: str = ""
    changed: bool = True
    dry_run: bool = False
    promoted: Promoted | None = None


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
    ``OutcomeUnknown`` if the last answer was lost.
    """
    options = options or CommitOptions()
    final = _final_path(place, options)
    if place.committed:
        manifest, checked = still_the_same(store, place, options, progress)
        return replace(
            _result(store, place.path, manifest, options), changed=False, checked=checked
        )
    if not place.readable and place.format:
        raise Refused(f"{place.path}: {not_read(place)}; nothing was changed")
    if not options.dry_run:
        store.prove()
    located = Located(store, place)
    work = begin(
        located,
        VerifyOptions(workers=options.workers),
        sealing=Sealing(options.algorithm),
        progress=progress,
    )
    work = _refused(run_stages(work, SEALING[:1]))
    checkpoint = work.context.checkpoint
    receipts = receipts_of(located, checkpoint)
    promises = promises_of(place.path, place.layout, checkpoint, receipts)
    step = _step(place, receipts, options)
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
        step = _stated(work)
    elif _only_given(place, receipts, options):
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
    )
    checked = dict(Counter(by.value for by in against.values()))
    result = replace(_result(store, final, manifest.sealed(), options), checked=checked)
    refuse_changes(located, checkpoint.files, promises.files, work.digests)
    if options.dry_run:
        return result
    if final != place.path:
        store.rename_directory(place.path, final)
    records = final if final != place.path else located.records
    try:
        protocol.seal(store, records, manifest)
    except Conflict:
        winner = protocol.read_manifest(store, records)
        if winner is None or not same_promises(manifest, winner, work.digests):
            raise
        return replace(
            _result(store, final, winner, options), changed=False, checked=result.checked
        )
    return result


def _result(
    store: WritableStore, final: str, manifest: Manifest, options: CommitOptions
) -> Committed:
    return Committed(
        address(store, final),
        manifest.name,
        manifest.step,
        manifest.digest,
        len(manifest.files),
        manifest.size,
        unpromised=manifest.unpromised,
        unchecked=manifest.unchecked,
        links=manifest.links,
        by=manifest.actor,
        time=manifest.time,
        dry_run=options.dry_run,
    )


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
        )
    if not checkpoint.entries:
        raise Refused(
            f"{path}: it holds no keys, so there is nothing to prove; nothing was changed"
        )
    return work


def _step(place: Place, receipts: list[Receipt], options: CommitOptions) -> int | None:
    known = {
        "`step`": options.step,
        "its name": _named_step(place, options),
        "its receipts": receipts[0].step if receipts else None,
    }
    values = {step for step in known.values() if step is not None}
    if len(values) > 1:
        said = ", ".join(
            f"{step} by {source}" for source, step in known.items() if step is not None
        )
        raise Refused(f"{place.path}: its step is {said}; nothing was changed")
    return next(iter(values), None)


def _only_given(place: Place, receipts: list[Receipt], options: CommitOptions) -> bool:
    """Tell whether nothing but whoever commits says the step."""
    recorded = receipts[0].step if receipts else None
    return recorded is None and _named_step(place, options) is None


def _stated(work: Work) -> int | None:
    """Return the step that all state that says one, where nothing else tells.

    Files that say none do not contradict; then a counter of progress has to be among those that do.
    """
    found = work.context.assessment
    if found.identity.agreed is not None or found.identity.of(Source.AT_ODDS):
        return found.identity.agreed
    steps = {stamp.step for stamp in found.evidence.stamps}
    told = any(stamp.kind is Kind.PROGRESS for stamp in found.evidence.stamps)
    return next(iter(steps)) if told and len(steps) == 1 else None


def refuse_other_step(place: Place, work: Work, step: int) -> None:
    """Raise ``Refused`` where a step was given and all that counts steps inside says another."""
    stamps = [one for one in work.context.evidence.stamps if one.kind is Kind.PROGRESS]
    steps = {one.step for one in stamps}
    if len(steps) == 1 and step not in steps:
        raise Refused(
            f"{place.path}: its step is {step} by `step`, and {stamps[0].file} says "
            f"{stamps[0].step} ({stamps[0].key}); nothing was changed"
        )


def _named_step(place: Place, options: CommitOptions) -> int | None:
    """Return the step in the name that the checkpoint is published under."""
    return parse_name(options.publish_as).step if options.publish_as else place.name.step


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
    run_ids = {receipt.run_id for receipt in receipts} - {None}
    if options.run_id and run_ids and run_ids != {options.run_id}:
        raise Refused(
            f"{place.path}: `run_id` {options.run_id}, but its receipts are of run "
            f"{', '.join(map(str, run_ids))}; nothing was changed"
        )
    return Manifest(
        name=final.rpartition("/")[2],
        step=step,
        files=tuple(
            FileRecord(path, size, digest, rank_of(path), steps.get(path, step))
            for path, (size, digest) in sorted(work.digests.items())
        ),
        commit_id=uuid.uuid4().hex,
        format=place.format,
        run_id=options.run_id or next(iter(run_ids), None),
        save_id=checkpoint.identity.save_id,
        world_size=_world_size(place, checkpoint, receipts, options),
        torch=checkpoint.identity.torch_versions,
        time=now(),
        actor=actor(),
        tool=f"ckptctl {__version__}",
        components={name: sorted(ranks) for name, ranks in sorted(components.items())},
        previous=previous.target if previous is not None else None,
    )


def _world_size(
    place: Place, checkpoint: Checkpoint, receipts: list[Receipt], options: CommitOptions
) -> int | None:
    """Return the number of ranks: from the receipts, as given, else from the files that ranks wrote.

    DCP itself does not record it. Every rank opens a file, also one that has nothing to save.
    """
    given = options.world_size
    if receipts:
        known = receipts[0].world_size
        if given not in (None, known):
            raise Refused(
                f"{place.path}: `world_size` is {given}, and its receipts say {known}; nothing was "
                "changed"
            )
        return known
    highest = max(checkpoint.ranks, default=-1)
    if given is not None and given <= highest:
        raise Refused(
            f"{place.path}: `world_size` is {given}, and rank {highest} wrote files; nothing was "
            "changed"
        )
    if given is not None:
        return given
    ranks = {rank_of(path) for path in checkpoint.files}
    numbers = {rank for rank in ranks if rank is not None}
    return max(numbers) + 1 if numbers and numbers == set(range(max(numbers) + 1)) else None
