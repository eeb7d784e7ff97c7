"""Manifests of torchsnapshot that are not of the form that it writes: findings, and no failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import run

TENSOR = {
    "type": "Tensor",
    "location": "0/w",
    "serializer": "buffer_protocol",
    "dtype": "torch.float32",
    "shape": [2],
    "replicated": False,
}


def manifest(key: str = "0/w", *, world: object = 1, **body: object) -> str:
    return json.dumps({"world_size": world, "manifest": {key: {**TENSOR, **body}}})


ODD = {
    "a type that is a list": manifest(type=["Tensor"]),
    "no type": manifest(type=None),
    "a range of one number": manifest(byte_range=[4]),
    "a range of three": manifest(byte_range=[0, 8, 9]),
    "a range of text": manifest(byte_range="0-8"),
    "a rank of 5,000 digits": manifest(key="9" * 5000 + "/w"),
    "a rank in other digits": manifest(key="\u0663/w"),
    "a shape of 5,000 digits": manifest().replace("[2]", f"[{'9' * 5000}]"),
    "an object without a place": manifest(type="object", location=5),
    "shards that are none": manifest(type="ShardedTensor", shards=[5]),
    "nothing but brackets": '{"world_size": 1, "manifest": [' + "[]," * 200_000 + "[]]}",
    "depth": "[" * 100_000,
}


@pytest.mark.parametrize("name", ODD)
def test_what_torchsnapshot_does_not_write_is_unreadable(tmp_path: Path, name: str) -> None:
    root = tmp_path / "step_6"
    (root / "0").mkdir(parents=True)
    (root / "0/w").write_bytes(bytes(8))
    (root / ".snapshot_metadata").write_text(ODD[name], encoding="utf-8")
    ended = run("verify", root)
    assert ended.code == 10, ended.stderr
    assert run("list", tmp_path, "--check").code == 0


def test_ranks_are_not_counted_up_to_what_a_file_says(tmp_path: Path) -> None:
    root = tmp_path / "step_6"
    (root / "0").mkdir(parents=True)
    (root / "0/w").write_bytes(bytes(8))
    (root / ".snapshot_metadata").write_text(manifest(world=1_000_000), encoding="utf-8")
    ended = run("verify", root, "--json")
    assert ended.code == 10
    assert len(ended.stdout) < 200_000
    assert "(and 999998 more)" in ended.stdout
