"""What all benchmarks share: commands run in child processes, interleaved, and one table.

The machine may be busy with other things. So processor time is measured rather than elapsed time
where that answers the question, two commands are run in turn, and what counts is the median of
the ratios of neighbouring runs.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent.parent / "fixtures"
MIB = 1 << 20
HEADER = ("benchmark", "unit", "before", "ours", "peer", "ratio", "goal", "")
MARKS = ("<!-- measured -->", "<!-- end of measured -->")
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Where generated data goes, how much of it, and how often each command is run."""

    cache: Path
    full: bool
    rounds: int

    @property
    def warming(self) -> int:
        """How many runs come before those that count; none where a single one is asked for."""
        return int(self.rounds > 1)

    def scaled(self, full: int, small: int) -> int:
        """Return the first number in a full run, else the second."""
        return full if self.full else small


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run of a command took: seconds of user and system time, elapsed seconds, bytes."""

    cpu: float
    wall: float
    rss: int
    output: str


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for the ratio, or for our own value where there is no peer."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Tell whether a value keeps the limit."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; ``ratio`` is ours divided by the peer's.

    ``before`` is what the release had that these goals were set for, on the machine that the page
    names: it can be compared with ``ours`` only there.
    """

    name: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    goal: Goal | None = None
    before: str = ""

    @property
    def met(self) -> bool | None:
        """Tell whether the goal is met, None without a goal."""
        if self.goal is None:
            return None
        return self.goal.met(self.ours if self.ratio is None else self.ratio)


def ckptctl(*arguments: str | Path) -> list[str]:
    """Return the command line of ckptctl under this Python."""
    return [sys.executable, "-m", "ckptctl", *map(str, arguments)]


def script(name: str, *arguments: str | int | Path) -> list[str]:
    """Return the command line of a script beside this one."""
    return [sys.executable, str(HERE / name), *map(str, arguments)]


def run(command: Sequence[str], cwd: Path) -> Usage:
    """Run a command to its end and return what it took; raise if it fails.

    The peak that the kernel reports for a child is at least what its parent held when it forked,
    so the process that calls this must stay small: it never imports torch or numpy.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            tail = (out.read() + errors.read())[-2000:].decode("utf-8", "replace")
            raise RuntimeError(f"exit code {process.returncode} of {' '.join(command)}:\n{tail}")
        return Usage(
            usage.ru_utime + usage.ru_stime,
            wall,
            usage.ru_maxrss * _RSS_UNIT,
            out.read().decode("utf-8", "replace"),
        )


def interleave(commands: Sequence[Sequence[str]], settings: Settings) -> list[list[Usage]]:
    """Run the commands in turn; return the runs of each, without those that warm caches."""
    runs: list[list[Usage]] = [[] for _ in commands]
    for _ in range(settings.warming + settings.rounds):
        for command, done in zip(commands, runs, strict=True):
            done.append(run(command, settings.cache))
    return [done[settings.warming :] for done in runs]


def compare(
    name: str,
    unit: str,
    ours: Sequence[Usage],
    peer: Sequence[Usage],
    value: Callable[[Usage], float],
    goal: Goal | None = None,
    before: str = "",
) -> Row:
    """Compare two interleaved series by one of their values."""
    pairs = [(value(a), value(b)) for a, b in zip(ours, peer, strict=True)]
    return Row(
        name,
        unit,
        median(a for a, _ in pairs),
        median(b for _, b in pairs),
        median(a / b for a, b in pairs),
        goal,
        before,
    )


def cpu(usage: Usage) -> float:
    """Return the seconds of processor time."""
    return usage.cpu


def wall(usage: Usage) -> float:
    """Return the elapsed seconds."""
    return usage.wall


def peak(runs: Sequence[Usage]) -> float:
    """Return the highest peak of memory, in MiB."""
    return max(usage.rss for usage in runs) / MIB


def copied(source: Path, name: str, settings: Settings) -> Path:
    """Return a committed copy of a checkpoint, below a directory of this name."""
    target = settings.cache / f"{source.name}-{name}" / "step-1000"
    if not target.exists():
        shutil.copytree(source, target)
        run(ckptctl("commit", target), settings.cache)
    return target


def precompile() -> None:
    """Compile the package, so that no start of it is measured with compiling."""
    compileall.compile_dir(str(HERE.parent.parent / "ckptctl"), quiet=2)


def made(settings: Settings, kind: str, *numbers: int) -> Path:
    """Return the directory with generated data, which is made once."""
    target = settings.cache / "-".join([kind, *map(str, numbers)])
    if not target.exists():
        sys.stderr.write(f"making {target}\n")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=settings.cache) as scratch:
            half_made = Path(scratch, target.name)
            run(script("make.py", kind, half_made, *numbers), settings.cache)
            half_made.rename(target)
    return target


def cells_of(rows: Sequence[Row], *, judged: bool) -> list[tuple[str, ...]]:
    """Return the cells of the table; goals hold for full runs only and are not judged else."""
    cells: list[tuple[str, ...]] = [HEADER]
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met if judged else None]
        cells.append(
            (
                row.name,
                row.unit,
                row.before or "-",
                _number(row.ours),
                "-" if row.peer is None else _number(row.peer),
                "-" if row.ratio is None else f"{row.ratio:.2f}",
                "-" if row.goal is None else str(row.goal),
                verdict,
            )
        )
    return cells


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def table(rows: Sequence[Row], *, judged: bool) -> str:
    """Lay out rows in aligned columns."""
    cells = cells_of(rows, judged=judged)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        "  ".join(
            text.ljust(width) if number in (0, 1, 7) else text.rjust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in cells
    )


def markdown(rows: Sequence[Row], *, judged: bool) -> str:
    """Write rows as a table of a page."""
    first, *rest = cells_of(rows, judged=judged)
    lines = [first, ("---",) * len(first), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def put(path: Path, text: str) -> None:
    """Put a table into a page, in place of the one between its marks."""
    page = path.read_text(encoding="utf-8")
    start, end = page.index(MARKS[0]) + len(MARKS[0]), page.index(MARKS[1])
    path.write_text(f"{page[:start]}\n{text}{page[end:]}", encoding="utf-8")
