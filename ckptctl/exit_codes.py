"""Every exit code, in one table: errors carry them, results give them, help and README show them."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What a command exits with; ``meaning`` is for people, ``verdict`` the word for an error."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Make a member that is its number and knows its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "done, nothing wrong"
    FAILED = 1, "ckptctl itself failed"
    USAGE = 2, "usage"
    NOTHING_THERE = 3, "nothing there"
    STORAGE_FAILED = 4, "storage failed or something could not be checked"
    REFUSED = 5, "refused, nothing changed"
    OUTCOME_UNKNOWN = 6, "outcome unknown"
    FINDINGS = 10, "findings"
    INTERRUPTED = 130, "interrupted"
    PIPE_CLOSED = 141, "whoever read the output stopped reading"
    TERMINATED = 143, "told to stop (SIGTERM)"

    @property
    def verdict(self) -> str:
        """The name in lower case, as the verdict of a command that ended with an error."""
        return self.name.lower().replace("_", "-")


def in_words() -> str:
    """Return the table as one paragraph, for the end of ``--help``."""
    return f"Exit codes: {'; '.join(f'{code.value} {code.meaning}' for code in ExitCode)}."
