"""What reshard writes is what torch loads: bit for bit, on any number of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptctl.formats.dcp import reader as dcp
from ckptctl.formats.items.storage import locate_tensor
from ckptctl.operations.reshard.options import ReshardOptions
from ckptctl.operations.reshard.plan import Request
from ckptctl.operations.reshard.reshard import reshard
from ckptctl.storage.posix import PosixStore
from support.gloo import NAMES, run_ranks
from support.shared import built_once

pytest.importorskip("torch")
COUNTS = (1, 2, 3, 4, 5, 8)

LOAD = '''
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

MESH = DeviceMesh("cpu", list(range(WORLD_SIZE)))


def poisoned(value, cut):
    """The same shape on all ranks, every element of a value that no tensor has."""
    bad = torch.full_like(value, 77)
    return distribute_tensor(bad, MESH, [Shard(0)]) if cut and value.ndim else bad


def load(path, full, cut):
    state = {key: poisoned(value, cut) for key, value in full.items()}
    state["train"] = {"step": -1, "name": "poison"}
    dcp.load(state, checkpoint_id=path)
    return {
        key: value.full_tensor() if isinstance(value, DTensor) else value
        for key, value in state.items()
    }


def wrong(path, full, cut=True):
    """The keys whose loaded bits are not those of the whole state."""
    found = load(path, full, cut)
    bad = [k for k, v in full.items() if not torch.equal(found[k].view(torch.uint8) if v.ndim
           else found[k], v.view(torch.uint8) if v.ndim else v)]
    if found["train"] != {"step": 7, "name": "x"}:
        bad.append("train")
    return bad


full = torch.load(f"{OUT}/full.pt")
for line in Path(f"{OUT}/wanted").read_text().split():
    bad = wrong(line, full)
    if RANK == 0:
        print(line, *bad, flush=True)
'''


@pytest.fixture(scope="session")
def resharded(layouts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Each of them at each number of ranks."""

    def build(out: Path) -> None:
        for path in paths_in(out):
            name, _, count = path.parent.name.partition("-for-")
            options = ReshardOptions(Request(int(count)), workers=2)
            result = reshard(str(layouts / name / "step-7"), str(path), options=options)
            assert result.ranks == int(count) and result.manifest

    return paths_in(built_once(tmp_path_factory, "resharded", build))


def paths_in(out: Path) -> list[Path]:
    return [out / f"{name}-for-{count}" / "step-7" for name in NAMES for count in COUNTS]


def loaded(out: Path, ranks: int, layouts: Path, paths: list[Path]) -> dict[Path, list[str]]:
    """Load checkpoints on so many ranks; return the keys that are not as they were."""
    (out / "full.pt").symlink_to(layouts / "full.pt")
    (out / "wanted").write_text("\n".join(map(str, paths)))
    lines = (line.split() for line in run_ranks(ranks, out, LOAD).splitlines())
    found = {Path(words[0]): words[1:] for words in lines if words}
    assert set(found) == set(paths)
    return found


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_torch_loads_every_layout_for_every_number_of_ranks(
    layouts: Path, resharded: list[Path], tmp_path: Path, ranks: int
) -> None:
    assert {
        path: bad for path, bad in loaded(tmp_path, ranks, layouts, resharded).items() if bad
    } == {}


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.quick), 4, 8])
def test_torch_loads_what_was_made_for_its_own_number_of_ranks(
    layouts: Path, resharded: list[Path], tmp_path: Path, ranks: int
) -> None:
    own = [path for path in resharded if path.parent.name.endswith(f"-for-{ranks}")]
    assert {path: bad for path, bad in loaded(tmp_path, ranks, layouts, own).items() if bad} == {}


def test_a_wrong_byte_would_have_been_seen(
    layouts: Path, resharded: list[Path], tmp_path: Path
) -> None:
    """The negative control: one bit of one payload, which torch itself does not notice."""
    path = tmp_path / "step-7"
    shutil.copytree(resharded[0], path)
    store = PosixStore(path)
    items = dcp.read(store, "").items
    item = items[items.fqns.index("model.embed.weight")]
    with store.open(item.path) as reader:
        place = locate_tensor(reader, item).start
    shard = path / item.path
    damaged = bytearray(shard.read_bytes())
    damaged[place] ^= 1
    shard.write_bytes(damaged)
    assert loaded(tmp_path, 1, layouts, [path])[path] == ["model.embed.weight"]
