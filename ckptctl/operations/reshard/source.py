"""The source of a reshard: opened, verified, digested; what is damaged is named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ckptctl import protocol
from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import (
    Findings,
    MalformedData,
    NothingThere,
    Refused,
    StorageError,
)
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.checkpoint import Checkpoint, Items, TensorEntry
from ckptctl.model.finding import Finding, Severity
from ckptctl.model.manifest import Manifest
from ckptctl.operations.content.digest import (
    Content,
    ObjectDigest,
    TensorDigest,
    digest_content,
)
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.find import locate
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place, address, not_read
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.losses import lost_in_conversion
from ckptctl.operations.reshard.touched import Damage, damage_of
from ckptctl.operations.verify.accepting import Accepting, way_round
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, examine, verification_of
from ckptctl.sharding.rank_policy import Contents
from ckptctl.sharding.rank_state import Family
from ckptctl.storage import open_store


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint to be resharded.

    ``lost`` are the keys that damage touches, left out because the user said so, and where
    something lay whose key nothing tells; ``altered`` are files that are not those which were
    committed, ``as_they_are`` tensors that are sound but hold something else than plain bytes.
    ``accepted`` is what a person accepted of it in spite of a check, and ``unmatched`` what was to be
    accepted and fits no finding.
    """

    opened: Opened
    place: Place
    manifest: Manifest | None = None
    lost: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()
    as_they_are: frozenset[str] = frozenset()
    accepted: tuple[Acceptance, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> Checkpoint:
        """What metadata and listing say, without the keys that are lost."""
        whole = self.opened.checkpoint
        if not self.lost:
            return whole
        entries = {fqn: entry for fqn, entry in whole.entries.items() if fqn not in self.lost}
        return replace(whole, entries=entries)

    @property
    def identity(self) -> str:
        """What names this save: its manifest, its save id, or its layout where it has neither."""
        if self.manifest is not None:
            return self.manifest.digest
        save_id = self.opened.checkpoint.identity.save_id
        return (
            f"save-id:{save_id}" if save_id else f"layout:{_layout(self.opened.checkpoint.items)}"
        )


def _layout(items: Items) -> str:
    hasher = hashlib.sha256()
    for item in items:
        line = f"{item.fqn}\0{item.offsets}\0{item.path}\0{item.offset}\0{item.length}\n"
        hasher.update(line.encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()


def open_source(
    url: str,
    *,
    force: bool,
    workers: int,
    progress: Progress | None = None,
    framework: str = "",
    accepting: Accepting | None = None,
) -> Source:
    """Open and verify a checkpoint: by its manifest's digests where it has one, else its structure.

    Raises ``NothingThere``, ``StorageError``, and ``Findings`` where it does not verify; with
    ``force`` only where the damage is not that of single keys. What is ``accepting`` is no error.
    """
    accepting = accepting or Accepting()
    store, places = locate(url, open_store, framework)
    if len(places) != 1:
        raise NothingThere(f"{url} holds {len(places)} checkpoints; name one of them")
    place = places[0]
    if not place.readable or place.layout.writer is None:
        why = f"{place.layout.title}: it is made of parts" if place.readable else not_read(place)
        raise Refused(f"{url}: {why}; `ckptctl convert` makes a DCP checkpoint of it")
    try:
        manifest = protocol.read_manifest(store, place.path)
    except MalformedData as error:
        raise Findings(f"{url}: its manifest cannot be used: {error}") from None
    options = Options(quick=manifest is None, workers=workers, accepting=accepting)
    work = examine(Located(store, place), options, progress=progress)
    outcome, checkpoint = verification_of(work), work.context.checkpoint
    errors = [f for f in outcome.report.findings if f.severity == Severity.ERROR]
    damage = Damage()
    if errors:
        found = damage_of(errors, checkpoint)
        if not force or found is None:
            raise Findings(_why(url, errors, hopeless=found is None))
        damage = found
    elif outcome.verdict is Verdict.UNFINISHED:
        raise StorageError(f"{url}: {outcome.why}")
    elif outcome.verdict is Verdict.NOTHING:
        raise Refused(f"{url}: {outcome.why}; nothing was written")
    opened = Opened(store, place.path, checkpoint, address(store, place.path))
    before = manifest.lost if manifest is not None else lost_in_conversion(store, place.path)
    lost = damage.keys | damage.unnamed | {key for keys in before.values() for key in keys}
    findings = outcome.report.findings
    recorded = manifest.accepted if manifest is not None else ()
    source = Source(
        opened,
        place,
        manifest,
        lost,
        damage.altered,
        accepted=(*recorded, *accepting.acceptances(findings)),
        unmatched=accepting.unmatched(findings),
    )
    _something_left(source)
    return source


def _something_left(source: Source) -> None:
    """Refuse to go on with what holds nothing any more."""
    whole, left = source.opened.checkpoint.entries, source.checkpoint.entries
    tensors = any(isinstance(entry, TensorEntry) for entry in left.values())
    if len(left) < len(whole) and not tensors:
        what = "no tensor" if left else "no key"
        raise Refused(
            f"{source.opened.url}: {len(whole) - len(left)} of {len(whole)} keys are touched by the "
            f"damage, and `force` would leave {what}; nothing was written"
        )


def _why(url: str, errors: list[Finding], *, hopeless: bool) -> str:
    first = errors[0]
    where = f"{first.where.file}: " if first.where.file else ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    hint = (
        "the damage is not that of single keys, so `force` cannot help"
        if hopeless
        else "`force` takes what the damage does not touch"
    )
    return (
        f"{url} does not verify, so nothing was written: {first.check}: {where}{first.message}"
        f"{more}; {hint}{way_round(errors)}"
    )


def digest_source(
    source: Source, *, force: bool, workers: int, progress: Progress | None = None
) -> tuple[Source, Content]:
    """Digest everything that the source holds, every CRC checked on the way.

    Return the source with what turned out to be damaged or not to be cut. Raises ``Findings`` for
    damage without ``force``.
    """
    opened = replace(source.opened, checkpoint=source.checkpoint)
    content = digest_content(opened, workers=workers, progress=progress)
    troubled = [row for row in content.tensors if row.problem]
    kept: set[str] = set()
    damaged: dict[str, str] = {
        row.fqn: row.problem for row in content.objects if row.problem and not row.unsupported
    }
    odd: list[TensorDigest | ObjectDigest] = [*troubled]
    odd += [row for row in content.objects if row.unsupported]
    with TensorSource(opened.store, opened.base, opened.checkpoint) as tensors:
        for one in odd:
            found = tensors.damage(one.fqn)
            if found:
                damaged[one.fqn] = found if one.unsupported else one.problem
            else:
                kept.add(one.fqn)
    content = replace(content, unchecked=tuple(sorted({*content.unchecked, *tensors.unchecked})))
    if damaged and not force:
        fqn, problem = next(iter(damaged.items()))
        more = f" (and {len(damaged) - 1} more keys)" if len(damaged) > 1 else ""
        raise Findings(
            f"{source.opened.url} does not verify, so nothing was written: {fqn}: {problem}{more}; "
            "`force` takes what the damage does not touch"
        )
    lost, whole = source.lost | damaged.keys(), source.as_they_are | kept
    items, unproven = opened.checkpoint.items, set(content.unchecked)
    lost |= {
        fqn
        for fqn, path in zip(items.fqns, items.paths, strict=True)
        if path in source.altered and fqn in unproven
    }
    source = replace(source, lost=lost, as_they_are=whole)
    _something_left(source)
    return source, content


def rank_contents(source: Source, per_rank: Iterable[Family], *, workers: int) -> Contents:
    """Digest the small values that are kept per rank, so that equal ones can be told."""
    checkpoint = source.checkpoint
    wanted = {key.fqn for family in per_rank for key in family.keys}
    if not wanted:
        return {}
    entries = {fqn: entry for fqn, entry in checkpoint.entries.items() if fqn in wanted}
    opened = replace(source.opened, checkpoint=replace(checkpoint, entries=entries))
    content = digest_content(opened, workers=workers)
    found: dict[tuple[str, int | None], str] = {
        (row.fqn, row.rank): row.digest for row in content.objects if row.digest
    }
    found.update({(row.fqn, None): row.digest for row in content.tensors if row.digest})
    return found
