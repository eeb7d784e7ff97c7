"""What is said to go on as before on another number of ranks, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from ckptctl.sharding.continuity import continuity
from ckptctl.sharding.rank_policy import Outcome

EVERYTHING = ("model", "optimizer", "scheduler", "progress", "data", "rng")


def told(
    facts: dict[str, Any], before: int, after: int, *outcomes: Outcome, has: Any = EVERYTHING
) -> dict[str, tuple[str, str]]:
    found = continuity(facts, has, outcomes, ranks=(before, after), data_ranks=(before, after))
    assert len({aspect.name for aspect in found}) == len(found)
    assert {aspect.verdict for aspect in found} <= {"kept", "changed", "unknown"}
    return {aspect.name: (aspect.verdict, aspect.why) for aspect in found}


@pytest.mark.parametrize(
    ("facts", "after", "verdict", "says"),
    [
        ({}, 8, "unknown", "records neither"),
        ({}, 4, "kept", "4 data-parallel ranks as before"),
        ({"micro_batch_size": 2, "gradient_accumulation_steps": 4}, 8, "changed", "32 before, 64"),
        ({"micro_batch_size": 2}, 2, "changed", "8 before, 4"),
        ({"train.global_batch_size": 64}, 8, "kept", "8 for each of 8 ranks"),
        ({"global_batch_size": 64}, 6, "changed", "6 ranks cannot share evenly"),
        ({"global_batch_size": "auto"}, 8, "unknown", "records neither"),
    ],
)
def test_the_global_batch(facts: dict[str, Any], after: int, verdict: str, says: str) -> None:
    found = told(facts, 4, after)
    assert found["global batch"][0] == verdict and says in found["global batch"][1]
    schedule = "kept" if verdict == "kept" else "unknown"
    assert found["learning rate"][0] == schedule


def test_the_order_of_samples_is_another_on_other_ranks() -> None:
    assert told({"seed": 7}, 4, 4)["sample order"][0] == "kept"
    verdict, why = told({"seed": 7}, 4, 8)["sample order"]
    assert verdict == "changed" and "seed 7" in why
    assert "no position in the data" in told({}, 4, 8, has=["model"])["sample order"][1]


@pytest.mark.parametrize(
    ("outcome", "after", "verdict"),
    [
        ("kept", 4, "kept"),
        ("kept", 8, "changed"),
        ("dropped", 8, "changed"),
        ("merged", 8, "kept"),
        ("refused", 8, "unknown"),
    ],
)
def test_state_of_ranks(outcome: str, after: int, verdict: str) -> None:
    found = told({}, 4, after, Outcome("data", outcome, "because"))
    assert found["data position"][0] == verdict and "because" in found["data position"][1]
    assert found["random numbers"] == ("unknown", "one state for all ranks")


def test_what_is_not_there_is_not_promised() -> None:
    found = told({}, 4, 8, has=["model"])
    assert "optimizer" not in found and found["model"][0] == "kept"
    assert found["random numbers"][1] == "the checkpoint holds none"
    assert found["learning rate"][0] == "unknown"
