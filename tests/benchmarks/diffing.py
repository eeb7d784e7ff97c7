"""What it costs to compare two checkpoints: by their manifests, by their CRCs, and by reading."""

from __future__ import annotations

import shutil

from measure import (
    MIB,
    Goal,
    Row,
    Settings,
    ckptctl,
    compare,
    copied,
    cpu,
    interleave,
    made,
    peak,
    run,
    script,
)

_RANKS, _KEYS, _COLUMNS = 4, 1000, 1024


def diffing(settings: Settings) -> list[Row]:
    """Compare two checkpoints of 1,000 equal tensors each, 500 MiB in 4 files."""
    rows = settings.scaled(32, 1)
    a = made(settings, "content", _RANKS, _KEYS, rows, _COLUMNS)
    b = a.parent / f"{a.name}-copy" / "step-1000"
    if not b.exists():
        shutil.copytree(a, b)
    sealed = [copied(a, name, settings) for name in ("left", "right")]
    payload = sum(path.stat().st_size for path in a.glob("*.distcp")) / MIB
    by_digest, by_crc, by_reading = interleave(
        [
            ckptctl("diff", "--quick", *sealed),
            ckptctl("diff", "--quick", a, b),
            ckptctl("diff", a, b),
        ],
        settings,
    )
    for usage, how in (
        (by_digest, "file digest"),
        (by_crc, "CRC-32"),
        (by_reading, "content digest"),
    ):
        if f"{_KEYS:,} of {_KEYS:,} tensors equal ({_KEYS:,} by {how})" not in usage[0].output:
            raise RuntimeError(f"they were not compared by {how}:\n{usage[0].output[-2000:]}")
    count = float(run(script("inside.py", "our-diff-bytes", *sealed), settings.cache).output)
    title = f"diff, {_KEYS} tensors of 2 x {payload:.0f} MiB"

    return [
        Row(f"{title}, by manifests", "MiB read", count / MIB, goal=Goal(5)),
        compare(f"{title}, by manifests / by reading", "CPU s", by_digest, by_reading, cpu),
        compare(f"{title}, by CRC-32 / by reading", "CPU s", by_crc, by_reading, cpu),
        Row(f"{title}, by reading", "peak MiB", peak(by_reading), goal=Goal(250)),
    ]  # fmt: skip
