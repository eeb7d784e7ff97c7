"""Sealing: what `commit` promises, and what it must not."""

from __future__ import annotations

from cases.frame import Case

CASES: list[Case] = []
