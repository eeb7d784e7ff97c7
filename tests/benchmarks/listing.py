"""How dear ``ckptctl list`` is, compared with starting torch and doing nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from measure import Goal, Row, Settings, ckptctl, compare, interleave, made


def listing(settings: Settings) -> list[Row]:
    """List a run of 1,000 checkpoints."""
    count = settings.scaled(1000, 20)
    roots: list[tuple[str, Path, Goal | None]] = [
        ("as the fixture", made(settings, "steps", count), Goal(0.2)),
        ("200 keys x 4 ranks", made(settings, "steps-large", count, 200, 4), None),
        ("no two layouts alike", made(settings, "steps-unlike", count), None),
    ]
    peer = [sys.executable, "-c", "import torch"]
    *ours, peers = interleave([*(ckptctl("list", root) for _, root, _ in roots), peer], settings)
    for runs in ours:
        if runs[0].output.count(" complete ") != count:
            raise RuntimeError(f"not every checkpoint is complete:\n{runs[0].output[:2000]}")
    return [
        compare(f"list {count:,}, {name}", "CPU s", runs, peers, lambda run: run.cpu, goal)
        for (name, _, goal), runs in zip(roots, ours, strict=True)
    ]
