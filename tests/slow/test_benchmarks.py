"""Each benchmark runs to its end in a small size, so that none rots; what it measures is not judged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

HEADER = ("benchmark", "unit", "before", "ours", "peer", "ratio", "goal")
MARKS = ("<!-- measured -->", "<!-- end of measured -->")
RUN = ROOT / "tests" / "benchmarks" / "run.py"
NAMES = (
    "start", "list", "growth", "metadata", "quick", "items", "content", "publishing", "values", "diff",
    "transforming", "cuts", "remote",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_to_its_end(name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n", encoding="utf-8")
    words = [name, "--size", "small", "--rounds", "1", "--below", str(tmp_path)]
    words += ["--markdown", str(page)]
    ended = subprocess.run(
        [sys.executable, str(RUN), *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = ended.stdout.splitlines()
    assert lines[0].split() == [*HEADER]
    assert len(lines) > 1
    assert list(tmp_path.iterdir()) == [page]
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{MARKS[0]}\n| benchmark | unit |")
    assert text.endswith(f"\n{MARKS[1]}\nafter\n")
    assert text.count("\n| ") == len(lines) + 1


def test_no_benchmark_is_left_out() -> None:
    table = RUN.read_text(encoding="utf-8").partition("BENCHMARKS: ")[2].partition("}")[0]
    assert tuple(re.findall(r'"(\w+)":', table)) == NAMES
