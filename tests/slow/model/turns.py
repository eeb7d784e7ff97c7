"""Two actors and one store: at one call of the first, the second has its whole turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ckptctl.storage.posix import PosixReader, PosixStore

CALLS = (
    "entries",
    "stat",
    "open",
    "create",
    "put",
    "delete",
    "rename_directory",
    "remove_directory",
    "make_durable",
    "prove",
)
ANY = "any"


@dataclass(frozen=True)
class When:
    """Just before the n-th call of a kind, counted from 0."""

    call: str
    number: int


@dataclass
class Turns:
    """Counts the calls of whoever is at work, and lets the other one come in between."""

    counts: Counter[str] = field(default_factory=Counter)
    log: list[tuple[str, str]] = field(default_factory=list)
    came: int | None = None
    _when: When | None = None
    _act: Callable[[], object] | None = None
    _busy: bool = False

    def begin(self, when: When | None = None, act: Callable[[], object] | None = None) -> None:
        """Count from 0; somebody may come in between."""
        self.counts, self.log, self.came = Counter(), [], None
        self._when, self._act = when, act

    def tick(self, call: str, path: str) -> None:
        """One call is about to happen."""
        if self._busy:
            return
        when = self._when
        if when is not None and when.call in (call, ANY) and self.counts[when.call] == when.number:
            self.come()
        self.counts[call] += 1
        self.counts[ANY] += 1
        self.log.append((call, path))

    def come(self) -> None:
        """The other one has its turn now, if it has not had it yet."""
        act, self._act, self._when = self._act, None, None
        if act is None:
            return
        self._busy = True
        self.came = len(self.log)
        try:
            act()
        finally:
            self._busy = False

    @property
    def nested(self) -> bool:
        """True while the second is at work."""
        return self._busy

    @property
    def since(self) -> list[tuple[str, str]]:
        """What the first did after the second had been there."""
        return self.log[self.came :] if self.came is not None else []


def watch(patch: pytest.MonkeyPatch) -> Turns:
    """Let every call of every POSIX store be counted."""
    turns = Turns()

    def counted(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            path = args[0] if args and isinstance(args[0], str) else ""
            turns.tick(name, path)
            return inner(self, *args, **kwargs)

        patch.setattr(owner, name, call)

    for name in CALLS:
        counted(PosixStore, name)
    for name in ("read", "read_into"):
        counted(PosixReader, name)
    return turns
