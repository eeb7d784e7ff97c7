"""How much is asked of a store at once, and that the memory for it is bounded."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from ckptctl.errors import StorageError
from ckptctl.storage.traffic import TASKS, Budget, ahead, both, processors, tasks


@dataclass
class Place:
    url: str


NEAR, FAR = Place("/scratch/run"), Place("s3://bucket/run")


def test_the_store_decides_unless_the_user_does() -> None:
    assert tasks(NEAR, None) == processors() <= 8
    assert tasks(FAR, None) == TASKS == 64
    assert tasks(NEAR, 3) == tasks(FAR, 3) == 3


@pytest.mark.parametrize("place", [NEAR, FAR])
def test_answers_come_in_order_and_failures_where_they_belong(place: Place) -> None:
    def ask(number: int) -> int:
        if number == 3:
            raise StorageError("no answer")
        return 10 * number

    found: list[object] = []
    for told in ahead(place, ask, range(6)):
        try:
            found.append(told())
        except StorageError as error:
            found.append(str(error))
    assert found == [0, 10, 20, "no answer", 40, 50]
    assert list(ahead(place, ask, [])) == []


def test_a_local_store_is_asked_when_the_answer_is_taken() -> None:
    asked: list[int] = []
    calls = ahead(NEAR, asked.append, range(5))
    next(calls)()
    assert asked == [0]


def test_a_remote_store_is_asked_for_all_at_once() -> None:
    barrier = threading.Barrier(8)
    assert [told() for told in ahead(FAR, lambda _: barrier.wait(30), range(8))]
    meeting = threading.Barrier(2)
    assert set(both(FAR, lambda: meeting.wait(30), lambda: meeting.wait(30))) == {0, 1}
    assert both(NEAR, lambda: "a", lambda: 1) == ("a", 1)


def test_the_first_failure_of_two_is_raised() -> None:
    def fail(text: str) -> None:
        raise StorageError(text)

    for place in (NEAR, FAR):
        with pytest.raises(StorageError, match="first"):
            both(place, lambda: fail("first"), lambda: fail("second"))
        with pytest.raises(StorageError, match="second"):
            both(place, lambda: 1, lambda: fail("second"))


def test_tasks_hold_no_more_than_the_budget_and_a_large_one_runs_alone() -> None:
    budget, lock = Budget(100), threading.Lock()
    held: list[int] = []
    most: list[int] = []

    def work(size: int) -> None:
        with budget.holding(size):
            with lock:
                held.append(size)
                most.append(sum(held))
                assert sum(held) <= 100 or held == [size]
            time.sleep(0)
            with lock:
                held.remove(size)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, [30, 40, 250, 10, 60, 100, 1, 2] * 25))
    assert max(most) == 250
    assert held == []
