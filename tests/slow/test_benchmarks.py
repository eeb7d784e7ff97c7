"""Each benchmark runs to its end in a small size, so that none rots; what it measures is not judged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

RUN = ROOT / "tests" / "benchmarks" / "run.py"
NAMES = ("list", "metadata", "content", "quick", "publishing", "transforming", "values", "diff")


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_to_its_end(name: str, tmp_path: Path) -> None:
    words = [name, "--size", "small", "--rounds", "1", "--below", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, str(RUN), *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = ended.stdout.splitlines()
    assert lines[0].split() == ["benchmark", "unit", "ours", "peer", "ratio", "goal"]
    assert len(lines) > 1
    assert list(tmp_path.iterdir()) == []


def test_no_benchmark_is_left_out() -> None:
    table = RUN.read_text(encoding="utf-8").partition("BENCHMARKS: ")[2].partition("}")[0]
    assert tuple(re.findall(r'"(\w+)":', table)) == NAMES
