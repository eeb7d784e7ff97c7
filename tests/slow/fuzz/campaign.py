"""A run over all targets: how many inputs each gets, what came of them, and inputs made small."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

from slow.fuzz.cases import Target
from slow.fuzz.harness import Tally, alone, run

SHARES = {
    "metadata": ("metadata", "MetadataTarget", 20),
    "items": ("items", "ItemTarget", 15),
    "objects": ("items", "ObjectTarget", 10),
    "torch": ("files", "TorchTarget", 15),
    "safetensors": ("tensors", "SafetensorsTarget", 15),
    "indices": ("tensors", "IndexTarget", 5),
    "sidecars": ("sidecars", "SidecarTarget", 10),
    "records": ("records", "RecordTarget", 10),
}
"""By name: module, class, and percent of the inputs."""

CORPUS = Path(__file__).parent / "corpus"
"""Inputs that were once faults, one folder for each target; a file's name begins with its seed's."""


def targets(names: Iterable[str]) -> list[Target]:
    """Make targets by name."""
    made: list[Target] = []
    for name in names:
        module, kind, _ = SHARES[name]
        made.append(getattr(import_module(f"slow.fuzz.{module}"), kind)())
    return made


def campaign(
    chosen: Sequence[Target],
    inputs: int,
    seed: int,
    *,
    workers: int = 2,
    out: Path | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> list[Tally]:
    """Judge so many inputs in all; keep small ones of each kind of fault in ``out``."""
    whole = sum(SHARES[one.name][2] for one in chosen)
    found = []
    for target in chosen:
        count = inputs * SHARES[target.name][2] // whole
        tally = run(target, seed, range(count), workers=workers)
        found.append(tally)
        progress(line(tally))
        if out is not None and tally.faults:
            from slow.fuzz.shrink import keep

            keep(target, tally, seed, out)
    return found


def line(tally: Tally) -> str:
    """Sum up one target in a line."""
    outcomes = ", ".join(f"{count} {word}" for word, count in tally.outcomes.most_common())
    rate = tally.inputs / tally.cpu if tally.cpu else 0
    faults = sum(tally.counts.values())
    return (
        f"[{tally.target}] {tally.inputs} inputs in {tally.cpu:.0f} s of processor time "
        f"({rate:.0f}/s): {outcomes}; {faults} faults of {len(tally.counts)} kinds"
    )


def show(found: Iterable[Tally], seed: int, *, as_json: bool = False) -> str:
    """Tell of all targets, with what it takes to see each kind of fault again."""
    if as_json:
        return json.dumps({"seed": seed, "targets": [vars(one) for one in found]})
    lines = []
    for tally in found:
        for kind, examples in tally.faults.items():
            number, slot, detail = examples[0]
            lines.append(
                f"[{tally.target}] {tally.counts[kind]} x {kind} (seed {seed}, number {number}, "
                f"{slot}): {re.sub(chr(10), ' | ', detail)}"
            )
    return "\n".join([f"seed {seed}", *lines])


def kept(folder: Path = CORPUS) -> dict[str, str]:
    """Judge every kept input, each in a process of its own; return the fault of each, or nothing."""
    found: dict[str, str] = {}
    for name in SHARES:
        paths = sorted((folder / name).glob("*.bin"))
        if not paths:
            continue
        (target,) = targets([name])
        for path in paths:
            slot = path.name.partition("--")[0].replace("+", "/").replace("=", ":")
            key = path.relative_to(folder).as_posix()
            found[key] = alone(target, slot, path.read_bytes())
    return found
