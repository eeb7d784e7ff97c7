"""The answer of a command in one word, and the exit code that goes with it."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from ckptctl.exit_codes import ExitCode


class Verdict(str, enum.Enum):
    """What came of a command, from good to bad."""

    OK = "ok"
    UNVERIFIED = "unverified"
    SUSPECT = "suspect"
    REFUSED = "refused"
    NOTHING = "nothing examined"
    NOT_EXAMINED = "not examined"
    UNFINISHED = "could not finish"
    FINDINGS = "findings"

    def __str__(self) -> str:
        """The word itself."""
        return self.value

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this verdict."""
        return _CODES.get(self, ExitCode.DONE)

    @classmethod
    def worst(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Return the worst of several; of none it is ``ok``. Damage outranks what is unfinished."""
        order = [*cls]
        return max(verdicts, key=order.index, default=cls.OK)


_CODES = {
    Verdict.REFUSED: ExitCode.REFUSED,
    Verdict.NOTHING: ExitCode.STORAGE_FAILED,
    Verdict.NOT_EXAMINED: ExitCode.STORAGE_FAILED,
    Verdict.UNFINISHED: ExitCode.STORAGE_FAILED,
    Verdict.FINDINGS: ExitCode.FINDINGS,
}
