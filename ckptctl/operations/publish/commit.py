"""``ckptctl commit``: prove a checkpoint whole and seal it, reading each byte once."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ckptctl import protocol
from ckptctl.checks import by_id
from ckptctl.completeness.classifier import Classifier
from ckptctl.errors import Findings, MalformedData, Refused, StorageError
from ckptctl.hashing import DEFAULT
from ckptctl.model.checkpoint import Checkpoint, File, rank_of
from ckptctl.model.finding import Stage
from ckptctl.model.manifest import (
    RECEIPTS,
    FileRecord,
    Manifest,
    Receipt,
    is_record,
)
from ckptctl.model.names import parse_name
from ckptctl.model.paths import join
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place, address, not_read
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.facts import facts_of, with_given
from ckptctl.operations.publish.actor import actor, now
from ckptctl.operations.publish.promote import Promoted
from ckptctl.operations.verify.options import Options as VerifyOptions
from ckptctl.operations.verify.stages import Content, Identity, Structure, run_stages
from ckptctl.operations.verify.work import Sealing, Work, begin
from ckptctl.storage import WritableStore
from ckptctl.version import __version__

SEALING = (Structure(), Content(), Identity())
"""The stages of a verification that a commit runs; in the second every file is hashed as well."""


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What a commit is told that the files do not say; ``publish_as`` is the final name."""

    step: int | None = None
    run_id: str | None = None
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

    ``promoted`` is what became of the pointer, where that was asked for as well.
    """

    checkpoint: str = field(metadata=PATH)
    name: str
    step: int | None
    manifest: str
    files: int
    size: int
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

    Raises ``Conflict`` if it is committed already, ``Findings`` if it is not whole, ``Refused``
    if the store cannot commit or files changed meanwhile, ``OutcomeUnknown`` if the last answer
    was lost.
    """
    options = options or CommitOptions()
    final = _final_path(place, options)
    if place.committed:
        raise Refused(_already(store, place))
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
    receipts = _receipts(located, checkpoint)
    step = _step(place, receipts, options)
    facts = with_given(
        facts_of(store, located.base, checkpoint),
        options.identity,
        step=step,
        world_size=receipts[0].world_size if receipts else None,
    )
    work = replace(work, sealing=Sealing(options.algorithm, step))
    work = _refused(run_stages(work, SEALING[1:]))
    if step is None:  # what all files state counts where nothing else tells
        step = work.context.assessment.identity.agreed
    _compare_receipts(place, receipts, work.digests)
    manifest = _manifest(work, final, step, receipts, options)
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
    _refuse_changes(located, checkpoint.files)
    store.make_durable(join(located.base, record.path) for record in manifest.files)
    if final == place.path:
        protocol.seal(store, located.records, manifest)
        return result
    store.rename_directory(place.path, final)
    protocol.seal(store, final, manifest)
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


def _already(store: WritableStore, place: Place) -> str:
    try:
        found = protocol.read_manifest(store, place.records)
    except MalformedData as error:
        return f"{place.path} has a manifest that cannot be used ({error}); nothing was changed"
    if found is None:
        return f"{place.path} has a manifest already; nothing was changed"
    return (
        f"{place.path} was committed already by {found.actor} at {found.time}; nothing was changed"
    )


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


def _receipts(located: Located, checkpoint: Checkpoint) -> list[Receipt]:
    """Read the ranks' receipts and refuse those that do not make up one save."""
    place = located.place
    paths = [path for path in checkpoint.files if path.startswith(f"{RECEIPTS}/rank-")]
    if not paths:
        return []
    try:
        receipts = protocol.read_receipts(located.store, located.base, paths)
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


def _named_step(place: Place, options: CommitOptions) -> int | None:
    """Return the step in the name that the checkpoint is published under."""
    return parse_name(options.publish_as).step if options.publish_as else place.name.step


def _manifest(
    work: Work, final: str, step: int | None, receipts: list[Receipt], options: CommitOptions
) -> Manifest:
    checkpoint, path = work.context.checkpoint, work.located.place.path
    previous = protocol.read_pointer(work.located.store).revision
    components: dict[str, set[int]] = {}
    classes = Classifier(checkpoint, options.mapping)
    for item in checkpoint.items:
        name, rank = classes.component(item.fqn), item.rank
        components.setdefault(name, set()).update(() if rank is None else (rank,))
    steps = {record.path: record.step for one in receipts for record in one.files}
    run_ids = {receipt.run_id for receipt in receipts} - {None}
    if options.run_id and run_ids and run_ids != {options.run_id}:
        raise Refused(
            f"{path}: `run_id` {options.run_id}, but its receipts are of run "
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
        format=work.located.place.format,
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
    ranks = {rank_of(path) for path in checkpoint.files}
    numbers = {rank for rank in ranks if rank is not None}
    return max(numbers) + 1 if numbers and numbers == set(range(max(numbers) + 1)) else None


def _refuse_changes(located: Located, before: Mapping[str, File]) -> None:
    after = located.files()
    changed = sorted(
        path
        for path in {*before, *after}
        if before.get(path) != after.get(path) and not is_record(path)
    )
    if changed:
        raise Refused(
            f"{located.place.path}: {', '.join(changed[:4])} changed while it was being verified: a "
            "save is still running; nothing was changed"
        )
