"""Choosing keys and giving them other names."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from ckptctl.dataclass import dataclass
from ckptctl.errors import UsageError
from ckptctl.words import listed


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys are taken, and under which name.

    ``only`` and ``exclude`` are shell patterns on the source's names. ``strip`` are prefixes taken
    off, the first that fits; ``rename`` pairs of prefixes, old and new, applied after it.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()

    def takes(self, fqn: str) -> bool:
        """Tell whether a key is taken."""
        chosen = not self.only or any(fnmatch.fnmatchcase(fqn, one) for one in self.only)
        return chosen and not any(fnmatch.fnmatchcase(fqn, one) for one in self.exclude)

    def name(self, fqn: str) -> str:
        """Return the name that a key gets."""
        for prefix in self.strip:
            if fqn.startswith(prefix) and len(fqn) > len(prefix):
                fqn = fqn[len(prefix) :]
                break
        for old, new in self.rename:
            if fqn.startswith(old):
                return new + fqn[len(old) :]
        return fqn

    def names(self, fqns: Iterable[str]) -> dict[str, str]:
        """Map the keys that are taken to their names.

        Raises ``UsageError`` where none is taken or two would get one name.
        """
        fqns = list(fqns)
        need_matches(self.only, fqns)
        found = {fqn: self.name(fqn) for fqn in fqns if self.takes(fqn)}
        if not found:
            raise UsageError("no key matches what `only` and `exclude` leave")
        taken: dict[str, str] = {}
        for fqn, name in found.items():
            other = taken.setdefault(name, fqn)
            if other != fqn or not name:
                raise UsageError(f"{other} and {fqn} would both be called {name!r}")
        return found


def need_matches(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Raise ``UsageError`` for a pattern that matches nothing while others match something.

    Where none matches, the answer itself says that nothing was looked at.
    """
    wanted = list(patterns)
    known = list(names) if wanted else []
    idle = [one for one in wanted if not any(fnmatch.fnmatchcase(name, one) for name in known)]
    if idle and len(idle) < len(wanted):
        raise UsageError(f"`only` {listed(idle)} matches nothing: is it misspelled?")


def parse_rename(text: str) -> tuple[str, str]:
    """Read ``OLD=NEW``; raises ``UsageError`` for anything else."""
    old, sign, new = text.partition("=")
    if not sign or not old:
        raise UsageError(f"`rename` takes OLD=NEW, prefixes of names, not {text!r}")
    return old, new
