"""``ckptctl commit``: prove a checkpoint whole and seal it, reading each byte once."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ckptctl import __version__, protocol
from ckptctl.checks import IDENTITY_CHECKS, STRUCTURE_CHECKS, Context
from ckptctl.completeness.classifier import Classifier
from ckptctl.errors import Findings, MalformedData, Refused, StorageError
from ckptctl.formats.dcp import reader as dcp
from ckptctl.hashing import DEFAULT
from ckptctl.model.checkpoint import Checkpoint, File, rank_of
from ckptctl.model.finding import Finding, Severity
from ckptctl.model.manifest import (
    MANIFEST,
    RECEIPTS,
    FileRecord,
    Manifest,
    Receipt,
)
from ckptctl.model.names import parse_name
from ckptctl.operations.find import Place, address
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.collect import Collection, Plan
from ckptctl.operations.provenance.evidence import gather
from ckptctl.operations.provenance.facts import facts_of, with_given
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.verify.examine import Examiner
from ckptctl.operations.verify.units import Options, Unit, units_of
from ckptctl.storage import WritableStore

_OWN = ("ckptctl.", ".ckptctl-")


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What a commit is told that the files do not say; ``publish_as`` is the final name."""

    step: int | None = None
    run_id: str | None = None
    publish_as: str | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = DEFAULT
    mapping: tuple[tuple[str, str], ...] = ()
    workers: int = field(default_factory=lambda: Options().workers)
    dry_run: bool = False

    def with_workers(self, workers: int) -> CommitOptions:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint that is sealed now; ``dry_run`` means that it only could be."""

    checkpoint: str
    name: str
    step: int | None
    manifest: str
    files: int
    size: int
    dry_run: bool = False


def commit_checkpoint(
    store: WritableStore,
    place: Place,
    *,
    options: CommitOptions | None = None,
    progress: Progress | None = None,
) -> Committed:
    """Verify a checkpoint, hash every file in the same pass, and create its manifest.

    Raises ``Conflict`` if it is committed already, ``Findings`` if it is not whole, ``Refused``
    if the store cannot commit or files changed meanwhile, ``OutcomeUnknown`` if the last answer
    was lost.
    """
    options = options or CommitOptions()
    final = _final_path(place, options)
    if any(entry.name == MANIFEST for entry in place.entries):
        raise Refused(_already(store, place))
    if not options.dry_run:
        store.prove()
    checkpoint = dcp.read(store, place.path)
    context = Context(checkpoint)
    _refuse_findings(
        place, [f for check in STRUCTURE_CHECKS for f in check.ask(context, None)], checkpoint
    )
    receipts = _receipts(store, place, checkpoint)
    step = _step(place, receipts, options)
    facts = with_given(
        facts_of(store, place.path, checkpoint),
        options.identity,
        step=step,
        world_size=receipts[0].world_size if receipts else None,
    )
    digests = _digests(store, place, context, options, progress, step=step)
    _compare_receipts(place, receipts, digests)
    manifest = _manifest(store, place, checkpoint, final, step, receipts, digests, options)
    manifest = replace(manifest, identity=facts.identity, progress=facts.progress)
    result = Committed(
        address(store, final),
        manifest.name,
        step,
        manifest.sealed().digest,
        len(manifest.files),
        manifest.size,
        dry_run=options.dry_run,
    )
    if options.dry_run:
        return result
    _refuse_changes(store, place, checkpoint.files)
    store.make_durable(f"{place.path}/{record.path}" for record in manifest.files)
    if final != place.path:
        store.rename_directory(place.path, final)
    protocol.seal(store, final, manifest)
    return result


def _final_path(place: Place, options: CommitOptions) -> str:
    parent, _, name = place.path.rpartition("/")
    if options.publish_as is None:
        if place.name.staging:
            raise Refused(
                f"{place.path} has a temporary name; `--as NAME` publishes it under its final one"
            )
        return place.path
    wanted = options.publish_as
    if "/" in wanted or wanted in ("", ".", "..") or wanted.startswith("ckptctl."):
        raise Refused(f"--as takes the name of a directory beside {name}, not {wanted!r}")
    if parse_name(wanted).staging:
        raise Refused(f"{wanted} is a temporary name itself; nothing was changed")
    return f"{parent}/{wanted}" if parent else wanted


def _already(store: WritableStore, place: Place) -> str:
    try:
        found = protocol.read_manifest(store, place.path)
    except MalformedData as error:
        return f"{place.path} has a manifest that cannot be used ({error}); nothing was changed"
    if found is None:
        return f"{place.path} has a manifest already; nothing was changed"
    return (
        f"{place.path} was committed already by {found.actor} at {found.time}; nothing was changed"
    )


def _refuse_findings(
    place: Place, findings: list[Finding], checkpoint: Checkpoint, *, what: str = "is not whole"
) -> None:
    bad = [finding for finding in findings if finding.severity == Severity.ERROR]
    if bad or not checkpoint.readable:
        first = bad[0] if bad else None
        where = f"{first.where.file}: " if first and first.where.file else ""
        text = f"{first.check}: {where}{first.message}" if first else "its metadata is not readable"
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise Findings(
            f"{place.path} {what}, so it was not committed: {text}{more}; `ckptctl verify` says all"
        )


def _receipts(store: WritableStore, place: Place, checkpoint: Checkpoint) -> list[Receipt]:
    """Read the ranks' receipts and refuse those that do not make up one save."""
    paths = [path for path in checkpoint.files if path.startswith(f"{RECEIPTS}/rank-")]
    if not paths:
        return []
    try:
        receipts = protocol.read_receipts(store, place.path, paths)
    except MalformedData as error:
        raise Findings(f"{place.path}: a receipt is damaged: {error}") from None
    for what, values in (
        ("world sizes", {receipt.world_size for receipt in receipts}),
        ("steps", {receipt.step for receipt in receipts}),
        ("save ids", {receipt.save_id for receipt in receipts}),
        ("runs", {receipt.run_id for receipt in receipts}),
    ):
        if len(values) > 1:
            listed = ", ".join(sorted(map(str, values)))
            raise Findings(f"{place.path}: the ranks' receipts are of several {what}: {listed}")
    size, ranks = receipts[0].world_size, {receipt.rank for receipt in receipts}
    if not all(0 <= rank < size for rank in ranks):
        raise Findings(f"{place.path}: a receipt of rank {max(ranks)} in a world of {size} ranks")
    if len(ranks) < size:
        first = itertools.islice((rank for rank in range(size) if rank not in ranks), 8)
        listed = ", ".join(map(str, first))
        raise Findings(
            f"{place.path}: {size - len(ranks)} of {size} ranks have left no receipt: "
            f"{listed}; their save is not finished"
        )
    return receipts


def _compare_receipts(
    place: Place, receipts: list[Receipt], digests: Mapping[str, tuple[int, str]]
) -> None:
    for receipt in receipts:
        for record in receipt.files:
            size, digest = digests.get(record.path, (-1, ""))
            same_kind = digest.partition(":")[0] == record.digest.partition(":")[0]
            if size != record.size or (same_kind and digest != record.digest):
                raise Findings(
                    f"{place.path}: {record.path} is not what rank {receipt.rank} wrote: "
                    f"{size} bytes, {digest}, and its receipt says {record.size}, {record.digest}"
                )


def _step(place: Place, receipts: list[Receipt], options: CommitOptions) -> int | None:
    known = {
        "--step": options.step,
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


def _named_step(place: Place, options: CommitOptions) -> int | None:
    """Return the step in the name that the checkpoint is published under."""
    return parse_name(options.publish_as).step if options.publish_as else place.name.step


def _digests(
    store: WritableStore,
    place: Place,
    context: Context,
    options: CommitOptions,
    progress: Progress | None,
    *,
    step: int | None,
) -> dict[str, tuple[int, str]]:
    """Look at every item and hash every file, each byte read once; return size and digest.

    Refuses what is not whole, and what is not all of one save.
    """
    work = Options(workers=options.workers)
    plan, collected = Plan(context), Collection()
    examiner = Examiner(store, place.path, context, work, progress, plan=plan)
    by_path: dict[str, list[Unit]] = {}
    for unit in units_of(context, work):
        by_path.setdefault(unit.path, []).append(unit)
    units = []
    for path, file in context.checkpoint.files.items():
        if path.startswith(_OWN):
            continue
        items = tuple(item for unit in by_path.get(path, ()) for item in unit.items)
        units.append(Unit(path, items, content=True, algorithm=options.algorithm, size=file.size))
    digests: dict[str, tuple[int, str]] = {}
    findings: list[Finding] = []
    for done in examiner.run(units, label=place.path):
        findings.extend(done.report.findings)
        if done.problem:
            raise StorageError(f"{place.path}: {done.problem}; nothing was changed")
        unread = [g for row in done.report.coverage for g in row.gaps if g.kind.unfinished]
        if unread:
            why = unread[0].reason
            raise Refused(f"{place.path}: {done.unit.path}: {why}; nothing was changed")
        digests[done.unit.path] = (done.unit.size, done.digest)
        collected.add(done.gleaned)
    _refuse_findings(place, findings, context.checkpoint)
    context.evidence = gather(store, place, context, plan, collected, work, step=step)
    asked = [f for check in IDENTITY_CHECKS for f in check.ask(context, None)]
    _refuse_findings(place, asked, context.checkpoint, what="is not all of one save")
    return digests


def _manifest(
    store: WritableStore,
    place: Place,
    checkpoint: Checkpoint,
    final: str,
    step: int | None,
    receipts: list[Receipt],
    digests: Mapping[str, tuple[int, str]],
    options: CommitOptions,
) -> Manifest:
    previous = protocol.read_pointer(store).revision
    components: dict[str, set[int]] = {}
    classes = Classifier(checkpoint, options.mapping)
    for item in checkpoint.items:
        name, rank = classes.component(item.fqn), item.rank
        components.setdefault(name, set()).update(() if rank is None else (rank,))
    steps = {record.path: record.step for one in receipts for record in one.files}
    run_ids = {receipt.run_id for receipt in receipts} - {None}
    if options.run_id and run_ids and run_ids != {options.run_id}:
        raise Refused(
            f"{place.path}: --run-id {options.run_id}, but its receipts are of run "
            f"{', '.join(map(str, run_ids))}; nothing was changed"
        )
    return Manifest(
        name=final.rpartition("/")[2],
        step=step,
        files=tuple(
            FileRecord(path, size, digest, rank_of(path), steps.get(path, step))
            for path, (size, digest) in sorted(digests.items())
        ),
        commit_id=uuid.uuid4().hex,
        format=checkpoint.format,
        run_id=options.run_id or next(iter(run_ids), None),
        save_id=checkpoint.identity.save_id,
        world_size=_world_size(checkpoint, receipts),
        torch=checkpoint.identity.torch_versions,
        time=now(),
        actor=actor(),
        tool=f"ckptctl {__version__}",
        components={name: sorted(ranks) for name, ranks in sorted(components.items())},
        previous=previous.target if previous is not None else None,
    )


def _world_size(checkpoint: Checkpoint, receipts: list[Receipt]) -> int | None:
    """Return the number of ranks: from the receipts, else from the files that ranks wrote.

    DCP itself does not record it. Every rank opens a file, also one that has nothing to save.
    """
    if receipts:
        return receipts[0].world_size
    ranks = {rank_of(path) for path in checkpoint.files if dcp.is_shard(path)}
    numbers = {rank for rank in ranks if rank is not None}
    return max(numbers) + 1 if numbers and numbers == set(range(max(numbers) + 1)) else None


def _refuse_changes(store: WritableStore, place: Place, before: Mapping[str, File]) -> None:
    after = dcp.list_files(store, place.path)
    changed = sorted(
        path
        for path in {*before, *after}
        if before.get(path) != after.get(path) and not path.startswith(_OWN)
    )
    if changed:
        raise Refused(
            f"{place.path}: {', '.join(changed[:4])} changed while it was being verified: a save is "
            "still running; nothing was changed"
        )
