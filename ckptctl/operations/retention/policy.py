"""What is to be kept, and what happens to each checkpoint: plain data, made before anything is done."""

from __future__ import annotations

import re

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import UsageError
from ckptctl.model.commit_state import State
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH, TIME
from ckptctl.model.result.verdict import Verdict

DAY = 86400.0
LEVELS = ("quick", "full")
_UNITS = {"m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept: the last so many, every so many steps, everything younger than so many seconds.

    ``min_age`` is how long, in seconds, nothing about a whole checkpoint must have changed before
    it may go; for any other it is a day at least. ``verify`` is how far those that are counted as
    keepers are looked at: ``quick``, ``full``, or empty for the newest in full and others quickly.
    ``ignored`` are names of pointers that may lead nowhere. What is in the trash for longer than
    ``trash_older_than`` seconds leaves it for good.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    older_than: float | None = None
    min_age: float = DAY
    verify: str = ""
    include_quarantined: bool = False
    ignored: tuple[str, ...] = ()
    trash_older_than: float | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.verify not in ("", *LEVELS):
            raise UsageError(f"`verify` takes quick or full, not {self.verify!r}")
        for name in ("keep_last", "keep_every"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UsageError(f"`{name}` takes a number from 1 on, not {number}")

    @property
    def keeps(self) -> bool:
        """True if it says what is kept, so that something may go."""
        return (self.keep_last, self.keep_every, self.older_than) != (None, None, None)

    def full(self, *, newest: bool) -> bool:
        """Tell whether a keeper is read in full."""
        return self.verify == "full" or (newest and self.verify != "quick")


def seconds(option: str, age: float | str) -> float:
    """Read an age such as ``12h``; raises ``UsageError`` for anything else."""
    if not isinstance(age, str):
        return float(age)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", age)
    if match is None:
        raise UsageError(f"`{option}` takes an age such as 90m, 12h, 7d or 2w, not {age!r}")
    return float(match[1]) * _UNITS[match[2]]


def ago(age: float) -> str:
    """Write an age in words."""
    for unit, length in (("d", DAY), ("h", 3600.0)):
        if age >= 2 * length:
            return f"{age / length:.0f} {unit}"
    return f"{max(age, 0.0) / 60:.0f} min"


@dataclass(frozen=True, slots=True)
class Listed:
    """One file or link of a checkpoint, by its path below the root, as it was when it was planned."""

    path: str
    size: int
    modified: float | None = field(default=None, metadata=TIME)
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one checkpoint and why; ``size`` in bytes.

    ``verified`` is how far it was looked at where it counts as a keeper. One that goes has the
    ``keeper`` that must still be good then, and the ``contents`` that may be deleted.
    """

    name: str
    step: int | None
    state: State
    size: int
    delete: bool
    reason: str
    verified: str = ""
    keeper: str = ""
    contents: tuple[Listed, ...] = ()


@dataclass(frozen=True, slots=True)
class Trashed:
    """One checkpoint in the trash; ``problem`` says why it stays there where it should go."""

    number: int
    name: str
    size: int
    time: str = ""
    actor: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Plan(Answer):
    """The fate of every checkpoint of a root, oldest step first; ``done`` once it was carried out.

    ``trash`` is where those that go are moved, empty where they are deleted at once. ``emptied``
    are those that leave the trash for good. ``keepers`` has the contents of those that count.
    """

    root: str = field(metadata=PATH)
    fates: tuple[Fate, ...]
    done: bool = False
    trash: str = ""
    emptied: tuple[Trashed, ...] = ()
    keepers: tuple[Fate, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def doomed(self) -> tuple[Fate, ...]:
        """Those that go."""
        return tuple(fate for fate in self.fates if fate.delete)

    @property
    def verdict(self) -> Verdict:
        """``refused`` where some were to go and every one of them had to stay."""
        planned = any(fate.contents or fate.keeper for fate in self.fates) or bool(self.emptied)
        gone = bool(self.doomed) or any(not one.problem for one in self.emptied)
        return Verdict.REFUSED if self.done and planned and not gone else Verdict.OK
