"""What runs inside a child process: ``python inside.py WHAT ARGUMENT ...``.

The peers, and our own reader where a part of the process is to be timed. Seconds of processor
time are printed.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
import resource
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_READ = 4 << 20


def _timed(work: Callable[[], object]) -> None:
    start = _cpu()
    result = work()
    print(_cpu() - start)
    del result


def _cpu() -> float:
    """Return the processor time of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def torch_metadata(path: str) -> None:
    """Load metadata as torch's own reader does."""
    import torch.distributed.checkpoint  # noqa: F401 - not part of what is timed

    with Path(path).open("rb") as file:
        _timed(lambda: pickle.load(file))


def our_metadata(path: str) -> None:
    """Load metadata as ckptctl does."""
    from ckptctl.formats.dcp.apart import parse_metadata
    from ckptctl.storage import open_store

    gc.disable()  # as the command line does
    whole = Path(path)
    with open_store(str(whole.parent)).open(whole.name) as reader:
        _timed(lambda: _accepted(parse_metadata(reader, whole.name)))


def _accepted(parsed: object) -> object:
    faults = getattr(parsed, "faults", None)
    if faults != []:
        raise ValueError(f"the metadata was not accepted: {faults}")
    return parsed


def crc(threads: str, *paths: str) -> None:
    """Compute the CRC-32 of whole files and do nothing else."""
    with ThreadPoolExecutor(int(threads)) as pool:
        _timed(lambda: list(pool.map(_crc, paths)))


def _crc(path: str) -> int:
    buffer = bytearray(_READ)
    view = memoryview(buffer)
    value = 0
    with Path(path).open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            value = zlib.crc32(view[:count], value)
    return value


def xxh3(*paths: str) -> None:
    """Hash whole files with the library of ``xxhsum -H2``."""
    import xxhash

    buffer = bytearray(_READ)
    view = memoryview(buffer)
    for path in paths:
        digest = xxhash.xxh3_128()
        with Path(path).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(view[:count])
        print(digest.hexdigest())


def torch_resave(source: str, target: str) -> None:
    """Load a whole checkpoint and save it again in one process, as one does without a tool."""
    import torch
    import torch.distributed.checkpoint as dcp

    metadata = dcp.FileSystemReader(source).read_metadata()
    state = {
        fqn: torch.empty(entry.size, dtype=entry.properties.dtype)
        for fqn, entry in metadata.state_dict_metadata.items()
    }
    dcp.load(state, checkpoint_id=source, no_dist=True)
    dcp.save(state, checkpoint_id=target, no_dist=True)


def our_verify(path: str, threads: str) -> None:
    """Verify a checkpoint; print the seconds without those of starting Python and importing."""
    from ckptctl.operations.find import locate
    from ckptctl.operations.verify.verify import Options, Verdict, verify
    from ckptctl.storage import open_store

    start = time.perf_counter()
    store, (place,) = locate(path, open_store)
    outcome = verify(store, place, options=Options(workers=int(threads), require_manifest=True))
    seconds = time.perf_counter() - start
    if outcome.verdict in (Verdict.FINDINGS, Verdict.UNFINISHED):
        raise ValueError(f"{path}: {outcome.verdict.value}")
    print(seconds)


def our_resolve(path: str) -> None:
    """Resolve where no candidate is good; print the seconds of processor time."""
    from ckptctl import resolve
    from ckptctl.results import NoneUsable

    gc.disable()  # as the command line does

    def none() -> None:
        try:
            found = resolve(path, allow_uncommitted=True)
        except NoneUsable:
            return
        raise ValueError(f"{found.checkpoint} is good")

    _timed(none)


def our_reshard(source: str, out: str, ranks: str, rule: str) -> None:
    """Reshard by the command line and print how many bytes of the source were read."""
    from threading import Lock

    from ckptctl.cli.main import main
    from ckptctl.storage.posix import PosixReader

    whole, lock, count = PosixReader.read_into, Lock(), 0
    inside = str(Path(source).resolve())

    def counted(reader: PosixReader, length: int) -> None:
        nonlocal count
        if str(reader._path.resolve()).startswith(inside):
            with lock:
                count += length

    def read(reader: PosixReader, start: int, stop: int) -> bytes:
        data = bytearray(stop - start)
        read_into(reader, start, memoryview(data))
        return bytes(data)

    def read_into(reader: PosixReader, start: int, buffer: memoryview) -> None:
        counted(reader, len(buffer))
        whole(reader, start, buffer)

    PosixReader.read, PosixReader.read_into = read, read_into  # type: ignore[method-assign]
    sys.argv = [
        "ckptctl",
        "reshard",
        source,
        "--world-size",
        ranks,
        "--out",
        out,
        "--dim-rule",
        rule,
    ]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print(count)


def our_diff_bytes(a: str, b: str) -> None:
    """Compare two checkpoints and print how many bytes the process read meanwhile (Linux)."""
    from ckptctl import diff

    def read() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    diff(a, b, quick=True)  # what is imported on the way is not counted
    before = read()
    found = diff(a, b, quick=True)
    count = read() - before
    if found.exit_code or found.content.bytes_read:
        raise ValueError("they differ, or payload was read")
    print(count)


def sha256(*paths: str) -> None:
    """Hash files as Megatron's integrity check does: one thread, 1 MiB at a time."""
    for path in paths:
        digest = hashlib.sha256()
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        print(digest.hexdigest())


WHAT: dict[str, Callable[..., None]] = {
    "torch-metadata": torch_metadata,
    "our-metadata": our_metadata,
    "torch-resave": torch_resave,
    "our-verify": our_verify,
    "our-resolve": our_resolve,
    "our-reshard": our_reshard,
    "our-diff-bytes": our_diff_bytes,
    "sha256": sha256,
    "crc": crc,
    "xxh3": xxh3,
}

if __name__ == "__main__":
    WHAT[sys.argv[1]](*sys.argv[2:])
