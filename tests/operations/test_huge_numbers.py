"""Numbers that no float can hold: a state may have them, and they count no steps."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from ckptctl.formats.pickles.stand_ins import anatomy
from conftest import FIXTURES
from support.cli import run

dcp = pytest.importorskip("torch.distributed.checkpoint")
HUGE = 2**2000


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A checkpoint whose counters are all huge."""
    state = {
        "dataloader": {"dp_rank_0": {"position": HUGE}},
        "train_state": {"step": HUGE, "samples": (HUGE, -HUGE)},
        "lr_scheduler": {"last_epoch": HUGE, "_step_count": HUGE},
        "optimizer": {"param_groups": [{"lr": HUGE, "step": HUGE}], "state": {0: {"step": HUGE}}},
    }
    path = tmp_path / "run" / "step-12"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(path), no_dist=True)
    return path


def test_no_command_fails_of_them(huge: Path, tmp_path: Path) -> None:
    other = FIXTURES / "no_dist/step-12"
    words = ("--world-size", "2", "--rng", "drop", "--data", "drop", "--yes")
    for command in (
        ["verify", huge],
        ["show", huge],
        ["resolve", huge.parent, "--allow-uncommitted"],
        ["prune", huge.parent, "--keep-last", "1"],
        ["diff", huge, other],
        ["diff", other, huge, "--json"],
        ["convert", huge, "--to", "torch", "--out", tmp_path / "o.pt"],
        ["reshard", huge, "--out", tmp_path / "r", *words],
        ["commit", huge],
    ):
        ended = run(*command)
        assert ended.code != 1, (command, ended.stderr)
    assert "B is more than 2^512" in run("diff", other, huge).stdout


def test_ranks_that_saved_very_many_digits_are_compared() -> None:
    values = [anatomy(one) for one in (10**5000, 10**5000, 10**5000 + 1)]
    assert values[0] == values[1] != values[2]
