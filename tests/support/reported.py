"""The run behind the reported cases: four processes save 33 keys in 69 items, at two steps and more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RANKS = 4
SCRIPT = '''
"""One rank of the run: `script RANK WORLD_SIZE OUT`."""

import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
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


def main():
    rank, world_size, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=world_size
    )
    mesh = DeviceMesh("cpu", list(range(world_size)))
    for name, step, seed, run_id in (
        ("base", 900, 0, "run-0"),
        ("base", 1000, 0, "run-0"),
        ("other", 1000, 1, "run-1"),
        ("renamed", 900, 0, "run-0 under a name that needs many more bytes than before " * 2),
        ("shrunk", 1000, 0, "run-0"),
    ):
        dcp.save(state(mesh, rank, step, seed, run_id), checkpoint_id=f"{out}/{name}/step-{step}")
    half, half_mesh = dist.new_group([0, 1]), DeviceMesh("cpu", [0, 1])
    if rank < 2:  # the run goes on with two ranks and saves over what four had saved
        dcp.save(
            state(half_mesh, rank, 1000, 0, "run-0"),
            checkpoint_id=f"{out}/shrunk/step-1000",
            process_group=half,
        )
    dist.barrier()
    os._exit(0)  # tearing gloo down aborts now and then


main()
'''


def build(out: Path) -> Path:
    """Save the run with four gloo processes under a directory."""
    script = out / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(RANKS), str(out)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(RANKS)
    ]
    try:
        for process in ranks:
            output, _ = process.communicate(timeout=240)
            assert process.returncode == 0, output.decode()
    finally:
        for process in ranks:
            process.kill()
    return out
