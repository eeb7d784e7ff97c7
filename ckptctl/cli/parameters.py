"""The parameters of commands, and reading the words of a plain call.

typer takes as long to import as a small checkpoint to verify. It is needed for help, for wrong calls
and for what is rare; a call in plain words is read here. What is read here must mean what it means to
typer, which a test asks of both; whatever is in doubt is left to typer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import FunctionType
from typing import Annotated, Any, get_type_hints

from ckptctl.pattern import pattern

_NUMBER = pattern(r"[0-9]{1,9}")
_FLAG, _TEXT, _WHOLE, _TEXTS = "flag", "text", "whole", "texts"
_KINDS: dict[Any, str] = {
    bool: _FLAG,
    str: _TEXT,
    str | None: _TEXT,
    int: _WHOLE,
    int | None: _WHOLE,
    list[str] | None: _TEXTS,
}


class Argument:
    """A positional parameter; the words are those of ``typer.Argument``."""

    def __init__(self, *flags: str, **details: Any) -> None:
        self.flags, self.details = flags, details


class Option(Argument):
    """A parameter with a flag, without one of its own that of its name."""


class _Doubt(Exception):
    """Raised where the words are not plain."""


def for_typer(command: FunctionType) -> FunctionType:
    """Return the command with its parameters described as typer wants it."""
    import typer

    def described(hint: Any) -> Any:
        note = getattr(hint, "__metadata__", (None,))[0]
        if not isinstance(note, Argument):
            return hint
        kind: Any = typer.Option if isinstance(note, Option) else typer.Argument
        return Annotated[hint.__origin__, kind(*note.flags, **note.details)]

    copy = FunctionType(
        command.__code__, command.__globals__, command.__name__, command.__defaults__
    )
    copy.__doc__, copy.__module__ = command.__doc__, command.__module__
    hints = get_type_hints(command, include_extras=True)
    copy.__annotations__ = {name: described(hint) for name, hint in hints.items()}
    return copy


def read(command: FunctionType, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the values of a call that is plain and right; None for what typer must read.

    Plain are the flags as they are written in help, whole numbers, texts and repeated texts.
    """
    try:
        return _Call(command).values(words)
    except _Doubt:
        return None


class _Call:
    """One call of a command, while its words are read."""

    def __init__(self, command: FunctionType) -> None:
        code = command.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults = command.__defaults__ or ()
        self._found: dict[str, Any] = {}
        self._defaults = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        self._notes: dict[str, Argument] = {}
        self._kinds: dict[str, Any] = {}
        self._flags: dict[str, str] = {}
        self._places: list[str] = []
        for name in names:
            hint = command.__annotations__[name]
            note = getattr(hint, "__metadata__", (None,))[0]
            if not isinstance(note, Argument):
                raise _Doubt
            self._notes[name], self._kinds[name] = note, _KINDS.get(hint.__origin__)
            if isinstance(note, Option):
                derived = () if self._kinds[name] == _FLAG else (f"--{name.replace('_', '-')}",)
                self._flags.update(dict.fromkeys(note.flags or derived, name))
            else:
                self._places.append(name)

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what each parameter is; raise ``_Doubt`` where that is not plain."""
        rest = iter(words)
        for word in rest:
            if word[:1] in ("-", ""):
                self._option(word, rest)
            else:
                self._positional(word)
        for name, note in self._notes.items():
            if name not in self._found:
                if name not in self._defaults or os.environ.get(note.details.get("envvar", "")):
                    raise _Doubt
                self._found[name] = self._defaults[name]
            callback = note.details.get("callback")
            if callback is not None:
                try:
                    callback(self._found[name])
                except Exception:
                    raise _Doubt from None  # said by typer, with the lines of usage
        return self._found

    def _positional(self, word: str) -> None:
        for name in self._places:
            if self._kinds[name] == _TEXTS:
                self._found.setdefault(name, []).append(word)
                return
            if name not in self._found:
                self._take(name, word)
                return
        raise _Doubt

    def _option(self, word: str, rest: Any) -> None:
        flag, equals, value = word.partition("=")
        name = self._flags.get(flag)
        if name is None or (equals and not flag.startswith("--")):
            raise _Doubt
        if self._kinds[name] == _FLAG:
            if equals:
                raise _Doubt
            self._found[name] = True
            return
        if not equals:
            value = next(rest, "")
        if value[:1] in ("-", ""):
            raise _Doubt
        if self._kinds[name] == _TEXTS:
            self._found.setdefault(name, []).append(value)
        else:
            self._take(name, value)

    def _take(self, name: str, word: str) -> None:
        if self._kinds[name] == _TEXT:
            self._found[name] = word
            return
        details = self._notes[name].details
        if self._kinds[name] != _WHOLE or not _NUMBER.fullmatch(word):
            raise _Doubt
        number = int(word)
        if not details.get("min", number) <= number <= details.get("max", number):
            raise _Doubt
        self._found[name] = number
