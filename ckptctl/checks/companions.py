"""Are the files beside the tensors what their framework writes, and each in its own place?"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.checks.base import Check, Context, Hit, Override, from_faults, never
from ckptctl.model.checkpoint import FaultKind
from ckptctl.model.finding import Severity, Stage
from ckptctl.model.observation import ItemSeen
from ckptctl.pattern import pattern

_ELSEWHERE = (
    "restore the file from another copy and run `ckptctl verify {checkpoint}` again, or choose "
    "another checkpoint with `ckptctl list {root}`"
)
_NUMBER = pattern(r"\d+")


def _misplaced(context: Context, seen: ItemSeen) -> Iterator[Hit]:
    companion = context.checkpoint.companions.get(seen.item.path)
    if seen.item.fqn or companion is None or not companion.known:
        return
    own = seen.item.path.rpartition("/")[2].rpartition(".")[0]
    if seen.root != own and _NUMBER.sub("#", seen.root) == _NUMBER.sub("#", own):
        yield Hit(
            f"it was written as {seen.root}: two files were exchanged, or one was copied over "
            "another",
            context.where(seen.item),
            companion.holds,
        )


CHECKS: tuple[Check[None], ...] = (
    Check(
        "malformed-companion",
        Stage.FILES,
        Severity.ERROR,
        "A file beside the tensors is not what its framework writes.",
        _ELSEWHERE,
        from_faults(FaultKind.MALFORMED_COMPANION),
        applies=lambda context: bool(context.checkpoint.companions),
        override=never("the file is not what its framework reads"),
    ),
)
"""Asked once the companions that are text were read."""

ITEM_CHECKS: tuple[Check[ItemSeen], ...] = (
    Check(
        "misplaced-file",
        Stage.ITEMS,
        Severity.ERROR,
        "A file was written under another rank's name.",
        _ELSEWHERE,
        _misplaced,
        applies=lambda context: bool(context.checkpoint.companions),
        override=Override(
            "a rank's file may be copied for another rank on purpose, where ranks were added"
        ),
    ),
)
"""Asked of each companion as its bytes are."""
