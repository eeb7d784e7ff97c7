"""A process that looks at hostile files in children of its own: what they use is theirs alone.

It imports ckptctl once, and never torch, and then forks for each file, which costs milliseconds
where a new interpreter costs a third of a second. A child that needs too much memory or processor
time is ended by the kernel.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckptctl.errors import CkptctlError
from ckptctl.formats.pickles import tensors, values
from ckptctl.operations.catalog.show import Viewer
from ckptctl.operations.find import find
from ckptctl.operations.verify.verify import Options, verify
from ckptctl.storage import open_store

MEMORY = 6 << 30
"""Bytes of address space: a net for this machine, far above what is asserted."""

PROCESSOR = 20
"""Seconds of processor time: what is refused in time takes a fraction of one, a bomb for ever."""


def _verify(path: str) -> list[str]:
    store = open_store(path)
    (place,) = find(store)
    found = verify(store, place, options=Options(workers=1)).report.findings
    return [finding.check for finding in found if finding.severity.word == "error"]


def _show(path: str) -> list[str]:
    store = open_store(path)
    (place,) = find(store)
    rows = Viewer(store, place).objects()
    return [row.problem or type(row.value).__name__ for row in rows]


def _read(function: Callable[[bytes], object], path: str) -> list[str]:
    try:
        function(Path(path).read_bytes())
    except CkptctlError as error:
        return [type(error).__name__]
    return []


KINDS: dict[str, Callable[[str], list[str]]] = {
    "verify": _verify,
    "show": _show,
    "item": lambda path: _read(values.decode_item, path),
    "tensor": lambda path: _read(tensors.parse_tensor, path),
}
"""Ways of looking at a file."""


def _look(kind: str, path: str, out: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
    answer = KINDS[kind](path)
    status = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
    os.write(out, json.dumps({"answer": answer, "peak": int(peak) << 10}).encode())


def _serve() -> None:
    """For each line ``[KIND, PATH]`` look in a child; print its wait status and what it wrote."""
    for line in sys.stdin:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _look(*json.loads(line), theirs)
            except BaseException as error:
                os.write(theirs, repr(error).encode())
            os._exit(0)  # taking apart what nests deeply is not what is measured
        os.close(theirs)
        with os.fdopen(ours, "rb") as stream:
            said = stream.read().decode()
        _, status = os.waitpid(child, 0)
        print(json.dumps([status, said]), flush=True)


Look = Callable[[str, Path], dict[str, Any]]
"""Looks at a file in one of the ``KINDS``; returns its ``answer`` and ``peak`` in bytes."""


@contextmanager
def confined() -> Iterator[Look]:
    """Run the process; yield what asks it."""
    words = [sys.executable, "-m", "support.confined"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:

        def look(kind: str, path: Path) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{json.dumps([kind, str(path)])}\n")
            process.stdin.flush()
            status, said = json.loads(process.stdout.readline())
            assert status == 0, f"ended by signal {os.WTERMSIG(status)}"
            assert said.startswith("{"), said
            found: dict[str, Any] = json.loads(said)
            return found

        yield look
        process.communicate()


if __name__ == "__main__":
    _serve()
