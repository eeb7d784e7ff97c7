"""Whole ``torch.save`` files, of zip form and of the form before it, against ``torch.load``."""

from __future__ import annotations

import collections
import io
import random
from collections.abc import Iterator
from typing import Any

import torch

from ckptctl.errors import CkptctlError
from ckptctl.formats.torch.reader import read as read_file
from ckptctl.model.checkpoint import Checkpoint, File, TensorEntry
from ckptctl.operations.content.tensors import TensorSource
from slow.fuzz import pickling
from slow.fuzz.cases import MOST, Difference, booleans, numbers_of, refusal, same, torch_loads
from slow.fuzz.guard import StandIn
from slow.fuzz.items import ZipTarget, called
from slow.fuzz.memory import Bytes, MemoryStore
from slow.fuzz.metadata import saved
from slow.fuzz.mutate import flipped

NAME = "state.pt"


def states() -> Iterator[tuple[str, Any]]:
    """Yield states as trainers save them to one file."""
    rows = torch.arange(6.0).reshape(2, 3)
    optimizer = {"state": {0: {"step": torch.tensor(3.0), "m": rows}}, "groups": [{"lr": 0.1}]}
    yield "weights", collections.OrderedDict(w=rows.clone(), b=torch.ones(2).bfloat16())
    yield "training", {"model": {"w": rows.clone()}, "optimizer": optimizer, "step": 12}
    yield "views", {"a": rows[:1], "b": rows.t(), "tied": rows}
    yield "list", [torch.ones(1), {"x": torch.zeros(2, dtype=torch.int64)}, "text"]
    yield "parameter", {"p": torch.nn.Parameter(torch.ones(2)), "e": torch.empty(0)}
    yield "bare", torch.arange(3)


def legacy(value: object) -> bytes:
    """Return what torch before 1.6 wrote."""
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


class TorchTarget(ZipTarget):
    """A file that holds a whole state."""

    name = "torch"

    def __init__(self) -> None:
        super().__init__((name, saved(value)) for name, value in states())
        self.legacy = [(f"legacy-{name}", legacy(value)) for name, value in states()]

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        if rng.random() < 0.85:
            return super().make(rng)
        slot, data = rng.choice(self.legacy)
        if rng.random() < 0.5:
            return slot, flipped(rng, data)
        at = rng.randrange(len(data))
        value = pickling.integer(rng, rng.choice((0, 1, 1 << 20, 1 << 62)))
        return slot, data[:at] + value + data[at + len(value) * rng.randrange(2) :]

    def judge(self, slot: str, data: bytes) -> str:
        try:
            found = read_file(Bytes(data), File(NAME, len(data)))
        except CkptctlError as error:
            return f"raised {type(error).__name__}"
        if found.problems:
            return "reported"
        ours = _tensors(found, data)
        try:
            theirs, guard = torch_loads(data, weights_only=False)
        except MemoryError:
            raise
        except Exception as error:
            if any(isinstance(one, str) and one for one in ours.values()):
                return "refused when it is read"
            if any("Opaque" in repr(type(v)) or "opaque" in repr(v) for v in found.values.values()):
                return "torch refuses what is only described"
            raise refusal(error) from None
        loud = called(guard)
        if loud:
            raise Difference("a call that is not reported", loud)
        return _compared(found, ours, theirs)


def _tensors(found: Checkpoint, body: bytes) -> dict[str, bytes | str]:
    """Read every tensor; one that cannot be read is the reason why, an empty one for its size."""
    read: dict[str, bytes | str] = {}
    with TensorSource(MemoryStore({NAME: body}), "", found) as source:
        for fqn, entry in found.entries.items():
            if isinstance(entry, TensorEntry):
                try:
                    small = entry.numel <= MOST
                    data = b"".join(map(bytes, source.read(fqn))) if small else b""
                    read[fqn] = booleans(data, entry.dtype) if small else ""
                except CkptctlError as error:
                    read[fqn] = str(error) or "no reason"
    return read


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            long = type(key) is int and key.bit_length() > 4096
            yield from _flat(inner, (*path, f"<{key.bit_length()} bits>" if long else str(key)))
    elif isinstance(value, list) and _deep(value):
        for number, inner in enumerate(value):
            yield from _flat(inner, (*path, str(number)))
    else:
        yield ".".join(path) or "value", value


def _deep(value: Any) -> bool:
    if isinstance(value, dict | torch.Tensor):
        return True
    return isinstance(value, list) and any(map(_deep, value))


def _compared(found: Checkpoint, ours: dict[str, bytes | str], theirs: object) -> str:
    outcome = "equal"
    expected = dict(_flat(theirs))
    if any("<" in fqn for fqn in (*found.entries, *expected)):
        return "a key that is only described"
    if set(expected) != set(found.entries):
        if any(isinstance(value, StandIn) for value in expected.values()):
            return "members of a class that only an import could know"
        detail = f"{sorted(found.entries)} and torch {sorted(expected)}"
        raise Difference("other keys", detail[:400])
    for fqn, value in expected.items():
        entry = found.entries[fqn]
        if not isinstance(value, torch.Tensor):
            if isinstance(entry, TensorEntry):
                raise Difference("a tensor that is none", fqn)
            if not same(found.values.get(fqn), value):
                raise Difference("another value", f"{found.values.get(fqn)!r} and {value!r}"[:400])
            continue
        if not isinstance(entry, TensorEntry):
            if "paque" not in repr(found.values.get(fqn)):
                raise Difference("a tensor that is not seen", fqn)
            continue
        if str(value.dtype) != f"torch.{entry.dtype}" or tuple(value.shape) != entry.shape:
            raise Difference("another dtype or shape", f"{entry} and {value.dtype} {value.shape}")
        mine = ours[fqn]
        if isinstance(mine, str):
            outcome = "refused when it is read"
        elif numbers_of(value) not in (None, mine):
            raise Difference("other values", f"{fqn}: {mine!r} and torch {value}"[:400])
    return outcome
