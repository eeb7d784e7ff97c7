"""Small changes of numbers, text, bytes and JSON documents, all drawn from one generator."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 63, 64, 65, 127, 128, 255, 256, 4096, 65535, 65536),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 53, 1 << 61, 1 << 62),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**9, 10**18, 10**400, 10**5000),
    *(-1, -2, -8, -(1 << 31), -(1 << 63), -(10**400)),
)
TEXTS = (
    *("", "0", "1", "-1", ".", "..", "/", "../x", "a/../b", "/etc/passwd", "\0", "\n", "\ud800"),
    *(
        "é",
        "\u202e",
        "w",
        "W",
        "data/0",
        "DATA/0",
        "step-12",
        "12",
        "1" * 40,
        "1" * 5000,
        "x" * 300,
    ),
    *("__0_0.distcp", "__999999999_0.distcp", "__1_0.distcp", ".metadata", "data.pkl", "NaN"),
    *("latest", "latest_committed", "..distcp", "s3://bucket/x", "\x1b[31m", "inf", "true", "a\\b"),
)


def number(rng: random.Random, near: int = 0) -> int:
    """Return a number that readers are prone to get wrong, or one close to another."""
    if rng.random() < 0.4:
        return near + rng.choice((-2, -1, 1, 2, 8, -8))
    return rng.choice(NUMBERS)


def text(rng: random.Random, near: str = "", others: Sequence[str] = ()) -> str:
    """Return a text that readers are prone to get wrong, another one, or one changed a little."""
    choice = rng.random()
    if choice < 0.35 and others:
        return rng.choice(others)
    if choice < 0.6 or not near:
        return rng.choice(TEXTS)
    at = rng.randrange(len(near))
    how = rng.randrange(4)
    if how == 0:
        return near[:at] + near[at + 1 :]
    if how == 1:
        return near[:at] + chr(ord(near[at]) ^ (1 << rng.randrange(6))) + near[at + 1 :]
    if how == 2:
        return near.swapcase()
    return near[:at] + rng.choice(TEXTS) + near[at:]


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with a few bits, bytes or spans changed; some cut short or made longer."""
    if not data:
        return bytes([rng.randrange(256)])
    changed = bytearray(data)
    for _ in range(1 + (rng.random() < 0.3) * rng.randrange(4)):
        if not changed:
            break
        at = rng.randrange(len(changed))
        how = rng.random()
        if how < 0.6:
            changed[at] ^= 1 << rng.randrange(8)
        elif how < 0.75:
            changed[at] = rng.choice((0, 1, 10, 46, 127, 128, 255, rng.randrange(256)))
        elif how < 0.82:
            changed[at : at + rng.randrange(1, 9)] = b""
        elif how < 0.9:
            changed[at:at] = bytes(changed[at : at + rng.randrange(1, 17)])
        elif how < 0.94:
            del changed[at:]
        elif how < 0.97:
            changed += rng.randbytes(rng.randrange(1, 9))
        else:
            width = rng.choice((2, 4, 8))
            changed[at : at + width] = rng.choice(NUMBERS[:26]).to_bytes(9, "little")[:width]
    return bytes(changed)


def _anything(rng: random.Random, near: object) -> object:
    """Return a value of any JSON type, often of the one that was there."""
    made: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: number(rng),
        lambda: rng.choice((0.5, -1.5, 1e308, float("nan"), float("inf"), 12.0, 1e22)),
        lambda: text(rng),
        list,
        dict,
        lambda: [near],
        lambda: {"a": near},
        lambda: [[]] * 3,
    )
    if rng.random() < 0.5:
        if isinstance(near, bool):
            return not near
        if isinstance(near, int):
            return number(rng, near)
        if isinstance(near, str):
            return text(rng, near)
        if isinstance(near, list) and near:
            return [*near, rng.choice(near)] if rng.random() < 0.5 else near[:-1]
    return rng.choice(made)()


def _spots(value: object, depth: int = 0) -> list[tuple[Any, Any]]:
    """List every place in a document as its container and its key."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += [(value, key) for key in value]
    elif isinstance(value, list):
        found += [(value, index) for index in range(len(value))]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        if depth < 8:
            found += _spots(one, depth + 1)
    return found


def document(rng: random.Random, found: object, changes: int = 0) -> object:
    """Return a document with a few of its values, names and members changed."""
    changed = copy.deepcopy(found)
    for _ in range(changes or 1 + (rng.random() < 0.35) * rng.randrange(3)):
        spots = _spots(changed)
        if not spots or rng.random() < 0.02:
            return _anything(rng, changed)
        holder, key = rng.choice(spots)
        how = rng.random()
        if how < 0.55:
            holder[key] = _anything(rng, holder[key])
        elif how < 0.65:
            del holder[key]
        elif how < 0.75:
            other, place = rng.choice(spots)
            if place in other if isinstance(other, dict) else place < len(other):
                holder[key] = copy.deepcopy(other[place])
        elif isinstance(holder, dict):
            if how < 0.9:
                holder[text(rng, key, list(holder))] = holder.pop(key)
            else:
                holder[text(rng)] = copy.deepcopy(holder[key])
        else:
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    return changed


def spelled(rng: random.Random, found: object) -> bytes:
    """Spell a document as JSON, at times as writers other than ours do, or as none would."""
    how = rng.random()
    indent = 2 if how < 0.2 else None
    try:
        words = json.dumps(found, indent=indent, ensure_ascii=how > 0.1)
    except (ValueError, RecursionError):  # numbers of more digits than Python spells
        words = json.dumps(str(type(found)))
    if how > 0.97:
        words = words.replace(":", ": " + rng.choice(("", "NaN, ", "-", "[" * 2000)), 1)
    elif how > 0.95:
        words = "[" * 3000 + words + "]" * 3000
    elif how > 0.93 and words[:1] == "{" and len(words) > 2:
        body = words[1:-1]
        words = "{" + body + "," + body + "}"
    elif how > 0.92:
        words = words.replace("0", "1" * 5000, 1)
    data = words.encode("utf-8", "surrogatepass")
    if how < 0.02:
        return b"\xef\xbb\xbf" + data
    if how < 0.03:
        return words.encode("utf-16", "surrogatepass")
    return flipped(rng, data) if how > 0.85 and how <= 0.92 else data
