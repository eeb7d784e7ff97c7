"""All checks, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ckptctl.checks import (
    companions,
    completeness,
    content,
    files,
    items,
    mapping,
    metadata,
    records,
    values,
)
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

COMPANION_CHECKS = companions.CHECKS
"""Asked once the companions that are text were read."""

ITEM_CHECKS: tuple[Check[ItemSeen], ...] = (
    *items.CHECKS,
    *companions.ITEM_CHECKS,
    *content.CHECKS,
)
"""Asked of each item as its bytes are, and of tensors that are passed alike once for all of them.

So of a tensor they look at nothing but dtype, box, records and pickle; ``formats/items/templates.py``.
"""

OBJECT_CHECKS = items.OBJECT_CHECKS
"""Asked once all objects have been looked at."""

DIGEST_CHECKS = records.DIGEST_CHECKS
"""Asked once the files that a manifest promises have been hashed."""

AUDIT_CHECKS = completeness.CHECKS
"""Asked of the audit of all keys."""

VALUE_CHECKS = values.CHECKS
"""Asked once the values of all tensors were looked at."""

IDENTITY_CHECKS = identity.CHECKS
"""Asked of what all files were found to say of step and run."""

AnyCheck: TypeAlias = Check[None] | Check[ItemSeen]

TABLE: Mapping[str, tuple[AnyCheck, ...]] = {
    "structure": STRUCTURE_CHECKS,
    "companions": COMPANION_CHECKS,
    "completeness": AUDIT_CHECKS,
    "items": ITEM_CHECKS,
    "objects": OBJECT_CHECKS,
    "digests": DIGEST_CHECKS,
    "values": VALUE_CHECKS,
    "identity": IDENTITY_CHECKS,
}
"""The checks by what has to be known before they can be asked, in that order."""

CHECKS: tuple[AnyCheck, ...] = tuple(check for row in TABLE.values() for check in row)


def by_id() -> dict[str, AnyCheck]:
    """Return all checks by their id."""
    return {check.id: check for check in CHECKS}
