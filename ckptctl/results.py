"""The types of what the functions of :mod:`ckptctl.api` return, each loaded when it is first named."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptctl.comparison.difference import Diff
    from ckptctl.operations.catalog.history import Event, History
    from ckptctl.operations.catalog.list import Listing, Row
    from ckptctl.operations.catalog.resolution import (
        Choice,
        Lost,
        NoneUsable,
        Resolution,
        Skipped,
        TooMuchLost,
        Undecided,
        Unresolved,
    )
    from ckptctl.operations.catalog.sealed import Sealed
    from ckptctl.operations.catalog.show import (
        BoxRow,
        Description,
        FileRow,
        Layout,
        ObjectRow,
        TensorRow,
    )
    from ckptctl.operations.catalog.view import Shown
    from ckptctl.operations.content.digest import Content
    from ckptctl.operations.convert.options import Conversion
    from ckptctl.operations.progress import Progress
    from ckptctl.operations.publish.options import Committed
    from ckptctl.operations.publish.promote import Promoted
    from ckptctl.operations.publish.quarantine import Marked
    from ckptctl.operations.reshard.options import DecisionNeeded, Resharding
    from ckptctl.operations.retention.policy import Fate, Plan, Trashed
    from ckptctl.operations.retention.trash import Undeleted
    from ckptctl.operations.schemas import Schema
    from ckptctl.operations.vacancy import Vacancy
    from ckptctl.operations.verify.several import Failure, Verifications
    from ckptctl.operations.verify.verify import Verification

_MODULES = {
    "Diff": "comparison.difference",
    "Event": "operations.catalog.history",
    "History": "operations.catalog.history",
    "Listing": "operations.catalog.list",
    "Row": "operations.catalog.list",
    "Choice": "operations.catalog.resolution",
    "Lost": "operations.catalog.resolution",
    "NoneUsable": "operations.catalog.resolution",
    "Resolution": "operations.catalog.resolution",
    "Skipped": "operations.catalog.resolution",
    "TooMuchLost": "operations.catalog.resolution",
    "Undecided": "operations.catalog.resolution",
    "Unresolved": "operations.catalog.resolution",
    "Vacancy": "operations.vacancy",
    "BoxRow": "operations.catalog.show",
    "Description": "operations.catalog.show",
    "FileRow": "operations.catalog.show",
    "Layout": "operations.catalog.show",
    "ObjectRow": "operations.catalog.show",
    "Sealed": "operations.catalog.sealed",
    "TensorRow": "operations.catalog.show",
    "Shown": "operations.catalog.view",
    "Content": "operations.content.digest",
    "Conversion": "operations.convert.options",
    "Progress": "operations.progress",
    "Committed": "operations.publish.options",
    "Promoted": "operations.publish.promote",
    "Fate": "operations.retention.policy",
    "Plan": "operations.retention.policy",
    "Trashed": "operations.retention.policy",
    "Undeleted": "operations.retention.trash",
    "Marked": "operations.publish.quarantine",
    "DecisionNeeded": "operations.reshard.options",
    "Resharding": "operations.reshard.options",
    "Schema": "operations.schemas",
    "Failure": "operations.verify.several",
    "Verifications": "operations.verify.several",
    "Verification": "operations.verify.verify",
}

__all__ = [
    "BoxRow",
    "Choice",
    "Committed",
    "Content",
    "Conversion",
    "DecisionNeeded",
    "Description",
    "Diff",
    "Event",
    "Failure",
    "Fate",
    "FileRow",
    "History",
    "Layout",
    "Listing",
    "Lost",
    "Marked",
    "NoneUsable",
    "ObjectRow",
    "Plan",
    "Progress",
    "Promoted",
    "Resharding",
    "Resolution",
    "Row",
    "Schema",
    "Sealed",
    "Shown",
    "Skipped",
    "TensorRow",
    "TooMuchLost",
    "Trashed",
    "Undecided",
    "Undeleted",
    "Unresolved",
    "Vacancy",
    "Verification",
    "Verifications",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ckptctl.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
