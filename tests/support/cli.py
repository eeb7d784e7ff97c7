"""Running the command line: in this process, as one of its own, or on a terminal of 80 columns.

``run`` is the one to use. It starts no interpreter and leaves nothing behind, so it is ten times
cheaper. ``run_process`` is for tests about the process itself: what it imports, how signals, closed
pipes and full disks end it, and what a ``before`` changes in it.
"""

from __future__ import annotations

import fcntl
import gc
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ckptctl.cli import main as application
from support.effort import PATIENCE

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
OWN_COLOURS = re.compile(r"\x1b\[(?:0|1|2|31|32|33|36)(?:;(?:1|2))?m")
"""The colour codes that ckptctl itself writes."""

MAIN = "\nfrom ckptctl.cli.main import main\nmain()\n"
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_OURS = ("CKPTCTL_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONWARN", "PYTHONUNBUF")


@dataclass(frozen=True)
class Ended:
    """How a run ended; on a terminal both streams are in ``stdout``."""

    code: int
    stdout: str
    stderr: str = ""

    def json(self) -> Any:
        """Return the result in the envelope that stdout must hold, and nothing else."""
        return self.document()["result"]

    def document(self) -> Any:
        """Return the envelope, which has one form for every ending."""
        found = json.loads(self.stdout)
        assert list(found) == ["schema", "command", "exit_code", "verdict", "result", "error"]
        assert found["exit_code"] == self.code
        assert found["schema"] == f"ckptctl/{found['command']}/2"
        return found


def command(*args: str, before: str = "") -> list[str]:
    """Return the command; ``before`` is Python that runs in the process first."""
    how = ["-c", before + MAIN] if before else ["-m", "ckptctl"]
    return [sys.executable, "-W", "error", *how, *args]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without anything that changes what ckptctl prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(changes or {})}


def run(*args: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Ended:
    """Run ckptctl in this process, with nothing on stdin and neither stream a terminal."""
    out, err = _stream(), _stream()
    code: object = 0
    with _another_life(cwd, environment(env)), redirect_stdout(out), redirect_stderr(err):
        sys.argv = ["ckptctl", *map(str, args)]
        try:
            application.main()
        except SystemExit as end:
            code = end.code
    return Ended(int(code or 0) if isinstance(code, int | None) else 1, _text(out), _text(err))


@contextmanager
def _another_life(cwd: Path | None, env: Mapping[str, str]) -> Iterator[None]:
    """Change what a new process would have of its own, and put all of it back."""
    variables, place, argv, stdin = os.environ.copy(), Path.cwd(), sys.argv, sys.stdin
    program = sys.modules["__main__"]  # what is said of its name says how the tests were started
    collecting = gc.isenabled()
    try:
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd or place)
        sys.stdin = _stream()
        sys.modules["__main__"] = ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = program
        sys.stdin, sys.argv = stdin, argv
        os.chdir(place)
        os.environ.clear()
        os.environ.update(variables)
        if collecting:
            gc.enable()


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def run_process(
    *args: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    before: str = "",
) -> Ended:
    """Run ckptctl as a process with pipes on both streams."""
    done = subprocess.run(
        command(*map(str, args), before=before),
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_on_terminal(
    *args: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    width: int = 80,
    program: str = "",
) -> Ended:
    """Run ckptctl, or another ``program`` in Python, on a pseudo-terminal; bytes come unchanged."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        modes = termios.tcgetattr(theirs)
        modes[1] &= ~termios.OPOST  # a carriage return that we see is one that was written
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        words = [*map(str, args)]
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, *words] if program else command(*words),
            cwd=cwd,
            env=environment(env),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    data = bytearray()
    with process, os.fdopen(ours, "rb", buffering=0) as stream:
        while True:
            try:
                piece = stream.read(65536)
            except OSError:  # how Linux says that the other side is closed
                break
            if not piece:
                break
            data += piece
        code = process.wait(PATIENCE)
    return Ended(code, data.decode())


def plant(source: Path, target: Path, *, days: float = 5.1) -> Path:
    """Copy a checkpoint and make all of it so many days old, so that ages are stable."""
    shutil.copytree(source, target)
    make_old(target, days=days)
    return target


def make_old(top: Path, *, days: float = 5.1) -> None:
    """Set the modification time of everything below a directory."""
    when = time.time() - days * 86400
    for path in [top, *top.rglob("*")]:
        os.utime(path, (when, when), follow_symlinks=False)


def normal(text: str) -> str:
    """Take out what differs from one making of the fixtures to the next: random ids."""
    return _UUID.sub("<uuid>", text)


def normal_json(document: Any) -> str:
    """Write a document without times and random ids."""

    def fix(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: "<time>" if k == "modified" else fix(v) for k, v in value.items()}
        return [fix(inner) for inner in value] if isinstance(value, list) else value

    return normal(json.dumps(fix(document), indent=2, ensure_ascii=True)) + "\n"


def updating() -> bool:
    """Tell whether what is compared is to be written instead."""
    return os.environ.get("CKPTCTL_UPDATE_GOLDENS") == "1"


def assert_golden(name: str, text: str) -> None:
    """Compare with ``golden/<command>/<name>``; with ``CKPTCTL_UPDATE_GOLDENS=1`` write it instead."""
    path = GOLDEN / name
    if updating():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    assert path.is_file(), f"no golden {name}; CKPTCTL_UPDATE_GOLDENS=1 writes it"
    assert text == path.read_bytes().decode(), f"{name} differs; CKPTCTL_UPDATE_GOLDENS=1 rewrites"


def assert_golden_pair(name: str, args: Iterable[str | Path], cwd: Path, *, code: int = 0) -> None:
    """Run once for text and once for JSON and compare both."""
    words = [*args]
    text = run(*words, cwd=cwd)
    machine = run(*words, "--json", cwd=cwd)
    assert (text.code, text.stderr, machine.code, machine.stderr) == (code, "", code, "")
    assert_golden(f"{name}.txt", normal(text.stdout))
    document = normal_json(machine.document())
    assert_golden(f"{name}.json", document.replace(str(cwd), "<cwd>"))
