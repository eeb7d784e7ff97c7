"""What frameworks put beside the tensors, small, of a step of one's choice: written as they write it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch


def rng_state(rank: int) -> dict[str, object]:
    """Return what a trainer keeps of its generators."""
    return {"cpu": torch.manual_seed(rank).get_state(), "python": (3, tuple(range(625)), None)}


def schedule(step: int) -> dict[str, object]:
    """Return the state of a scheduler of torch's that took so many steps."""
    return {"last_epoch": step, "_step_count": step + 1, "_last_lr": [0.1]}


def trainer(path: Path, step: int, *, ranks: int = 2) -> None:
    """Write what the Trainer puts beside the parts of a sharded FSDP checkpoint."""
    state = {"global_step": step, "epoch": step / 16, "log_history": []}
    (path / "trainer_state.json").write_text(json.dumps(state))
    torch.save(schedule(step), path / "scheduler.pt")
    for rank in range(ranks):
        torch.save(rng_state(rank), path / f"rng_state_{rank}.pth")


def olmo(path: Path, step: int, *, ranks: int) -> None:
    """Write what OLMo-core puts beside ``model_and_optim``."""
    (path / ".metadata.json").write_text('{"version": "3.0.0"}')
    (path / "train").mkdir()
    for rank in range(ranks):
        state = {"global_step": step, "epoch": 1, "rng": rng_state(rank)}
        torch.save(state, path / "train" / f"rank{rank}.pt")


def lightning(path: Path, step: int) -> None:
    """Write what Lightning puts beside the shards: it saves to a stream, so its name is not inside."""
    state = {"global_step": step, "epoch": 1, "lr_schedulers": [schedule(step)]}
    with (path / "meta.pt").open("wb") as file:
        torch.save({**state, "pytorch-lightning_version": "2.6.6"}, file)


def megatron(path: Path, step: int, *, common: bool = True) -> None:
    """Write what Megatron puts beside the shards, with the common file of before 0.19 or without."""
    said = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    if common:
        said |= {"common_backend": "torch", "common_backend_version": 1}
        torch.save({"iteration": step, "args": {"seed": 1}}, path / "common.pt")
    (path / "metadata.json").write_text(json.dumps(said))


def digests(path: Path) -> None:
    """Write the digests of all other files, as Megatron does where it is told to."""
    files = {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()
        for one in sorted(path.iterdir())
        if one.is_file()
    }
    (path / "integrity.json").write_text(json.dumps({"algorithm": "sha256", "files": files}))


def accelerate(path: Path, step: int, *, ranks: int) -> None:
    """Write what accelerate puts beside the parts: its schedule takes a step for each rank."""
    torch.save(schedule(step * ranks), path / "scheduler.bin")
    torch.save({"step": step * 7}, path / "custom_checkpoint_0.pkl")
    for rank in range(ranks):
        torch.save({"step": 0, **rng_state(rank)}, path / f"random_states_{rank}.pkl")
