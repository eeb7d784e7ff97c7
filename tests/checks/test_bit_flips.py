"""Single bits of a real checkpoint: each flip is found, or torch proves it harmless.

Two thousand are drawn from all its bytes, and some more from its metadata alone, of which every
byte matters to everything else. A few of each are tried in the default lane.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conftest import FIXTURES
from support.damage import (
    METADATA,
    accused,
    anatomy,
    fingerprint,
    flip,
    load_with_torch,
    metadata_of,
    run,
)
from support.effort import ends

pytest.importorskip("torch")

BASE = "fsdp2/step-12"
BATCHES = 4
FLIPS, FEW = 500, 40  # in each batch


@dataclass
class Tally:
    """What became of the flips of one batch."""

    found: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"found {sum(self.found.values())}, harmless {sum(self.harmless.values())}"]
        for title, counts in (("found by", self.found), ("harmless in", self.harmless)):
            lines += [f"  {count:5} {title} {kind}" for kind, count in counts.most_common()]
        return "\n".join(lines)


class Healthy:
    """The checkpoint before any damage: its values by torch, and the meaning of its bytes."""

    def __init__(self, checkpoint: Path) -> None:
        self.values = fingerprint(load_with_torch(checkpoint))
        self.leaves = list(_leaves(metadata_of(checkpoint)))
        self._kinds: dict[str, list[tuple[int, int, str]]] = {}
        for place in metadata_of(checkpoint).storage_data.values():
            data = (checkpoint / place.relative_path).read_bytes()
            for span in anatomy(data[place.offset : place.offset + place.length]):
                what = span.record if span.part == "data" else span.field
                self._kinds.setdefault(place.relative_path, []).append(
                    (place.offset + span.start, place.offset + span.stop, f"{span.part}: {what}")
                )

    def kind(self, checkpoint: Path, file: str, position: int) -> str:
        """Say what a byte means; for the metadata, which values the flip there has changed."""
        if file != METADATA:
            kinds = self._kinds[file]
            return next(kind for start, stop, kind in kinds if start <= position < stop)
        try:
            now = list(_leaves(metadata_of(checkpoint)))
        except Exception as error:  # whatever a damaged pickle provokes
            return f"metadata: {error}"
        changed = sorted({name for name, _ in Counter(now) - Counter(self.leaves)})
        return f"metadata: {', '.join(changed) or 'no value at all'}"


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every plain value inside unpickled metadata with the name of its field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(key, f"{name} key")
            yield from _leaves(inner, name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, name)
    elif type(value).__module__.startswith("torch.distributed"):
        for attribute, inner in vars(value).items():
            yield from _leaves(inner, f"{type(value).__name__}.{attribute}")
    else:
        yield name, repr(value)


@pytest.fixture(scope="module")
def healthy() -> Healthy:
    """The undamaged checkpoint, loaded once."""
    return Healthy(FIXTURES / BASE)


def _positions(
    checkpoint: Path, seed: int, files: str, flips: int
) -> Iterator[tuple[str, int, int]]:
    """Draw bits evenly from all bytes of the files that match a pattern."""
    sizes = {path.name: path.stat().st_size for path in sorted(checkpoint.glob(files))}
    draw = random.Random(seed)
    for _ in range(flips):
        position = draw.randrange(sum(sizes.values()))
        for name, size in sizes.items():
            if position < size:
                yield name, position, draw.randrange(8)
                break
            position -= size


def _try(checkpoint: Path, healthy: Healthy, file: str, position: int, tally: Tally) -> None:
    """Verify a damaged checkpoint and, where nothing is found, ask torch whether that is right."""
    with ends():
        checks = accused(run(checkpoint))
    if checks:
        tally.found[" + ".join(sorted(checks))] += 1
        return
    kind = healthy.kind(checkpoint, file, position)
    try:
        same = fingerprint(load_with_torch(checkpoint)) == healthy.values
    except BaseException as error:  # torch wraps everything in one that is no Exception
        lines = str(error).strip().splitlines() or [type(error).__name__]
        tally.wrong.append(f"not found in {kind}, and torch does not load it: {lines[-1]}")
        return
    if same:
        tally.harmless[kind] += 1
    else:
        tally.wrong.append(f"not found in {kind}, and torch loads other values")


@pytest.mark.parametrize(
    ("files", "seed", "flips"),
    [
        ("*", BATCHES + 1, FEW),
        (METADATA, BATCHES + 2, FEW),
        *(pytest.param("*", seed, FLIPS, marks=pytest.mark.slow) for seed in range(BATCHES)),
        pytest.param(METADATA, BATCHES, FLIPS, marks=pytest.mark.slow),
    ],
)
def test_each_flipped_bit_is_found_or_harmless(
    copy: Callable[..., Path], healthy: Healthy, files: str, seed: int, flips: int
) -> None:
    checkpoint = copy(BASE)
    tally = Tally()
    for file, position, bit in _positions(checkpoint, seed, files, flips):
        path = checkpoint / file
        flip(path, position, bit)
        seen = len(tally.wrong)
        _try(checkpoint, healthy, file, position, tally)
        tally.wrong[seen:] = [
            f"{file} byte {position} bit {bit}: {what}" for what in tally.wrong[seen:]
        ]
        flip(path, position, bit)
    print(f"\n{flips} bits of {files}, seed {seed}: {tally}")
    assert not tally.wrong, "\n".join(tally.wrong)
    assert sum(tally.found.values()) + sum(tally.harmless.values()) == flips
    assert fingerprint(load_with_torch(checkpoint)) == healthy.values
