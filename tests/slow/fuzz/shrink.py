"""Making the inputs of faults small, in a process of its own: what it does may end it."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from slow.fuzz.cases import Target
from slow.fuzz.harness import Tally, attempt, confine, make

_MOST_TRIES = 600


def smaller(
    pieces: Sequence[bytes], holds: Callable[[list[bytes]], bool], most: int = _MOST_TRIES
) -> list[bytes]:
    """Leave out as many pieces as can be without what is looked for going away (delta debugging)."""
    left, width, tries = list(pieces), max(1, len(pieces) // 2), 0
    while width and tries < most:
        at, gone = 0, False
        while at < len(left) and tries < most:
            tries += 1
            without = left[:at] + left[at + width :]
            if holds(without):
                left, gone = without, True
            else:
                at += width
        if not gone or width > len(left):
            width //= 2
    return left


def shrunk(target: Target, slot: str, data: bytes, kind: str) -> bytes:
    """Return the input, made smaller as long as the fault is of the same kind."""
    if attempt(target, slot, data)[1] != kind:
        return data
    pieces, join = target.pieces(data)
    return bytes(join(smaller(pieces, lambda some: attempt(target, slot, join(some))[1] == kind)))


def slot_in_name(slot: str) -> str:
    """Spell the name of a seed so that it may be part of a file's name."""
    return slot.replace("/", "+").replace(":", "=")


def keep(target: Target, tally: Tally, seed: int, out: Path) -> None:
    """Write one small input of each kind of fault."""
    folder = out / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for kind, examples in tally.faults.items():
        number, _, _ = examples[0]
        slot, data = make(target, seed, number)
        label = re.sub(r"[^a-zA-Z0-9]+", "-", kind).strip("-").lower()[:60]
        path = folder / f"{slot_in_name(slot)}--{label}.bin"
        path.write_bytes(data)
        if kind.startswith("the process ended"):
            continue
        pid = os.fork()
        if not pid:
            try:
                confine()
                resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
                path.write_bytes(shrunk(target, slot, data, kind))
            finally:
                sys.stderr.flush()
                os._exit(0)
        os.waitpid(pid, 0)
