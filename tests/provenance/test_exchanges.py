"""Two ranks' files under each other's names: nothing in them says so, their numbers do."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ckptctl.api import verify
from ckptctl.model.result.verdict import Verdict
from support import damage
from support.cli import run

FILES = ("__0_0.distcp", "__1_0.distcp")


@pytest.fixture
def training(tmp_path: Path) -> Callable[..., Path]:
    """Return what makes a run of two ranks whose files have the same keys at the same places."""

    def make(*steps: int, moments: bool = True, shape: tuple[int, int] = (64, 32)) -> Path:
        torch.manual_seed(0)
        weight, moment = torch.randn(shape), torch.randn(shape)
        root = tmp_path / "run"
        for step in steps:
            weight = weight - 0.05 * moment
            moment = 0.9 * moment + 0.1 * torch.randn(shape)
            state = {"model": {"w": weight}}
            if moments:
                state["optimizer"] = {"state": {"w": {"exp_avg": moment}}}  # type: ignore[assignment]
            torch.save(state, tmp_path / "whole.pt")
            out = root / f"step-{step}"
            ended = run(
                "convert", tmp_path / "whole.pt", "--to", "dcp", "--world-size", "2", "--out", out
            )
            assert ended.code == 0, ended.stderr
        return root

    return make


def exchange(checkpoint: Path) -> None:
    damage.swap(checkpoint, file=FILES[0], other=FILES[1])


def found(checkpoint: Path) -> list[tuple[str, str, str | None]]:
    result = verify(checkpoint)
    return [
        (one.check, one.severity.word, one.where.file)
        for one in result.findings
        if one.check == "exchanged-shards"
    ]


def test_moments_that_went_with_the_weights_tell_nothing(training: Callable[..., Path]) -> None:
    root = training(8, 12)
    assert found(root / "step-8") == found(root / "step-12") == []
    exchange(root / "step-12")
    assert found(root / "step-12") == [("exchanged-shards", "warning", file) for file in FILES]


def test_of_two_checkpoints_without_moments_either_may_be_the_one(
    training: Callable[..., Path],
) -> None:
    root = training(8, 12, moments=False)
    exchange(root / "step-12")
    for name in ("step-8", "step-12"):
        assert found(root / name) == [("exchanged-shards", "warning", file) for file in FILES]
        assert verify(root / name).verdict is Verdict.SUSPECT
    ended = run("resolve", root, "--allow-uncommitted", "--full")
    assert ended.code == 10
    assert "exchanged-shards" in ended.stdout + ended.stderr


def test_of_three_the_one_that_differs_from_both_is_the_one(training: Callable[..., Path]) -> None:
    root = training(8, 12, 16, moments=False)
    exchange(root / "step-16")
    assert found(root / "step-16") == [("exchanged-shards", "error", file) for file in FILES]
    assert found(root / "step-8") == found(root / "step-12") == []
    ended = run("resolve", root, "--allow-uncommitted", "--full", "--json")
    assert ended.json()["name"] == "step-12"


def test_files_that_changed_their_names_with_the_metadata_are_good(
    training: Callable[..., Path],
) -> None:
    root = training(8, 12, moments=False)
    exchange(root / "step-12")
    with damage.edited(root / "step-12") as metadata:
        for index, where in metadata.storage_data.items():
            other = FILES[1 - FILES.index(where.relative_path)]
            metadata.storage_data[index] = dataclasses.replace(where, relative_path=other)
    assert found(root / "step-12") == []


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_what_does_not_vary_tells_nothing(
    training: Callable[..., Path], tmp_path: Path, value: float
) -> None:
    root = tmp_path / "flat"
    for step in (8, 12):
        torch.save({"model": {"w": torch.full((64, 32), value)}}, tmp_path / "flat.pt")
        out = root / f"step-{step}"
        assert (
            run(
                "convert", tmp_path / "flat.pt", "--to", "dcp", "--world-size", "2", "--out", out
            ).code
            == 0
        )
    exchange(root / "step-12")
    assert found(root / "step-12") == []


def test_what_was_learned_anew_is_not_called_exchanged(training: Callable[..., Path]) -> None:
    root = training(8, moments=False)
    os.rename(root, root.parent / "first")
    torch.manual_seed(99)
    other = training(12, moments=False)
    os.rename(root.parent / "first" / "step-8", other / "step-8")
    assert found(other / "step-12") == []
    assert found(other / "step-8") == []


def test_a_quick_look_reads_no_numbers(training: Callable[..., Path]) -> None:
    root = training(8, 12, moments=False)
    exchange(root / "step-12")
    assert "exchanged-shards" not in run("verify", root / "step-12", "--quick").stdout


def test_sharded_parts_of_a_trainer(samples: Path, tmp_path: Path) -> None:
    import shutil

    root = tmp_path / "run"
    shutil.copytree(samples / "hf/trainer_fsdp2_sharded", root)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    part = root / "checkpoint-6" / "pytorch_model_fsdp_0"
    exchange(part)
    assert {one[:2] for one in found(root / "checkpoint-6")} == {("exchanged-shards", "error")}
    assert found(root / "checkpoint-4") == []
