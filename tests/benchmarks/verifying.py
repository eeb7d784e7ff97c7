"""How fast ``ckptctl verify`` is: by CRC against dd, many small items, and the stages before them."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from measure import (
    MIB,
    Goal,
    Row,
    Settings,
    Usage,
    ckptctl,
    compare,
    cpu,
    interleave,
    made,
    peak,
    script,
)

_RANKS = 4
_THREADS = 2
_START = 0.2


def content(settings: Settings) -> list[Row]:
    """Verify 2 GiB of large items: less the time to start, it takes as long as dd."""
    size = settings.scaled(512, 8) * MIB
    checkpoint = made(settings, "content", _RANKS, 4, size // 4 // 4096 // 4, 4096)
    paths = sorted(checkpoint.glob("*.distcp"))
    ours, dd, bare = interleave(
        [_verify(checkpoint), read_all(paths), script("inside.py", "crc", _THREADS, *paths)],
        settings,
    )
    _whole(ours[0])
    title = f"verify {_RANKS * size / MIB / 1024:.1f} GiB by CRC"
    pairs = [(a.wall, b.wall) for a, b in zip(ours, dd, strict=True)]
    return [
        Row(
            f"{title}, less {_START} s / dd",
            "s",
            median(a for a, _ in pairs),
            median(b for _, b in pairs),
            median(max(0.0, a - _START) / b for a, b in pairs),
            Goal(1.2),
            "1.10",
        ),
        compare(f"{title} / zlib.crc32 in 2 threads", "CPU s", ours, bare, cpu),
        Row(title, "peak MiB", peak(ours), goal=Goal(250)),
    ]


def items(settings: Settings) -> list[Row]:
    """Verify many small items: what one takes beside reading it, its metadata, and the start."""
    return [
        *_items(settings, settings.scaled(51_200, 400), 1, 384, ("46", "3.80"), 0.3),
        *_items(settings, settings.scaled(16_384, 400), 16, 1024, ("60", "2.45"), 0.35),
    ]


def _items(
    settings: Settings, count: int, rows: int, columns: int, before: tuple[str, str], part: float
) -> list[Row]:
    """Compare with the metadata alone, with dd, and with the same of a few items."""
    checkpoint = made(settings, "content", _RANKS, count // _RANKS, rows, columns)
    few = made(settings, "content", _RANKS, 8, rows, columns)
    paths = sorted(checkpoint.glob("*.distcp"))
    ours, start, read, metadata = interleave(
        [
            _verify(checkpoint),
            _verify(few),
            read_all(paths),
            script("inside.py", "our-metadata", checkpoint / ".metadata"),
        ],
        settings,
    )
    _whole(ours[0])
    reading = median(map(cpu, read))
    started = median(a.cpu - b.cpu for a, b in zip(ours, start, strict=True))
    parsing = median(float(run.output) for run in metadata)
    each, least = (seconds / count * 1e6 for seconds in (started - parsing, reading))
    name = f"{count:,} items of {rows * columns * 4 / 1024:g} KiB"
    return [
        Row(f"verify {name}; peer: dd", "CPU s", median(map(cpu, ours)), reading,
            goal=Goal(part * float(before[1])), before=before[1]),
        Row(f"one of {name}; peer: reading it", "µs", each, least,
            goal=Goal(5 + least), before=before[0]),
        Row(f"verify {name}", "peak MiB", peak(ours), goal=Goal(250)),
    ]  # fmt: skip


def quick(settings: Settings) -> list[Row]:
    """Look at the structure of 1,000 files of 10 items."""
    ranks = settings.scaled(1000, 50)
    checkpoint = made(settings, "sparse", ranks, 10, 64, 1024)
    (runs,) = interleave([ckptctl("verify", "--quick", checkpoint)], settings)
    if "structure whole" not in runs[0].output:
        raise RuntimeError(f"the checkpoint is not whole:\n{runs[0].output[-2000:]}")
    title = f"verify --quick, {ranks:,} x 10 items of 256 KiB"
    return [Row(title, "CPU s", median(map(cpu, runs)), goal=Goal(2), before="1.5-2.1")]


def read_all(paths: list[Path]) -> list[str]:
    """Return the command that reads files one after the other and does nothing else."""
    return ["sh", "-c", 'for f; do dd if="$f" of=/dev/null bs=1M; done', "dd", *map(str, paths)]


def _verify(checkpoint: Path) -> list[str]:
    return ckptctl("verify", "--workers", str(_THREADS), checkpoint)


def _whole(run: Usage) -> None:
    if "content checked by CRC" not in run.output:
        raise RuntimeError(f"the content was not verified:\n{run.output[-2000:]}")
