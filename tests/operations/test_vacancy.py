"""What may lie in a new root, and what may be left of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl.errors import Findings, NothingThere, RootMissing, StorageError
from ckptctl.operations.vacancy import Vacancy, nothing_here
from ckptctl.storage import Entry
from ckptctl.storage.posix import PosixStore

HARMLESS = {
    "README": b"a run",
    "train.log": b"step 1\n",
    "train.log.1": b"\x00\x01",
    "config.yaml": b"lr: 1",
    "launch": b"#!/bin/sh\n",
    "umlaut": "Größe\n".encode(),
    "cut": b"x" * 4095 + "é".encode(),
    "colours": b"\x1b[31mred\x1b[0m\n",
    "events.out.tfevents.1700000000.host.1.0": b"\x18\x00\x00\x00",
    "loss.png": b"\x89PNG\x00",
    "run-1.wandb": b"\x00\x01",
    "tokenizer.model": b"\x0a\x0e\x00",
    "steps.jsonl.gz": b"\x1f\x8b\x08",
    "empty.bin": b"",
    "a_marker": b"",
}
"""What launchers, trainers and people put into a root before the first save."""

REMAINS = {
    "foo.bin": b"text",
    "state.PT": b"text",
    "arrays.npy": b"text",
    "part0": b"\x80\x02}q\x00.",
    "zipped": b"PK\x03\x04\x00",
    "latin": b"caf\xe9 and more than that",
    "latest": b"",
    "latest_checkpointed_iteration.txt": b"12",
    "latest_committed": b"step-12",
    "ckptctl.manifest.json": b"{}",
    ".step.Xy12Zz": b"\x00\x01",
}


def here(root: Path) -> Vacancy:
    """Look at a root without checkpoints."""
    error = nothing_here(PosixStore(root))
    assert isinstance(error.result, Vacancy)
    assert isinstance(error, Findings if error.result.remains else NothingThere)
    return error.result


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("folder", ["", "logs/today"])
def test_what_is_put_there_before_the_first_save(tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / name).write_bytes(HARMLESS[name])
    assert here(tmp_path).remains == ()


@pytest.mark.parametrize("name", REMAINS)
@pytest.mark.parametrize("folder", ["", "logs/today", ".hidden"])
def test_what_may_be_left_of_a_run(tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / name).write_bytes(REMAINS[name])
    (said,) = here(tmp_path).remains
    assert name in said


def _records(name: str) -> Callable[[Path], object]:
    def build(root: Path) -> None:
        (root / name).mkdir(parents=True)
        (root / name / "00000001.json").write_text("{}")

    return build


@pytest.mark.parametrize("name", ["ckptctl.trash/00000001", "ckptctl.attempts", "a.pt.ckptctl"])
def test_records_are_no_new_root_and_empty_folders_are(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / name).mkdir(parents=True)
    assert here(tmp_path / "a").remains == ()
    _records(name)(tmp_path / "b")
    assert len(here(tmp_path / "b").remains) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda root: os.mkfifo(root / "step-5"),
        lambda root: os.mkfifo(root / "last.ckpt"),
        lambda root: (root / "step-5\n").mkdir(),
        lambda root: (root / " checkpoint 7 ").mkdir(),
        lambda root: (root / "5").mkdir(),
        lambda root: (root / "run/ckpt_9_old?").mkdir(parents=True),
        lambda root: (root / "ckptctl.pointers/latest_committed").mkdir(parents=True),
    ],
)
def test_a_name_is_enough_whatever_has_it(tmp_path: Path, build: Callable[[Path], object]) -> None:
    build(tmp_path)
    assert len(here(tmp_path).remains) == 1


@pytest.mark.parametrize("name", ["checkpoints", "version_0", "20261130/logs", "ckpt", "steps"])
def test_folders_that_were_made_beforehand_are_no_checkpoints(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    assert here(tmp_path).remains == ()


def test_what_was_listed_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    (tmp_path / "logs").mkdir()
    error = nothing_here(PosixStore(tmp_path))
    assert "listed: logs, notes.md" in str(error)
    assert here(tmp_path).listed == ("logs", "notes.md")


def test_a_part_that_cannot_be_listed_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".private").mkdir()
    real = PosixStore.entries

    def fail(self: PosixStore, path: str = "") -> list[Entry]:
        if path == ".private":
            raise StorageError(f"{path}: Permission denied")
        return real(self, path)

    monkeypatch.setattr(PosixStore, "entries", fail)
    with pytest.raises(StorageError, match="Permission denied"):
        nothing_here(PosixStore(tmp_path))


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RootMissing):
        nothing_here(PosixStore(tmp_path / "gone"))
