"""The line that ``verify`` prints about completeness."""

from __future__ import annotations

from ckptctl.cli.output.text import plural, safe
from ckptctl.completeness.audit import Audit, Lack, Part, Presence
from ckptctl.words import ranges as ranks

_NAMED = 3
"""Parameters without state that the line names; it counts more."""


def audit_line(audit: Audit) -> str:
    """Sum up an audit: what is there, for how many ranks, what is not, and how many ranks saved."""
    there = [part for part in audit.parts if part.presence is not Presence.ABSENT]
    whole = [part.name for part in there if not part.ranks and not _remarks(part)]
    words = [", ".join(_but(audit[name]) for name in whole if name != "other")]
    if {part.name for part in there} <= {"model", "other"} and whole[:1] == ["model"]:
        words = ["weights only"]
    ranked: dict[str, list[str]] = {}
    for part in there:
        if part.ranks:
            ranked.setdefault(_of(part), []).append(part.name)
    words += [f"{' and '.join(names)} of {of}" for of, names in ranked.items()]
    remarks: dict[str, list[str]] = {}
    for part in there:
        if text := _remarks(part):
            remarks.setdefault(text, []).append(part.name)
    words += [f"{', '.join(names)} ({text})" for text, names in remarks.items()]
    names = [part.name for part in audit.parts if part.presence is Presence.ABSENT]
    absent = [name for name in names if name != "other"]
    if absent:
        words.append(f"no {', '.join(absent)}")
    if audit["other"].keys:
        words.append(f"{plural(audit['other'].keys, 'other key')}")
    if audit.world.size is not None:
        *first, last = map(safe, audit.world.evidence)
        said = f"{', '.join(first)} and {last}" if first else last
        words.append(f"{plural(audit.world.size, 'rank')} by {said}")
    return "; ".join(word for word in words if word)


def _but(part: Part) -> str:
    """Name a component and what lacks optimizer state, which may be meant."""
    few = [gap for gap in part.gaps if gap.lack in (Lack.STATELESS, Lack.GONE) and gap.count]
    if not few:
        return part.name
    names = [name for gap in few for name in gap.names]
    count = sum(gap.count for gap in few)
    listed = safe(", ".join(names)) if count <= _NAMED else plural(count, "parameter")
    return f"{part.name} (no state for {listed})"


def _of(part: Part) -> str:
    numbers = list(part.ranks)
    if numbers == list(range(len(numbers))):
        return plural(len(numbers), "rank")
    return f"ranks {ranks(numbers)}"


def _remarks(part: Part) -> str:
    if part.ranks:
        return ""
    remarks = [f"in {', '.join(map(safe, part.sources))}, not opened"] if part.sources else []
    if part.presence in (Presence.EMPTY, Presence.PARTIAL):
        remarks.append(part.presence.value)
    if part.keys and part.sources and part.presence is Presence.PRESENT:
        remarks = []
    return ", ".join(remarks)
