"""The contract of layouts, kept by those whose tensors lie in DCP directories that are parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ckptctl.formats import registry
from conftest import FIXTURES
from contracts.layout import LayoutContract


def copy_part(path: Path, step: int) -> None:
    shutil.copytree(FIXTURES / "fsdp2" / f"step-{step}", path)


class TestHuggingFaceFsdp(LayoutContract):
    layout = registry.layout("huggingface-fsdp")

    def write(self, path: Path, step: int) -> None:
        """Write two parts that have all their keys in common."""
        copy_part(path / "pytorch_model_fsdp_0", step)
        copy_part(path / "optimizer_0", step)
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        for name in ("scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
            shutil.copy(next((path / "optimizer_0").glob("*.distcp")), path / name)


class TestOlmoCore(LayoutContract):
    layout = registry.layout("olmo-core")

    def write(self, path: Path, step: int) -> None:
        copy_part(path / "model_and_optim", step)
        (path / ".metadata.json").write_text('{"version": "3.0.0"}')
        (path / "train").mkdir()
        for rank in range(4):
            shutil.copy(
                next((path / "model_and_optim").glob("*.distcp")), path / f"train/rank{rank}.pt"
            )


class TestNeMo(LayoutContract):
    layout = registry.layout("nemo")

    def write(self, path: Path, step: int) -> None:
        copy_part(path / "weights", step)
        (path / "context").mkdir()
        (path / "context" / "model.yaml").write_text("x: 1\n")


class TestLightningFolders(LayoutContract):
    layout = registry.layout("lightning-dcp")

    def write(self, path: Path, step: int) -> None:
        copy_part(path, step)
        shutil.copy(next(path.glob("*.distcp")), path / "meta.pt")


class TestMegatron(LayoutContract):
    layout = registry.layout("megatron")

    def write(self, path: Path, step: int) -> None:
        copy_part(path, step)
        (path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
