"""What lies around checkpoints is listed once for all, and the nearest are those that a sort gives."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl import errors, resolve, verify
from ckptctl.model.names import CheckpointName, parse_name, steps_of
from ckptctl.operations.provenance import siblings
from ckptctl.operations.surroundings import Order, Surroundings
from ckptctl.results import NoneUsable
from ckptctl.storage import Entry
from ckptctl.storage.posix import PosixStore

Copy = Callable[..., Path]

NAMES = [
    *(f"step-{step}" for step in (1, 2, 3, 10, 11, 12, 13, 14, 20, 100, 101, 5000)),
    *(f"checkpoint-{step}" for step in (3, 12, 12000)),
    *(
        "best",
        "last",
        "latest",
        "last-good",
        "beta",
        "b",
        "step",
        "step-final",
        "zz",
        "step-12.tmp",
    ),
    *("ckptctl.trash", ".hidden", "epoch=3", "run_a", "run_b"),
]


def entries(names: list[str]) -> list[Entry]:
    """Return directories of these names."""
    return [Entry(path=f"above/{name}", kind="directory", size=0) for name in names]


def by_sorting(names: list[str], text: str, step: int | None, *, series: bool) -> list[str]:
    """Sort all of them by distance, as one would without many of them."""
    known = steps_of(names) if series else [parse_name(name) for name in names]
    found = [
        one
        for one in known
        if one.text != text and not one.staging and not one.text.startswith(("ckptctl.", "."))
    ]

    def distance(one: CheckpointName) -> tuple[bool, int, int, str]:
        same = itertools.takewhile(lambda ab: ab[0] == ab[1], zip(one.text, text, strict=False))
        far = -(one.step or 0) if step is None else abs((one.step or 0) - step)
        return one.step is None, far, -len(list(same)), one.text

    return [one.text for one in sorted(found, key=distance)]


@pytest.mark.parametrize("series", [False, True])
def test_the_nearest_are_those_of_a_sort(series: bool) -> None:
    chance = random.Random(7)
    for _ in range(150):
        names = chance.sample(NAMES, chance.randint(1, len(NAMES)))
        chance.shuffle(names)
        order = Order(entries(names), series=series)
        for text in [*chance.sample(names, min(4, len(names))), "stranger", ""]:
            for step in (parse_name(text).step, None, 12):
                for most in (1, 4, 16, 100):
                    found = [name.text for name, _ in order.nearest(text, step, most)]
                    assert found == by_sorting(names, text, step, series=series)[:most]


def test_links_and_files_are_no_checkpoints_beside() -> None:
    there = [
        Entry(path="step-1", kind="directory", size=0),
        Entry(path="step-2", kind="directory", size=0, target="step-1"),
        Entry(path="step-3", kind="file", size=4),
    ]
    order = Order(there)
    assert [path for _, path in order.nearest("step-9", 9, 9)] == ["step-1"]
    assert (order.stepped_beside("step-9"), order.stepped_beside("step-1")) == (1, 0)


def test_what_was_opened_is_kept_unless_it_is_large_or_long_ago() -> None:
    around, made = Surroundings(), list[int]()

    def make(number: int) -> Callable[[], int]:
        return lambda: made.append(number) or number

    for number in (1, 1, 2, 1):
        assert around.once(number, make(number), lambda _: 1) == number
    assert made == [1, 2]
    for _ in range(2):
        around.once("large", make(3), lambda _: 10**6)
    assert made == [1, 2, 3, 3]
    for number in range(100, 400):
        around.once(number, make(number), lambda _: 1)
    around.once(1, make(1), lambda _: 1)
    assert made[-1] == 1
    pickle.loads(pickle.dumps(around)).once(1, make(9), lambda _: 1)
    assert made[-1] == 9


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count what is listed and opened, by the path in the root."""
    seen: dict[str, int] = {}
    listed, opened = PosixStore.entries, PosixStore.open

    def entries(store: PosixStore, path: str = "") -> list[Entry]:
        seen[path] = seen.get(path, 0) + 1
        return list(listed(store, path))

    def opening(store: PosixStore, path: str) -> object:
        seen["opened"] = seen.get("opened", 0) + 1
        return opened(store, path)

    monkeypatch.setattr(PosixStore, "entries", entries)
    monkeypatch.setattr(PosixStore, "open", opening)
    return seen


def damaged(copy: Copy, root: Path, count: int) -> Path:
    """Make checkpoints in which one bit is flipped."""
    source = copy("fsdp2/step-12", f"source{count}")
    path = next(iter(sorted(source.glob("*.distcp"))))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for number in range(1, count + 1):
        step = root / f"step-{number}"
        step.mkdir(parents=True)
        for file in source.iterdir():
            (step / file.name).hardlink_to(file)
    return root


def looked_at(act: Callable[[], object], seen: dict[str, int]) -> dict[str, int]:
    """Run a command that finds nothing good, and return what it looked at."""
    seen.clear()
    with pytest.raises((NoneUsable, errors.CkptctlError)):
        act()
    return dict(seen)


def test_the_root_is_not_listed_again_for_each_candidate(
    copy: Copy, tmp_path: Path, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "_MOST_NEAR", 4)  # so that few checkpoints are many
    few, many = (damaged(copy, tmp_path / f"run{count}", count) for count in (12, 24))
    first = looked_at(lambda: resolve(few, allow_uncommitted=True), counted)
    second = looked_at(lambda: resolve(many, allow_uncommitted=True), counted)
    assert second[""] == first[""]
    assert max(second[f"step-{n}"] for n in range(1, 25)) <= 10
    assert second["opened"] <= 2.2 * first["opened"]


def test_a_root_is_verified_with_one_listing_of_it(
    copy: Copy, tmp_path: Path, counted: dict[str, int]
) -> None:
    found = []
    for count in (6, 12):
        root = damaged(copy, tmp_path / f"run{count}", count)
        counted.clear()
        verify(root, quick=True)
        found.append(counted[""])
    assert found[0] == found[1]
