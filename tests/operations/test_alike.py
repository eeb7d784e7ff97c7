"""A verification that passes items by templates finds the same as one that looks at each with care."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckptctl.formats.items.templates import Lane
from ckptctl.operations.find import find
from ckptctl.operations.located import Located
from ckptctl.operations.provenance.collect import Collector
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, Verification, examine, verify
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.damage import edited, save_with_torch

torch = pytest.importorskip("torch")

CASES = ["fsdp2/step-12", "hsdp/step-12", "file_per_item/step-12", "zstd/step-12", "no_crc/step-1"]
LOOKS: dict[str, dict[str, Any]] = {
    "content": {},
    "quick": {"quick": True},
    "values": {"values": True},
    "part": {"part": (1, 2)},
    "sample": {"sample": 0.3},
    "values of a sample": {"sample": 0.3, "values": True},
    "structure alone": {"select": frozenset({"item-structure"})},
    "without CRCs": {"ignore": frozenset({"checksum", "stored-checksum"})},
}


def looked(path: Path, **options: Any) -> Verification:
    """Verify a checkpoint with one worker."""
    store = open_store(path)
    (place,) = find(store)
    random.seed(3)  # so that two samples are the same
    return verify(store, place, options=Options(workers=1, **options))


def both(path: Path, patch: pytest.MonkeyPatch, **options: Any) -> tuple[Verification, int]:
    """Verify by templates and with care; return what both found, and how many were passed."""
    passed = []
    count = Lane._count
    with patch.context() as one:
        one.setattr(Lane, "_count", lambda *args: passed.append(args) or count(*args))
        alike = looked(path, **options)
    with patch.context() as other:
        other.setattr(Lane, "_like", lambda *_: (None, 0))
        careful = looked(path, **options)
    assert alike == careful
    return careful, len(passed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty tensors of three forms, one of them larger than what a quick look reads whole."""
    state = {}
    for number in range(60):
        shape = ((4,), (3, 2), (96, 64))[number % 3]
        dtype = (torch.float32, torch.bfloat16, torch.float32)[number % 3]
        state[f"model.layers.{number}.weight"] = torch.rand(shape).to(dtype)
    path = tmp_path_factory.mktemp("alike") / "run" / "step-1"
    save_with_torch(path, state)
    return path


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("look", LOOKS)
def test_of_fixtures_both_say_the_same(
    case: str, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(FIXTURES / case, monkeypatch, **LOOKS[look])


@pytest.mark.parametrize("look", LOOKS)
def test_most_items_are_passed(saved: Path, look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result, passed = both(saved, monkeypatch, **LOOKS[look])
    assert result.verdict is Verdict.UNVERIFIED
    assert passed >= 60 - 3 * 2 * (1 + ("sample" in look))  # of each file, one unit each


@pytest.mark.parametrize("look", ["content", "quick", "values"])
def test_of_damage_both_say_the_same(
    saved: Path, look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    accused = 0
    whole = (saved / "__0_0.distcp").read_bytes()
    for number in range(40):
        path = tmp_path / str(number) / "step-1"
        shutil.copytree(saved, path)
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at, kind = rng.randrange(len(data)), rng.randrange(4)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            elif kind == 2:
                other = rng.randrange(len(data) - 2000)
                data[other : other + 1577] = whole[at : at + 1577].ljust(1577, b"\0")
            else:
                data[at : at + 2] = data[at : at + 2][::-1]
        (path / "__0_0.distcp").write_bytes(data)
        result, passed = both(path, monkeypatch, **LOOKS[look])
        accused += bool(result.findings)
        assert passed
    assert accused > (5 if look == "quick" else 20)  # a quick look does not see payloads


@pytest.mark.parametrize("dtype", [torch.float16, torch.int16])
def test_another_dtype_in_the_metadata_is_told_of_each_item(
    dtype: Any, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Floats of another dtype are counted; anything else is found."""
    path = tmp_path / "step-1"
    shutil.copytree(saved, path)
    with edited(path) as metadata:
        for entry in metadata.state_dict_metadata.values():
            if entry.properties.dtype == torch.bfloat16:
                entry.properties.dtype = dtype
    result, passed = both(path, monkeypatch)
    found = [one for one in result.findings if one.check in ("item-mismatch", "cast-item")]
    if dtype is torch.int16:
        assert [one.check for one in found] == ["item-mismatch"] * 20
        assert passed == 36
    else:
        assert len(found) == 1
        assert "and so do 19 more items" in found[0].message
        assert passed == 54


def test_numbers_that_are_not_finite_are_found_in_items_that_are_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"model.{number}.weight": torch.rand(8, 8) for number in range(30)}
    state["model.20.weight"][3, 4] = torch.nan
    state["model.21.weight"][0, 0] = torch.inf
    state["model.22.weight"][:] = 1e30
    path = tmp_path / "step-1"
    save_with_torch(path, state)
    result, passed = both(path, monkeypatch, values=True)
    assert passed == 28
    assert [one.check for one in result.findings][:3] == ["nan-value", "nan-value", "huge-value"]
    quiet, _ = both(path, monkeypatch)
    assert quiet.findings == ()


def test_who_wrote_the_items_that_were_passed_is_known_of_every_file(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collector, "offsets", frozenset())
    path = tmp_path / "step-1"
    shutil.copytree(saved, path)
    shutil.copy(path / "__0_0.distcp", path / "__1_0.distcp")
    with edited(path) as metadata:
        for number, place in enumerate(metadata.storage_data.values()):
            if number >= 30:
                place.relative_path = "__1_0.distcp"
    store = open_store(path)
    (place,) = find(store)
    work = examine(Located(store, place), Options(workers=1))
    assert work.collected is not None
    assert work.collected.makers == {
        f"__{rank}_0.distcp": frozenset({"2.7 or later"}) for rank in (0, 1)
    }
