"""What a schedule, an optimizer or loops count after a restart, beside a save of which a file is another's."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from cases.frame import Build, Case, each
from support import companions
from support.companions import schedule
from support.damage import save_with_torch

NAMES = tuple(f"layers.{n}.weight" for n in range(4))
Steps = int | Sequence[int]


def weights(seed: int) -> dict[str, torch.Tensor]:
    """Return weights of a step."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(8, 4, generator=generator) for name in NAMES}


def optimizer(seed: int, steps: Steps) -> dict[str, object]:
    """Return the state of an optimizer that took so many steps, all or each parameter its own."""
    every = [steps] * len(NAMES) if isinstance(steps, int) else steps
    return {
        "state": {
            name: {"step": torch.tensor(float(one)), "exp_avg": weights(seed + 1000)[name]}
            for name, one in zip(NAMES, every, strict=True)
        },
        "param_groups": [{"lr": 0.1, "params": list(NAMES)}],
    }


def trainer(step: int, adam: Steps, state: dict[str, Any], *, files: int = 2) -> Build:
    """Save as the Trainer does with FSDP: its optimizer and its schedule have these counts."""

    def build(root: Path) -> None:
        path = root / f"checkpoint-{step}"
        save_with_torch(path / "pytorch_model_fsdp_0", {"model": weights(step)}, files=files)
        save_with_torch(path / "optimizer_0", {"optimizer": optimizer(step, adam)}, files=files)
        companions.trainer(path, step)
        torch.save(state, path / "scheduler.pt")

    return build


def lightning(step: int, *adam: Steps, schedules: Sequence[dict[str, Any]] = ()) -> Build:
    """Save as Lightning does, with one or several optimizers."""

    def build(root: Path) -> None:
        path = root / f"step={step}.ckpt"
        state: dict[str, Any] = {"state_dict": weights(step)}
        for number, one in enumerate(adam):
            state[f"optimizer_{number}"] = optimizer(step + number, one)
        save_with_torch(path, state, files=2)
        loops = {"global_step": step, "epoch": 1, "lr_schedulers": list(schedules)}
        with (path / "meta.pt").open("wb") as file:
            torch.save({**loops, "pytorch-lightning_version": "2.6.6"}, file)

    return build


@functools.cache
def stepped(kind: str, steps: int) -> dict[str, Any]:
    """Return the state of one of torch's schedules after so many steps."""
    adam = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    one = SCHEDULES[kind](adam)
    for _ in range(steps):
        adam.step()
        one.step(*((1.0,) if kind == "plateau" else ()))
    return one.state_dict()


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "cosine with restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
    "several in a row": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 10)], [5]
    ),
    "several at once": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o),
}


def legal(name: str, *builds: Build, newest: str = "checkpoint-12") -> list[Case]:
    """Two rows: nothing above a note is said of it, and it is handed out."""
    return [
        Case(name, each(*builds), ("verify", f"{{root}}/{newest}"), silent=("error ", "warning ")),
        Case(
            f"{name}: it is handed out",
            each(*builds),
            ("resolve", "{root}", "--allow-uncommitted"),
            facts={"name": newest},
        ),
    ]


def lightly(name: str, *builds: Build) -> list[Case]:
    """The same for Lightning."""
    return legal(name, *builds, newest="step=12.ckpt")


def told(name: str, *builds: Build, code: int, says: str, newest: int = 12) -> Case:
    """A row for what is wrong, or may be."""
    return Case(
        name, each(*builds), ("verify", f"{{root}}/checkpoint-{newest}"), code, says=(says,)
    )


def before(path: str, *, old: int = 8, new: int = 12) -> Build:
    """Put a file of the checkpoint before in place of the newer one's."""
    return lambda root: shutil.copy(
        root / f"checkpoint-{old}/{path}", root / f"checkpoint-{new}/{path}"
    )


def run(*steps: int) -> Build:
    """Save checkpoints in which all agree."""
    return each(*(trainer(n, n, schedule(n)) for n in steps))


CASES: list[Case] = [
    *legal(
        "a fresh schedule since step 4", trainer(8, 8, schedule(4)), trainer(12, 12, schedule(8))
    ),
    *legal("a fresh schedule since the one before", run(8), trainer(12, 12, schedule(4))),
    *legal(
        "a fresh optimizer since step 4", trainer(8, 4, schedule(8)), trainer(12, 8, schedule(12))
    ),
    *legal("a fresh optimizer since the one before", run(8), trainer(12, 4, schedule(12))),
    *legal("both are fresh", run(8), trainer(12, 4, schedule(4))),
    *legal("a fresh schedule since one that is gone", run(4, 8), trainer(12, 12, schedule(2))),
    *legal(
        "steps are skipped for overflow", trainer(8, 7, schedule(7)), trainer(12, 10, schedule(10))
    ),
    *legal("the schedule counts epochs", trainer(8, 8, schedule(1)), trainer(12, 12, schedule(2))),
    *legal(
        "the schedule counts its first epoch",
        trainer(8, 8, schedule(0)),
        trainer(12, 12, schedule(1)),
    ),
    *legal(
        "the schedule counts micro-batches",
        trainer(8, 8, schedule(32)),
        trainer(12, 12, schedule(48)),
    ),
    *legal("the schedule counts micro-batches, alone", trainer(12, 12, schedule(48))),
    *legal("the schedule is one ahead", trainer(8, 8, schedule(9)), trainer(12, 12, schedule(13))),
    *legal("the schedule is one ahead, alone", trainer(12, 12, schedule(13))),
    *legal(
        "the optimizer takes two steps at once",
        trainer(8, 16, schedule(8)),
        trainer(12, 24, schedule(12)),
    ),
    *legal(
        "a parameter is frozen",
        trainer(8, [8, 8, 3, 8], schedule(8)),
        trainer(12, [12, 12, 3, 12], schedule(12)),
    ),
    *legal(
        "a parameter came late",
        trainer(8, [8, 8, 3, 8], schedule(8)),
        trainer(12, [12, 12, 7, 12], schedule(12)),
    ),
    *legal("other ranks than before", trainer(8, 8, schedule(8), files=4), run(12)),
    *(
        row
        for kind in SCHEDULES
        for row in legal(
            f"a schedule: {kind}",
            *(trainer(n, n, stepped(kind, n if kind != "plateau" else n // 4)) for n in (8, 12)),
        )
    ),
    *lightly("loops sum up two optimizers", lightning(8, 4, 4), lightning(12, 6, 6)),
    *lightly("loops sum up two optimizers of other pace", lightning(8, 6, 2), lightning(12, 9, 3)),
    *lightly("loops go on with a fresh optimizer", lightning(8, 8), lightning(12, 4)),
    *lightly("loops count what was skipped", lightning(8, 7), lightning(12, 10)),
    *lightly("loops count half of the steps", lightning(8, 16), lightning(12, 24)),
    *lightly(
        "loops with a schedule of epochs",
        *(lightning(n, n, schedules=[schedule(n // 4)]) for n in (8, 12)),
    ),
    # ---- and what is not
    told(
        "the schedule of before",
        run(8, 12),
        before("scheduler.pt"),
        code=10,
        says="error mixed-step",
    ),
    told(
        "the schedule of before, and a later one goes on",
        run(4, 8, 12),
        before("scheduler.pt", old=4, new=8),
        code=10,
        says="error mixed-step",
        newest=8,
    ),
    told(
        "the schedule of before, which a fresh one would equal",
        run(6, 12),
        before("scheduler.pt", old=6),
        code=0,
        says="warning suspected-shard",
    ),
    told(
        "a schedule of less, alone",
        trainer(12, 12, schedule(8)),
        code=0,
        says="warning suspected-shard",
    ),
    told(
        "an optimizer of less, alone",
        trainer(12, 8, schedule(12)),
        code=0,
        says="warning suspected-shard",
    ),
    told(
        "the optimizer of before",
        run(8, 12),
        before("optimizer_0/__0_0.distcp"),
        before("optimizer_0/__0_1.distcp"),
        code=10,
        says="error mixed-step",
    ),
]
