"""Deleting: what ``prune`` gives up, what it never touches, and how a mistake is undone."""

from __future__ import annotations

from cases.frame import (
    STEPS,
    Case,
    committed,
    deleted,
    each,
    promoted,
    writes,
)

KEPT = tuple(f"step-{step}" for step in STEPS)
LAST = ("prune", "{root}", "--keep-last", "1", "--yes")
ALL = committed(*STEPS)

CASES: list[Case] = [
    Case(
        "a stray shard in the root",
        each(ALL, promoted(1000), writes("__0_0.distcp")),
        ("prune", "{root}", "--keep-last", "5", "--yes"),
        left=(*KEPT, "ckptctl.pointers", "__0_0.distcp"),
        facts={"fates": deleted()},
        old=10,
    ),
    Case(
        "nothing special: all but the newest go, and come back",
        ALL,
        LAST,
        left=("step-1000",),
        gone=("step-100", "step-200", "step-300"),
        made=("ckptctl.trash/00000001/step-100",),
        facts={"fates": deleted("step-100", "step-200", "step-300")},
        old=10,
    ),
]
