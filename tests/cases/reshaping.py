"""Reshaping: what `reshard`, `convert`, `diff` and `digest` vouch for."""

from __future__ import annotations

from cases.frame import Case

CASES: list[Case] = []
