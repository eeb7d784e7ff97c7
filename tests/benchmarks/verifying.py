"""How fast ``ckptctl verify`` is: its content stage against bare CRCs, and the stages before it."""

from __future__ import annotations

from statistics import median

from measure import (
    MIB,
    Goal,
    Row,
    Settings,
    Usage,
    ckptctl,
    compare,
    interleave,
    made,
    script,
)

_RANKS = 4
_THREADS = 2


def content(settings: Settings) -> list[Row]:
    """Verify 4 files of 512 MiB: once with four large items in each, once with many small ones."""
    size = settings.scaled(512, 8) * MIB
    rows: list[Row] = []
    for name, keys, columns in (("large", 4, 4096), ("64 KiB", size // (64 << 10), 1024)):
        height = size // keys // columns // 4
        checkpoint = made(settings, "content", _RANKS, keys, height, columns)
        paths = sorted(checkpoint.glob("*.distcp"))
        total = sum(path.stat().st_size for path in paths) / MIB
        commands = [
            ckptctl("verify", "--workers", str(_THREADS), checkpoint),
            script("inside.py", "crc", _THREADS, *paths),
        ]
        ours, peer = interleave(commands, settings)
        if "content checked by CRC" not in ours[0].output:
            raise RuntimeError(f"the content was not verified:\n{ours[0].output[-2000:]}")
        title = f"verify {_RANKS} x {size // MIB} MiB, {name} items"

        def throughput(run: Usage, total: float = total) -> float:
            return total / run.wall

        rows += [
            compare(title, "MiB/s", ours, peer, throughput, Goal(0.8, at_least=True)),
            compare(title, "CPU s", ours, peer, lambda run: run.cpu),
            Row(title, "peak MiB", max(run.rss for run in ours) / MIB, goal=Goal(250)),
        ]
    return rows


def quick(settings: Settings) -> list[Row]:
    """Look at the structure of 1,000 files of 10 items."""
    ranks = settings.scaled(1000, 50)
    rows = []
    for name, height in (("256 KiB", 64), ("4 KiB", 1)):
        checkpoint = made(settings, "sparse", ranks, 10, height, 1024)
        (runs,) = interleave([ckptctl("verify", "--quick", checkpoint)], settings)
        if "structure whole" not in runs[0].output:
            raise RuntimeError(f"the checkpoint is not whole:\n{runs[0].output[-2000:]}")
        title = f"verify --quick, {ranks:,} x 10 items of {name}"
        rows.append(Row(title, "CPU s", median(run.cpu for run in runs), goal=Goal(2)))
    return rows
