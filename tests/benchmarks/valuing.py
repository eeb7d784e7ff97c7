"""What it costs to look at the values as well: ``verify --values`` against ``verify``."""

from __future__ import annotations

from pathlib import Path

from measure import (
    MIB,
    Goal,
    Row,
    Settings,
    Usage,
    ckptctl,
    compare,
    copied,
    cpu,
    interleave,
    made,
    peak,
)

_RANKS = 4
_THREADS = 2
_LEAST = Goal(0.6, at_least=True)


def valuing(settings: Settings) -> list[Row]:
    """Verify 4 files of 512 MiB twice each: large and small items, two dtypes, and committed."""
    size = settings.scaled(512, 8) * MIB
    columns = 4096
    large = made(settings, "content", _RANKS, 4, size // 4 // columns // 4, columns)
    half = made(settings, "content", _RANKS, 4, size // 4 // columns // 2, columns, 2)
    small = made(settings, "content", _RANKS, size // (64 << 10), 16, 1024)
    committed = copied(large, "committed", settings)
    rows: list[Row] = []
    for name, checkpoint, goal in (
        ("float32", large, _LEAST),
        ("bfloat16", half, _LEAST),
        ("float32 in 64 KiB items", small, None),
        ("float32, committed", committed, None),
    ):
        rows += _compared(f"verify --values, {name}", checkpoint, settings, goal)
    return rows


def _compared(title: str, checkpoint: Path, settings: Settings, goal: Goal | None) -> list[Row]:
    total = sum(path.stat().st_size for path in checkpoint.glob("*.distcp")) / MIB
    plain = ckptctl("verify", "--workers", str(_THREADS), checkpoint)
    ours, peer = interleave([[*plain, "--values"], plain], settings)
    if "values    all " not in ours[0].output:
        raise RuntimeError(f"the values were not looked at:\n{ours[0].output[-2000:]}")

    def throughput(usage: Usage) -> float:
        return total / usage.wall

    return [
        compare(title, "MiB/s", ours, peer, throughput, goal),
        compare(title, "CPU s", ours, peer, cpu),
        Row(title, "peak MiB", peak(ours), goal=Goal(250)),
    ]
