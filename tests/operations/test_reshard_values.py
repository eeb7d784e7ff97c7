"""Whatever is cut into whatever: torch reads from the result what it saved."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.operations.content.proof import ProofBy
from ckptctl.operations.reshard import write
from ckptctl.operations.reshard.options import ReshardOptions
from ckptctl.operations.reshard.plan import Request
from ckptctl.operations.reshard.reshard import reshard
from ckptctl.sharding.cuts import DimRule
from ckptctl.sharding.mesh import Mesh, parts
from ckptctl.sharding.rank_policy import Policy
from support.sharded import same, save

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

KEEP = {"rng": Policy.KEEP, "data": Policy.KEEP}
DTYPES = ("float32", "bfloat16", "float64", "int8", "bool", "complex128", "float16", "int64")


def turned(part: Any) -> Any:
    """Store a part with its dimensions the other way round in memory."""
    order = tuple(reversed(range(part.ndim)))
    return part.permute(order).contiguous().permute(order)


def inside(part: Any) -> Any:
    """Store a part as a view into the middle of a larger storage."""
    around = torch.zeros(part.numel() + 7, dtype=part.dtype)
    around[3 : 3 + part.numel()] = part.reshape(-1)
    return around[3 : 3 + part.numel()].view(part.shape)


STORED: tuple[Callable[[Any], Any], ...] = (same, turned, inside)


@st.composite
def cuts(draw: st.DrawFn, ndim: int) -> tuple[Mesh, dict[str, int]]:
    """A mesh of one or two axes, and the dimension that each cuts, or none."""
    names = draw(st.sampled_from([("dp",), ("tp",), ("dp", "tp")]))
    mesh = Mesh(names, tuple(draw(st.integers(1, 5)) for _ in names))
    dims = {name: draw(st.integers(-1, ndim - 1)) for name in names}
    return mesh, {name: dim for name, dim in dims.items() if dim >= 0}


def bits(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """A tensor of random bits, so that every byte tells where it came from."""
    kind = getattr(torch, dtype)
    if not math.prod(shape):
        return torch.empty(shape, dtype=kind)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=torch.manual_seed(seed)).to(torch.bool)
    width = torch.empty((), dtype=kind).element_size()
    size = (math.prod(shape) * width,)
    data = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.manual_seed(seed))
    return data.view(kind).reshape(shape)


def equal(one: Any, other: Any) -> bool:
    """Compare bits: a number that is none equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.numel():
        return True
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)))


@settings(max_examples=40)
@given(data=st.data())
def test_torch_reads_from_the_result_what_was_saved(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 6), label="ranks")
    saved: dict[str, Any] = {}
    rules: list[DimRule] = []
    meshes = [Mesh(("dp",), (ranks,))]
    if ranks % 2 == 0:
        meshes.append(Mesh(("dp", "tp"), (ranks // 2, 2)))
    mesh = data.draw(st.sampled_from(meshes), label="mesh")
    for name in ("a", "b", "c")[: data.draw(st.integers(1, 3))]:
        shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=4), label=f"shape of {name}"))
        tensor = bits(data.draw(st.sampled_from(DTYPES)), shape, len(saved))
        before, dims = data.draw(cuts(len(shape)), label=f"cuts of {name}")
        saved[name] = (tensor, [part.box for part in parts(shape, before, dims)])
        after = {axis: data.draw(st.integers(-1, len(shape) - 1)) for axis in mesh.names}
        rules.append(DimRule(name, {axis: dim for axis, dim in after.items() if dim >= 0}))
    stored = data.draw(st.sampled_from(STORED), label="stored")
    proof = data.draw(st.sampled_from(["digest", "crc"]), label="proof")
    band = data.draw(st.sampled_from([16, 64, 4 << 20]), label="band")
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "_BAND", band)
        patch.setattr(write, "_WORTH_SHARING", 32)
        source, target = Path(place, "a"), Path(place, "b")
        save(source, saved, stored=stored)
        request = Request(ranks, mesh=mesh, rules=rules, policies=KEEP)
        options = ReshardOptions(request, workers=2, proof=ProofBy(proof))
        assert reshard(str(source), str(target), options=options).proven_by == proof
        found = {fqn: torch.zeros_like(tensor) for fqn, (tensor, _) in saved.items()}
        dcp.load(found, checkpoint_id=str(target), no_dist=True)
        for fqn, (tensor, _) in saved.items():
            assert equal(found[fqn], tensor), fqn
