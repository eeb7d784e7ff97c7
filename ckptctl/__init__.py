"""Inspect, verify and publish the checkpoints of distributed training.

Every verb of the command line is a function of this package. Its result is frozen and has
``verdict``, ``exit_code``, ``findings`` and ``to_dict()``; errors are ``CkptctlError``:

>>> import ckptctl
>>> ckptctl.resolve("/checkpoints/run").path
'/checkpoints/run/step-5000'

Importing the package loads nothing else; functions and types are loaded when they are named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ckptctl.version import __version__ as __version__

if TYPE_CHECKING:
    from typing import Any

    from ckptctl.api import (
        commit,
        convert,
        diff,
        digest,
        history,
        list_checkpoints,
        promote,
        prune,
        quarantine,
        release,
        reshard,
        resolve,
        schema,
        show,
        undelete,
        verify,
    )
    from ckptctl.errors import (
        CkptctlError,
        Conflict,
        Findings,
        MalformedData,
        NotFound,
        NothingThere,
        OutcomeUnknown,
        Refused,
        StorageError,
        UsageError,
    )
    from ckptctl.exit_codes import ExitCode
    from ckptctl.model.finding import Finding
    from ckptctl.model.result.verdict import Verdict
    from ckptctl.results import (
        Committed,
        Content,
        Conversion,
        DecisionNeeded,
        Diff,
        Failure,
        History,
        Listing,
        Marked,
        NoneUsable,
        Plan,
        Progress,
        Promoted,
        Resharding,
        Resolution,
        Row,
        Schema,
        Shown,
        TooMuchLost,
        Undecided,
        Undeleted,
        Verification,
        Verifications,
    )

__all__ = [
    "CkptctlError",
    "Committed",
    "Conflict",
    "Content",
    "Conversion",
    "DecisionNeeded",
    "Diff",
    "ExitCode",
    "Failure",
    "Finding",
    "Findings",
    "History",
    "Listing",
    "MalformedData",
    "Marked",
    "NoneUsable",
    "NotFound",
    "NothingThere",
    "OutcomeUnknown",
    "Plan",
    "Progress",
    "Promoted",
    "Refused",
    "Resharding",
    "Resolution",
    "Row",
    "Schema",
    "Shown",
    "StorageError",
    "TooMuchLost",
    "Undecided",
    "Undeleted",
    "UsageError",
    "Verdict",
    "Verification",
    "Verifications",
    "commit",
    "convert",
    "diff",
    "digest",
    "history",
    "list_checkpoints",
    "promote",
    "prune",
    "quarantine",
    "release",
    "reshard",
    "resolve",
    "schema",
    "show",
    "undelete",
    "verify",
]

_ELSEWHERE = {
    "ExitCode": "exit_codes",
    "Finding": "model.finding",
    "Verdict": "model.result.verdict",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in (_ELSEWHERE.get(name, "api"), "errors", "results"):
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if found is not None:
                return found
        raise AttributeError(name)

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
