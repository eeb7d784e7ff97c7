"""What asks for far more than its size allows ends as one finding, soon and in little memory."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl.errors import MalformedData, StorageError, TooDeep, TooLarge
from ckptctl.formats.budget import Budget
from ckptctl.formats.dcp import apart
from ckptctl.formats.dcp.metadata import Parsed
from ckptctl.formats.items import transforms
from ckptctl.formats.items.strided import rearranged
from ckptctl.formats.pickles.plain import pickle_plain
from ckptctl.formats.pickles.unpickler import load
from ckptctl.formats.pickles.values import value_table
from ckptctl.formats.torch import zip as torchzip
from ckptctl.formats.torch.states import flatten
from ckptctl.model.checkpoint import FaultKind, Item, Stored, rank_of
from ckptctl.storage import open_store
from ckptctl.storage.posix import PosixStore
from support import cli
from support.effort import ends
from support.lanes import only_apart
from support.stores import torch_zip

MIB = 1 << 20


def parsed(folder: Path, data: bytes, size: int = 0) -> Parsed:
    """Read metadata as it is read in use, in a process of its own where it is large."""
    path = folder / ".metadata"
    path.write_bytes(data)
    if size:
        os.truncate(path, size)
    with PosixStore(folder).open(".metadata") as reader:
        return apart.parse_metadata(reader, ".metadata")


def framed(body: bytes) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", len(body)) + body


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a tuple five million deep as a key": lambda: framed(b"})" + b"\x85" * (5 * MIB) + b"Ns."),
    "the same without frames": lambda: b"\x80\x02})" + b"\x85" * (5 * MIB) + b"Ns.",
    "five million lists": lambda: framed(b"]" * (5 * MIB) + b"."),
    "five million sets": lambda: framed(b"\x8f" * (5 * MIB) + b"."),
    "five million marks": lambda: framed(b"(" * (5 * MIB) + b"."),
    "a tuple hashed for ever": lambda: framed(
        b")\x940"
        + b"".join(
            b"j" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) + b"\x86\x940"
            for i in range(60)
        )
        + b"}j<\0\0\0Ns"
        + b"N0" * (3 * MIB)
        + b"."
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_large_metadata_that_would_end_the_process(tmp_path: Path, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (fault,) = parsed(tmp_path, HOSTILE[name]()).faults
    assert fault.kind in (FaultKind.TOO_LARGE, FaultKind.TOO_DEEP)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10


@pytest.mark.parametrize("size", [6 * MIB, 3 << 30, 1 << 40])
@pytest.mark.parametrize("data", [b"", b"\x80\x04\x95"])
def test_sparse_metadata_is_not_read(tmp_path: Path, data: bytes, size: int) -> None:
    (fault,) = parsed(tmp_path, data, size).faults
    assert fault.kind in (FaultKind.TOO_LARGE, FaultKind.UNREADABLE_METADATA)


def test_a_child_that_cannot_be_started_leaves_it_to_the_careful_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (Path(__file__).parents[2] / "fixtures/fsdp2/step-12/.metadata").read_bytes()
    only_apart(monkeypatch)
    fast = parsed(tmp_path, good)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert parsed(tmp_path, good).entries == fast.entries
    assert len(fast.items) == 100


HEALTHY = (Path(__file__).parents[2] / "fixtures/no_dist/step-12/.metadata").read_bytes()


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_a_child_that_somebody_ends_tells_nothing_of_the_metadata(
    copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    only_apart(monkeypatch)
    ended = f"import os, signal; os.kill(os.getpid(), signal.{number})"
    monkeypatch.setattr(apart, "_CHILD", ended)
    with pytest.raises(StorageError, match=f"ended from outside .{number}"):
        parsed(copy("no_crc/step-1"), HEALTHY)
    verified = cli.run("verify", copy("no_dist/step-12"))
    assert verified.code == 4
    assert "too-large" not in verified.stdout + verified.stderr


def test_a_tighter_limit_of_somebody_else_is_no_fault_of_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_apart(monkeypatch)
    tight = (
        "import resource, sys; sys.path[:] = {path!r}; "
        "from ckptctl.formats.dcp import apart, columns; "
        "columns.parse_columns = lambda *_: bytearray(1 << 40); "
        "resource.setrlimit(resource.RLIMIT_AS, (256 << 20,) * 2); apart.main({size})"
    )
    monkeypatch.setattr(apart, "_CHILD", tight)
    found = parsed(tmp_path, HEALTHY)
    assert len(found.items) == 46
    assert found.faults == []


def test_what_an_allocator_reserves_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_apart(monkeypatch)
    monkeypatch.setattr(apart, "read_carefully", None)  # the careful reader must not be asked
    reserving = apart._CHILD.replace(
        "import sys;", "import mmap, sys; held = mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE);"
    )
    monkeypatch.setattr(apart, "_CHILD", reserving)
    assert parsed(tmp_path, HEALTHY).faults == []


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x80\x02}" + b"(" * 600 + b")" + b"t" * 600 + b"Ns.", TooDeep),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", TooLarge),
        (b"\x80\x02I" + b"9" * 5000 + b"\n.", TooLarge),
        (b"\x80\x02Nr\xff\xff\xff\xff.", TooLarge),
    ],
)
def test_each_bound_has_its_error(data: bytes, error: type[MalformedData]) -> None:
    with pytest.raises(error):
        load(data, {})


PRIME = (1 << 61) - 1
"""What numbers are hashed by: those that differ by it have one hash."""


def alike(count: int) -> list[bytes]:
    """Pickle numbers that have one hash."""
    return [b"\x8a\x0c" + (k * PRIME + 7).to_bytes(12, "little") for k in range(8, count + 8)]


def again(what: bytes, opcodes: bytes) -> bytes:
    """Make one thing, and do the same to it very many times."""
    return b"\x80\x04" + what + opcodes * 200_000 + b"N."


METADATA = b"ctorch.distributed.checkpoint.metadata\n"
MANY = b"".join(b"X\4\0\0\0%04xN" % number for number in range(50_000))
REPEATED = {
    "a size": again(b"ctorch\nSize\nq\0(" + b"K\1" * 500_000 + b"t\x85q\x0100", b"h\0h\1R0"),
    "a state": again(METADATA + b"Metadata\n)\x81q\0}q\1(" + MANY + b"u0", b"h\0h\1b0"),
    "another's state": again(b"cmine\nMine\n)\x81q\0}q\1(" + MANY + b"u0", b"h\0h\1b0"),
    "its two states": again(b"cmine\nMine\n)\x81q\0}q\1(" + MANY + b"uh\1\x86q\x020", b"h\0h\2b0"),
    "a key of many digits": again(b"\x8b\0\0\x40\0" + b"\x7f" * (4 << 20) + b"q\x000}", b"h\0Ns"),
    "a path": again(
        b"cpathlib\nPosixPath\nq\0(X\xb8\x0b\0\0"
        + b"a" * 3000
        + b"q\1"
        + b"h\1" * 4
        + b"tq\x0200](",
        b"h\0h\2R",
    ),
    "nested arguments": again(
        b"cmine\nMine\nq\0("
        + b"h\1".join([b"K\1" * 64 + b"tq\1(", *[b"h\1" * 63 + b"tq\1("] * 3])
        + b"h\1tq\x0200",
        b"h\0h\2\x85R0",
    ),
    "an index": again(
        METADATA + b"MetadataIndex\n)\x81q\0}(X\3\0\0\0fqnN" + MANY + b"ub0}", b"h\0Ns"
    ),
    "arguments": again(b"cmine\nMine\nq\0(" + b"N" * 500_000 + b"tq\x0100", b"h\0h\1R0"),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_asked_for_again_is_counted_each_time(tmp_path: Path, name: str) -> None:
    with ends():
        assert parsed(tmp_path, REPEATED[name]).faults


SETS = {
    "a set": b"\x80\x04\x8f(%b\x90.",
    "a frozen set": b"\x80\x04(%b\x91.",
    "a set that is called": b"\x80\x02c__builtin__\nset\n](%be\x85R.",
    "a frozen set that is called": b"\x80\x02c__builtin__\nfrozenset\n](%be\x85R.",
}


@pytest.mark.parametrize("name", SETS)
def test_sets_of_what_nests_or_has_one_hash_end_soon(name: str) -> None:
    with ends():
        for members in (b")" + b"\x85" * 400_000, b"".join(alike(100_000))):
            with pytest.raises((TooDeep, TooLarge)):
                load(SETS[name] % members, value_table(), budget=Budget(1 << 10))
        few = b"".join([*alike(100), b"K\1K\2\x86", b"X\1\0\0\0a"])
        value, _, _ = load(SETS[name] % few, value_table())
        assert len(value) == 102  # type: ignore[arg-type]


def test_mappings_of_what_has_one_hash_end_soon() -> None:
    with ends():
        pairs = b"".join(one + b"N\x86" for one in alike(60_000))
        called = b"\x80\x02ccollections\nOrderedDict\n](" + pairs + b"e\x85R."
        with pytest.raises(TooLarge):
            load(called, value_table())


def doubled(levels: int, start: object, wrap: Callable[[object], object]) -> object:
    for _ in range(levels):
        start = wrap(start)
    return start


def test_what_is_shared_is_not_walked_for_ever() -> None:
    with pytest.raises(TooLarge):
        list(flatten(doubled(50, {}, lambda one: {"a": one, "b": one})))
    with pytest.raises(TooLarge):
        list(flatten([doubled(50, [], lambda one: [one, one])]))
    with pytest.raises(TooLarge):
        pickle_plain(doubled(50, (), lambda one: (one, one)))


def test_a_frame_of_zeros_is_not_decompressed_at_once() -> None:
    zstandard = pytest.importorskip("zstandard")
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    zeros = bytes(16 * MIB)
    bomb = b"".join(compressor.compress(zeros) for _ in range(64)) + compressor.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MalformedData, match="more than the 1000 bytes"):
        transforms.decode([bomb], 1, 1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10
    assert "transformed 20000 times" in transforms.unreadable(("stream.zstd/1",) * 20_000)
    file, size = transforms.decode([zstandard.ZstdCompressor().compress(b"x" * 9999)], 1, 10_000)
    with file:
        file.seek(0)
        assert (file.read(), size) == (b"x" * 9999, 9999)


def test_an_expanded_tensor_is_not_written_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1024))
    item = Item("w", (0,), "a", 0, 1024)
    store = open_store(tmp_path)
    with store.open("a") as reader:
        wide = Stored("float32", (1 << 40,), (0,), 0, 0, 1024, None)
        with pytest.raises(MalformedData, match="too many to write out"):
            rearranged(reader, item, wide, 4)
        odd = Stored("float32", (1, 4), (1 << 62, 1), 0, 0, 1024, None)
        assert rearranged(reader, item, odd, 4) == bytes(16)


def test_numbers_in_names_are_bounded() -> None:
    assert rank_of("__7_0.distcp") == 7
    assert rank_of(f"__{'1' * 5000}_0.distcp") is None


@pytest.mark.parametrize(
    "records",
    [
        {"data.pkl": b"N.", "data/0": b"ab", "DATA/0": b"cd"},
        {"data.pkl": b"N.", "Data.pkl": b"N."},
    ],
)
def test_names_that_torch_takes_for_one_are_refused(records: dict[str, bytes]) -> None:
    item = torch_zip(records)
    with pytest.raises(MalformedData, match="same name"):
        torchzip.read_directory(lambda start, stop: item[start:stop], len(item))


@pytest.mark.parametrize(
    ("small", "said"),
    [
        ({}, "no version"),
        ({"version": b"64"}, "version reads"),
        ({"version": b"3\n", "byteorder": b"odd"}, "byte order"),
        ({"version": b"3\n", ".storage_alignment": b"x"}, "alignment"),
        ({"version": b"3\n", ".data/serialization_id": b"\xff"}, "no text"),
        ({"version": b"3\n"}, ""),
    ],
)
def test_records_that_torch_looks_at_are_looked_at(small: dict[str, bytes], said: str) -> None:
    found = torchzip.problem({"data.pkl", *small}, small)
    assert (said in found) if said else not found
