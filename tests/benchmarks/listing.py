"""How dear ``ckptctl list`` is, compared with starting torch and doing nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from measure import Goal, Row, Settings, ckptctl, compare, cpu, interleave, made


def listing(settings: Settings) -> list[Row]:
    """List a run of 1,000 checkpoints."""
    count = settings.scaled(1000, 20)
    roots: list[tuple[str, Path, Goal | None, str]] = [
        ("as the fixture", made(settings, "steps", count), Goal(0.2), "0.27"),
        ("200 keys x 4 ranks", made(settings, "steps-large", count, 200, 4), None, ""),
        ("no two layouts alike", made(settings, "steps-unlike", count), Goal(1), "3.2"),
    ]
    peer = [sys.executable, "-c", "import torch"]
    *ours, peers = interleave([*(ckptctl("list", one[1]) for one in roots), peer], settings)
    for runs in ours:
        if runs[0].output.count(" complete ") != count:
            raise RuntimeError(f"not every checkpoint is complete:\n{runs[0].output[:2000]}")
    return [
        compare(f"list {count:,}, {name} / import torch", "CPU s", runs, peers, cpu, goal, before)
        for (name, _, goal, before), runs in zip(roots, ours, strict=True)
    ]
