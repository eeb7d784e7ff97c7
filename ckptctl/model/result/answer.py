"""What the result of every verb can tell: verdict, exit code, findings, and itself as JSON."""

from __future__ import annotations

from typing import Any

from ckptctl.exit_codes import ExitCode
from ckptctl.model.finding import Finding
from ckptctl.model.result.plain import plain
from ckptctl.model.result.verdict import Verdict


class Answer:
    """The base of all results; what a verb only does or shows is ``ok`` once it is done."""

    __slots__ = ()

    @property
    def verdict(self) -> Verdict:
        """The answer in one word."""
        return Verdict.OK

    @property
    def exit_code(self) -> ExitCode:
        """What the command line exits with for this result."""
        return self.verdict.exit_code

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, in the order in which it is shown."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as the command line prints it under ``result`` with ``--json``."""
        found: dict[str, Any] = plain(self)
        return found
