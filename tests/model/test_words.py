"""Lists in words: never too long, runs shortened, and every number still told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.words import listed, ranges, ranks, runs_of


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([3, 4], "3-4"), ([6, 0, 1, 2], "0-2, 6"), ([1, 3, 5], "1, 3, 5")],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_many_runs_are_cut() -> None:
    assert ranges(range(0, 40, 2), 3) == "0, 2, 4 and more"


@given(st.sets(st.integers(0, 200)), st.integers(2, 4))
def test_runs_tell_every_number_once(numbers: set[int], shortest: int) -> None:
    told: list[int] = []
    for run in runs_of(numbers, shortest=shortest):
        low, _, high = run.partition("-")
        told += range(int(low), int(high or low) + 1)
    assert told == sorted(numbers)


def test_ranks_and_lists() -> None:
    assert (ranks([]), ranks([7]), ranks([0, 1, 3])) == ("no rank", "rank 7", "ranks 0-1, 3")
    assert listed(["a", "b"]) == "a, b"
    assert listed([*"abcdef"], 2) == "a, b and 4 more"
