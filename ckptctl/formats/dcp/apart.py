"""Reads large and unusual ``.metadata`` in a process of its own, whose memory and time are limited.

Objects of a framework's own, by the million, take more memory here than a reader may. Python's own
unpickler needs less, and cannot be stopped from within: a tuple nested a million deep overflows its
stack, one that is shared is hashed for ever. In a child it takes nobody along. What the child has
understood comes back as plain columns.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from array import array
from pathlib import Path
from typing import IO, Any

from ckptctl.errors import MalformedData, StorageError, TooDeep, TooLarge, TooMuchMemory
from ckptctl.formats.budget import Budget
from ckptctl.formats.dcp.metadata import (
    Parsed,
    parse,
    read_carefully,
    read_usual,
    unreadable,
)
from ckptctl.formats.pickles.unpickler import MAX_SIZE
from ckptctl.model.checkpoint import Items, ObjectEntry, SaveIdentity, TensorEntry
from ckptctl.model.geometry import Boxes
from ckptctl.storage import Reader

FAST_FROM = (4 << 20) + 1
"""Bytes of metadata from which this lane is taken: a process is not worth it for less."""

_CAREFUL_MOST = 1 << 30
_BLOCK = 1 << 20
_MIB = 1 << 20
_MEMORY, _MEMORY_PER_BYTE = 384 * _MIB, 8
_SECONDS, _SECONDS_PER_MIB = 2, 0.25
_UNUSUAL, _LARGE = 3, 4
_CHILD = (
    "import sys; sys.path[:] = {path!r}; from ckptctl.formats.dcp.apart import main; main({size})"
)
_DEEP, _ENDED = (
    frozenset(-getattr(signal, name) for name in names if hasattr(signal, name))
    for names in (("SIGSEGV", "SIGBUS"), ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"))
)
"""How a child ends whose stack overflows, and how only somebody else ends it."""


def parse_metadata(reader: Reader, source: str) -> Parsed:
    """Read one metadata file, in a process of its own where it takes too much in this one."""
    try:
        if reader.size > MAX_SIZE:
            raise TooLarge(f"{reader.size} bytes of metadata are refused (the limit is {MAX_SIZE})")
        if reader.size < FAST_FROM:
            return parse(reader.read(0, reader.size), source)
        budget = Budget(reader.size)
        found = _parse_large(reader, source, budget)
        if found is not None:
            return found
        return read_carefully(reader.read(0, reader.size), source, budget.again())
    except MalformedData as error:
        return unreadable(source, error)


def _parse_large(reader: Reader, source: str, budget: Budget) -> Parsed | None:
    """Read large metadata of the usual form, else in a process of its own; None for any other.

    Raises ``MalformedData`` for what asks for too much.
    """
    if not _looks_usual(reader):
        if reader.size > _CAREFUL_MOST:
            raise TooLarge(f"{reader.size} bytes of metadata of another form than torch writes")
        return None
    try:
        found = read_usual(reader.read(0, reader.size), source, budget)
    except TooMuchMemory:
        found = parse_apart(reader, source)
        if found is None:
            raise
        return found
    return found if found is not None else parse_apart(reader, source)


def _looks_usual(reader: Reader) -> bool:
    """Look at both ends before very much is read: torch writes protocol 4 or 5, in frames.

    Raises ``MalformedData`` for a file that begins or ends with zeros, as sparse ones do.
    """
    begin, end = reader.read(0, 3), reader.read(reader.size - 1, reader.size)
    if not begin.strip(b"\0") or end == b"\0":
        raise MalformedData("it begins or ends with zeros: it was never written to its end")
    return begin in (b"\x80\x04\x95", b"\x80\x05\x95")


def parse_apart(reader: Reader, source: str) -> Parsed | None:
    """Return what a child understood, or None for metadata of an unusual form.

    Raises ``MalformedData`` for what the child's limits ended, and ``StorageError`` where somebody
    else ended the child, as a machine does that runs out of memory: that tells nothing.
    """
    import subprocess

    code = _CHILD.format(path=sys.path, size=reader.size)
    try:
        child = subprocess.Popen(  # noqa: S603 - this very interpreter, with code of ours
            [sys.executable, "-S", "-E", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError, TypeError):  # there may be no path to this interpreter
        return None
    with child:
        assert child.stdin is not None and child.stdout is not None  # noqa: S101
        try:
            for start in range(0, reader.size, _BLOCK):
                child.stdin.write(reader.read(start, min(start + _BLOCK, reader.size)))
            child.stdin.close()
        except BrokenPipeError:
            pass  # it has seen enough
        except BaseException:
            child.kill()
            raise
        try:
            found = receive(child.stdout, source)
        except (ValueError, EOFError, LookupError):
            found = None
        status = child.wait()
    if status == 0:
        return found
    if status in _ENDED:
        number = signal.Signals(-status).name
        raise StorageError(f"{source}: the process that read it was ended from outside ({number})")
    if status in _DEEP:
        raise TooDeep("it nests too deeply to be loaded")
    if status < 0 or status == _LARGE:
        raise TooLarge("what it describes takes far more memory or time than its own size")
    return None


def main(size: int) -> None:
    """Be the child: read metadata from the standard input and write columns to the output."""
    limited = _limit(size)
    from ckptctl.formats.dcp.columns import Unusual, parse_columns
    from ckptctl.formats.pickles.unpickler import no_collector

    try:
        with no_collector():
            send(parse_columns(sys.stdin.buffer, size, ""), sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except Unusual:
        _leave(_UNUSUAL)
    except MemoryError:
        _leave(_LARGE if limited else _UNUSUAL)
    _leave(0)


def _leave(status: int) -> None:
    """End at once: what millions of objects were worth is given back by the kernel."""
    os._exit(status)


def _limit(size: int) -> bool:
    """Limit what this process takes; tell whether the limit of its memory is one of ours.

    Under a tighter one, which a shell or a batch system has set, running out says nothing about the
    metadata. Where none can be set, as on macOS, the careful reader has to do without this process.
    """
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return False
    memory = _mapped() + _MEMORY + _MEMORY_PER_BYTE * size
    seconds = int(_SECONDS + _SECONDS_PER_MIB * (size // _MIB))
    ours = _lower(resource, resource.RLIMIT_AS, memory, memory)
    # a second more, in which SIGXCPU ends it: SIGKILL may come from anybody
    _lower(resource, resource.RLIMIT_CPU, seconds, seconds + 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    return ours


def _lower(resource: Any, kind: int, soft: int, hard: int) -> bool:
    """Set a limit of this process; return False where there is a tighter one already."""
    limits = [one for one in resource.getrlimit(kind) if one != resource.RLIM_INFINITY]
    if min(limits, default=hard) < hard:
        return False
    try:
        resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError):
        _leave(_UNUSUAL)
    return True


def _mapped() -> int:
    """Return the bytes that are mapped by now: an allocator or a sanitizer may reserve very many."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def send(parsed: Parsed, out: IO[bytes]) -> None:
    """Write what was understood: one line of JSON, then the columns that it lists."""
    items = parsed.items
    names = {fqn: number for number, fqn in enumerate(parsed.entries)}
    paths: dict[str, int] = {}
    origins: dict[Any, int] = {}
    columns = [
        array("q", (names.setdefault(fqn, len(names)) for fqn in items.fqns)),
        array("q", (paths.setdefault(path, len(paths)) for path in items.paths)),
        array("q", (origins.setdefault(origin, len(origins)) for origin in items.origins)),
        items.offsets,
        items.lengths,
    ]
    entries: list[Any] = []
    offsets, sizes = array("q"), array("q")
    for entry in parsed.entries.values():
        if isinstance(entry, TensorEntry):
            boxes = entry.boxes
            entries.append([entry.dtype, entry.shape, entry.requires_grad, boxes.ndim, len(boxes)])
            offsets.extend(boxes.offsets)
            sizes.extend(boxes.sizes)
        else:
            entries.append(None)
    columns += [offsets, sizes]
    head = {
        "entries": entries,
        "names": list(names),
        "paths": list(paths),
        "origins": list(origins),
        "transforms": list(items.transforms.items()),
        "state": list(parsed.paths_in_state.items()),
        "identity": [
            parsed.identity.save_id,
            parsed.identity.checkpoint_id,
            parsed.identity.torch_versions,
        ],
        "opaque": parsed.opaque_classes,
        "columns": [len(column) for column in columns],
    }
    out.write(json.dumps(head).encode() + b"\n")
    for column in columns:
        out.write(memoryview(column).cast("B") if len(column) else b"")


def receive(source: IO[bytes], name: str) -> Parsed:
    """Read what ``send`` wrote."""
    head = json.loads(source.readline())
    columns = []
    for length in head["columns"]:
        column = array("q")
        column.fromfile(source, length)
        columns.append(column)
    fqns, paths, origins, offsets, lengths, box_offsets, box_sizes = columns
    parsed = Parsed(name, opaque_classes=tuple(head["opaque"]))
    position = 0
    for fqn, entry in zip(head["names"], head["entries"], strict=False):
        if entry is None:
            parsed.entries[fqn] = ObjectEntry(fqn)
            continue
        dtype, shape, grad, ndim, count = entry
        stop = position + ndim * count
        boxes = Boxes(ndim, count, box_offsets[position:stop], box_sizes[position:stop])
        parsed.entries[fqn] = TensorEntry(fqn, dtype, tuple(shape), boxes, grad)
        position = stop
    known = [None if origin is None else tuple(origin) for origin in head["origins"]]
    parsed.items = Items(
        list(map(head["names"].__getitem__, fqns)),
        list(map(known.__getitem__, origins)),
        list(map(head["paths"].__getitem__, paths)),
        offsets,
        lengths,
        {number: tuple(names) for number, names in head["transforms"]},
    )
    parsed.paths_in_state = {fqn: tuple(path) for fqn, path in head["state"]}
    parsed.identity = SaveIdentity(*head["identity"])
    return parsed
