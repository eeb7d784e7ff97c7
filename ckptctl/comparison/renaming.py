"""Matching the keys of two state dicts that differ by a prefix or by a wrapper's element."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from ckptctl.dataclass import dataclass
from ckptctl.model.components import elements

_WRAPPERS = frozenset(
    {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
"""What compiling, DDP, FSDP, activation checkpointing and Fabric put into names, at any depth."""

_OUTER = frozenset(
    {"model", "state_dict", "app", "app_state", "state", "model_state_dict", "model_state", "net"}
)
"""What trainers put in front of all names."""

_MOST_ELEMENTS = 3


@dataclass(frozen=True, slots=True)
class Renaming:
    """Keys that are the same but for what stands at one place: ``old`` there, and ``new`` here."""

    old: str
    new: str
    pairs: tuple[tuple[str, str], ...]


def match_renamed(
    old: Iterable[str], new: Iterable[str], alike: Callable[[str, str], bool]
) -> list[Renaming]:
    """Pair keys of one side with keys of the other that only a prefix or wrapper tells apart.

    A pair is made only where no other key could be meant. Prefixes that no table knows are found
    where one side lacks them altogether and ``alike`` (shape, kind) holds for all their keys.
    """
    left, right = list(dict.fromkeys(old)), list(dict.fromkeys(new))
    pairs: list[tuple[str, str]] = []
    for outer in (False, True):
        found = _by_form(left, right, outer=outer)
        pairs += found
        left, right = _rest(left, right, found)
    found = _by_unknown_prefix(left, right, alike)
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for one, other in sorted(pairs + found):
        groups.setdefault(difference(one, other), []).append((one, other))
    return [
        Renaming(a, b, tuple(group))
        for (a, b), group in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]


def _rest(
    left: list[str], right: list[str], found: Collection[tuple[str, str]]
) -> tuple[list[str], list[str]]:
    gone, came = {pair[0] for pair in found}, {pair[1] for pair in found}
    return [key for key in left if key not in gone], [key for key in right if key not in came]


def bare(key: str, *, outer: bool) -> str:
    """Return a key without wrappers; with ``outer`` also without what trainers put in front.

    Behind ``optimizer.state.`` stands a parameter's name, from which the same is taken away.
    """
    parts = [part for part in key.split(".") if part not in _WRAPPERS]
    if not outer:
        return ".".join(parts)
    head: list[str] = []
    if re.fullmatch(r"(?:optim\w*|opt)", parts[0] if parts else ""):
        head = parts[:2] if parts[1:2] in (["state"], ["param_groups"]) else parts[:1]
        parts = parts[len(head) :]
    while len(parts) > 1 and parts[0] in _OUTER:
        del parts[0]
    return ".".join([*head, *parts])


def _by_form(left: Sequence[str], right: Sequence[str], *, outer: bool) -> list[tuple[str, str]]:
    forms: dict[str, tuple[list[str], list[str]]] = {}
    for side, keys in enumerate((left, right)):
        for key in keys:
            forms.setdefault(bare(key, outer=outer), ([], []))[side].append(key)
    return [(a[0], b[0]) for a, b in forms.values() if len(a) == len(b) == 1]


def _by_unknown_prefix(
    left: Sequence[str], right: Sequence[str], alike: Callable[[str, str], bool]
) -> list[tuple[str, str]]:
    """Find the prefix that one side has and the other lacks, and that explains most keys."""
    best: list[tuple[str, str]] = []
    for longer, shorter, turned in ((left, right, False), (right, left, True)):
        short = set(shorter)
        counts: Counter[str] = Counter()
        for key in longer:
            parts = elements(key)
            for depth in range(1, min(_MOST_ELEMENTS, len(parts) - 1) + 1):
                prefix = ".".join(map(str, parts[:depth])) + "."
                if key.startswith(prefix) and key[len(prefix) :] in short:
                    counts[prefix] += 1
        for prefix, count in counts.most_common(1):
            found = [
                (key, key[len(prefix) :])
                for key in longer
                if key.startswith(prefix) and key[len(prefix) :] in short
            ]
            pairs = [(b, a) if turned else (a, b) for a, b in found]
            if count > max(1, len(best)) and all(alike(a, b) for a, b in pairs):
                best = pairs
    return best


def difference(one: str, other: str) -> tuple[str, str]:
    """Return what two names have at the place where they differ, in whole elements.

    Where it is wrappers alone that differ, at whatever places, those that each has more.
    """
    a, b = one.split("."), other.split(".")
    if [p for p in a if p not in _WRAPPERS] == [p for p in b if p not in _WRAPPERS]:
        own, others = Counter(a), Counter(b)
        return ".".join((own - others).elements()), ".".join((others - own).elements())
    end = 0
    while end < min(len(a), len(b)) and a[-1 - end] == b[-1 - end]:
        end += 1
    begin = 0
    while begin < min(len(a), len(b)) - end and a[begin] == b[begin]:
        begin += 1
    return ".".join(a[begin : len(a) - end]), ".".join(b[begin : len(b) - end])
