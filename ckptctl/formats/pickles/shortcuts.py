"""Shortcuts through a pickle: stretches of it that are known by their bytes and read as a whole.

A shortcut may leave out the objects that nothing refers to again. Whatever would tell the
difference (a look at what was left out, an opcode that takes it from the stack) raises ``Detour``,
and the pickle is read once more without any shortcut.
"""

from __future__ import annotations

from typing import Any, Protocol


class Detour(Exception):
    """The pickle has to be read without shortcuts."""


class Gone:
    """Stands in the memo for what a shortcut left out."""

    __slots__ = ()


GONE = Gone()


class Fence:
    """Lies on the stack for keys and values that a shortcut has already put into a mapping.

    Only ``SETITEMS`` on that very mapping takes it away. It cannot be hashed, called or filled.
    """

    __slots__ = ("_target", "closed")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, target: dict[Any, Any]) -> None:
        """Stand for what is in a mapping."""
        self._target, self.closed = target, False

    def close(self, target: object) -> None:
        """Be taken away; raise ``Detour`` for another mapping or a second time."""
        if target is not self._target or self.closed:
            raise Detour("its keys and values go elsewhere")
        self.closed = True


class Shortcuts(Protocol):
    """What may read stretches of a pickle in the place of the machine, inside of two marks."""

    def opened(
        self, position: int, made: int, stack: list[Any], below: list[Any], memo: list[Any]
    ) -> int:
        """Begin a mapping's keys and values; return the position to go on at.

        ``made`` is the position behind the last opcode that made a mapping, ``below`` the stack
        under the mark.
        """
        ...

    def filled(self, position: int, stack: list[Any], memo: list[Any]) -> int:
        """Look behind an object that was just filled in; return the position to go on at."""
        ...

    def closed(self, target: object, position: int, memo: list[Any]) -> None:
        """End the keys and values of a mapping."""
        ...

    def finish(self) -> None:
        """Raise ``Detour`` where something was taken from the stack in another way."""
        ...
