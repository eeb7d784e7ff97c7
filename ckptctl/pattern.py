"""Regular expressions that are compiled when they are first used.

A command uses few of the hundred patterns that its modules have, and compiling one takes as long as
importing a module.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, Generic, cast

_USED = ("findall", "finditer", "flags", "fullmatch", "match", "pattern", "search", "split", "sub")


class _Pattern(Generic[AnyStr]):
    _text: AnyStr

    def __init__(self, text: AnyStr, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name not in _USED:
            raise AttributeError(name)
        compiled = re.compile(self._text, self._flags)
        vars(self).update({used: getattr(compiled, used) for used in _USED})
        return vars(self)[name]


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what acts like a compiled pattern; a mistake in it is raised at its first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
