"""The moment after a record was made, and how often a store is asked for what it listed already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl.completeness.audit import Wanted
from ckptctl.errors import StorageError
from ckptctl.model.amendment import AMENDMENTS
from ckptctl.model.manifest import LATEST, MANIFEST, QUARANTINE, pointer_path
from ckptctl.operations.catalog.list import list_checkpoints
from ckptctl.operations.find import find
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.operations.publish.promote import promote
from ckptctl.operations.publish.quarantine import set_mark
from ckptctl.protocol import quarantine_series, read_pointer, read_sealed
from ckptctl.storage import Entry
from ckptctl.storage.posix import PosixStore
from support.publish import done, place_of

Copy = Callable[..., Path]
SMALL = "thread_count_3/step-12"


class Lapsing(PosixStore):
    """A store that answers no more once a record of this name was made."""

    def __init__(self, root: str, name: str) -> None:
        super().__init__(root)
        self._name, self._gone = name, False

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self._gone = self._gone or self._name in path

    def entries(self, path: str = "") -> list[Entry]:
        if self._gone:
            raise StorageError(f"{path}: Input/output error")
        return super().entries(path)

    def open(self, path: str) -> Any:
        if self._gone:
            raise StorageError(f"{path}: Input/output error")
        return super().open(path)


@pytest.fixture
def root(tmp_path: Path, copy: Copy) -> Path:
    copy(SMALL, tmp_path / "run/step-12")
    return tmp_path / "run"


def test_a_commit_stands_though_nothing_can_be_listed_after_it(root: Path) -> None:
    store, place = place_of(root / "step-12", lambda url: Lapsing(url, MANIFEST))
    found = commit_checkpoint(store, place, options=CommitOptions())
    sealed = read_sealed(PosixStore(root), "step-12")
    assert sealed is not None
    assert found.manifest == sealed.digest


def test_a_mark_stands_though_nothing_can_be_listed_after_it(root: Path) -> None:
    store, place = place_of(root / "step-12", lambda url: Lapsing(url, QUARANTINE))
    assert set_mark(store, place, quarantined=True, reason="odd").changed
    assert quarantine_series(PosixStore(root), "step-12").newest is not None


def test_a_promotion_stands_though_nothing_can_be_read_after_it(root: Path) -> None:
    done("commit", root / "step-12")
    store, place = place_of(root / "step-12", lambda url: Lapsing(url, pointer_path(LATEST, 1)))
    assert promote(store, place, wanted=Wanted()).moved
    assert read_pointer(PosixStore(root)).revision is not None


class Counting(PosixStore):
    """A store that remembers what was listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[str] = []

    def entries(self, path: str = "") -> list[Entry]:
        self.listed.append(path)
        return super().entries(path)


def test_amendments_are_looked_for_only_where_some_were_listed(root: Path) -> None:
    done("commit", root / "step-12")
    store = Counting(root)
    assert [row.step for row in list_checkpoints(store, places=find(store)).checkpoints] == [12]
    assert not [path for path in store.listed if AMENDMENTS in path]
    done("commit", "--amend", root / "step-12", "--run-id", "a", "--reason", "b")
    list_checkpoints(store, places=find(store))
    assert f"step-12/{AMENDMENTS}" in store.listed
