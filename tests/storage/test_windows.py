"""Windows of remote objects: few requests, bounded memory, and little that was read in vain."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from ckptctl.errors import StorageError
from ckptctl.storage.traffic import BLOCK
from ckptctl.storage.windows import FIRST, Shelf, Windows

MIB = 1 << 20


@dataclass
class Object:
    """Bytes whose every place tells where it is, and a count of what was fetched."""

    size: int
    asked: list[tuple[int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def at(self, start: int, stop: int) -> bytes:
        return bytes((place * 7 + (place >> 8)) % 251 for place in range(start, stop))

    def fetch(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= self.size
        with self.lock:
            self.asked.append((start, stop))
        return bytes(stop - start) if self.size > FIRST else self.at(start, stop)

    @property
    def fetched(self) -> int:
        return sum(stop - start for start, stop in self.asked)


def test_a_small_object_is_fetched_once_whatever_is_read_of_it() -> None:
    one, windows = Object(5000), Windows()
    shelf = Shelf(one.size)
    for start, stop in ((4000, 5000), (0, 10), (9, 4500), (0, 5000)):
        assert windows.read(shelf, start, stop, one.fetch) == one.at(start, stop)
    assert one.asked == [(0, 5000)]
    windows.close(shelf)
    windows.read(shelf, 0, 10, one.fetch)
    assert len(one.asked) == 2


def test_each_reader_fetches_for_itself() -> None:
    one, windows = Object(5000), Windows()
    for _ in range(3):
        windows.read(Shelf(one.size), 0, 10, one.fetch)
    assert len(one.asked) == 3


def test_reads_that_go_on_are_read_ahead() -> None:
    one, windows = Object(100 * MIB), Windows()
    shelf = Shelf(one.size)
    for start in range(0, one.size - 65536, 65536):
        windows.read(shelf, start, start + 65536, one.fetch)
    assert len(one.asked) <= 100 * MIB // BLOCK + 8
    assert one.fetched <= one.size + BLOCK


def test_single_places_of_a_large_object_are_not_read_ahead() -> None:
    one, windows = Object(400 * MIB), Windows()
    shelf = Shelf(one.size)
    for start in range(0, one.size, 16 * MIB):
        windows.read(shelf, start, start + 4096, one.fetch)
    assert one.fetched <= 26 * 65536


@pytest.mark.parametrize("gap", [1, 5, 64, 200, 500, 1000, 4096])
def test_what_is_read_in_vain_is_bounded_by_what_is_asked_for(gap: int) -> None:
    one, windows = Object(600 * MIB), Windows()
    shelf = Shelf(one.size)
    asked = 0
    for start in range(0, min(one.size, 400 * gap * 1024), gap * 1024):
        windows.read(shelf, start, min(one.size, start + 4096), one.fetch)
        asked += 4096
    near = (64 << 10) * len(one.asked)
    assert one.fetched <= 4 * asked + 3 * BLOCK + near


def test_a_reader_of_single_places_never_reads_ahead() -> None:
    one, windows = Object(BLOCK), Windows()
    shelf = Shelf(one.size, ahead=False)
    for start in range(0, one.size - 4096, 65536):
        windows.read(shelf, start, start + 4096, one.fetch)
    assert all(stop - start <= 65536 for start, stop in one.asked)


def test_memory_keeps_to_the_budget() -> None:
    one, windows = Object(64 * MIB), Windows(budget=2 * MIB)
    shelves = [Shelf(one.size) for _ in range(10)]
    chance = random.Random(1)
    for _ in range(400):
        shelf = chance.choice(shelves)
        start = chance.randrange(one.size - 70000)
        for _ in range(3):
            windows.read(shelf, start, start + 60000, one.fetch)
            start = min(start + 60000, one.size - 60000)
        held = sum(window.size for one_ in shelves for window in one_.windows)
        assert held <= 2 * MIB
    for shelf in shelves:
        windows.close(shelf)
        assert shelf.windows == []


def test_where_there_is_no_room_the_read_is_exact() -> None:
    one, windows = Object(5000), Windows(budget=100)
    assert windows.read(Shelf(one.size), 7, 4000, one.fetch) == one.at(7, 4000)
    assert one.asked == [(7, 4000)]


def test_threads_that_need_the_same_wait_for_one_request() -> None:
    one, windows = Object(5000), Windows()
    shelf, barrier, under_way = Shelf(one.size), threading.Barrier(8), threading.Event()

    def fetch(start: int, stop: int) -> bytes:
        under_way.wait(30)
        return one.fetch(start, stop)

    def look(number: int) -> bytes:
        barrier.wait()
        if number == 0:
            under_way.set()
        return windows.read(shelf, number, number + 10, fetch)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(look, range(8))) == [one.at(n, n + 10) for n in range(8)]
    assert one.asked == [(0, 5000)]


def test_a_request_that_fails_is_the_failure_of_one_and_is_not_kept() -> None:
    one, windows = Object(5000), Windows()
    shelf, failing = Shelf(one.size), [True]

    def fetch(start: int, stop: int) -> bytes:
        if failing.pop() if failing else False:
            raise StorageError("no answer")
        return one.fetch(start, stop)

    with pytest.raises(StorageError, match="no answer"):
        windows.read(shelf, 0, 10, fetch)
    assert shelf.windows == []
    assert windows.read(shelf, 0, 10, fetch) == one.at(0, 10)
