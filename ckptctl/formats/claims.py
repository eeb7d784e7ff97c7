"""What claims of several layouts have in common: names with ranks, and what is missing of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ckptctl.formats.base import Claim, Folder, Sure
from ckptctl.model.names import CheckpointName
from ckptctl.pattern import pattern

STAGED = "under a temporary name"
_MOST_MISSING = 64


def directory(
    layout: str, folder: Folder, sure: Sure, *, lacks: Iterable[str] = (), **more: Any
) -> Claim:
    """Claim a whole directory, with what its name says; of what it lacks the first are kept."""
    name = folder.name
    told = {"step": name.step, "epoch": name.epoch, "staging": STAGED if name.staging else ""}
    some = tuple(itertools.islice(lacks, _MOST_MISSING))
    return Claim(layout, folder.path, sure, lacks=some, **{**told, **more})


def file(layout: str, folder: Folder, name: str, sure: Sure, **more: Any) -> Claim:
    """Claim one file, with what its name says."""
    said = folder.named.get(name) or CheckpointName(name)
    told = {"step": said.step, "epoch": said.epoch, "staging": STAGED if said.staging else ""}
    return Claim(layout, folder.join(name), sure, (name,), **{**told, **more})


def matches(names: Iterable[str], pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Match all names as a whole and return what matched, in order of the names."""
    return [match for name in sorted(names) if (match := pattern.fullmatch(name))]


def numbered(names: Iterable[str], pattern: re.Pattern[str]) -> set[int]:
    """Return the numbers in the first group of all names that match."""
    return {int(match[1]) for match in matches(names, pattern)}


def missing(present: set[int], template: str, count: int | None = None) -> Iterator[str]:
    """Yield the names of numbers that are not there, of ``0`` to ``count``, else to the highest."""
    last = max(present, default=-1) + 1 if count is None else count
    absent = (number for number in range(last) if number not in present)
    yield from map(template.format, itertools.islice(absent, _MOST_MISSING))


def missing_of_sets(names: Iterable[str]) -> list[str]:
    """Return the files that are not there of sets such as ``model-00001-of-00003.safetensors``."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for match in matches(names, _OF):
        sets.setdefault((match["stem"], match["count"], match["suffix"]), set()).add(
            int(match["number"])
        )
    found: list[str] = []
    for (stem, count, suffix), numbers in sets.items():
        there = {number - 1 for number in numbers}
        width = len(count)
        gone = missing(there, "{}", min(int(count), 1 << 20))
        found.extend(f"{stem}-{int(one) + 1:0{width}d}-of-{count}{suffix}" for one in gone)
    return found


_OF = pattern(
    r"(?P<stem>.+)-(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?P<suffix>\.safetensors|\.bin)"
)


def is_checkpoint(folder: Folder) -> bool:
    """Tell whether a directory's own name is one of a checkpoint, or of the best or the newest."""
    return folder.name.recognised or _NAMED.fullmatch(folder.name.text) is not None


_NAMED = pattern(r"(?:.*[-_.])?(?:last|latest|best|final|checkpoint|ckpt|release)", re.IGNORECASE)
