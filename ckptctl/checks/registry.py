"""All checks, in the order in which they are asked."""

from __future__ import annotations

from ckptctl.checks import completeness, content, files, items, mapping, metadata, records, values
from ckptctl.checks import provenance as identity
from ckptctl.checks.base import Check
from ckptctl.model.observation import ItemSeen

STRUCTURE_CHECKS: tuple[Check[None], ...] = (
    *files.CHECKS,
    *records.CHECKS,
    *metadata.CHECKS,
    *mapping.CHECKS,
)
"""Asked of the listing and the metadata."""

ITEM_CHECKS: tuple[Check[ItemSeen], ...] = (*items.CHECKS, *content.CHECKS)
"""Asked of each item as its bytes are."""

DIGEST_CHECKS = records.DIGEST_CHECKS
"""Asked once the files that a manifest promises have been hashed."""

AUDIT_CHECKS = completeness.CHECKS
"""Asked of the audit of all keys."""

VALUE_CHECKS = values.CHECKS
"""Asked once the values of all tensors were looked at."""

IDENTITY_CHECKS = identity.CHECKS
"""Asked of what all files were found to say of step and run."""

CHECKS: tuple[Check[None] | Check[ItemSeen], ...] = (
    *STRUCTURE_CHECKS,
    *AUDIT_CHECKS,
    *ITEM_CHECKS,
    *DIGEST_CHECKS,
    *VALUE_CHECKS,
    *IDENTITY_CHECKS,
)


def by_id() -> dict[str, Check[None] | Check[ItemSeen]]:
    """Return all checks by their id."""
    return {check.id: check for check in CHECKS}
