"""All checks, in the order in which they are asked."""

from __future__ import annotations

from ckptctl.checks import content, files, items, mapping, metadata, records
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

CHECKS: tuple[Check[None] | Check[ItemSeen], ...] = (
    *STRUCTURE_CHECKS,
    *ITEM_CHECKS,
    *DIGEST_CHECKS,
)


def by_id() -> dict[str, Check[None] | Check[ItemSeen]]:
    """Return all checks by their id."""
    return {check.id: check for check in CHECKS}
