"""The contract of layouts, kept by those whose tensors lie in files of ``torch.save`` or safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ckptctl.formats import registry
from contracts.layout import LayoutContract
from support import companions

NAMES = ("net.0.weight", "net.0.bias", "net.2.weight")
SHAPES = ((16, 8), (16,), (4, 16))


def weights(step: int) -> dict[str, torch.Tensor]:
    """Return a model that differs from step to step."""
    made = torch.Generator().manual_seed(step)
    shaped = zip(NAMES, SHAPES, strict=True)
    return {name: torch.randn(shape, generator=made) for name, shape in shaped}


def adam(step: int) -> dict[str, Any]:
    """Return the state of an Adam that took so many steps, as it is pickled."""
    made = torch.Generator().manual_seed(100 + step)
    state = {
        number: {
            "step": torch.tensor(float(step)),
            "exp_avg": torch.randn(shape, generator=made),
            "exp_avg_sq": torch.rand(shape, generator=made),
        }
        for number, shape in enumerate(SHAPES)
    }
    return {"state": state, "param_groups": [{"lr": 0.1, "params": list(state)}]}


def everything(step: int) -> dict[str, Any]:
    """Return a whole training state as many scripts save it."""
    return {
        "model": weights(step),
        "optimizer": adam(step),
        "scheduler": companions.schedule(step),
        "step": step,
    }


class TestHuggingFace(LayoutContract):
    layout = registry.layout("huggingface")

    def write(self, path: Path, step: int) -> None:
        """Write what the Trainer saves on two ranks with DDP."""
        path.mkdir(parents=True)
        save_file(weights(step), path / "model.safetensors")
        torch.save(adam(step), path / "optimizer.pt")
        companions.trainer(path, step, ranks=2)


class TestAccelerate(LayoutContract):
    layout = registry.layout("huggingface")

    def write(self, path: Path, step: int) -> None:
        """Write what accelerate saves with weights in the older form."""
        path.mkdir(parents=True)
        torch.save(weights(step), path / "pytorch_model.bin")
        torch.save(adam(step), path / "optimizer.bin")
        companions.accelerate(path, step, ranks=2)


class TestVerl(LayoutContract):
    layout = registry.layout("verl")
    template = "global_step_{}"

    def write(self, path: Path, step: int) -> None:
        """Write what one rank saves."""
        (path / "actor").mkdir(parents=True)
        torch.save(weights(step), path / "actor" / "model_world_size_1_rank_0.pt")
        torch.save(adam(step), path / "actor" / "optim_world_size_1_rank_0.pt")
        extra = {"lr_scheduler": companions.schedule(step), "rng": companions.rng_state(0)}
        torch.save(extra, path / "actor" / "extra_state_world_size_1_rank_0.pt")
        torch.save({"_snapshot": {"_snapshot_step": step}}, path / "data.pt")


class TestTorchCheckpointing(LayoutContract):
    layout = registry.layout("torch-checkpointing")

    def write(self, path: Path, step: int) -> None:
        """Write three items of two ranks: it saves to a stream, so that no name is inside."""
        path.mkdir(parents=True)
        items = {"model": weights(step), "optimizer": adam(step), "train_state": {"step": step}}
        for item, state in items.items():
            for rank in range(2):
                with (path / f"{item}_{rank}.pt").open("wb") as file:
                    torch.save(state, file)


class TestLightningFiles(LayoutContract):
    without_it = 4
    layout = registry.layout("lightning")
    template = "step={}.ckpt"

    def write(self, path: Path, step: int) -> None:
        """Write one file, to a stream as Lightning does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "epoch": 0,
            "global_step": step,
            "pytorch-lightning_version": "2.6.6",
            "state_dict": weights(step),
            "optimizer_states": [adam(step)],
            "lr_schedulers": [companions.schedule(step)],
        }
        with path.open("wb") as file:
            torch.save(state, file)


class TestComposer(LayoutContract):
    without_it = 4
    layout = registry.layout("composer")
    template = "ep0-ba{}-rank0.pt"

    def write(self, path: Path, step: int) -> None:
        """Write one file, to a stream as Composer does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        named = {name: adam(step)["state"][number] for number, name in enumerate(NAMES)}
        state = {
            "state": {
                "model": weights(step),
                "optimizers": {"AdamW": {"state": named, "param_groups": [{"lr": 0.1}]}},
            },
            "rng": [companions.rng_state(0)],
        }
        with path.open("wb") as file:
            torch.save(state, file)


class TestTorchFiles(LayoutContract):
    without_it = 0  # nothing says which files there should be
    layout = registry.layout("torch")

    def write(self, path: Path, step: int) -> None:
        """Write one file for all and one for each rank."""
        path.mkdir(parents=True)
        torch.save(everything(step), path / "checkpoint.pt")
        for rank in range(2):
            torch.save(companions.rng_state(rank), path / f"rng_rank{rank}.pt")


class TestSingleFiles(LayoutContract):
    without_it = 4
    layout = registry.layout("torch")
    template = "model-step-{}.pt"

    def write(self, path: Path, step: int) -> None:
        """Write one file for all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(everything(step), path)


class TestLegacyFiles(LayoutContract):
    without_it = 4
    layout = registry.layout("torch")
    template = "model-step-{}.pt"
    needs_crcs = False

    def write(self, path: Path, step: int) -> None:
        """Write one file as torch did before 1.6: without any CRC."""
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(everything(step), path, _use_new_zipfile_serialization=False)


class TestTorchSnapshot(LayoutContract):
    layout = registry.layout("torchsnapshot")
    needs_crcs = False

    def write(self, path: Path, step: int) -> None:
        """Write what one rank saves: a manifest, tensors in one file, an object in another."""
        (path / "batched").mkdir(parents=True)
        manifest: dict[str, Any] = {"0/model": {"type": "OrderedDict", "keys": list(NAMES)}}
        data = bytearray()
        for name, tensor in weights(step).items():
            raw = tensor.numpy().tobytes()
            manifest[f"0/model/{name}"] = {
                "type": "Tensor",
                "location": "batched/one",
                "serializer": "buffer_protocol",
                "dtype": "torch.float32",
                "shape": list(tensor.shape),
                "replicated": False,
                "byte_range": [len(data), len(data) + len(raw)],
            }
            data += raw
        (path / "batched" / "one").write_bytes(data)
        manifest["0/progress"] = {"type": "dict", "keys": ["step"]}
        manifest["0/progress/step"] = {
            "type": "int",
            "serialized_value": str(step),
            "replicated": False,
        }
        document = {"version": "0.1.0", "world_size": 1, "manifest": manifest}
        (path / ".snapshot_metadata").write_text(json.dumps(document, indent=2))
