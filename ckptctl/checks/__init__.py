"""What can be wrong with a checkpoint: each check is one question with an id of its own."""

from ckptctl.checks.base import Check, Context, Hit
from ckptctl.checks.registry import (
    AUDIT_CHECKS,
    CHECKS,
    COMPANION_CHECKS,
    DIGEST_CHECKS,
    IDENTITY_CHECKS,
    ITEM_CHECKS,
    OBJECT_CHECKS,
    STRUCTURE_CHECKS,
    VALUE_CHECKS,
    by_id,
)

__all__ = [
    "AUDIT_CHECKS",
    "CHECKS",
    "COMPANION_CHECKS",
    "DIGEST_CHECKS",
    "IDENTITY_CHECKS",
    "ITEM_CHECKS",
    "OBJECT_CHECKS",
    "STRUCTURE_CHECKS",
    "VALUE_CHECKS",
    "Check",
    "Context",
    "Hit",
    "by_id",
]
