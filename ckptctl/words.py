"""Lists in words, for messages: names, not too many of them, and ranks with runs shortened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def listed(things: Sequence[object], most: int = 4) -> str:
    """List things, not too many: ``a, b and 3 more``."""
    more = f" and {len(things) - most:,} more" if len(things) > most else ""
    return ", ".join(map(str, things[:most])) + more


def runs_of(numbers: Iterable[int], *, shortest: int = 2) -> list[str]:
    """Write numbers with runs of at least ``shortest`` shortened: ``0-3``, ``6``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words: list[str] = []
    for run in runs:
        if len(run) >= shortest:
            words.append(f"{run[0]}-{run[-1]}")
        else:
            words.extend(map(str, run))
    return words


def ranges(numbers: Iterable[int], most: int | None = None) -> str:
    """Write numbers in one line: ``0-3, 6``; with ``most`` so many runs ``and more``."""
    words = runs_of(numbers)
    cut = most is not None and len(words) > most
    return ", ".join(words[:most]) + (" and more" if cut else "")


def ranks(numbers: Sequence[int], most: int = 8) -> str:
    """Name ranks: ``no rank``, ``rank 3``, ``ranks 0-3, 6``."""
    if not numbers:
        return "no rank"
    return f"rank{'s' if len(numbers) > 1 else ''} {ranges(numbers, most)}"
