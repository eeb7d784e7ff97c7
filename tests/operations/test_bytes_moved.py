"""What a reshard reads and writes, counted by the store: each byte of the source once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptctl.model.geometry import Box
from ckptctl.operations.content.digest import digest_content
from ckptctl.operations.content.open import open_tensors
from ckptctl.sharding.mesh import Mesh, parts
from support.cli import run
from support.sharded import Counted, save

torch = pytest.importorskip("torch")

READS = {"crc": 1, "digest": 2}
"""Times that the payload is read: to be written, and before that for the digest of the source."""

_AROUND = 1.15
"""What is read around payloads that are this small: metadata, the ends of items."""


def cut(shape: tuple[int, ...], mesh: dict[str, int], dims: dict[str, int]) -> list[Box]:
    return [part.box for part in parts(shape, Mesh(tuple(mesh), tuple(mesh.values())), dims)]


def source(directory: Path, dims: dict[str, int], mesh: dict[str, int]) -> dict[str, Any]:
    """Two tensors of 1 MiB and a bias, cut over a mesh."""
    made = {
        "model.up.weight": torch.randn(256, 1024),
        "model.down.weight": torch.randn(1024, 256),
        "model.up.bias": torch.randn(1024),
    }
    found = {
        fqn: (
            tensor,
            cut(tuple(tensor.shape), mesh, {a: d for a, d in dims.items() if d < tensor.ndim}),
        )
        for fqn, tensor in made.items()
    }
    save(directory, found)
    return made


ROWS = ({"dp": 4}, {"dp": 0})
COLUMNS = ({"tp": 4}, {"tp": 1})
BOTH = ({"dp": 2, "tp": 2}, {"dp": 0, "tp": 1})


@pytest.mark.parametrize(("ranks", "proof"), [(8, "crc"), (32, "crc"), (8, "digest")])
@pytest.mark.parametrize("before", [ROWS, COLUMNS, BOTH], ids=["rows", "columns", "both"])
@pytest.mark.parametrize(
    "how",
    [
        ("--dim-rule", "*.weight=1", "--dim-rule", "*.bias=0"),
        ("--dim-rule", "*=0"),
        ("--mesh", "dp={},tp=4", "--dim-rule", "*.weight=1", "--dim-rule", "*.bias=replicate"),
    ],
    ids=["columns", "rows", "both"],
)
def test_each_byte_of_the_source_is_read_once_for_all_ranks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[dict[str, int], dict[str, int]],
    how: tuple[str, ...],
    ranks: int,
    proof: str,
) -> None:
    made = source(tmp_path / "a" / "step-1", before[1], before[0])
    payload = sum(tensor.nbytes for tensor in made.values())
    words = [*(word.format(ranks // 4) for word in how), "--proof", proof, "--json"]
    arguments = ("reshard", tmp_path / "a" / "step-1", "--world-size", str(ranks), *words)
    out = tmp_path / "b" / "step-1"
    planned = run(*arguments, "--out", out, "--dry-run").json()
    assert planned["bytes_read"] <= payload * _AROUND
    with monkeypatch.context() as patch:
        counted = Counted(patch)
        done = run(*arguments, "--out", out)
    assert done.code == 0 and done.json()["proven_by"] == planned["proven_by"] == proof
    read = counted.read[str(tmp_path / "a" / "step-1")] / payload
    assert READS[proof] <= read <= READS[proof] + _AROUND - 1
    assert sum(counted.written.values()) == sum(
        file.stat().st_size
        for file in out.iterdir()
        if file.suffix == ".distcp" or file.name == ".metadata"
    )
    found = {row.fqn: row.digest for row in digest_content(open_tensors(str(out))).tensors}
    known = digest_content(open_tensors(str(tmp_path / "a" / "step-1"))).tensors
    assert found == {row.fqn: row.digest for row in known}
