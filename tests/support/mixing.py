"""Small runs of four ranks, trained and saved by torch in several layouts, to mix up and to leave alone.

The training is Adam's rule with random gradients, so that what is trained changes at every step and
what is frozen does not. Each run is saved at steps 90, 99 and 100, into directories named so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ckptctl.checks import IDENTITY_CHECKS
from ckptctl.model.finding import Finding, Severity
from ckptctl.operations.find import locate
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, Verification, verify
from ckptctl.storage import open_store
from support.gloo import run_ranks

RANKS = 4
METADATA = ".metadata"
IDS = frozenset(check.id for check in IDENTITY_CHECKS)
LONG_AGO, BETWEEN = 1_700_000_000.0, 600.0

SCRIPT = '''
import random

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SHAPES = {
    "embed.weight": (12, 4), "up.weight": (8, 4), "up.bias": (8,), "down.weight": (4, 8),
    "norm.weight": (8,), "head.weight": (12, 4),
}
STEPS = (90, 99, 100)
flat = DeviceMesh("cpu", list(range(WORLD_SIZE)))
grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


class Run:
    """Adam's rule on whole tensors, the same on every rank."""

    def __init__(self, seed=0, frozen=(), frozen_from=None, late=None, still=None, rows=False):
        self.seed, self.frozen, self.late = seed, frozen, late or {}
        self.frozen_from, self.still, self.rows = frozen_from or {}, still, rows
        generator = torch.Generator().manual_seed(1000 + seed)
        self.weights = {n: torch.randn(s, generator=generator) for n, s in SHAPES.items()}
        self.moments, self.step = {}, 0

    def trains(self, name):
        """Whether a parameter is trained at the step that comes."""
        until, since = self.frozen_from.get(name, 10**9), self.late.get(name, 0)
        return name not in self.frozen and since < self.step <= until

    def advance(self):
        self.step += 1
        generator = torch.Generator().manual_seed(10_000 * self.seed + self.step)
        for name, weight in self.weights.items():
            gradient = torch.randn(weight.shape, generator=generator)
            if not self.trains(name):
                continue
            zeros = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
            held = self.moments.setdefault(name, {"step": torch.tensor(0.0), **zeros})
            touched = slice(None)
            if self.rows and name == "embed.weight" and self.step > 90:
                touched = slice(0, 6)  # nobody looks up the later rows any more
            lr = 0.0 if self.still is not None and self.step > self.still else 0.01
            g = gradient[touched]
            held["step"] += 1
            held["exp_avg"][touched] = 0.9 * held["exp_avg"][touched] + 0.1 * g
            held["exp_avg_sq"][touched] = 0.99 * held["exp_avg_sq"][touched] + 0.01 * g * g
            weight[touched] -= lr * held["exp_avg"][touched] / (held["exp_avg_sq"][touched].sqrt() + 1e-8)


def state(run, parts, mesh, places, counts):
    """The state dict of this rank."""
    cut = lambda tensor: distribute_tensor(tensor.clone(), mesh, places)
    found = {f"model.{n}": cut(w) for n, w in run.weights.items()}
    if "optimizer" in parts:
        for name, held in run.moments.items():
            for key, value in held.items():
                moment = value.clone() + counts.get("adam", 0) if key == "step" else cut(value)
                found[f"optimizer.state.{name}.{key}"] = moment
    step = run.step
    if "progress" in parts:
        found["lr_scheduler"] = {
            "last_epoch": counts["epoch"](step) if "epoch" in counts else step,
            "_step_count": (counts["epoch"](step) if "epoch" in counts else step) + 1,
            "base_lrs": [0.01],
        }
        own = counts["own"](step) if "own" in counts else step
        found["train_state"] = {"step": own, "tokens": 4096 * step, "run_id": f"run-{run.seed}"}
    if "ranks" in parts:
        position = counts["position"](step, RANK) if "position" in counts else 32 * step + RANK
        found[f"dataloader.dp_rank_{RANK}"] = {"pos": position}
        found[f"rng.rank_{RANK}"] = {"torch": torch.Generator().manual_seed(RANK).get_state()}
    return found


ALL = ("optimizer", "progress", "ranks")
ONE, TWO = (flat, [Shard(0)]), (grid, [Replicate(), Shard(0)])
CASES = {  # name: run, parts, mesh with placements, writer's options, how it counts
    "plain": (dict(), ALL, ONE, {}, {}),
    "other": (dict(seed=1), ALL, ONE, {}, {}),
    "bare": (dict(), ("optimizer",), ONE, {}, {}),
    "model": (dict(), (), ONE, {}, {}),
    "hsdp": (dict(), ALL, TWO, {}, {}),
    "items": (dict(), ALL, ONE, {"single_file_per_rank": False}, {}),
    "threads": (dict(), ALL, ONE, {"thread_count": 2}, {}),
    "local": (dict(), ALL, ONE, {"local": True}, {}),
    "local-other": (dict(seed=1), ALL, ONE, {"local": True}, {}),
    # legal states
    "frozen": (dict(frozen=("embed.weight", "norm.weight")), ALL, ONE, {}, {}),
    "frozen-midway": (dict(frozen_from={"embed.weight": 80}), ALL, ONE, {}, {}),
    "frozen-since": (dict(frozen_from={"up.weight": 95, "up.bias": 95}), ALL, ONE, {}, {}),
    "frozen-items": (
        dict(frozen=("norm.weight",), frozen_from={"embed.weight": 85}), ALL, ONE,
        {"single_file_per_rank": False}, {},
    ),
    "head-only": (
        dict(frozen_from={n: 80 for n in SHAPES if n != "head.weight"}), ALL, ONE, {}, {},
    ),
    "late": (dict(late={"head.weight": 85}), ALL, ONE, {}, {}),
    "rows": (dict(rows=True), ALL, ONE, {}, {}),
    "rows-items": (dict(rows=True), ALL, ONE, {"single_file_per_rank": False}, {}),
    "rows-model-items": (dict(rows=True), (), ONE, {"single_file_per_rank": False}, {}),
    "still": (dict(still=85), ALL, ONE, {}, {}),
    "still-model": (dict(still=85), (), ONE, {}, {}),
    "still-bare": (dict(still=85), ("optimizer",), ONE, {}, {}),
    "epochs": (dict(), ALL, ONE, {}, {"epoch": lambda s: s // 25}),
    "restarts": (dict(), ALL, ONE, {}, {"epoch": lambda s: s % 40}),
    "skipped": (dict(), ALL, ONE, {}, {"adam": -3}),
    "off-by-one": (dict(), ALL, ONE, {}, {"adam": 1, "own": lambda s: s - 1}),
    "micro": (dict(), ALL, ONE, {}, {"own": lambda s: 4 * s, "epoch": lambda s: 4 * s}),
    "inner": (dict(), ALL, ONE, {}, {"own": lambda s: s % 37}),
    "wrapped": (dict(), ALL, ONE, {}, {"position": lambda s, r: (32 * s + r) % (3500 - 500 * r)}),
    "uneven": (dict(), ALL, ONE, {}, {"position": lambda s, r: (32 - 9 * (r == 2)) * s + r}),
}

for name, (arguments, parts, (mesh, places), options, counts) in CASES.items():
    run = Run(**arguments)
    local = options.get("local", False)
    for step in STEPS:
        while run.step < step:
            run.advance()
        target = f"{OUT}/{name}/step-{step}"
        rest = {k: v for k, v in options.items() if k != "local"}
        writer = FileSystemWriter(target, **rest)
        saved = state(run, parts, mesh, places, counts)
        dcp.save(saved, storage_writer=writer, **({"use_collectives": False} if local else {}))
        dist.barrier()
'''

LEGAL = (
    "plain", "other", "bare", "model", "hsdp", "items", "threads", "local", "frozen",
    "frozen-midway", "frozen-since", "frozen-items", "head-only", "late", "rows", "rows-items",
    "rows-model-items", "still", "still-model", "still-bare", "epochs", "restarts", "skipped",
    "off-by-one", "micro", "inner", "wrapped", "uneven",
)  # fmt: skip


def build_runs(out: Path) -> Path:
    """Train and save all runs."""
    run_ranks(RANKS, out, SCRIPT)
    return out


def set_times(checkpoint: Path, when: float) -> None:
    """Give a checkpoint the times of a save: one second for the shards, the metadata last."""
    shards = sorted(checkpoint.glob("*.distcp"))
    for number, path in enumerate(shards):
        os.utime(path, (when, when + number / max(1, len(shards))))
    for path in checkpoint.glob("*metadata"):
        os.utime(path, (when, when + 1))


def plant(saved: Path, root: Path, run: str, *, steps: Iterable[int] = (90, 100)) -> Path:
    """Copy checkpoints of one run under a root, each with the times of a save of its own."""
    for step in steps:
        target = root / f"step-{step}"
        shutil.copytree(saved / run / f"step-{step}", target)
        set_times(target, LONG_AGO + BETWEEN * step)
    return root


def forget_times(root: Path) -> None:
    """Make everything below a directory as old as a checkout makes it."""
    for path in root.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


@dataclass(frozen=True)
class Seen:
    """A verification reduced to what it says of identity."""

    result: Verification
    findings: tuple[Finding, ...]

    @property
    def checks(self) -> set[str]:
        """Ids of the checks that found something worse than a note."""
        return {f.check for f in self.findings if f.severity > Severity.NOTE}

    @property
    def level(self) -> str:
        """``proven``, ``suspected`` or ``unverified``."""
        worst = max((f.severity for f in self.findings), default=Severity.NOTE)
        if worst is Severity.ERROR:
            assert self.result.verdict is Verdict.FINDINGS
            return "proven"
        if worst is Severity.WARNING:
            assert self.result.verdict is Verdict.SUSPECT
            return "suspected"
        assert self.result.good
        return "ok" if self.result.manifest is not None else "unverified"


def look(path: Path, **options: object) -> Seen:
    """Verify one checkpoint through the directory it lies in."""
    store, (place,) = locate(str(path), open_store)
    result = verify(store, place, options=Options(workers=1, **options))  # type: ignore[arg-type]
    return Seen(result, tuple(f for f in result.report.findings if f.check in IDS))
