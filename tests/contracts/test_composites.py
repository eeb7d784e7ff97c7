"""The contract of layouts, kept by those whose tensors lie in DCP directories that are parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptctl.formats import registry
from ckptctl.operations.find import find
from ckptctl.storage import open_store
from conftest import FIXTURES
from contracts.layout import LayoutContract
from support import companions
from support.cli import run


def copy_part(path: Path, step: int) -> None:
    shutil.copytree(FIXTURES / "fsdp2" / f"step-{step}", path)


class TestHuggingFaceFsdp(LayoutContract):
    layout = registry.layout("huggingface-fsdp")

    def write(self, path: Path, step: int) -> None:
        """Write two parts that have all their keys in common."""
        copy_part(path / "pytorch_model_fsdp_0", step)
        copy_part(path / "optimizer_0", step)
        companions.trainer(path, step, ranks=4)


class TestOlmoCore(LayoutContract):
    layout = registry.layout("olmo-core")

    def write(self, path: Path, step: int) -> None:
        copy_part(path / "model_and_optim", step)
        companions.olmo(path, step, ranks=4)


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
        companions.lightning(path, step)


class TestMegatron(LayoutContract):
    layout = registry.layout("megatron")

    def write(self, path: Path, step: int) -> None:
        copy_part(path, step)
        companions.megatron(path, step)


def test_parts_are_not_resharded_but_converted(tmp_path: Path) -> None:
    source, out = tmp_path / "run" / "step-12", tmp_path / "out" / "step-12"
    TestOlmoCore().write(source, 12)
    ended = run("reshard", source, "--world-size", "2", "--out", out)
    assert ended.code == 5
    assert "made of parts" in ended.stderr and "ckptctl convert" in ended.stderr
    ended = run("convert", source, "--to", "dcp", "--world-size", "2", "--out", out)
    assert ended.code == 0, ended.stderr
    assert run("verify", out).code == 0


@pytest.mark.parametrize("made", [TestMegatron, TestLightningFolders])
def test_a_dcp_directory_with_companions_is_resharded(
    made: type[LayoutContract], tmp_path: Path
) -> None:
    source, out = tmp_path / "run" / "step-12", tmp_path / "out" / "step-12"
    made().write(source, 12)
    options = ("--world-size", "2", "--rng", "drop", "--data", "drop")
    ended = run("reshard", source, *options, "--out", out)
    assert ended.code == 0, ended.stderr
    (place,) = [one for one in find(open_store(str(tmp_path / "out"))) if one.path]
    assert place.format == made.layout.name
