"""Turning values into text for people: escaped, aligned, coloured where that helps."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TextIO

from ckptctl.pattern import pattern
from ckptctl.words import listed

_UNSAFE = pattern(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

NAME = "ckptctl: "
"""What stands before an error that is not typer's own, which comes with lines of usage."""


def safe(text: object) -> str:
    """Escape what could steer a terminal or hide in it: controls, direction marks, lone surrogates."""
    text = str(text)
    plain = text.isascii() and text.isprintable()  # nearly all, and the pattern is large
    return text if plain else _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def said(message: object) -> str:
    """Write what the library says, escaped, with its options spelled as flags."""
    from ckptctl.cli.output.spelling import spelled

    return safe(spelled(message))


class Screen:
    """Where text goes, how wide it is, and whether it takes colour."""

    def __init__(self, stream: TextIO) -> None:
        """Look at the stream, ``CKPTCTL_COLOR``, ``NO_COLOR``, ``FORCE_COLOR`` and ``COLUMNS``."""
        wanted = os.environ.get("CKPTCTL_COLOR", "auto")
        self._stream = stream
        self.terminal = stream.isatty()
        self.colour = wanted == "always" or (
            wanted != "never"
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
            and (self.terminal or bool(os.environ.get("FORCE_COLOR")))
        )
        self.width = 0
        if self.terminal or os.environ.get("COLUMNS"):
            import shutil

            self.width = shutil.get_terminal_size((100, 24)).columns

    def paint(self, text: str, *styles: str) -> str:
        """Return the text in a style, or as it is where there is no colour."""
        codes = ";".join(_CODES[style] for style in styles if style)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.colour and codes and text else text

    def line(self, text: str = "") -> None:
        """Print one line that is already escaped."""
        self._stream.write(text + "\n")

    def wrapped(self, text: str, indent: int) -> None:
        """Print one paragraph, indented, broken at words where the screen is narrow."""
        room = max(20, self.width - indent) if self.width else sys.maxsize
        pad = " " * indent
        current = ""
        for word in text.split(" "):
            if current and len(current) + 1 + len(word) > room:
                self.line(pad + current)
                current = word
            else:
                current = f"{current} {word}" if current else word
        self.line(pad + current)


def columns(
    rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), gap: str = "  "
) -> list[list[str]]:
    """Pad the cells of each column to one width; columns in ``right`` are flushed right."""
    if not rows:
        return []
    flush = frozenset(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        [
            (cell.rjust(width) if i in flush else cell if i == last else cell.ljust(width))
            + (gap if i < last else "")
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def size(count: int | None) -> str:
    """Write a number of bytes with a binary unit."""
    if count is None:
        return "?"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def number(count: int) -> str:
    """Write a count with a decimal unit where it is large: parameters, elements."""
    for limit, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= limit:
            return f"{count / limit:.2f}{unit}"
    return f"{count:,}"


def age(when: float | None, now: float | None = None) -> str:
    """Write how long ago a time was."""
    if when is None:
        return "?"
    seconds = max(0.0, (time.time() if now is None else now) - when)
    for limit, length, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def span(seconds: float) -> str:
    """Write how long something took."""
    return age(0.0, seconds)


def plural(count: int, word: str) -> str:
    """Write a count with its word: ``1 file``, ``2 files``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def unchecked(names: Sequence[str]) -> str:
    """Name the keys and files of which nothing was recorded that they could be checked against."""
    return (
        f"not checked, as no checksum is recorded: {safe(listed(names))}; a bit that flipped there "
        "cannot be told from what was written"
    )
