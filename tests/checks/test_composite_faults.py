"""Faults in real checkpoints of composite layouts: what verify says, and that none is handed out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ckptctl.api import verify
from ckptctl.model.finding import Severity
from ckptctl.model.result.verdict import Verdict
from support.cli import run

Fault = Callable[[Path, Path], object]
"""Takes the newest checkpoint and the one before."""


def lost(name: str, new: Path, old: Path) -> None:
    """Delete a file or directory."""
    shutil.rmtree(new / name) if (new / name).is_dir() else (new / name).unlink()


def halved(name: str, new: Path, old: Path) -> None:
    """Cut a file in half."""
    os.truncate(new / name, (new / name).stat().st_size // 2)


def before(name: str, new: Path, old: Path) -> None:
    """Put in what the checkpoint before has."""
    if (old / name).is_dir():
        shutil.copytree(old / name, new / name, dirs_exist_ok=True)
    else:
        shutil.copy(old / name, new / name)


def swapped(one: str, other: str, new: Path, old: Path) -> None:
    """Give two files each other's name."""
    (new / one).rename(new / "aside")
    (new / other).rename(new / one)
    (new / "aside").rename(new / other)


@dataclass(frozen=True)
class Row:
    """A sample with its two checkpoints, a fault, and the check that finds it."""

    sample: str
    new: str
    old: str
    fault: Fault
    check: str
    severity: Severity = Severity.ERROR


HF = ("hf/trainer_fsdp2_sharded", "checkpoint-6", "checkpoint-4")
HF1 = ("hf/trainer_fsdp1_sharded", "checkpoint-6", "checkpoint-4")
PL = ("lightning/fsdp2_modelparallel/checkpoints", "step=6.ckpt", "step=4.ckpt")
LAST = ("lightning/fsdp2_modelparallel/checkpoints", "last.ckpt", "step=4.ckpt")
M16 = ("megatron/v0.16.1_torch_dist_dp2_distopt", "iter_0000006", "iter_0000004")
M19 = ("megatron/v0.19_torch_dist_dp2_distopt", "iter_0000006", "iter_0000004")
SUMS = ("megatron/v0.19_torch_dist_dp2_verify_integrity", "iter_0000006", "iter_0000004")
OLMO = ("olmo_core/fsdp2_w2", "step6", "step4")
MODEL = "pytorch_model_fsdp_0"

TABLE = {
    "hf: the model's directory": Row(*HF, partial(lost, MODEL), "missing-file"),
    "hf: the optimizer's directory": Row(*HF, partial(lost, "optimizer_0"), "missing-file"),
    "hf: the model's metadata": Row(*HF, partial(lost, f"{MODEL}/.metadata"), "missing-metadata"),
    "hf: the schedule": Row(*HF, partial(lost, "scheduler.pt"), "missing-file"),
    "hf: a random state": Row(*HF, partial(lost, "rng_state_1.pth"), "missing-file"),
    "hf: the optimizer of before": Row(*HF, partial(before, "optimizer_0"), "mixed-step"),
    "hf1: the optimizer of before": Row(*HF1, partial(before, "optimizer_0"), "mixed-step"),
    "hf: the model of before": Row(
        *HF, partial(before, MODEL), "suspected-shard", Severity.WARNING
    ),
    "hf: a shard of before": Row(*HF, partial(before, f"{MODEL}/__1_0.distcp"), "foreign-shard"),
    "hf: shards exchanged": Row(
        *HF, partial(swapped, f"{MODEL}/__0_0.distcp", f"{MODEL}/__1_0.distcp"), "exchanged-shards"
    ),
    "hf1: shards exchanged": Row(
        *HF1, partial(swapped, f"{MODEL}/__0_0.distcp", f"{MODEL}/__1_0.distcp"), "exchanged-shards"
    ),
    "hf: the state of before": Row(*HF, partial(before, "trainer_state.json"), "mixed-step"),
    "hf: the schedule of before": Row(*HF, partial(before, "scheduler.pt"), "mixed-step"),
    "hf: the state cut": Row(*HF, partial(halved, "trainer_state.json"), "malformed-companion"),
    "lightning: no meta.pt": Row(*PL, partial(lost, "meta.pt"), "missing-file"),
    "lightning: meta.pt of before": Row(*PL, partial(before, "meta.pt"), "mixed-step"),
    "lightning: meta.pt cut": Row(*PL, partial(halved, "meta.pt"), "item-structure"),
    "lightning: shards of before": Row(*PL, partial(before, "__1_0.distcp"), "mixed-step"),
    "lightning: meta.pt of before under last": Row(*LAST, partial(before, "meta.pt"), "mixed-step"),
    "megatron: no common.pt": Row(*M16, partial(lost, "common.pt"), "missing-file"),
    "megatron: common.pt of before": Row(*M16, partial(before, "common.pt"), "mixed-step"),
    "megatron: common.pt cut": Row(*M16, partial(halved, "common.pt"), "item-structure"),
    "megatron: no marker": Row(*M16, partial(lost, "metadata.json"), "missing-file"),
    "megatron 0.19: no marker": Row(*M19, partial(lost, "metadata.json"), "missing-file"),
    "digests: a shard of before": Row(*SUMS, partial(before, "__1_0.distcp"), "altered-file"),
    "digests: of before": Row(*SUMS, partial(before, "integrity.json"), "altered-file"),
    "digests: cut": Row(*SUMS, partial(halved, "integrity.json"), "malformed-companion"),
    "olmo: one state": Row(*OLMO, partial(lost, "train/rank1.pt"), "missing-file"),
    "olmo: all states": Row(*OLMO, partial(lost, "train"), "missing-file"),
    "olmo: the marker": Row(*OLMO, partial(lost, ".metadata.json"), "missing-file"),
    "olmo: all states of before": Row(*OLMO, partial(before, "train"), "mixed-step"),
    "olmo: the shards of before": Row(*OLMO, partial(before, "model_and_optim"), "mixed-step"),
    "olmo: one weight of before": Row(
        *OLMO,
        partial(before, "model_and_optim/__1_0.distcp"),
        "suspected-shard",
        Severity.WARNING,
    ),
    "olmo: a state cut": Row(*OLMO, partial(halved, "train/rank0.pt"), "item-structure"),
    "olmo: states exchanged": Row(
        *OLMO, partial(swapped, "train/rank0.pt", "train/rank1.pt"), "misplaced-file"
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_fault_is_found_and_not_handed_out(name: str, samples: Path, tmp_path: Path) -> None:
    row, root = TABLE[name], tmp_path / "run"
    shutil.copytree(samples / row.sample, root, symlinks=True)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    row.fault(root / row.new, root / row.old)
    result = verify(root / row.new)
    assert (row.check, row.severity) in {(one.check, one.severity) for one in result.findings}
    wanted = Verdict.FINDINGS if row.severity is Severity.ERROR else Verdict.SUSPECT
    assert result.verdict is wanted
    ended = run("resolve", root, "--allow-uncommitted", "--full", "--json")
    assert ended.code in (0, 10)
    assert ended.code == 10 or ended.json()["name"] != row.new


@pytest.mark.parametrize("sample", sorted({(row.sample, row.new) for row in TABLE.values()}))
def test_what_nothing_happened_to_is_neither_wrong_nor_doubted(
    sample: tuple[str, str], samples: Path
) -> None:
    result = verify(samples / sample[0] / sample[1])
    assert result.verdict is Verdict.UNVERIFIED
    assert {one.severity for one in result.findings} <= {Severity.NOTE}
