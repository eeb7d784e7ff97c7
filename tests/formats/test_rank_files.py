"""Files of ``torch.save`` that each rank wrote by itself: pieces of tensors, put together again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ckptctl.formats.files import holdings, read_files
from ckptctl.formats.listing import list_files
from ckptctl.formats.registry import layout
from ckptctl.model.checkpoint import Checkpoint, TensorEntry
from ckptctl.storage import open_store
from support.cli import Ended, run
from support.gloo import run_ranks
from support.shared import built_once

SETS = """
from torch.distributed._shard.sharded_tensor import init_from_local_shards, Shard as LocalShard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

(OUT / "global_step_3" / "actor").mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
state, whole = {}, {}


def keep(name, value):
    state[name] = value
    whole[name] = value.full_tensor().detach().clone() if isinstance(value, DTensor) else value


flat = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
for name, shape, mesh, cuts in [
    ("rows", (10, 3), flat, [Shard(0)]),
    ("few", (2, 3), flat, [Shard(0)]),
    ("columns", (3, 7), flat, [Shard(1)]),
    ("copies", (5, 2), flat, [Replicate()]),
    ("hsdp", (9, 2), square, [Replicate(), Shard(0)]),
    ("grid", (5, 6), square, [Shard(0), Shard(1)]),
    ("twice", (11, 2), square, [Shard(0), Shard(0)]),
    ("half", (6, 4), square["tp"], [Shard(1)]),
    ("number", (), flat, [Replicate()]),
]:
    value = torch.randn(shape)
    dist.broadcast(value, 0)
    keep(name, distribute_tensor(value, mesh, cuts))
model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 6))
parallelize_module(model, square["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=square["dp"])
for name, value in model.state_dict().items():
    keep(f"net.{name}", value)
spread = torch.arange(20.0).reshape(10, 2)
bounds = [0, 3, 5, 9, 10]
low, high = bounds[RANK], bounds[RANK + 1]
local = LocalShard.from_tensor_and_offsets(spread[low:high].clone(), [low, 0], RANK)
state["sharded"], whole["sharded"] = init_from_local_shards([local], [10, 2]), spread
state["same"], whole["same"] = torch.ones(3), torch.ones(3)
state["own"] = torch.full((2,), float(RANK))
state["step"], state["rank"] = 3, RANK
tied = torch.nn.Parameter(torch.eye(3))
tied.tensor_model_parallel = True
state["marked"], whole["marked"] = tied, torch.eye(3)
path = OUT / "global_step_3" / "actor" / f"model_world_size_4_rank_{RANK}.pt"
torch.save(state, path)
for kind in ("optim", "extra_state"):
    torch.save({"step": 3}, path.with_name(f"{kind}_world_size_4_rank_{RANK}.pt"))
torch.save({"step": 3}, OUT / "global_step_3" / "data.pt")
if RANK == 0:
    torch.save(whole, OUT / "whole.pt")
"""


@pytest.fixture(scope="session")
def rank_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks wrote, cut in many ways, and ``whole.pt`` with what torch makes of it."""
    return built_once(tmp_path_factory, "rank-files", lambda out: run_ranks(4, out, SETS))


def read(path: Path) -> Checkpoint:
    store = open_store(str(path))
    files = list_files(store, "", None, lambda _: False)
    parts = read_files(store, "", files, holdings(files, layout("verl").rules))
    return next(one.checkpoint for one in parts if one.role == "actor")


def checks_of(done: Ended) -> set[str]:
    """Name the checks that found something."""
    (one,) = done.json()["checkpoints"]
    return {finding["check"] for finding in one["report"]["findings"]}


def test_pieces_of_all_ranks_are_put_together_as_torch_does(
    rank_files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run("convert", rank_files / "global_step_3", "--out", out, "--to", "safetensors")
    assert done.code == 0, done.stdout + done.stderr
    from safetensors.torch import load_file

    found = load_file(out / "model.safetensors")
    whole = torch.load(rank_files / "whole.pt")
    for name, value in whole.items():
        assert torch.equal(found[f"actor.{name}"], value.detach()), name
    for rank in range(4):  # what differs keeps its rank
        assert torch.equal(found[f"rank_{rank}.actor.own"], torch.full((2,), float(rank)))
    assert len(found) == len(whole) + 4


def test_what_is_equal_on_all_ranks_is_one_and_what_differs_is_each_ranks_own(
    rank_files: Path,
) -> None:
    found = read(rank_files / "global_step_3")
    assert not found.faults
    assert "actor.step" in found.values and "actor.rank" not in found.values
    assert [found.values[f"rank_{rank}.actor.rank"] for rank in range(4)] == [0, 1, 2, 3]
    assert len(found.value_files["actor.step"]) == 4
    hsdp = found.entries["actor.hsdp"]
    assert isinstance(hsdp, TensorEntry) and len(hsdp.boxes) == 2
    assert [item.path for item in found.copies if item.fqn == "actor.hsdp"] == [
        "actor/model_world_size_4_rank_2.pt",
        "actor/model_world_size_4_rank_3.pt",
    ]


def test_a_whole_set_verifies_and_a_missing_rank_is_a_hole(
    rank_files: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "global_step_3"
    shutil.copytree(rank_files / "global_step_3", copy)
    done = run("verify", copy)
    assert done.code == 0, done.stdout
    (copy / "actor" / "model_world_size_4_rank_2.pt").unlink()
    done = run("verify", copy, "--json")
    checks = checks_of(done)
    assert done.code == 10 and {"missing-file", "hole"} <= checks


def test_swapped_ranks_are_told_by_what_the_mesh_says(rank_files: Path, tmp_path: Path) -> None:
    copy = tmp_path / "global_step_3"
    shutil.copytree(rank_files / "global_step_3", copy)
    first, last = (copy / "actor" / f"model_world_size_4_rank_{rank}.pt" for rank in (0, 3))
    first.rename(copy / "aside")
    last.rename(first)
    (copy / "aside").rename(last)
    done = run("verify", copy, "--json")
    checks = checks_of(done)
    assert done.code == 10 and "misplaced-file" in checks
