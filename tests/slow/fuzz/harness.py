"""Running many inputs in processes with limits, and telling what each came to.

An input is a function of the seed, the target and its number alone, so that any of them can be
made again. A process that dies, or that stays with one input for too long by its own clock of
processor time, leaves the number of that input behind.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from slow.fuzz.cases import Difference, Target

SECONDS = 10.0
"""Processor time that one input may take."""

MEMORY = 1 << 30
"""Bytes of address space that a process may take beyond what it has at the beginning."""


class Slow(BaseException):
    """An input takes the processor for far longer than anything so small may."""


@dataclass
class Tally:
    """What the inputs of one target came to."""

    target: str
    inputs: int = 0
    cpu: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    """By kind: numbers of inputs, their seeds and what was seen; a few of each."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take over what another process counted."""
        self.inputs += other.inputs
        self.cpu += other.cpu
        self.outcomes += other.outcomes
        self.counts += other.counts
        for kind, found in other.faults.items():
            self.faults[kind] = (self.faults.get(kind, []) + found)[:4]

    def fault(self, kind: str, number: int, slot: str, detail: str) -> None:
        """Count a fault and keep the first few of its kind."""
        self.counts[kind] += 1
        kept = self.faults.setdefault(kind, [])
        if len(kept) < 4:
            kept.append((number, slot, detail[:600]))


def make(target: Target, seed: int, number: int) -> tuple[str, bytes]:
    """Make one input again."""
    salt = int.from_bytes(target.name.encode(), "little")
    return target.make(random.Random((seed << 40 | number) ^ salt << 80))


def attempt(target: Target, slot: str, data: bytes) -> tuple[str, str, str]:
    """Judge one input; return the outcome, or an empty one with the kind of fault and its details."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return target.judge(slot, data), "", ""
    except Difference as error:
        return "", error.kind, str(error)
    except Slow:
        return "", f"more than {SECONDS:.0f} s of processor time{_where()}", ""
    except MemoryError:
        return "", f"out of memory{_where()}", ""
    except Exception as error:
        return "", f"{type(error).__name__}{_where()}", f"{error}\n{traceback.format_exc()[-900:]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _where() -> str:
    """Return the innermost place of the package in the traceback, without a line number."""
    trace = sys.exc_info()[2]
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "ckptctl" in Path(code.co_filename).parts and "tests" not in code.co_filename:
            found = f" at {Path(code.co_filename).name}:{code.co_name}"
        trace = trace.tb_next
    return found


def _stop(_: int, __: FrameType | None) -> None:
    raise Slow


def confine(memory: int = MEMORY) -> None:
    """Limit this process: memory beyond what it has, and a clock for each input."""
    faulthandler.disable()  # a fault is counted, and its input told, by whoever waits
    signal.signal(signal.SIGPROF, _stop)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    ceiling = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(target: Target, seed: int, numbers: range, at: mmap.mmap, out: int) -> None:
    confine()
    tally = Tally(target.name)
    began = time.process_time()
    for number in numbers:
        at[:8] = struct.pack("<q", number)
        slot, data = make(target, seed, number)
        outcome, kind, detail = attempt(target, slot, data)
        tally.inputs += 1
        if outcome:
            tally.outcomes[outcome] += 1
        else:
            tally.fault(kind, number, slot, detail)
    tally.cpu = time.process_time() - began
    with os.fdopen(out, "w") as pipe:
        json.dump(vars(tally), pipe)


@dataclass
class _Child:
    pid: int
    numbers: range
    at: mmap.mmap
    pipe: int
    seen: int = -1
    since: float = 0.0
    text: bytes = b""

    @property
    def number(self) -> int:
        """The input that it works on."""
        return int(struct.unpack("<q", self.at[:8])[0])

    def used(self) -> float:
        """Processor time so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _start(target: Target, seed: int, numbers: range) -> _Child:
    at = mmap.mmap(-1, 8)
    at[:8] = struct.pack("<q", -1)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            _serve(target, seed, numbers, at, writing)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    os.set_blocking(reading, False)
    return _Child(pid, numbers, at, reading)


def run(target: Target, seed: int, numbers: range, *, workers: int = 2, chunk: int = 5000) -> Tally:
    """Judge inputs of one target in several processes."""
    tally = Tally(target.name)
    waiting = [numbers[at : at + chunk] for at in range(0, len(numbers), chunk)][::-1]
    running: list[_Child] = []
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(_start(target, seed, waiting.pop()))
        for child in list(running):
            try:
                while piece := os.read(child.pipe, 1 << 16):
                    child.text += piece
            except BlockingIOError:
                pass
            done, status = os.waitpid(child.pid, os.WNOHANG)
            if done:
                running.remove(child)
                waiting += _ended(child, status, tally)
            elif _hangs(child):
                os.kill(child.pid, signal.SIGKILL)
        time.sleep(0.02)
    return tally


def _hangs(child: _Child) -> bool:
    number = child.number
    try:
        used = child.used()
    except (FileNotFoundError, ProcessLookupError):
        return False
    if number != child.seen:
        child.seen, child.since = number, used
    return used - child.since > 3 * SECONDS


def _ended(child: _Child, status: int, tally: Tally) -> list[range]:
    """Take over what a process counted; where it died return all its inputs but the one it died of."""
    try:
        while piece := os.read(child.pipe, 1 << 16):
            child.text += piece
    except BlockingIOError:
        pass
    os.close(child.pipe)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        found: dict[str, Any] = json.loads(child.text)
        found["outcomes"], found["counts"] = Counter(found["outcomes"]), Counter(found["counts"])
        faults = {k: [tuple(one) for one in v] for k, v in found.pop("faults").items()}
        tally.add(Tally(**found, faults=faults))
        return []
    number = child.number
    if number < 0 or code == 1:
        raise RuntimeError(f"a process ended with {code} outside of what it judged")
    tally.fault(f"the process ended with {code}", number, "", "")
    tally.inputs += 1
    rest = (range(child.numbers.start, number), range(number + 1, child.numbers.stop))
    return [one for one in rest if one]


def alone(target: Target, slot: str, data: bytes) -> str:
    """Judge one input in a process of its own; return what is wrong, or nothing."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            confine()
            outcome, kind, detail = attempt(target, slot, data)
            with os.fdopen(writing, "w", errors="replace") as pipe:
                pipe.write("" if outcome else f"{kind}: {detail}"[:1000])
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return text if code == 0 else f"the process ended with {code}"
