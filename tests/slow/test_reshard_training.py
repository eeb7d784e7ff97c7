"""A training run goes on after a reshard, on fewer and on more ranks, as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import run
from support.gloo import run_ranks

pytest.importorskip("torch")
TRAINING = '''
import json

from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

BATCH = 16


def setup():
    torch.manual_seed(11)
    model = nn.Sequential(
        nn.Embedding(21, 12), nn.Linear(12, 30), nn.GELU(), nn.Linear(30, 5), nn.LayerNorm(5),
    )
    mesh = DeviceMesh("cpu", list(range(WORLD_SIZE)))
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def train(model, optimizer, steps):
    """The same samples whatever the number of ranks; return the loss over all of them."""
    losses = []
    for step in steps:
        chance = torch.Generator().manual_seed(100 + step)
        tokens = torch.randint(0, 21, (BATCH,), generator=chance)
        target = torch.randn(BATCH, 5, generator=chance)
        share = BATCH // WORLD_SIZE
        mine = slice(RANK * share, (RANK + 1) * share)
        loss = ((model(tokens[mine]) - target[mine]) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(float(total) / WORLD_SIZE)
    return losses


def whole(model, optimizer):
    """Every tensor of the state, put together."""
    parts, moments = get_state_dict(model, optimizer)
    found = {}

    def walk(value, path):
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}")
        elif isinstance(value, torch.Tensor):
            found[path] = value.full_tensor() if isinstance(value, DTensor) else value

    walk({"model": parts, "optim": moments}, "")
    return found


model, optimizer = setup()
'''

BEFORE = (
    TRAINING
    + """
train(model, optimizer, range(3))
parts, moments = get_state_dict(model, optimizer)
dcp.save({"model": parts, "optim": moments}, checkpoint_id=OUT / "step-3")
state = whole(model, optimizer)
losses = train(model, optimizer, range(3, 8))
if RANK == 0:
    torch.save(state, OUT / "whole.pt")
    (OUT / "losses.json").write_text(json.dumps(losses))
"""
)

AFTER = (
    TRAINING
    + """
train(model, optimizer, range(20, 22))  # makes the optimizer's state, with values that are wrong
parts, moments = get_state_dict(model, optimizer)
dcp.load({"model": parts, "optim": moments}, checkpoint_id=OUT / f"on-{WORLD_SIZE}")
set_state_dict(model, optimizer, model_state_dict=parts, optim_state_dict=moments)
found = whole(model, optimizer)
losses = train(model, optimizer, range(3, 8))
if RANK == 0:
    expected = torch.load(OUT / "whole.pt")
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    (OUT / f"losses-{WORLD_SIZE}.json").write_text(json.dumps(losses))
"""
)


def test_training_goes_on_with_the_same_loss(tmp_path: Path) -> None:
    run_ranks(4, tmp_path, BEFORE)
    expected = json.loads((tmp_path / "losses.json").read_text())
    assert len(set(expected)) == len(expected) == 5
    for ranks in (2, 8):
        ended = run(
            *("reshard", tmp_path / "step-3", "--world-size", str(ranks)),
            *("--out", tmp_path / f"on-{ranks}"),
        )
        assert ended.code == 0, ended.stderr
        run_ranks(ranks, tmp_path, AFTER)
        losses = json.loads((tmp_path / f"losses-{ranks}.json").read_text())
        # only the order in which gradients are summed differs
        assert losses == pytest.approx(expected, rel=2e-5)
