"""Object stores on this machine, each a process of its own, and processes that race for one name."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
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

KEY, SECRET = "testing", "testing-secret"
_DEADLINE = 60.0

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
make_server("127.0.0.1", int(sys.argv[1]), app, threaded=False).serve_forever()
"""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
    port = free_port()
    with _running([sys.executable, "-c", _MOTO, str(port)], port) as endpoint:
        yield endpoint


@contextmanager
def rclone_server(directory: Path) -> Iterator[str]:
    """Run a server that ignores conditions; buckets are directories. Yield its address."""
    program = shutil.which("rclone") or shutil.which("rclone", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("rclone is not installed")
    port = free_port()
    words = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key"]
    words += [f"{KEY},{SECRET}", "--config", os.devnull, "--vfs-cache-mode", "off", str(directory)]
    with _running(words, port) as endpoint:
        yield endpoint


@contextmanager
def _running(command: list[str], port: int) -> Iterator[str]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_for(endpoint, process)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def _wait_for(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _DEADLINE
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server has ended"
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"no answer from {endpoint}")


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
        barrier.wait(_DEADLINE)
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
    found = [outcomes.get(timeout=2 * _DEADLINE) for _ in range(racers * rounds)]
    for process in processes:
        process.join()
        process.close()
    outcomes.close()
    outcomes.join_thread()
    return found
