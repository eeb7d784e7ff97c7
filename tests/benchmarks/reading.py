"""How dear reading ``.metadata`` of many chunks is, compared with torch reading it."""

from __future__ import annotations

from measure import MIB, Goal, Row, Settings, compare, interleave, made, script


def reading(settings: Settings) -> list[Row]:
    """Read the metadata of 2,000 tensors on 500 ranks."""
    keys, ranks = settings.scaled(2000, 200), settings.scaled(500, 50)
    path = made(settings, "metadata", keys, ranks) / ".metadata"
    commands = [script("inside.py", f"{who}-metadata", path) for who in ("our", "torch")]
    ours, peer = interleave(commands, settings)
    name = f"metadata, {keys * ranks:,} chunks"
    return [
        compare(name, "CPU s", ours, peer, lambda run: float(run.output), Goal(0.25)),
        compare(name, "peak MiB", ours, peer, lambda run: run.rss / MIB, Goal(0.6)),
    ]
