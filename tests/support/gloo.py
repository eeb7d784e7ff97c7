"""Scripts that several gloo processes run: the only way to see what torch really writes and reads.

One interpreter imports torch, which takes seconds, and forks the ranks before any of them has a
thread of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.effort import PATIENCE

_HEAD = """
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.device_mesh
import torch.distributed.tensor

WORLD_SIZE, OUT, NAME = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)


def start():
    ranks = []
    for rank in range(WORLD_SIZE):
        pid = os.fork()
        if pid == 0:
            printed = os.open(OUT / f"{NAME}.rank-{rank}", os.O_WRONLY | os.O_CREAT)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            return rank
        ranks.append(pid)
    worst = 0
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status and not worst:  # the others would wait for it
            worst = 1
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    os._exit(worst)


RANK = start()
dist.init_process_group(
    "gloo", init_method=f"file://{OUT}/{NAME}.meet", rank=RANK, world_size=WORLD_SIZE
)
"""
_TAIL = """
dist.barrier()
os._exit(0)  # tearing gloo down aborts now and then
"""


def run_ranks(world_size: int, out: Path, body: str) -> str:
    """Run a script on so many ranks; it finds RANK, WORLD_SIZE and OUT. Return what they printed."""
    name = f"script-{len(list(out.glob('script-*.py')))}"
    script = out / f"{name}.py"
    script.write_text(_HEAD + body + _TAIL, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, str(world_size), str(out), name],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    files = [out / f"{name}.rank-{rank}" for rank in range(world_size)]
    printed = "".join(file.read_text() for file in files if file.exists())
    assert done.returncode == 0, printed + done.stderr.decode()
    return printed


LAYOUTS = '''
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SHAPES = {
    "embed.weight": (10, 8), "up.weight": (16, 6), "up.bias": (5,), "norm.scale": (1,),
    "conv.weight": (4, 3, 2, 5), "tiny": (), "none": (0, 3), "column": (7, 1),
}
DTYPES = {"up.bias": torch.bfloat16, "norm.scale": torch.float64, "column": torch.float16}


def full():
    """The whole state, the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    found = {
        f"model.{name}": torch.randn(shape, generator=generator).to(DTYPES.get(name, torch.float32))
        for name, shape in SHAPES.items()
    }
    found["model.counts"] = torch.arange(9)
    return found


def save(name, shape, place):
    # every rank takes part in making groups and meshes, also those that are not in them
    ranks = torch.tensor(shape).flatten().tolist()
    group, mesh = dist.new_group(ranks), DeviceMesh("cpu", shape)
    if RANK in ranks:
        # torch broadcasts what rank 0 of a mesh holds: the same everywhere
        state = {
            key: value if key == "model.counts" or not value.ndim
            else distribute_tensor(value, mesh, place(value))
            for key, value in full().items()
        }
        state["train"] = {"step": 7, "name": "x"}
        dcp.save(state, checkpoint_id=f"{OUT}/{name}/step-7", process_group=group)


def rows(value):
    return [Shard(0)]


def grid(value):
    return [Shard(0), Shard(1)] if value.ndim > 1 else [Shard(0), Replicate()]


for count in (1, 2, 3, 4):
    save(f"rows{count}", list(range(count)), rows)
square = [[0, 1], [2, 3]]
save("columns4", [0, 1, 2, 3], lambda v: [Shard(v.ndim - 1)])
save("hsdp", square, lambda v: [Replicate(), Shard(0)])
save("tp_fsdp", square, grid)
save("fsdp_tp", square, lambda v: [Shard(1), Shard(0)] if v.ndim > 1 else [Shard(0), Replicate()])
save("same_rows", square, lambda v: [Shard(0), Shard(0)])
if RANK == 0:
    torch.save(full(), f"{OUT}/full.pt")
'''
"""One state, saved by one to four ranks and cut in many ways; ``full.pt`` holds it whole."""

NAMES = (
    *(f"rows{count}" for count in (1, 2, 3, 4)),
    *("columns4", "hsdp", "tp_fsdp", "fsdp_tp", "same_rows"),
)
"""The checkpoints that ``LAYOUTS`` writes, each at ``NAME/step-7``."""
