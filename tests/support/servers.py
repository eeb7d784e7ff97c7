"""Object stores on this machine, each a process of its own, and processes that race for one name."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import SimpleQueue
from threading import Barrier as ThreadBarrier
from threading import Thread
from typing import Any, TypeAlias

import pytest

from ckptctl.errors import CkptctlError, Conflict
from ckptctl.storage import open_writable
from support.effort import PATIENCE

KEY, SECRET = "testing", "testing-secret"

Outcome: TypeAlias = tuple[int, int, str]
"""Round, number of the one who tried, and ``won``, ``lost`` or what went wrong."""

# ---------------------------------------------------------------------------------- servers

# One request at a time: moto looks whether an object exists and makes it in two steps, so that a
# server of threads may let two of them win.
_MOTO = """
import logging, sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = DomainDispatcherApplication(create_backend_app)
server = make_server("127.0.0.1", 0, app, threaded=False)
print(f"[http://127.0.0.1:{server.server_port}/]", file=sys.stderr, flush=True)
server.serve_forever()
"""
_ADDRESS = re.compile(rb"\[(http://127\.0\.0\.1:\d+)/\]")
"""What both servers write to stderr once they listen."""


def s3_environment(endpoint: str) -> dict[str, str]:
    """Return what points clients at a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def moto_server() -> Iterator[str]:
    """Run a server that honours conditional creation; yield its address."""
    pytest.importorskip("moto")
    with _running([sys.executable, "-c", _MOTO]) as endpoint:
        yield endpoint


@contextmanager
def rclone_server(directory: Path) -> Iterator[str]:
    """Run a server that ignores conditions; buckets are directories. Yield its address."""
    program = shutil.which("rclone") or shutil.which("rclone", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("rclone is not installed")
    words = [program, "serve", "s3", "--addr", "127.0.0.1:0", "--auth-key"]
    words += [f"{KEY},{SECRET}", "--config", os.devnull, "--vfs-cache-mode", "off", str(directory)]
    with _running(words) as endpoint:
        yield endpoint


@contextmanager
def _running(command: list[str]) -> Iterator[str]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    rest = Thread(target=process.stderr.read)  # a full pipe would stop the server
    try:
        found = next(filter(None, map(_ADDRESS.search, process.stderr)), None)
        assert found, f"{command[0]} has ended"
        rest.start()
        yield found[1].decode()
    finally:
        process.kill()
        process.wait()
        if rest.ident is not None:
            rest.join()
        process.stderr.close()


# ---------------------------------------------------------------------------------- races


def content(round_number: int, number: int) -> bytes:
    """Return what one racer writes; long enough to tear."""
    return f"round {round_number} racer {number} ".encode() * 500


def path_of(round_number: int) -> str:
    """Return the name that all racers of a round want, in a directory that nobody has made."""
    return f"race/round-{round_number}/record.json"


def _race(url: str, number: int, rounds: int, barrier: Any, outcomes: Any) -> None:
    """Try to create one object in each round, at the same moment as the others."""
    store = open_writable(url)
    for round_number in range(rounds):
        barrier.wait(PATIENCE)
        try:
            store.create(path_of(round_number), content(round_number, number))
            outcome = "won"
        except Conflict:
            outcome = "lost"
        except CkptctlError as error:
            outcome = repr(error)
        outcomes.put((round_number, number, outcome))


def race_of_threads(url: str, *, racers: int, rounds: int) -> list[Outcome]:
    """Let threads race."""
    barrier, outcomes = ThreadBarrier(racers), SimpleQueue[Outcome]()
    threads = [
        Thread(target=_race, args=(url, number, rounds, barrier, outcomes))
        for number in range(racers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes.get_nowait() for _ in range(outcomes.qsize())]


def race_of_processes(url: str, *, racers: int, rounds: int) -> list[Outcome]:
    """Let processes race."""
    context = multiprocessing.get_context("spawn")
    barrier: Barrier = context.Barrier(racers)
    outcomes: Any = context.Queue()
    processes = [
        context.Process(target=_race, args=(url, number, rounds, barrier, outcomes))
        for number in range(racers)
    ]
    for process in processes:
        process.start()
    found = [outcomes.get(timeout=PATIENCE) for _ in range(racers * rounds)]
    for process in processes:
        process.join()
        process.close()
    outcomes.close()
    outcomes.join_thread()
    return found
