"""The command line's words for the library's options: it says `allow_uncommitted`, we say the flag."""

from __future__ import annotations

import re
from functools import lru_cache

from ckptctl import api
from ckptctl.pattern import pattern

_OPTION = pattern(r"`([a-z][a-z_]*)(?:=([^`]+))?`")
_OTHERWISE = {"publish_as": "--as", "algorithm": "--digest", "mapping": "--map"}


def spelled(text: object) -> str:
    """Write every option that a message of the library names as the flag that sets it."""
    text = str(text)
    return _OPTION.sub(_spelled, text) if "`" in text else text


def _spelled(match: re.Match[str]) -> str:
    known = flag(match[1])
    if known and match[2]:
        return f"`{known} {match[2]}`"
    return known or match[0]


def flag(name: str) -> str:
    """Return the flag that sets an option of a public function; empty for any other word."""
    if name not in _options():
        return ""
    return _OTHERWISE.get(name, f"--{name.replace('_', '-')}")


@lru_cache
def _options() -> frozenset[str]:
    found = {"out"}
    for verb in api.__all__:
        code = getattr(api, verb).__code__
        found.update(code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount])
    return frozenset(found)
