"""How fast a checkpoint is written anew: for other ranks, as safetensors, as a torch.save file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from measure import (
    MIB,
    Goal,
    Row,
    Settings,
    Usage,
    ckptctl,
    compare,
    cpu,
    made,
    peak,
    run,
    script,
    wall,
)

_RANKS = 4
_COLUMNS = 4096
_BEFORE = {
    ("rows", 8): "2.0 x", ("rows", 32): "2.0 x", ("columns", 8): "10 x", ("columns", 32): "34 x",
}  # fmt: skip
_SLOW_ROUNDS = 2
"""Runs of what takes many times as long as the rest."""


def transforming(settings: Settings) -> list[Row]:
    """Reshard 4 GiB from 4 to 8 ranks and convert them, against copying."""
    rows = settings.scaled(1024, 8)
    source = made(settings, "content", _RANKS, 64, rows, _COLUMNS)
    total = sum(path.stat().st_size for path in source.iterdir()) / MIB / 1024
    out = settings.cache / "out"
    commands = {
        # what a copy must do too before anybody may rely on it
        "copy": ["sh", "-c", f'cp -r "{source}" "{out}" && sync "{out}"/* "{out}"/.metadata'],
        "reshard": ckptctl("reshard", source, "--world-size", "8", "--out", out),
        "safetensors": ckptctl("convert", source, "--to", "safetensors", "--out", out),
    }
    runs = _in_turn(commands, out, settings.warming + settings.rounds)
    runs = {name: done[settings.warming :] for name, done in runs.items()}
    slow = _in_turn(
        {"resave": script("inside.py", "torch-resave", source, out)},
        out,
        min(settings.rounds, _SLOW_ROUNDS),
    )["resave"]
    reshard, convert, copy = runs["reshard"], runs["safetensors"], runs["copy"]

    def speed(usage: Usage) -> float:
        return 1 / usage.wall

    size = f"{total:.1f} GiB"
    return [
        compare(f"reshard {size}, 4 to 8 ranks / cp -r, synced", "s", reshard, copy, wall,
                Goal(1.1), "1.8 x"),
        compare("the same", "CPU s", reshard, copy, cpu, Goal(2.4), "4.8 x"),
        compare("reshard / dcp.load + dcp.save", "1/s", reshard[: len(slow)], slow[: len(reshard)],
                speed, Goal(5, at_least=True), "2.8 x"),
        compare(f"convert {size} to safetensors / cp -r, synced", "s", convert, copy, wall,
                Goal(1.2), "1.5 x"),
        compare("the same", "CPU s", convert, copy, cpu, Goal(1.9), "2.4 x"),
        Row(f"reshard {size}", "peak MiB", peak(reshard), goal=Goal(300), before="34"),
        Row(f"convert {size} to safetensors", "peak MiB", peak(convert), goal=Goal(300)),
        Row(f"dcp.load + dcp.save of {size}", "peak MiB", peak(slow), before="4,400"),
    ]  # fmt: skip


def _in_turn(commands: dict[str, Sequence[str]], out: Path, rounds: int) -> dict[str, list[Usage]]:
    """Run the commands in turn, each into a free place."""
    runs: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            runs[name].append(run(command, out.parent))
            shutil.rmtree(out, ignore_errors=True)
    return runs


def cutting(settings: Settings) -> list[Row]:
    """Reshard 1 and 8 GiB, tensors of 2 GiB among them, by rows and by columns to 8 and 32 ranks.

    What is read of the source is counted, with its metadata: it is once what it holds.
    """
    rows = []
    for keys, length in ((16, 1024), (4, 32768)) if settings.full else ((4, 16),):
        source = made(settings, "content", _RANKS, keys, length, _COLUMNS)
        size = sum(path.stat().st_size for path in source.iterdir())
        tensor = _RANKS * length * _COLUMNS * 4
        for ranks in (8, 32) if settings.full else (8,):
            for how, rule in (("rows", "*=0"), ("columns", "*=1")):
                out = settings.cache / "out"
                usage = run(
                    script("inside.py", "our-reshard", source, out, ranks, rule), out.parent
                )
                shutil.rmtree(out)
                title = (
                    f"reshard {size / MIB:,.0f} MiB, tensors of {tensor / MIB:,.0f} MiB, "
                    f"{how} to {ranks}"
                )
                count = float(usage.output.split()[-1])
                rows += [
                    Row(title, "peak MiB", peak([usage]), goal=Goal(300)),
                    Row(title, "MiB read of the source", count / MIB, size / MIB, count / size,
                        Goal(1.05), _BEFORE[how, ranks]),
                ]  # fmt: skip
        shutil.rmtree(source)
    return rows
