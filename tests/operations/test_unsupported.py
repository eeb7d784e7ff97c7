"""What there is no reader for: left out and named, refused with `strict`, and never called damaged."""

from __future__ import annotations

import io
import shutil
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED
from support import damage
from support.cli import run

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

Copy = Callable[..., Path]
ODD = "model.up.weight"


class Quantized(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor that is two others, as quantizing libraries have them."""

    @staticmethod
    def __new__(cls, data: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data: Any, scale: Any) -> None:
        self.data_, self.scale_ = data, scale

    def __tensor_flatten__(self) -> tuple[list[str], list[Any]]:
        return ["data_", "scale_"], []

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return False if "is_pinned" in str(function) else args[0]


@pytest.fixture
def subclass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with a weight of a subclass of tensors."""
    module = types.ModuleType("quantizing")
    module.Quantized = Quantized  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quantizing", module)
    monkeypatch.setattr(Quantized, "__module__", "quantizing")
    odd = Quantized(torch.arange(12, dtype=torch.int8).view(4, 3), torch.tensor(0.5))
    state = {"model": {"w": torch.ones(4, 3), "up.weight": odd}, "train_state": {"step": 3}}
    torch.serialization.add_safe_globals([Quantized])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state, checkpoint_id=str(tmp_path / "step-3"), no_dist=True)
    finally:
        torch.serialization.clear_safe_globals()
    return tmp_path / "step-3"


@pytest.fixture
def compressed(copy: Copy) -> Path:
    """A checkpoint with a weight that went through an unknown transform."""
    path = copy("no_dist/step-12")
    with damage.edited(path) as metadata:
        for index, place in metadata.storage_data.items():
            if index.fqn == ODD:
                place.transform_descriptors = ["stream.secret/2"]
    return path


@pytest.fixture(params=["subclass", "compressed"])
def odd(request: pytest.FixtureRequest) -> Path:
    """A checkpoint of which one tensor cannot be read."""
    found: Path = request.getfixturevalue(request.param)
    return found


def test_digest_leaves_it_out_and_names_it(odd: Path) -> None:
    ended = run("digest", odd, "--json")
    assert ended.code == 0
    rows = {row["fqn"]: row for row in ended.json()["tensors"]}
    assert rows.pop(ODD)["unsupported"] is True
    assert all(row["digest"] and not row["problem"] for row in rows.values())
    assert f"left out: {ODD}" in run("digest", odd).stderr
    assert ended.json()["tensors_digest"] == ""
    assert run("digest", odd, "--strict").code == 10
    assert run("digest", odd, "--only", ODD).code == 5


@pytest.mark.parametrize("to", ["torch", "safetensors"])
@pytest.mark.parametrize("force", [False, True])
def test_convert_leaves_it_out_and_names_it(
    odd: Path, tmp_path: Path, to: str, *, force: bool
) -> None:
    out, flags = tmp_path / "out.pt", ["--force"] if force else []
    refused = run("convert", odd, "--to", to, "--out", out, "--strict")
    assert refused.code == 10
    assert "without --strict" in refused.stderr
    assert not out.exists()
    ended = run("convert", odd, "--to", to, "--out", out, *flags, "--json")
    assert ended.code == 0
    (left,) = (one for one in ended.json()["left_out"] if one["fqn"] == ODD)
    assert left["reason"].endswith("not supported")
    assert "damage" not in ended.stdout
    assert run("convert", odd, "--to", to, "--only", ODD, "--out", tmp_path / "o").code == 5


def test_reshard_copies_it_as_it_is(odd: Path, tmp_path: Path) -> None:
    ways = ["--rng", "drop", "--data", "drop", "--world-size", "2", "--yes"]
    for number, flags in enumerate(([], ["--force"])):
        ended = run("reshard", odd, "--out", tmp_path / f"r{number}", *ways, *flags, "--json")
        assert ended.code == 0, ended.stderr
        assert "damage" not in ended.stdout
        assert run("diff", odd, tmp_path / f"r{number}", "--only", ODD).code == 0


def test_an_object_that_cannot_be_read_is_copied_too(copy: Copy, tmp_path: Path) -> None:
    path = copy("no_dist/step-12")
    with damage.edited(path) as metadata:
        for index, place in metadata.storage_data.items():
            if index.fqn == "train_state.epoch":
                place.transform_descriptors = ["stream.secret/2"]
    assert run("digest", path).code == 0
    ways = ["--rng", "drop", "--data", "drop", "--world-size", "2", "--yes"]
    assert run("reshard", path, "--out", tmp_path / "r", *ways).code == 0
    assert run("convert", path, "--to", "torch", "--out", tmp_path / "o.pt").code == 0


def test_diff_compares_it_by_its_bytes(odd: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / odd.name
    shutil.copytree(odd, other)
    same = run("diff", odd, other)
    assert same.code == 0, same.stdout
    assert "1 by its bytes" in same.stdout
    with damage.edited(other) as metadata:
        keys = {index.fqn: place for index, place in metadata.storage_data.items()}
        place = keys[ODD]
    shard = bytearray((other / place.relative_path).read_bytes())
    at = shard.index(b"data.pkl", place.offset) + 200
    shard[at] ^= 1
    (other / place.relative_path).write_bytes(shard)
    assert run("diff", odd, other).code != 0


def test_the_same_bytes_of_another_form_are_not_the_same(compressed: Path, copy: Copy) -> None:
    healthy = copy("no_dist/step-12", "healthy")
    ended = run("diff", compressed, healthy)
    assert "not compared" in ended.stdout
    assert "\nthe same" not in ended.stdout


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["a sparse tensor", "a quantized one", "a tuple"])
def test_a_file_of_what_cannot_be_read(tmp_path: Path, what: str) -> None:
    odd = {
        "a sparse tensor": lambda: torch.eye(3).to_sparse(),
        "a quantized one": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "a tuple": lambda: (1, torch.ones(2)),
    }[what]()
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3), "odd": odd}, path)
    ended = run("digest", path)
    assert ended.code == 0
    assert "left out: odd" in ended.stderr
    assert run("digest", path, "--strict").code == 10
    assert run("convert", path, "--to", "safetensors", "--out", tmp_path / "st").code == 0
    shutil.copy(path, tmp_path / "other.pt")
    assert run("diff", path, tmp_path / "other.pt").code == 0
    torch.save(odd, path)
    assert run("digest", path).code == 5
    assert run("convert", path, "--to", "safetensors", "--out", tmp_path / "no").code in (5, 10)


def test_a_model_that_was_pickled_as_a_whole_is_read_as_its_state(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    torch.save({"net": model}, tmp_path / "model.pt")
    torch.save({"net": model.state_dict()}, tmp_path / "state.pt")
    ended = run("diff", tmp_path / "model.pt", tmp_path / "state.pt")
    count = len(model.state_dict())
    assert f"{count} of {count} tensors equal" in ended.stdout, ended.stdout


def test_a_file_of_the_older_form_is_read(tmp_path: Path) -> None:
    path, newer = tmp_path / "model.pt", tmp_path / "newer.pt"
    state = {"w": torch.ones(3), "b": torch.arange(4), "tied": [torch.eye(2)]}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    torch.save(state, newer)
    assert run("diff", path, newer).code == 0
    assert "not checked" in run("digest", path).stderr
    out = tmp_path / "st"
    assert run("convert", path, "--to", "safetensors", "--out", out).code == 0
    path.write_bytes(path.read_bytes()[:-1])
    assert run("digest", path).code == 10
    path.write_bytes(b"no zip at all")
    assert run("digest", path).code == 10


def test_the_samples_that_hold_whole_models_are_not_damaged() -> None:
    folder = SHARED / "samples/torch/torch_save_single"
    if not folder.is_dir():
        pytest.skip("no samples here")
    for path in sorted(folder.glob("*.pt")):
        assert run("digest", path).code in (0, 5), path


def test_a_flag_of_a_later_torch_is_no_damage(tmp_path: Path) -> None:
    """Torch passes over flags that it does not know, and a later one may not."""
    path = tmp_path / "step-3"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": torch._neg_view(torch.ones(4))}, checkpoint_id=str(path), no_dist=True)
    (shard,) = path.glob("*.distcp")
    data = shard.read_bytes()
    old = io.BytesIO(data)
    reader = torch._C.PyTorchFileReader(old)
    out = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(out)
    for name in reader.get_all_records():
        if not name.startswith((".data", "version")):
            record = reader.get_record(name).replace(
                b"X\x03\x00\x00\x00neg", b"X\x03\x00\x00\x00new"
            )
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()
    shard.write_bytes(out.getvalue())
    with damage.edited(path) as metadata:
        (place,) = metadata.storage_data.values()
        place.length = len(out.getvalue())
    assert run("verify", path).code == 0
    ended = run("digest", path)
    assert ended.code == 5
    assert "its flag new is not known" in ended.stderr
