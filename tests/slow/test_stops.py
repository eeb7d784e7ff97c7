"""A command that is killed at any of its calls to the system: nothing is lost, and again it ends well.

The process dies between two calls and cleans nothing up. What it has left is looked at, the same
command is given once more, as a person does, and then everything must be as if nothing had
happened. Power failures, which lose more than that, are in ``test_crash_enumeration.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import ckptctl
from cases.frame import below, committed, each, promoted, ran, snapshot
from ckptctl.errors import Conflict, NotFound, Refused, UsageError
from ckptctl.model.commit_state import State
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.retention.contents import contents_of
from ckptctl.operations.retention.policy import Fate
from ckptctl.operations.retention.trash import into_trash
from ckptctl.storage.posix import PosixStore
from ckptctl.storage.system import RealSystem

CALLS = ("make_directory", "write", "link", "rename", "unlink", "remove_directory")
"""What changes something."""
TRASH = "ckptctl.trash"
SOURCE = "dedup_lowest_rank/step-12"
NAMES = ("step-100", "step-200", "step-300")
THREE = each(committed(100, 200, 300, source=SOURCE), promoted(300))
PRUNED = each(THREE, ran("prune", "{root}", "--keep-last", "1", "--min-age", "0m", "--yes"))


class Died(BaseException):
    """The process is gone: nothing it would still have done happens."""


def killed_after(calls: int, act: Callable[[], object]) -> bool:
    """Do something in a process that dies after so many calls; tell whether it did."""
    left = [calls]

    def mortal(patch: pytest.MonkeyPatch, name: str) -> None:
        inner: Any = getattr(RealSystem, name)

        def call(self: object, *args: Any) -> None:
            if not left[0]:
                raise Died
            left[0] -= 1
            inner(self, *args)

        patch.setattr(RealSystem, name, call)

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            mortal(patch, name)
        try:
            act()
        except Died:
            return True
    return False


def stops(
    top: Path, build: Callable[[Path], object], act: Callable[[Path], object]
) -> Iterator[Path]:
    """Yield the root as it lies there after a death at each call, one after the other."""
    made = top / "made"
    made.mkdir()
    build(made)
    for calls in count():
        root = top / "run"
        shutil.copytree(made, root, symlinks=True)
        died = killed_after(calls, partial(act, root))
        if died:
            yield root
        shutil.rmtree(root)
        if not died:
            assert calls > 3
            return


def data_of(root: Path, name: str) -> dict[str, object]:
    """Return what a checkpoint holds, wherever it lies: in its place, or in the trash."""
    here = {path: what for path, what in below(snapshot(root), name).items() if what != "directory"}
    found = {path.removeprefix(f"{name}/"): what for path, what in here.items()}
    for aside in sorted((root / TRASH).glob(f"*/{name}")):
        for path, what in snapshot(aside).items():
            if what != "directory":
                assert path not in found, f"{name}/{path} is there twice"
                found[path] = what
    return found


# ---------------------------------------------------------------------------------- the trash


@dataclass(frozen=True)
class Stop:
    """What is done to what, and what is left of each checkpoint once it was done again."""

    build: Callable[[Path], object]
    act: Callable[[Path], object]
    here: tuple[str, ...]
    aside: tuple[str, ...] = ()


def prune(root: Path) -> object:
    return ckptctl.prune(root, keep_last=1, min_age=0)


def undelete_all(root: Path) -> None:
    """Bring back what is in the trash; what is back already is none of it."""
    for name in NAMES[:2]:
        try:
            ckptctl.undelete(root, name)
        except (NotFound, UsageError):
            assert (root / name).is_dir()


def empty(root: Path) -> object:
    return ckptctl.prune(root, empty_trash=True)


STOPS = {
    "prune": Stop(THREE, prune, ("step-300",), NAMES[:2]),
    "undelete": Stop(PRUNED, undelete_all, NAMES),
    "empty trash": Stop(PRUNED, empty, ("step-300",)),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", STOPS)
def test_killed_at_any_call_it_ends_well_once_more(name: str, tmp_path: Path) -> None:
    stop = STOPS[name]
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    THREE(fresh)
    sizes = {one: set(data_of(fresh, one)) for one in NAMES}
    for root in stops(tmp_path, stop.build, stop.act):
        if name != "empty trash":
            assert {one: set(data_of(root, one)) for one in NAMES} == sizes
        assert ckptctl.resolve(root, full=True).name == "step-300"
        for one in NAMES:  # here it is whole, or not here at all
            if (root / one).exists():
                assert int(ckptctl.verify(root / one, require=["manifest"]).exit_code) == 0
        stop.act(root)
        assert {one for one in NAMES if (root / one).exists()} == set(stop.here)
        assert {path.name for path in (root / TRASH).glob("*/step-*")} == set(stop.aside)
        assert ckptctl.resolve(root, full=True).name == "step-300"
        assert sum(1 for _ in (root / TRASH).glob("*")) <= len(stop.aside) + 1


@pytest.mark.quick
def test_where_nothing_can_be_renamed_a_manifest_outlives_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStore, "renames", False)
    for root in stops(tmp_path, THREE, prune):
        assert ckptctl.resolve(root, full=True).name == "step-300"
        for one in NAMES:
            if (root / one / "ckptctl.manifest.json").exists():
                assert int(ckptctl.verify(root / one, require=["manifest"]).exit_code) == 0


# ---------------------------------------------------------------------------------- sets of files


SET = {f"ep0-ba100-rank{rank}.pt": bytes([rank]) * 100 for rank in range(3)}
"""Names that Composer gives: one file of each rank is one checkpoint."""


def ranks(root: Path) -> None:
    for name, data in SET.items():
        (root / name).write_bytes(data)
    (root / "ep0-ba100.ckptctl").mkdir()
    (root / "ep0-ba100.ckptctl" / "ckptctl.manifest.json").write_bytes(b"{}")


def move_aside(root: Path) -> None:
    store = PosixStore(root)
    (place,) = find(store)
    assert place.members is not None
    into_trash(store, place, _fate(store, place))


def _fate(store: PosixStore, place: Place) -> Fate:
    listed = tuple(contents_of(store, place).listed)
    size = sum(one.size for one in listed)
    return Fate(place.path, 100, State.COMPLETE, size, delete=True, reason="old", contents=listed)


def files_of(root: Path) -> dict[str, bytes]:
    """Return all files of the set by name, wherever they lie; none may be there twice."""
    found: dict[str, bytes] = {}
    for path in root.rglob("*"):
        if path.is_file() and path.name != "ckptctl.trashed.json":
            assert path.name not in found
            found[path.name] = path.read_bytes()
    return found


@pytest.mark.quick
@pytest.mark.parametrize("how", ["moved aside", "brought back"])
def test_a_set_of_files_is_never_torn_for_good(how: str, tmp_path: Path) -> None:
    whole = {**SET, "ckptctl.manifest.json": b"{}"}
    back = how == "brought back"
    build = each(ranks, move_aside) if back else ranks
    act: Callable[[Path], object] = ckptctl.undelete if back else move_aside
    for root in stops(tmp_path, build, act):
        assert {name: data for name, data in files_of(root).items() if name in whole} == whole
        records = root / "ep0-ba100.ckptctl" / "ckptctl.manifest.json"
        if records.exists():  # what promises is here only where all that it promises is
            assert all((root / name).exists() for name in SET)
        try:
            ckptctl.undelete(root)
        except NotFound:
            assert not list((root / TRASH).glob("*/*.pt"))
        assert all((root / name).read_bytes() == data for name, data in SET.items())
        assert records.exists()
        assert not list((root / TRASH).glob("*/*.pt"))


# ---------------------------------------------------------------------------------- convert


OUT = {"safetensors": "out", "torch": "out.pt", "dcp": "out"}


def torch_source(root: Path) -> None:
    """DCP is made of something else."""
    committed("step-12", source=SOURCE)(root)
    ckptctl.convert(root / "step-12", root / "source.pt", to="torch")


def contents(path: Path) -> dict[str, str]:
    return {row.fqn: row.digest for row in ckptctl.digest(path).tensors}


@pytest.mark.parametrize("to", OUT)
def test_a_conversion_is_whole_or_not_there(to: str, tmp_path: Path) -> None:
    source = "source.pt" if to == "dcp" else "step-12"
    build = torch_source if to == "dcp" else committed("step-12", source=SOURCE)

    def act(root: Path, **more: Any) -> Any:
        return ckptctl.convert(root / source, root / OUT[to], to=to, **more)

    for root in stops(tmp_path, build, act):
        before = {"step-12", source, OUT[to]}
        expected = contents(root / source)
        assert expected
        if (root / OUT[to]).exists():
            assert contents(root / OUT[to]) == expected
        try:
            act(root, resume=True)
        except (Refused, Conflict, UsageError):
            act(root, overwrite=True)
        assert contents(root / OUT[to]) == expected
        assert {path.name for path in root.iterdir()} <= before
