"""The parts of docs that are written from the code: what each check asks, what each layout reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ckptctl.checks import CHECKS
from ckptctl.formats.base import Layout, Reads
from ckptctl.formats.registry import LAYOUTS
from ckptctl.model.finding import Stage
from conftest import ROOT

DOCS = ROOT / "docs"
READS = {
    Reads.NAMES: "listed only",
    Reads.TENSORS: "tensors and values",
    Reads.WHOLE: "whole",
}


def checks() -> str:
    """Write one heading for each check, by stage, in the order in which they are asked."""
    lines = []
    for stage in Stage:
        lines += [f"## Stage: {stage.word}", ""]
        for check in CHECKS:
            if check.stage is stage:
                remedy = check.remedy.replace("{checkpoint}", "CHECKPOINT").replace(
                    "{root}", "ROOT"
                )
                lines += [
                    f"### {check.id}",
                    "",
                    f"**{check.severity.word}**. {check.summary}",
                    "",
                    f"Next: {remedy}.",
                    "",
                ]
    return "\n".join(lines)


def layouts() -> str:
    """Write one row for each layout of the registry."""
    lines = ["| `name` | what it is | read |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {one.title} | {READS[_reads(one)]} |" for one in LAYOUTS]
    return "\n".join(lines) + "\n"


def _reads(one: Layout) -> Reads:
    return one.reads


PARTS: dict[str, tuple[Path, Callable[[], str]]] = {
    "checks": (DOCS / "checks.md", checks),
    "layouts": (DOCS / "frameworks.md", layouts),
}
