"""The run behind the reported cases: four processes save 33 keys in 69 items, at two steps and more."""

from __future__ import annotations

from pathlib import Path

from support.gloo import run_ranks

RANKS = 4
SCRIPT = '''
import random

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

SHAPES = {"embed.weight": (10, 8), "layers.0.w": (16, 8), "layers.0.b": (6,), "norm.weight": (8,)}


def state(mesh, rank, step, seed, run_id):
    """The training state at a step, as a function of nothing but its arguments."""
    generator = torch.Generator().manual_seed(100_000 * seed + step)

    def sharded(shape, scale=1.0):
        return distribute_tensor(scale * torch.rand(shape, generator=generator), mesh, [Shard(0)])

    found = {}
    for name, shape in SHAPES.items():
        found[f"model.{name}"] = sharded(shape)
        found[f"optimizer.state.{name}.exp_avg"] = sharded(shape, 0.01)
        found[f"optimizer.state.{name}.exp_avg_sq"] = sharded(shape, 0.0001)
        found[f"optimizer.state.{name}.step"] = torch.tensor(float(step))
    found["lr_scheduler"] = {"last_epoch": step, "base_lrs": [0.0003]}
    found["train_state"] = {"step": step, "ntokens": 4096 * step, "run_id": run_id}
    found[f"dataloader.dp_rank_{rank}"] = {"pos": 32 * step + rank}
    found[f"rng.rank_{rank}"] = {
        "torch": torch.Generator().manual_seed(step + rank).get_state(),
        "py": random.Random(rank).getstate(),  # of other numbers it has another size
    }
    return found


mesh = DeviceMesh("cpu", list(range(WORLD_SIZE)))
for name, step, seed, run_id in (
    ("base", 900, 0, "run-0"),
    ("base", 1000, 0, "run-0"),
    ("other", 1000, 1, "run-1"),
    ("renamed", 900, 0, "run-0 under a name that needs many more bytes than before " * 2),
    ("shrunk", 1000, 0, "run-0"),
):
    dcp.save(state(mesh, RANK, step, seed, run_id), checkpoint_id=f"{OUT}/{name}/step-{step}")
half, half_mesh = dist.new_group([0, 1]), DeviceMesh("cpu", [0, 1])
if RANK < 2:  # the run goes on with two ranks and saves over what four had saved
    dcp.save(
        state(half_mesh, RANK, 1000, 0, "run-0"),
        checkpoint_id=f"{OUT}/shrunk/step-1000",
        process_group=half,
    )
'''


def build(out: Path) -> Path:
    """Save the run with four gloo processes under a directory."""
    run_ranks(RANKS, out, SCRIPT)
    return out
