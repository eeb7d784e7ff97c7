"""Every error of the library, in one tree; each class knows its exit code.

Damage is not an error: what is wrong *with a checkpoint* is a finding. An error says that the
question could not be asked.
"""

from __future__ import annotations

from ckptctl.exit_codes import ExitCode


class CkptctlError(Exception):
    """Base of all errors; ``exit_code`` is what the command line exits with.

    ``result`` is what was done, or is known, all the same. ``remedy`` is a command to type next.
    """

    exit_code: ExitCode = ExitCode.FAILED
    result: object = None
    remedy: str = ""


class UsageError(CkptctlError):
    """The request itself makes no sense."""

    exit_code = ExitCode.USAGE


class NothingThere(CkptctlError):
    """What was named is there and holds no checkpoint."""

    exit_code = ExitCode.NOTHING_THERE


class StorageError(CkptctlError):
    """The storage did not answer; no verdict is possible."""

    exit_code = ExitCode.STORAGE_FAILED


class NotFound(StorageError):
    """One object is not there."""


class RootMissing(NotFound):
    """What was named is not there at all: not mounted, misspelled, or not begun yet."""


class ShortRead(StorageError):
    """Fewer bytes came back than the object's size had promised."""


class MalformedData(CkptctlError):
    """Bytes that a reader could not accept; readers turn it into a fault of the checkpoint."""

    exit_code = ExitCode.FINDINGS


class UnsafeData(MalformedData):
    """Bytes that ask for code to be run or for memory without bound."""


class RunsCode(UnsafeData):
    """Bytes that ask for code to be run; it was not."""


class TooLarge(UnsafeData):
    """Bytes that ask for more memory, values or time than an input of their size may take."""


class TooMuchMemory(TooLarge):
    """Bytes that describe more than fits into the memory that an input of their size may take."""


class TooDeep(UnsafeData):
    """Bytes that nest deeper than any reader follows."""


class Refused(CkptctlError):
    """A precondition did not hold; nothing was changed."""

    exit_code = ExitCode.REFUSED


class Unsupported(MalformedData, Refused):
    """Bytes that this release has no reader for; nothing says that they are damaged."""

    exit_code = ExitCode.REFUSED


class Conflict(Refused):
    """Somebody else was first."""


class OutcomeUnknown(CkptctlError):
    """Something was sent and its answer never came: it may or may not have happened."""

    exit_code = ExitCode.OUTCOME_UNKNOWN


class Interrupted(KeyboardInterrupt):
    """Somebody stopped it, by Ctrl-C or SIGTERM.

    ``left`` means that something was left behind which the same command can go on from.
    """

    def __init__(
        self, message: str = "interrupted", cause: object = None, *, left: bool = False
    ) -> None:
        """Take the exit code of what stopped it."""
        super().__init__(message)
        self.exit_code: ExitCode = getattr(cause, "exit_code", ExitCode.INTERRUPTED)
        self.left = left
        self.remedy = ""


class Terminated(Interrupted):
    """The process was asked to end (SIGTERM)."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("told to stop (SIGTERM)")
        self.exit_code = ExitCode.TERMINATED


class Findings(CkptctlError):
    """Something is wrong with the checkpoint, so what was asked was not done."""

    exit_code = ExitCode.FINDINGS
