"""The proof of a reshard: what was written, read back, holds what the source holds."""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.dataclass import dataclass
from ckptctl.errors import Findings
from ckptctl.formats import registry
from ckptctl.model.finding import Severity
from ckptctl.operations.content.digest import Content, TensorDigest, digest_content
from ckptctl.operations.content.open import Opened
from ckptctl.operations.content.unread import is_sound
from ckptctl.operations.find import place_at
from ckptctl.operations.located import Located
from ckptctl.operations.progress import Progress
from ckptctl.operations.reshard.source import Source
from ckptctl.operations.reshard.target import Target
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, examine, verification_of
from ckptctl.sharding.plan import Plan


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared and found equal; ``tensors_digest`` is that of the result as a whole."""

    tensors: int
    objects: int
    tensors_digest: str


def prove(
    target: Target,
    source: Source,
    before: Content,
    plan: Plan,
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
    after = digest_content(opened, workers=workers, progress=progress)
    for fqn, what in differences(before, after, plan, source.as_they_are):
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
    return Proof(len(after.tensors), len(after.objects), after.tensors_digest)


def differences(
    before: Content, after: Content, plan: Plan, as_they_are: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Yield each key of which the result is not what the plan takes from the source, and how."""
    tensors = {row.fqn: row for row in before.tensors}
    objects: dict[str, str] = {}
    for one in sorted(before.objects, key=lambda row: -1 if row.rank is None else row.rank):
        objects.setdefault(one.fqn, one.digest)  # of copies that ranks saved, the lowest rank's
    expected = {fqn: plan.copied.get(fqn, fqn) for fqn in plan.entries}
    found = {row.fqn for row in after.tensors} | {row.fqn for row in after.objects}
    for fqn in sorted(expected.keys() ^ found):
        yield fqn, "it is missing from the result" if fqn in expected else "it was not asked for"
    for row in after.tensors:
        source = tensors.get(expected.get(row.fqn, ""))
        if row.fqn not in as_they_are and not _same(source, row):
            yield row.fqn, f"its content is {row.digest or row.problem}, not that of the source"
    for value in after.objects:
        digest = objects.get(expected.get(value.fqn, ""))
        if value.fqn not in as_they_are and (not value.digest or value.digest != digest):
            yield value.fqn, f"its content is {value.digest or value.problem}, not the source's"


def _same(source: TensorDigest | None, row: TensorDigest) -> bool:
    return (
        source is not None
        and bool(row.digest)
        and (source.dtype, source.shape, source.digest) == (row.dtype, row.shape, row.digest)
    )
