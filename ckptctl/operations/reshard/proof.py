"""The proof of a reshard: what was written, read back, holds what the source holds."""

from __future__ import annotations

from ckptctl.dataclass import dataclass
from ckptctl.errors import Findings
from ckptctl.formats import registry
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.finding import Severity
from ckptctl.operations.content.digest import Content
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.proof import Expected, Held, ProofBy, pieces_of, read_back
from ckptctl.operations.content.segments import Log, Records
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.content.unread import is_sound
from ckptctl.operations.find import place_at
from ckptctl.operations.located import Located
from ckptctl.operations.progress import Progress
from ckptctl.operations.reshard.source import Source
from ckptctl.operations.reshard.target import Target
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, examine, verification_of
from ckptctl.sharding.plan import Copy, Plan


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared and found equal, and by what; ``tensors_digest`` is of the result as a whole."""

    tensors: int
    objects: int
    tensors_digest: str
    by: ProofBy
    covers: str


def prove(
    target: Target,
    source: Source,
    expected: Expected,
    plan: Plan,
    by: ProofBy,
    *,
    workers: int,
    progress: Progress | None = None,
) -> Proof:
    """Read the result back and compare it with the source, tensor by tensor, object by object.

    Raises ``Findings`` for the first difference: the result must not be committed.
    """
    place = place_at(target.store, target.base, registry.SHARDED)
    if place is None:
        raise Findings(f"{target.url}: what was written is not there; not committed")
    work = examine(Located(target.store, place), Options(quick=True, workers=workers))
    outcome, checkpoint = verification_of(work), work.context.checkpoint
    errors = [f for f in outcome.report.findings if f.severity == Severity.ERROR]
    if errors or not (outcome.good or outcome.verdict is Verdict.SUSPECT):
        text = f"{errors[0].check}: {errors[0].message}" if errors else outcome.why
        raise Findings(f"{target.url}: what was written does not verify: {text}; not committed")
    opened = Opened(target.store, target.base, checkpoint, target.url)
    after, wrong = read_back(opened, expected, workers=workers, progress=progress)
    for fqn, what in wrong:
        raise Findings(f"{target.url}: {fqn}: {what}; not committed")
    if source.as_they_are:
        with source.opened.source() as there, opened.source() as here:
            theirs = there.item_digests(source.as_they_are)
            ours = here.item_digests(source.as_they_are)
        for key in theirs.keys() | ours.keys():
            if theirs.get(key) != ours.get(key):
                raise Findings(f"{target.url}: {key[0]}: an item is not a copy; not committed")
    for name in plan.beside:
        if not is_sound(source.opened.store, source.opened.base, target.done[name]) or not is_sound(
            target.store, target.base, target.done[name]
        ):
            raise Findings(f"{target.url}: {name} is not a copy; not committed")
    objects = len(expected.objects) + len(expected.records)
    return Proof(len(after.tensors), objects, after.tensors_digest, by, expected.covers)


def expected_by_digest(before: Content, plan: Plan, as_they_are: frozenset[str]) -> Expected:
    """Return what the plan takes from a source whose content is known."""
    rows = {row.fqn: row for row in before.tensors}
    found: dict[str, str] = {}
    for one in sorted(before.objects, key=lambda row: -1 if row.rank is None else row.rank):
        found.setdefault(one.fqn, one.digest)  # of copies that ranks saved, the lowest rank's
    tensors: dict[str, Held] = {}
    objects: dict[str, str] = {}
    for fqn, entry in plan.entries.items():
        origin = plan.copied.get(fqn, fqn)
        if fqn in as_they_are:
            continue
        if not isinstance(entry, TensorEntry):
            objects[fqn] = found.get(origin, "")
        else:
            row = rows.get(origin)
            digest = row.digest if row is not None else ""
            tensors[fqn] = Held(entry.dtype, entry.shape, digest)
    return Expected(tensors, objects, apart=as_they_are & plan.entries.keys())


def expected_by_crc(source: Source, plan: Plan, log: Log) -> Expected:
    """Return what the plan takes from a source of which it is known what was read.

    What an earlier attempt has read is asked of the source. Raises ``MalformedData`` where the
    source is not what it recorded.
    """
    opened, checkpoint = source.opened, source.checkpoint
    tensors: dict[str, Held] = {}
    records: dict[str, Records] = {}
    with TensorSource(opened.store, opened.base, checkpoint) as reading:
        for fqn, entry in plan.entries.items():
            if isinstance(entry, TensorEntry):
                pieces = pieces_of(reading, log, plan.copied.get(fqn, fqn))
                tensors[fqn] = Held(entry.dtype, entry.shape, pieces=pieces)
        for step in (step for file in plan.files for step in file.steps):
            if isinstance(step, Copy) and step.box is None:
                item = checkpoint.items[step.item]
                key = (item.path, item.offset)
                if key not in log.records:
                    log.records.update(reading.object_records([item]))
                records[step.fqn] = log.records[key]
        log.unchecked |= reading.unchecked
    return Expected(tensors, records=records)
