"""An object that is replaced between its listing and its reading is unfinished, never a finding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from ckptctl.operations.find import find
from ckptctl.operations.verify.verify import Options, Verdict, verify
from ckptctl.storage.fsspec import ObjectReader, ObjectStore
from conftest import FIXTURES
from support.cli import run
from support.stores import MemoryPlace, fill

SHARD = "step-12/__2_0.distcp"


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    root, system = f"/{uuid4()}", fsspec.filesystem("memory")
    found = MemoryPlace(ObjectStore(f"memory:/{root}"), system, root)
    fill(found, FIXTURES / "fsdp2")
    system.rm(f"{root}/step-8", recursive=True)
    yield found
    system.rm(root, recursive=True)


def _replaced(
    monkeypatch: pytest.MonkeyPatch, place: MemoryPlace, change: Any, *, suffix: str = SHARD
) -> None:
    """Let another writer change an object after it was listed and before its first byte is read."""
    real, done = ObjectStore.open_listed, list[str]()

    def late(store: ObjectStore, path: str, size: int, *, ahead: bool = True) -> ObjectReader:
        if path.endswith(suffix) and not done:
            done.append(path)
            change(f"{place.root}/{SHARD}")
        return real(store, path, size, ahead=ahead)

    monkeypatch.setattr(ObjectStore, "open_listed", late)


def _changes(place: MemoryPlace) -> dict[str, Any]:
    data = (FIXTURES / "fsdp2" / SHARD).read_bytes()
    put = place.system.pipe_file
    return {
        "longer": lambda path: put(path, data + b"more"),
        "one byte longer": lambda path: put(path, data + b"x"),
        "shorter": lambda path: put(path, data[:-1]),
        "much shorter": lambda path: put(path, data[:100]),
        "empty": lambda path: put(path, b""),
        "gone": place.system.rm_file,
    }


@pytest.mark.parametrize(
    "change", ["longer", "one byte longer", "shorter", "much shorter", "empty", "gone"]
)
@pytest.mark.parametrize("quick", [False, True])
def test_another_size_is_no_verdict(
    place: MemoryPlace, monkeypatch: pytest.MonkeyPatch, change: str, *, quick: bool
) -> None:
    _replaced(monkeypatch, place, _changes(place)[change])
    (found,) = find(place.store)
    outcome = verify(place.store, found, options=Options(quick=quick))
    assert outcome.verdict is Verdict.UNFINISHED, outcome
    assert SHARD in outcome.problem


def test_other_bytes_of_the_same_size_are_found(
    place: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray((FIXTURES / "fsdp2" / SHARD).read_bytes())
    data[len(data) // 2] ^= 1
    _replaced(monkeypatch, place, lambda path: place.system.pipe_file(path, bytes(data)))
    (found,) = find(place.store)
    outcome = verify(place.store, found)
    assert outcome.verdict is Verdict.FINDINGS


def test_a_reshard_of_a_source_that_grows_fails(
    place: MemoryPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _replaced(monkeypatch, place, _changes(place)["longer"])
    url = f"memory:/{place.root}/step-12"
    policies = ("--rng", "drop", "--data", "drop", "--yes")
    ended = run("reshard", url, "--world-size", "2", "--out", tmp_path / "out", *policies)
    assert ended.code == 4, ended
    assert not (tmp_path / "out" / "ckptctl.manifest.json").exists()
