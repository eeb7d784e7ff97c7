"""The audit of a checkpoint as verification makes it: metadata, and a few small values."""

from __future__ import annotations

from ckptctl.checks import Context
from ckptctl.completeness.audit import Audit
from ckptctl.completeness.auditor import Auditor
from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.finding import Coverage, Gap, GapKind, Stage
from ckptctl.operations.content.value import read_value
from ckptctl.operations.located import Located

_LARGEST_ANSWER = 64 << 10


def audit_of(located: Located, context: Context) -> Audit | None:
    """Audit a checkpoint by what its context wants; None where its metadata cannot be read.

    A value that cannot be read is not missed: the audit then rests on the metadata alone.
    """
    if not context.checkpoint.readable:
        return None
    auditor = Auditor.of(context.checkpoint, context.wanted.mapping)
    manifest = context.seal.manifest
    return auditor.audit(
        world_size=manifest.world_size if manifest is not None else None,
        values=_answers(located, context, set(auditor.questions())),
    )


def coverage_of(audit: Audit) -> Coverage:
    """Say how many keys are understood."""
    reason = "not recognised, `mapping='KEY=COMPONENT'` says what they are"
    gaps = (Gap(GapKind.UNKNOWN, reason, audit.unknown),) if audit.unknown else ()
    return Coverage(Stage.AUDIT, "keys", audit.keys - audit.unknown, audit.keys, gaps=gaps)


def _answers(located: Located, context: Context, wanted: set[str]) -> dict[str, object]:
    found = dict[str, object]()
    checkpoint, base = context.checkpoint, located.base
    for index, fqn in enumerate(checkpoint.items.fqns) if wanted else ():
        if fqn in wanted and fqn not in found:
            item = checkpoint.items[index]
            try:
                found[fqn] = read_value(
                    located.store, base, checkpoint, item, limit=_LARGEST_ANSWER
                )
            except (MalformedData, StorageError):
                continue
    return found
