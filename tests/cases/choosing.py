"""Choosing: what ``resolve``, ``list`` and ``promote`` hand out, and when nothing is there."""

from __future__ import annotations

from cases.frame import Case, committed, each, flips, promoted

CASES: list[Case] = [
    Case(
        "a flipped bit in what the pointer names",
        each(committed(100, 200), promoted(200), flips("step-200/__0_0.distcp")),
        ("resolve", "{root}", "--full"),
        facts={"name": "step-100"},
        untouched=True,
    ),
]
