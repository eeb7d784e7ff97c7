"""Companions: files beside the shards that a resume needs too."""

from __future__ import annotations

from cases.frame import Case

CASES: list[Case] = []
