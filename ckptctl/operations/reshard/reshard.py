"""``ckptctl reshard``: plan, write, prove, commit."""

from __future__ import annotations

import os
from concurrent.futures import Executor

from ckptctl import protocol
from ckptctl.completeness.classifier import Classifier
from ckptctl.completeness.world_size import holdings, world_of
from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import MalformedData, Refused, UsageError
from ckptctl.formats.torch.layout import SUFFIXES
from ckptctl.formats.torch.zip_writer import WRITABLE
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.names import parse_name
from ckptctl.operations.content.digest import Content, bytes_of
from ckptctl.operations.content.proof import ProofBy
from ckptctl.operations.content.segments import Log
from ckptctl.operations.content.unread import unproven_sources
from ckptctl.operations.place import address, split
from ckptctl.operations.progress import Progress, Silent
from ckptctl.operations.provenance.facts import Facts, facts_of
from ckptctl.operations.reshard import destination
from ckptctl.operations.reshard import target as reshard_target
from ckptctl.operations.reshard.manifest import lost_in, manifest_of
from ckptctl.operations.reshard.options import (
    DecisionNeeded,
    FileRow,
    Resharding,
    ReshardOptions,
)
from ckptctl.operations.reshard.plan import Planned, plan_reshard
from ckptctl.operations.reshard.proof import (
    Proof,
    expected_by_crc,
    expected_by_digest,
    prove,
)
from ckptctl.operations.reshard.source import Source, digest_source, open_source, rank_contents
from ckptctl.operations.reshard.units import units_of
from ckptctl.sharding.continuity import Aspect, continuity
from ckptctl.sharding.mesh import DATA_AXES, REPLICA_AXES, Mesh
from ckptctl.sharding.plan import Plan
from ckptctl.sharding.rank_state import families

_METADATA_OF_ITEM = 200
"""Bytes of metadata to reckon with for each item."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Everything that is known before anything is written."""

    source: Source
    facts: Facts
    classifier: Classifier
    planned: Planned
    aspects: tuple[Aspect, ...]
    ranks_before: int | None
    step: int | None


def reshard(
    source_url: str,
    target_url: str,
    *,
    options: ReshardOptions,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Resharding:
    """Write a checkpoint anew for another number of ranks, and commit it once it is proven.

    Units of work go to ``executor``, or to threads of their own. Raises ``Findings`` where the
    source does not verify or the proof fails, ``Refused`` where the destination is occupied, has
    no room, or state kept per rank needs a decision; nothing is committed then.
    """
    options.request.check()
    _, name = split(target_url)
    if not name:
        raise UsageError(f"{target_url!r} is no name of a directory to be made")
    source = open_source(
        source_url,
        force=options.force,
        workers=options.workers,
        progress=progress,
        framework=options.framework,
        accepting=options.accepting,
    )
    _refuse_inside(source, target_url)
    found = destination.look(target_url, resume=options.resume, overwrite=options.overwrite)
    prepared = _prepare(source, name, options)
    plan = prepared.planned.plan
    if options.dry_run:
        return _result(prepared, target_url, options)
    if prepared.planned.decision.refusals:
        raise DecisionNeeded(_result(prepared, target_url, options))
    _need_space(found, plan, overwrite=options.overwrite)
    found.store.prove()
    job = _Job(target_url, options, progress, executor)
    if proof_by(source, options) is ProofBy.CRC:
        try:
            return _carry_out(job, found, prepared, None)
        except MalformedData:
            # of damage, and of what is not cut, the pass by itself says more; it alone accuses
            destination.discard(found)
            found = destination.look(target_url, overwrite=options.overwrite)
    source, before = digest_source(
        source, force=options.force, workers=options.workers, progress=progress
    )
    if (source.lost, source.as_they_are) != (prepared.source.lost, prepared.source.as_they_are):
        prepared = _prepare(source, name, options)
        if prepared.planned.decision.refusals:
            raise DecisionNeeded(_result(prepared, target_url, options))
    return _carry_out(job, found, prepared, before)


def proof_by(source: Source, options: ReshardOptions) -> ProofBy:
    """Choose the proof; by CRC only where every tensor can be read, and nothing was altered."""
    entries = source.checkpoint.entries.values()
    tensors = [entry for entry in entries if isinstance(entry, TensorEntry)]
    if source.altered or any(entry.dtype not in WRITABLE for entry in tensors):
        return ProofBy.DIGEST
    if options.proof is not None:
        return options.proof
    return ProofBy.fitting(committed=source.manifest is not None, size=sum(map(bytes_of, tensors)))


@dataclass(frozen=True, slots=True)
class _Job:
    """How a reshard is carried out."""

    target_url: str
    options: ReshardOptions
    progress: Progress | None
    executor: Executor | None


def _carry_out(
    job: _Job, found: destination.Destination, prepared: _Prepared, before: Content | None
) -> Resharding:
    """Write, prove and commit; ``before`` is the content of the source where it was read before.

    Without it the source is read once, to be written. Raises ``MalformedData`` where that shows
    damage, or what cannot be proven so.
    """
    source, plan, options = prepared.source, prepared.planned.plan, job.options
    expected = reshard_target.expected_files(plan)
    target, reused = reshard_target.begin(found, plan.digest, expected, overwrite=options.overwrite)
    with destination.kept_on_interrupt(found, damaged=True):
        proof, log = _fill(job, target, source, before, plan)
        components = plan.components(prepared.classifier.component)
        manifest = manifest_of(
            target, source, prepared.facts, plan, proof, prepared.step, components
        )
        sealed = protocol.seal(found.store, target.base, manifest)
        destination.publish(found)
    keys = tuple(sorted(log.unchecked)) if before is None else before.unchecked
    unchecked = _unchecked(source, keys, plan)
    return _result(prepared, job.target_url, options, reused, sealed.digest, proof, unchecked)


def _unchecked(source: Source, keys: tuple[str, ...], plan: Plan) -> tuple[str, ...]:
    """Name what was taken over though nothing proves it; a manifest's digests prove everything."""
    if source.manifest is not None:
        return ()
    beside = [path for path in plan.beside if not path.endswith(SUFFIXES)]
    return (*unproven_sources(source.opened, None), *beside, *keys)


def _fill(
    job: _Job,
    target: reshard_target.Target,
    source: Source,
    before: Content | None,
    plan: Plan,
) -> tuple[Proof, Log]:
    """Write everything, read it back, and make it survive a crash."""
    place, workers = (target.store.url, target.base), job.options.workers
    origin = (source.opened.store.url, source.opened.base)
    once = before is None
    units = units_of(plan, source.checkpoint, origin, place, target.done, noted=once)
    log = reshard_target.write_files(
        target,
        units,
        source.opened.store,
        workers=workers,
        progress=job.progress or Silent(),
        executor=job.executor,
    )
    reshard_target.write_beside(target, plan, source.opened.store, source.opened.base)
    reshard_target.write_metadata(target, plan)
    if before is None:
        by, expected = ProofBy.CRC, expected_by_crc(source, plan, log)
    else:
        by, expected = ProofBy.DIGEST, expected_by_digest(before, plan, source.as_they_are)
    proof = prove(target, source, expected, plan, by, workers=workers, progress=job.progress)
    reshard_target.make_durable(target)
    return proof, log


def _refuse_inside(source: Source, target_url: str) -> None:
    """Refuse to write into the source: it is never touched."""
    place = address(source.opened.store, source.place.path)
    if "://" in place or "://" in target_url:
        inside = f"{target_url.rstrip('/')}/".startswith(f"{place.rstrip('/')}/")
    else:
        whole, part = os.path.realpath(place), os.path.realpath(target_url)
        inside = part == whole or part.startswith(f"{whole}{os.sep}")
    if inside:
        raise Refused(f"{target_url} lies in the source, which is never touched")


def _prepare(source: Source, name: str, options: ReshardOptions) -> _Prepared:
    checkpoint, manifest = source.checkpoint, source.manifest
    request = replace(options.request, as_they_are=source.as_they_are, source=source.identity)
    classifier = Classifier(checkpoint)
    # as they were saved: what damage took of a rank must not make the rest fit other ranks
    whole = source.opened.checkpoint
    per_rank = families(whole, Classifier(whole))
    contents = rank_contents(source, per_rank, workers=options.workers)
    planned = plan_reshard(checkpoint, request, classifier, per_rank, contents)
    facts = facts_of(source.opened.store, source.opened.base, source.opened.checkpoint, manifest)
    promised = manifest.world_size if manifest is not None else None
    before = world_of(checkpoint, holdings(classifier), promised=promised).size
    after = Mesh.parse(planned.plan.mesh).count(DATA_AXES | REPLICA_AXES)
    of_data = [family.ranks for family in per_rank if family.axis == "dp"]
    ranks = before or request.world_size
    aspects = continuity(
        facts.identity,
        {key.component for key in classifier},
        planned.decision.outcomes,
        ranks=(ranks, request.world_size),
        data_ranks=(max(of_data, default=ranks), after),
    )
    step = _step(source, facts, name)
    return _Prepared(source, facts, classifier, planned, aspects, before, step)


def _step(source: Source, facts: Facts, name: str) -> int | None:
    """Return the step of the source; its result must not be named for another."""
    step = source.manifest.step if source.manifest is not None else source.place.name.step
    if step is None and type(facts.progress.get("step")) is int:
        step = facts.progress["step"]
    named = parse_name(name).step
    if named is not None and step is not None and named != step:
        raise Refused(f"{name} names step {named}, and the source is of step {step}")
    return named if step is None else step


def _need_space(found: destination.Destination, plan: Plan, *, overwrite: bool) -> None:
    needed = (
        plan.written
        + sum(plan.beside.values())
        + _METADATA_OF_ITEM * sum(len(file.steps) for file in plan.files)
    )
    wanted = {file.path for file in plan.files}
    there = sum(one.size for one in found.entries if overwrite or one.name in wanted)
    destination.need_space(found.store, max(0, needed - there))


def _result(
    prepared: _Prepared,
    target_url: str,
    options: ReshardOptions,
    reused: int = 0,
    manifest: str = "",
    proof: Proof | None = None,
    unchecked: tuple[str, ...] = (),
) -> Resharding:
    plan, decision = prepared.planned.plan, prepared.planned.decision
    copied, written = plan.counts
    return Resharding(
        source=prepared.source.opened.url,
        destination=target_url,
        step=prepared.step,
        ranks_before=prepared.ranks_before,
        ranks=plan.world_size,
        mesh=plan.mesh,
        plan=plan.digest,
        policies=plan.policies,
        keys=len(plan.entries),
        copied=copied,
        written=written,
        bytes_read=plan.read,
        bytes_written=plan.written,
        memory=plan.memory(workers=options.workers),
        files=tuple(FileRow(file.path, file.size, *file.counts) for file in plan.files),
        aspects=prepared.aspects,
        outcomes=tuple(decision.outcomes),
        refusals=tuple(decision.refusals),
        lost=lost_in(plan, prepared.source),
        dropped=plan.dropped,
        reused=reused,
        manifest=manifest,
        tensors_digest=proof.tensors_digest if proof else "",
        tensors=proof.tensors if proof else 0,
        objects=proof.objects if proof else 0,
        unchecked=unchecked,
        proven_by=(proof.by if proof else proof_by(prepared.source, options)).value,
        covers=proof.covers if proof else "",
        dry_run=options.dry_run,
        suggested={k: policy.value for k, policy in prepared.planned.suggested.items()},
        accepted=prepared.source.accepted,
        unmatched=prepared.source.unmatched,
    )
