"""The audit of a checkpoint as verification makes it: metadata, and a few small values."""

from __future__ import annotations

from ckptctl.checks import Context
from ckptctl.completeness.audit import Audit, Wanted
from ckptctl.completeness.auditor import Auditor
from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.finding import Coverage, Gap, GapKind, Stage
from ckptctl.operations.content.value import read_value
from ckptctl.storage import Store

_LARGEST_ANSWER = 64 << 10


def audit_into(context: Context, store: Store, base: str, wanted: Wanted) -> list[Coverage]:
    """Audit the checkpoint at ``base`` and give the audit to its checks; return how far it went.

    A value that cannot be read is not missed: the audit then rests on the metadata alone.
    """
    context.wanted = wanted
    if not context.checkpoint.readable:
        return []
    auditor = Auditor.of(context.checkpoint, wanted.mapping)
    manifest = context.seal.manifest
    context.audit = auditor.audit(
        world_size=manifest.world_size if manifest is not None else None,
        values=_answers(context, store, base, auditor.questions()),
    )
    return [coverage_of(context.audit)]


def coverage_of(audit: Audit) -> Coverage:
    """Say how many keys are understood."""
    reason = "not recognised, `--map 'KEY=COMPONENT'` says what they are"
    gaps = (Gap(GapKind.UNKNOWN, reason, audit.unknown),) if audit.unknown else ()
    return Coverage(Stage.AUDIT, "keys", audit.keys - audit.unknown, audit.keys, gaps=gaps)


def _answers(context: Context, store: Store, base: str, keys: list[str]) -> dict[str, object]:
    wanted, found = set(keys), dict[str, object]()
    if not wanted:
        return found
    items = context.checkpoint.items
    for index, fqn in enumerate(items.fqns):
        if fqn in wanted and fqn not in found:
            try:
                found[fqn] = read_value(
                    store, base, context.checkpoint, items[index], limit=_LARGEST_ANSWER
                )
            except (MalformedData, StorageError):
                continue
    return found
