"""The same commit once more: done already where the bytes are the same, refused where they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ckptctl import protocol
from ckptctl.errors import MalformedData, Refused, StorageError
from ckptctl.model.manifest import MANIFEST, FileRecord, Manifest
from ckptctl.model.observation import Against
from ckptctl.model.paths import join
from ckptctl.model.run_facts import flatten, same
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place
from ckptctl.operations.progress import Progress
from ckptctl.operations.publish.options import CommitOptions
from ckptctl.operations.verify.beside import Companions
from ckptctl.operations.verify.options import Options as VerifyOptions
from ckptctl.operations.verify.stages import Content, Identity, Structure, run_stages
from ckptctl.operations.verify.work import Work, begin
from ckptctl.storage import WritableStore

NOT_OF_BYTES = frozenset({"quarantined", "pointer-mismatch", "lost-keys"})
"""Checks that say nothing about whether the bytes are those that were sealed."""


def sealed_manifest(store: WritableStore, place: Place) -> Manifest:
    """Read the manifest of a committed checkpoint; raises ``Refused`` where it cannot be used."""
    try:
        found = protocol.read_manifest(store, place.records)
    except MalformedData as error:
        raise Refused(
            f"{place.path} has a manifest that cannot be used ({error}); nothing was changed"
        ) from None
    if found is None:
        raise Refused(f"{place.path} has a manifest already; nothing was changed")
    return found


def still_the_same(
    store: WritableStore, place: Place, options: CommitOptions, progress: Progress | None
) -> tuple[Manifest, dict[str, int], tuple[str, ...]]:
    """Compare a committed checkpoint with its manifest, and the manifest with what was asked for.

    Return the manifest, how many files were compared with it, and what is to be accepted and fits
    no finding. Raises ``Refused`` where a byte or a fact differs, or where something else would
    have to be accepted.
    """
    manifest = sealed_manifest(store, place)
    who = f"{place.path} was committed already by {manifest.actor} at {manifest.time}"
    if options.publish_as is not None:
        raise Refused(f"{who}; nothing was changed")
    told = contradiction(manifest, options)
    if told:
        raise Refused(f"{who}, and {told}; `amend` changes that; nothing was changed")
    located = Located(store, place)
    work = begin(
        located,
        VerifyOptions(workers=options.workers, ignore=NOT_OF_BYTES, accepting=options.accepting),
        progress=progress,
    )
    stages = (Structure(), Companions(), Content())
    work = run_stages(work, (*stages, Identity()) if options.accepting.wishes else stages)
    if work.problem:
        raise StorageError(f"{place.path}: {work.problem}; nothing was changed")
    different = _difference(work, place)
    if different:
        raise Refused(f"{who}, and is not what was sealed then: {different}; nothing was changed")
    findings = work.report.findings
    for one in options.accepting.acceptances(findings):
        raise Refused(f"{who}, and {one.check} is not accepted there; `amend` does that")
    # whoever made it may have died before it was durable
    store.make_durable([join(place.records, MANIFEST)])
    compared = dict(Counter(Against.DIGEST.value for file in manifest.files if file.size))
    return manifest, compared, options.accepting.unmatched(findings)


def contradiction(manifest: Manifest, options: CommitOptions) -> str:
    """Say what was asked for and is not what a manifest says; empty for nothing."""
    for what, asked, known in (
        ("step", options.step, manifest.step),
        ("run", options.run_id, manifest.run_id),
        ("number of ranks", options.world_size, manifest.world_size),
    ):
        if asked is not None and asked != known:
            return f"its {what} is {'not known' if known is None else known}, not {asked}"
    known_facts = {
        "step": manifest.step,
        **flatten(manifest.identity),
        **flatten(manifest.progress, prefix="progress"),
    }
    for name, value in flatten(options.identity).items():
        if name not in known_facts or not same(value, known_facts[name]):
            return f"its {name} is not {str(value)[:60]}"
    return ""


def _difference(work: Work, place: Place) -> str:
    """Say which byte or file is not as it was sealed; what is no part of it may differ."""
    if work.errors:
        first = work.errors[0]
        return f"{first.check}: {first.where.file or ''}: {first.message}"
    for finding in work.report.findings:
        path = finding.where.file or ""
        added = finding.check == "unexpected-file" and finding.accepted is None
        if added and place.layout.belongs(path):
            return f"{path} was added since"
    return ""


def same_promises(one: Manifest, other: Manifest, digests: Mapping[str, tuple[int, str]]) -> bool:
    """Tell whether two who committed at one moment sealed the same bytes as the same thing."""
    theirs = {file.path: _known(file) for file in other.files}
    return dict(digests) == theirs and _facts(one) == _facts(other)


def _facts(one: Manifest) -> tuple[object, ...]:
    accepted = {(found.check, found.findings) for found in one.accepted}
    return one.step, one.run_id, one.world_size, one.identity, one.progress, accepted


def _known(file: FileRecord) -> tuple[int, str]:
    return file.size, file.digest
