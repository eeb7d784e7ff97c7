"""How fast a checkpoint is written anew: for other ranks, as safetensors, as a torch.save file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from measure import MIB, Goal, Row, Settings, Usage, ckptctl, compare, made, run, script

_RANKS = 4
_COLUMNS = 4096


def transforming(settings: Settings) -> list[Row]:
    """Reshard 4 GiB from 4 to 8 ranks and convert them, against copying; then peak memory."""
    return [*_speed(settings), *_memory(settings)]


def _speed(settings: Settings) -> list[Row]:
    rows = settings.scaled(1024, 8)
    source = made(settings, "content", _RANKS, 64, rows, _COLUMNS)
    total = sum(path.stat().st_size for path in source.iterdir()) / MIB
    out = settings.cache / "out"
    commands = {
        # what a copy must do too before anybody may rely on it
        "copy": ["sh", "-c", f'cp -r "{source}" "{out}" && sync "{out}"/* "{out}"/.metadata'],
        "reshard": ckptctl("reshard", source, "--world-size", "8", "--out", out),
        "safetensors": ckptctl("convert", source, "--to", "safetensors", "--out", out),
        "torch": ckptctl("convert", source, "--to", "torch", "--out", f"{out}.pt"),
        "resave": script("inside.py", "torch-resave", source, out),
    }
    runs = _in_turn(commands, out, settings)

    def throughput(usage: Usage) -> float:
        return total / usage.wall

    def against(name: str, peer: str, goal: Goal | None = None) -> Row:
        title = f"{name} / {'cp -r, synced' if peer == 'copy' else 'dcp.load + dcp.save'}"
        return compare(title, "MiB/s", runs[name], runs[peer], throughput, goal)

    size = f"{total / 1024:.1f} GiB"
    return [
        against("reshard", "copy", Goal(0.6, at_least=True)),
        against("reshard", "resave", Goal(3, at_least=True)),
        against("safetensors", "copy", Goal(0.6, at_least=True)),
        against("torch", "copy"),
        Row(f"reshard of {size}", "peak MiB", _peak(runs["reshard"]), goal=Goal(300)),
        Row(f"safetensors of {size}", "peak MiB", _peak(runs["safetensors"]), goal=Goal(300)),
        Row(f"dcp.load + dcp.save of {size}", "peak MiB", _peak(runs["resave"])),
    ]


def _in_turn(
    commands: dict[str, Sequence[str]], out: Path, settings: Settings
) -> dict[str, list[Usage]]:
    """Run the commands in turn, each into a free place; those that warm caches are left out."""
    runs: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(settings.warming + settings.rounds):
        for name, command in commands.items():
            runs[name].append(run(command, settings.cache))
            shutil.rmtree(out, ignore_errors=True)
            out.with_suffix(".pt").unlink(missing_ok=True)
    return {name: done[settings.warming :] for name, done in runs.items()}


def _memory(settings: Settings) -> list[Row]:
    """Reshard 1 GiB of small tensors, and 8 GiB of tensors of 2 GiB each."""
    rows = []
    for keys, length in ((16, settings.scaled(1024, 8)), (4, settings.scaled(32768, 64))):
        source = made(settings, "content", _RANKS, keys, length, _COLUMNS)
        size = sum(path.stat().st_size for path in source.iterdir())
        tensor = _RANKS * length * _COLUMNS * 4
        out = settings.cache / "out"
        usage = run(ckptctl("reshard", source, "--world-size", "3", "--out", out), settings.cache)
        shutil.rmtree(out)
        title = f"reshard {size / MIB:.0f} MiB, tensors of {tensor / MIB:.0f} MiB"
        rows.append(Row(title, "peak MiB", usage.rss / MIB, goal=Goal(300)))
        shutil.rmtree(source)
    return rows


def _peak(runs: Sequence[Usage]) -> float:
    return max(usage.rss for usage in runs) / MIB
