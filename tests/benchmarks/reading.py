"""How dear reading ``.metadata`` of many chunks is, compared with torch reading it."""

from __future__ import annotations

from statistics import median

from measure import MIB, Goal, Row, Settings, Usage, compare, interleave, made, script


def reading(settings: Settings) -> list[Row]:
    """Read metadata on both sides of 4 MiB, and that of 256,000 chunks."""
    rows = [
        _per_item(settings, 128, 128, "33-39"),
        _per_item(settings, 256, 200, "3-4"),
    ]
    keys, ranks = settings.scaled(512, 64), settings.scaled(500, 50)
    ours, peer = _measured(settings, keys, ranks)
    name = f"metadata, {keys * ranks:,} chunks / torch"
    return [
        *rows,
        compare(name, "CPU s", ours, peer, lambda run: float(run.output), Goal(0.35), "0.29 x"),
        compare(name, "peak MiB", ours, peer, lambda run: run.rss / MIB, Goal(0.6), "0.51 x"),
    ]


def _per_item(settings: Settings, keys: int, ranks: int, before: str) -> Row:
    ranks = settings.scaled(ranks, 10)
    ours, peer = _measured(settings, keys, ranks)
    length = (made(settings, "metadata", keys, ranks) / ".metadata").stat().st_size / MIB

    def each(runs: list[Usage]) -> float:
        return median(float(run.output) for run in runs) / (keys * ranks) * 1e6

    title = f"metadata of {length:.1f} MiB, {keys * ranks:,} items; peer: torch"
    return Row(title, "µs/item", each(ours), each(peer), goal=Goal(12), before=before)


def _measured(settings: Settings, keys: int, ranks: int) -> list[list[Usage]]:
    path = made(settings, "metadata", keys, ranks) / ".metadata"
    commands = [script("inside.py", f"{who}-metadata", path) for who in ("our", "torch")]
    return interleave(commands, settings)
