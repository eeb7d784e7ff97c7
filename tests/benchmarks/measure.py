"""What all benchmarks share: commands run in child processes, interleaved, and one table.

The machine may be busy with other things. So processor time is measured rather than elapsed time
where that answers the question, two commands are run in turn, and what counts is the median of
the ratios of neighbouring runs.
"""

from __future__ import annotations

import os
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
    """One line of the table; ``ratio`` is ours divided by the peer's."""

    name: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    goal: Goal | None = None

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
    )


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


def table(rows: Sequence[Row], *, judged: bool) -> str:
    """Lay out rows in aligned columns; goals hold for full runs only and are not judged else."""
    cells = [("benchmark", "unit", "ours", "peer", "ratio", "goal", "")]
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met if judged else None]
        cells.append(
            (
                row.name,
                row.unit,
                f"{row.ours:.2f}",
                "-" if row.peer is None else f"{row.peer:.2f}",
                "-" if row.ratio is None else f"{row.ratio:.3f}",
                "-" if row.goal is None else str(row.goal),
                verdict,
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        "  ".join(
            text.ljust(width) if number in (0, 1, 6) else text.rjust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in cells
    )
