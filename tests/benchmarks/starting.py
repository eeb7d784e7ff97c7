"""How long the shortest commands take, beside a Python that does nothing."""

from __future__ import annotations

import sys

from measure import FIXTURES, Goal, Row, Settings, ckptctl, run

_LEAST_ROUNDS = 20


def starting(settings: Settings) -> list[Row]:
    """Verify a fixture of 211 KiB; the best of many runs counts, as all else is the machine's."""
    fixture = FIXTURES / "fsdp2" / "step-12"
    rounds = max(settings.rounds, settings.scaled(_LEAST_ROUNDS, 1))
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "version": ckptctl("--version"),
        "list": ckptctl("list", fixture.parent),
        "verify": ckptctl("verify", fixture),
    }
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(rounds):
        for name, command in commands.items():
            best[name] = min(best[name], run(command, settings.cache).cpu)

    def row(title: str, name: str, goal: Goal | None = None, before: str = "") -> Row:
        return Row(title, "CPU s", best[name], best["bare"], before=before, goal=goal)

    return [
        row("verify a small fixture; peer: python -c pass", "verify", Goal(0.12), "0.169"),
        row("list of two checkpoints", "list"),
        row("--version", "version"),
    ]
