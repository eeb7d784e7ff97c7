"""What ``resolve`` answers: the checkpoint, what was not taken and why, and what lies between."""

from __future__ import annotations

from collections.abc import Iterable

from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import Findings, StorageError, UsageError
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH, TIME
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.retention.policy import ago, seconds


@dataclass(frozen=True, slots=True)
class Lost:
    """What lies between the answer and the newest checkpoint that was not taken.

    ``steps`` and ``seconds`` are 0 where nothing is newer, None where that is not known.
    ``count`` is how many are newer, ``newest`` the name of the newest of them.
    """

    steps: int | None = 0
    seconds: float | None = 0.0
    count: int = 0
    newest: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may lie between the answer and what is newer: steps, or seconds."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, text: int | str | None) -> Limit:
        """Read ``500`` as steps and ``2h`` as an age; raises ``UsageError`` for anything else."""
        if text is None or text == "":
            return cls()
        if isinstance(text, int) or text.isdigit():
            if int(text) < 0:
                raise UsageError(f"`max_loss` takes a number of steps from 0 on, not {text}")
            return cls(steps=int(text))
        try:
            return cls(seconds=seconds("max_loss", text))
        except UsageError:
            raise UsageError(
                f"`max_loss` takes steps such as 500 or an age such as 90m, 2h, 1d, not {text!r}"
            ) from None

    def exceeded(self, lost: Lost) -> str:
        """Say how what lies between exceeds the limit; empty where it does not."""
        if not lost.count:
            return ""
        if self.steps is not None and (lost.steps is None or lost.steps > self.steps):
            return f"{_steps(lost.steps)}, more than the {self.steps} that `max_loss` allows"
        if self.seconds is not None and (lost.seconds is None or lost.seconds > self.seconds):
            return (
                f"{_time(lost.seconds)}, more than the {ago(self.seconds)} that `max_loss` allows"
            )
        return ""


def between(lost: Lost) -> str:
    """Say in words how much lies between."""
    return f"{_steps(lost.steps)} and {_time(lost.seconds)}"


def _steps(steps: int | None) -> str:
    if steps is None:
        return "an unknown number of steps"
    return "1 step" if steps == 1 else f"{steps} steps"


def _time(age: float | None) -> str:
    if age is None:
        return "an unknown time"
    return f"{age:.0f} s" if age < 120 else ago(age)


@dataclass(frozen=True, slots=True)
class ResolveOptions:
    """What the checkpoint must be, and how far it is looked at.

    ``full`` reads every byte of a committed one instead of the small files; ``quick`` reads no
    content of one that is not committed. ``max_loss`` is how far behind the newest it may be.
    With ``pointer_fallback`` an older decision counts where the newest is not known.
    """

    full: bool = False
    quick: bool = False
    world_size: int | None = None
    min_step: int | None = None
    run_id: str | None = None
    allow_uncommitted: bool = False
    pointer_fallback: bool = False
    max_loss: Limit = field(default_factory=Limit)
    workers: int | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.full and self.quick:
            raise UsageError("choose one of `full` and `quick`")

    def with_workers(self, workers: int) -> ResolveOptions:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was not taken, by its name below the root, and why.

    ``newer`` ones are newer than the answer; ``state`` is said of those. ``saved`` is when its
    files were written, in seconds since the epoch.
    """

    name: str
    step: int | None
    reason: str
    state: str = ""
    newer: bool = False
    saved: float | None = field(default=None, metadata=TIME)


@dataclass(frozen=True, slots=True)
class Resolution(Answer):
    """The checkpoint to resume from; ``how`` says why this one, ``proof`` how it was checked.

    ``accepted`` is what a person accepted of it in spite of a check.
    """

    name: str
    path: str = field(metadata=PATH)
    step: int | None
    how: str
    proof: str
    committed: bool
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    lost: Lost = field(default_factory=Lost)
    accepted: tuple[Acceptance, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the checkpoints between which a person has to choose, and what speaks for it."""

    name: str
    step: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Unresolved(Answer):
    """What was passed over where nothing could be chosen, and why; ``choices`` are a person's."""

    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    lost: Lost | None = None

    @property
    def verdict(self) -> Verdict:
        """Checkpoints exist and none is good, or a person has to choose: that is no fresh start."""
        undecided = bool(self.choices) and self.lost is None
        return Verdict.UNFINISHED if undecided else Verdict.FINDINGS


class NoneUsable(Findings):
    """Checkpoints exist and none can be used; says what was skipped and why."""

    def __init__(
        self,
        message: str,
        skipped: Iterable[Skipped],
        notes: Iterable[str],
        *,
        choices: Iterable[Choice] = (),
        lost: Lost | None = None,
    ) -> None:
        """Keep the reasons."""
        super().__init__(message)
        self.skipped, self.notes = tuple(skipped), tuple(notes)
        self.result = Unresolved(self.skipped, self.notes, tuple(choices), lost)


class TooMuchLost(NoneUsable):
    """The best that is left is further behind than is accepted."""


class Undecided(StorageError):
    """It is not known which checkpoint was decided on last, so a person has to choose."""

    def __init__(
        self,
        message: str,
        skipped: Iterable[Skipped],
        notes: Iterable[str],
        choices: Iterable[Choice],
    ) -> None:
        """Keep the reasons and the choices."""
        super().__init__(message)
        self.skipped, self.notes = tuple(skipped), tuple(notes)
        self.result = Unresolved(self.skipped, self.notes, tuple(choices))
