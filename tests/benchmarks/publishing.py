"""How fast a committed checkpoint is verified, and how fast one is committed."""

from __future__ import annotations

import shlex
import shutil
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
    interleave,
    made,
    peak,
    script,
)

_RANKS = 4
_THREADS = 2
_PROGRAM = ["xxhsum", "-H2"]  # where it is not installed, its library under Python


def publishing(settings: Settings) -> list[Row]:
    """Verify 4 committed files of 512 MiB against bare hashing of the same files."""
    size = settings.scaled(512, 8) * MIB
    source = made(settings, "content", _RANKS, 4, size // 4 // 4096 // 4, 4096)
    checkpoint = copied(source, "committed", settings)
    paths = sorted(checkpoint.glob("*.distcp"))
    total = sum(path.stat().st_size for path in paths) / MIB
    commands = [
        ckptctl("verify", "--require", "manifest", "--workers", str(_THREADS), checkpoint),
        _xxhsum(paths),
        script("inside.py", "sha256", *paths),
        ckptctl("commit", "--dry-run", "--workers", str(_THREADS), source),
        script("inside.py", "our-verify", checkpoint, _THREADS),
    ]
    ours, xxh, sha, commit, inner = interleave(commands, settings)
    if "content checked by digest" not in ours[0].output:
        raise RuntimeError(f"the digests were not verified:\n{ours[0].output[-2000:]}")
    if "would commit" not in commit[0].output:
        raise RuntimeError(f"the commit was refused:\n{commit[0].output[-2000:]}")

    def speed(usage: Usage) -> float:
        return total / usage.wall

    def started(usage: Usage) -> float:
        try:
            return total / float(usage.output)
        except ValueError:
            return speed(usage)

    title = f"verify {total / 1024:.1f} GiB by manifest"
    least = Goal(0.95, at_least=True)
    return [
        compare(f"{title}, once started / xxhsum -H2", "MiB/s", inner, xxh, started, least, "0.88 x"),
        compare(f"{title}, once started / sha256", "MiB/s", inner, sha, started,
                Goal(6, at_least=True), "9.8 x"),
        compare(f"{title} / xxhsum -H2", "MiB/s", ours, xxh, speed, before="0.42 x"),
        compare(f"{title} / sha256", "MiB/s", ours, sha, speed, before="4.6 x"),
        Row(title, "peak MiB", peak(ours), goal=Goal(250)),
        compare("commit --dry-run, CRC and digest / xxhsum -H2", "MiB/s", commit, xxh, speed),
    ]  # fmt: skip


def _xxhsum(paths: list[Path]) -> list[str]:
    """Hash with as many processes as we have threads, each a share of the files."""
    shares = [paths[i::_THREADS] for i in range(_THREADS)]
    program = _PROGRAM if shutil.which(_PROGRAM[0]) else script("inside.py", "xxh3")
    parts = [
        f"{shlex.join([*program, *map(str, share)])} & p{i}=$!" for i, share in enumerate(shares)
    ]
    waits = " && ".join(f"wait $p{i}" for i in range(len(shares)))
    return ["sh", "-c", "\n".join([*parts, waits])]
