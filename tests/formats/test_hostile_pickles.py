"""Pickles made to run something, to exhaust memory or to take for ever; and plain damage.

Nothing in them may be executed, reading them has to end soon and in little memory, and what is
wrong has to be said once and clearly.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import shutil
import struct
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptctl.errors import CkptctlError, MalformedData, UnsafeData
from ckptctl.formats.dcp import metadata as dcp_metadata
from ckptctl.formats.dcp.summary import summarise
from ckptctl.formats.pickles import tensors as tensorpickle
from ckptctl.formats.pickles import unpickler as pickles
from ckptctl.formats.pickles import values
from ckptctl.model.checkpoint import FaultKind
from ckptctl.model.finding import Finding, Severity
from ckptctl.operations.catalog.list import list_checkpoints
from ckptctl.operations.catalog.show import Viewer
from ckptctl.operations.find import find
from ckptctl.operations.verify.verify import Options, Verdict, Verification, verify
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.confined import Look, confined
from support.lanes import fast_from as take_from
from support.stores import torch_zip

SMALL = "no_crc/step-1"
"""A fixture of few items."""

EVERY_KIND = "fsdp2/step-12"

# --- making pickles by hand -------------------------------------------------------------------


def text(value: str) -> bytes:
    """Push a string."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    """Push an int."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<i", len(data)) + data


def tuple_of(*items: bytes) -> bytes:
    """Push a tuple."""
    return b"(" + b"".join(items) + b"t"


def stack_global(module: str, name: str) -> bytes:
    """Push a global as protocol 4 does; dots in the name are attributes."""
    return text(module) + text(name) + b"\x93"


def line_global(module: str, name: str) -> bytes:
    """Push a global as protocols 0 to 3 do."""
    return f"c{module}\n{name}\n".encode()


def call(function: bytes, *args: bytes) -> bytes:
    """Push the result of a call."""
    return function + tuple_of(*args) + b"R"


def whole(value: bytes) -> bytes:
    """Make a pickle of one value."""
    return b"\x80\x04" + value + b"."


def behind(metadata: bytes, value: bytes) -> bytes:
    """Build a value after the metadata's own, and throw it away again: all else stays valid."""
    assert metadata.endswith(b".")
    return metadata[:-1] + value + b"0."


# --- what they would run ----------------------------------------------------------------------


def executions(command: str) -> dict[str, bytes]:
    """Ways in which a pickle runs a shell command; one value each."""
    shell, code = text(command), text(f"__import__('os').system({command!r})")
    one, none = tuple_of(shell), b")"
    system, posix = stack_global("os", "system"), line_global("posix", "system")
    return {
        "os.system": call(system, shell),
        "posix.system": call(posix, shell),
        "nt.system": call(line_global("nt", "system"), shell),
        "subprocess.Popen": call(
            stack_global("subprocess", "Popen"), b"](" + text("sh") + text("-c") + shell + b"e"
        ),
        "builtins.eval": call(stack_global("builtins", "eval"), code),
        "__builtin__.eval": call(line_global("__builtin__", "eval"), code),
        "builtins.exec": call(stack_global("builtins", "exec"), code),
        "__builtin__.execfile": call(line_global("__builtin__", "execfile"), shell),
        "__import__ and getattr": call(
            call(
                stack_global("builtins", "getattr"),
                call(stack_global("builtins", "__import__"), text("os")),
                text("system"),
            ),
            shell,
        ),
        "importlib and getattr": call(
            call(
                line_global("__builtin__", "getattr"),
                call(line_global("importlib", "import_module"), text("os")),
                text("system"),
            ),
            shell,
        ),
        "getattr chain": call(
            call(
                stack_global("builtins", "getattr"),
                call(stack_global("builtins", "getattr"), system, text("__self__")),
                text("system"),
            ),
            shell,
        ),
        "operator.attrgetter": call(
            call(
                call(stack_global("operator", "attrgetter"), text("system")),
                call(stack_global("importlib", "import_module"), text("os")),
            ),
            shell,
        ),
        "map": call(
            stack_global("builtins", "list"),
            call(stack_global("builtins", "map"), system, one),
        ),
        "functools.partial": call(
            call(stack_global("functools", "partial"), system, shell),
        ),
        "INST": b"(" + shell + b"iposix\nsystem\n",
        "OBJ": b"(" + system + shell + b"o",
        "NEWOBJ": stack_global("subprocess", "Popen") + one + b"\x81",
        "NEWOBJ_EX": stack_global("subprocess", "Popen") + one + b"}\x92",
        "BUILD calls __setstate__": (
            call(stack_global("types", "SimpleNamespace"))
            + b"}"
            + text("__setstate__")
            + system
            + b"sb"
            + shell
            + b"b"
        ),
        "pickle in a pickle": call(
            stack_global("pickle", "loads"),
            b"C" + bytes([len(p := whole(call(posix, b"I1\n")))]) + p,
        ),
        "runpy": call(stack_global("runpy", "run_path"), shell),
        "pty.spawn": call(stack_global("pty", "spawn"), shell),
        "code object": call(
            call(stack_global("types", "FunctionType"), none, b"}"),
        ),
        # protocol 4 follows dots: these reach os through a module that everybody trusts
        "torch with dots": call(stack_global("torch", "os.system"), shell),
        "torch metadata with dots": call(
            stack_global("torch.distributed.checkpoint.metadata", "os.system"), shell
        ),
        "collections with dots": call(stack_global("collections", "_sys.modules.get"), text("os")),
        "numpy with dots": call(stack_global("numpy", "f2py.os.system"), shell),
    }


EXECUTIONS = tuple(executions(""))


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file that a payload would create; the test fails if it is there at the end."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "the payload was executed"


@pytest.fixture
def payload(canary: Path) -> Callable[[str], bytes]:
    """Make one of the payloads, aimed at the canary."""
    return lambda name: executions(f"touch {canary}")[name]


def look(root: Path, **options: Any) -> Verification:
    """Find and verify the one checkpoint of a directory, and look at it in every other way."""
    store = open_store(root)
    (place,) = find(store)
    list_checkpoints(store, check=True)
    with contextlib.suppress(CkptctlError):
        viewer = Viewer(store, place)
        viewer.describe()
        viewer.objects()
        viewer.tensors()
    return verify(store, place, options=Options(workers=1, **options))


def errors(verification: Verification) -> list[Finding]:
    found = verification.report.findings
    return [finding for finding in found if finding.severity is Severity.ERROR]


@pytest.fixture
def checkpoint(copy: Callable[..., Path]) -> Path:
    """A small checkpoint whose files may be damaged."""
    return copy(SMALL)


def only_error(root: Path, *checks: str) -> Finding:
    verification = look(root)
    assert verification.verdict is Verdict.FINDINGS
    (finding,) = errors(verification)
    assert finding.check in checks
    assert finding.where.file == ".metadata"
    return finding


@pytest.mark.parametrize("name", EXECUTIONS)
def test_metadata_that_is_a_payload(
    checkpoint: Path, payload: Callable[[str], bytes], name: str
) -> None:
    (checkpoint / ".metadata").write_bytes(whole(payload(name)))
    only_error(checkpoint, "unsafe-metadata", "unreadable-metadata")


@pytest.mark.parametrize("name", EXECUTIONS)
@pytest.mark.parametrize("fast_from", [0, 1 << 40])
def test_metadata_with_a_payload_behind_it(
    checkpoint: Path,
    payload: Callable[[str], bytes],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fast_from: int,
) -> None:
    """Everything else in it is in order, so only the payload may be reported, and has to be."""
    take_from(monkeypatch, fast_from)
    metadata = checkpoint / ".metadata"
    metadata.write_bytes(behind(metadata.read_bytes(), payload(name)))
    only_error(checkpoint, "unsafe-metadata", "unreadable-metadata")


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "INST", "getattr chain"])
def test_the_finding_names_what_would_have_run(
    checkpoint: Path, payload: Callable[[str], bytes], name: str
) -> None:
    (checkpoint / ".metadata").write_bytes(whole(payload(name)))
    finding = only_error(checkpoint, "unsafe-metadata")
    assert any(word in finding.message for word in ("system", "eval", "builtins.getattr"))
    assert "nothing was run" in finding.message
    assert "torch" in finding.remedy


REFUSED = {
    "a persistent id": text("anything") + b"Q",
    "a persistent id, text": b"Panything\n",
    "extension code 1": b"\x82\x01",
    "extension code 2": b"\x83\x01\x02",
    "extension code 4": b"\x84\x01\x02\x03\x04",
    "an out of band buffer": b"\x97",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("alone", [True, False])
def test_what_metadata_never_holds_is_refused(checkpoint: Path, name: str, alone: bool) -> None:
    metadata = checkpoint / ".metadata"
    value = REFUSED[name]
    metadata.write_bytes(whole(value) if alone else behind(metadata.read_bytes(), value))
    only_error(checkpoint, "unreadable-metadata")


# --- bombs ------------------------------------------------------------------------------------

MIB = 1 << 20


def laughs(start: bytes, step: Callable[[bytes], bytes], levels: int) -> bytes:
    """Make a value that holds the one before it several times, again and again."""
    data = start
    for level in range(levels):
        get = b"j" + struct.pack("<I", level)
        data += b"r" + struct.pack("<I", level) + b"0" + step(get)
    return data


def in_dict_key(value: bytes) -> bytes:
    return b"}" + value + b"Ns"


def chunk_of(fields: bytes) -> bytes:
    return stack_global(dcp_metadata.METADATA, "ChunkStorageMetadata") + b")\x81" + fields + b"b"


def pair(get: bytes) -> bytes:
    return get + get + b"\x86"


def listed(get: bytes) -> bytes:
    return b"](" + get * 8 + b"e"


def path_bomb(get: bytes) -> bytes:
    return call(stack_global("pathlib", "PosixPath"), *[get] * 16)


def device_bomb(get: bytes) -> bytes:
    return call(stack_global("torch", "device"), *[get] * 16)


def range_bomb(get: bytes) -> bytes:
    return call(stack_global("builtins", "range"), *[get] * 3)


def size_bomb(width: int, times: int) -> bytes:
    """Spread one long string into tuples of its letters, many times."""
    head = text("x" * width) + b"q\x00" + stack_global("torch", "Size") + b"q\x01" + b"]q\x02("
    return head + b"h\x01h\x00\x85R" * times + b"e"


def many_classes(count: int) -> bytes:
    return b"](" + b"".join(line_global("m", f"C{i}") for i in range(count)) + b"e"


def bombs() -> dict[str, bytes]:
    """Values of a few bytes to a few MiB that ask for far more, or for ever."""
    return {
        "LONG_BINPUT of 2**32-1": b"Nr\xff\xff\xff\xff",
        "PUT of 2**40": b"Np%d\n" % 2**40,
        "PUT of 2**63": b"Np%d\n" % 2**63,
        "PUT of many digits": b"Np" + b"9" * 10_000 + b"\n",
        "BINBYTES8 of 2**40": b"\x8e" + struct.pack("<Q", 2**40),
        "BINBYTES8 of 2**64-1": b"\x8e" + b"\xff" * 8,
        "BINUNICODE8 of 2**40": b"\x8d" + struct.pack("<Q", 2**40),
        "BYTEARRAY8 of 2**40": b"\x96" + struct.pack("<Q", 2**40),
        "BYTEARRAY8 of 2**64-1": b"\x96" + b"\xff" * 8,
        "LONG4 of 2**31-1": b"\x8b\xff\xff\xff\x7f",
        "LONG4 of -1": b"\x8b\xff\xff\xff\xff",
        "BINSTRING of 2**31-1": b"T\xff\xff\xff\x7f",
        "FRAME of 2**63": b"\x95" + struct.pack("<Q", 2**63) + b"N",
        "tuples 200,000 deep as a key": in_dict_key(b")" + b"\x85" * 200_000),
        "tuples 200,000 deep": b")" + b"\x85" * 200_000,
        "tuples of a mark 100,000 deep as a key": in_dict_key(
            b"(" * 100_000 + b"N" + b"t" * 100_000
        ),
        "frozensets 100,000 deep": in_dict_key(b"(" * 100_000 + b"N" + b"\x91" * 100_000),
        "lists 200,000 deep": b"]" * 200_000 + b"a" * 199_999,
        "dicts 100,000 deep": b"}N" * 100_000 + b"N" + b"s" * 100_000,
        "calls 100,000 deep": line_global("m", "f") + b")R" * 100_000,
        "laughing tuples": laughs(b")", pair, 60),
        "laughing tuples as a key": in_dict_key(laughs(b")", pair, 60)),
        "laughing tuples in a set": b"\x8f(" + laughs(b")", pair, 60) + b"\x90",
        "laughing lists": laughs(b"]", listed, 30),
        "laughing paths": laughs(text("x" * 1000), path_bomb, 12),
        "laughing lists in a path": call(
            stack_global("pathlib", "PosixPath"), laughs(b"]", listed, 30)
        ),
        "strings spread into tuples": size_bomb(1 * MIB, 2000),
        "150,000 opaque classes": many_classes(150_000),
        "a huge decimal int": b"L" + b"9" * (2 * MIB) + b"L\n",
        "a huge decimal int without L": b"I" + b"9" * (2 * MIB) + b"\n",
        "a huge decimal int as a call": call(
            stack_global("builtins", "int"), text("9" * (2 * MIB))
        ),
        "a huge float": b"F" + b"9" * (2 * MIB) + b"\n",
        "marks": b"(" * MIB,
        "duplicates": b"N" + b"2" * (MIB // 2),
        "memo of everything": b"N\x94" * (MIB // 4),
        "a list that holds itself": b"]q\x00h\x00a",
        "a tuple that holds itself as a key": in_dict_key(b"]q\x00h\x00a\x85"),
        "nothing but dots": b"." * MIB,
    }


BOMBS = tuple(bombs())

Measured = Callable[[str, Path], list[str]]

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)


@pytest.fixture(scope="module")
def look_confined() -> Iterator[Look]:
    """A process whose children look at files; what they use is limited."""
    with confined() as look:
        yield look


@pytest.fixture
def measured(look_confined: Look) -> Measured:
    """Look at a file in a process of its own; assert that it ended and took little memory."""

    def measure(kind: str, path: Path) -> list[str]:
        result = look_confined(kind, path)
        assert result["peak"] <= 300 * MIB, result
        answer: list[str] = result["answer"]
        return answer

    return measure


@needs_proc
def test_a_healthy_checkpoint_takes_little(measured: Measured, checkpoint: Path) -> None:
    assert measured("verify", checkpoint) == []


@needs_proc
@pytest.mark.parametrize("name", BOMBS)
def test_metadata_bombs(measured: Measured, checkpoint: Path, name: str) -> None:
    (checkpoint / ".metadata").write_bytes(whole(bombs()[name]))
    (check,) = measured("verify", checkpoint)
    assert check in (
        "unreadable-metadata",
        "unsafe-metadata",
        "trailing-metadata",
        "too-large",
        "too-deep",
    )


@needs_proc
@pytest.mark.parametrize("name", BOMBS)
def test_metadata_with_a_bomb_behind_it_ends(
    measured: Measured, checkpoint: Path, name: str
) -> None:
    metadata = checkpoint / ".metadata"
    metadata.write_bytes(behind(metadata.read_bytes(), bombs()[name]))
    assert len(measured("verify", checkpoint)) <= 1


@pytest.mark.parametrize(
    "name",
    [
        "LONG_BINPUT of 2**32-1",
        "PUT of 2**40",
        "BINBYTES8 of 2**40",
        "BINBYTES8 of 2**64-1",
        "BINUNICODE8 of 2**40",
        "BYTEARRAY8 of 2**40",
        "LONG4 of 2**31-1",
        "tuples 200,000 deep as a key",
        "tuples of a mark 100,000 deep as a key",
    ],
)
def test_the_worst_are_refused_before_anything_is_built(name: str) -> None:
    with pytest.raises(UnsafeData):
        pickles.load(whole(bombs()[name]), {})


# --- state of the reader ----------------------------------------------------------------------

OURS = sorted(
    {key for table in (dcp_metadata.TABLE, tensorpickle.TABLE) for key in table}
    | {("builtins", "set"), ("builtins", "dict"), ("collections", "OrderedDict")}
    | {("unknown.module", "Class"), ("torch", "float32")}
)
ATTRIBUTES = ("__setstate__", "__init__", "__new__", "state", "_call", "label", "name", "module")


def attribute_changes(module: str, name: str) -> Iterator[bytes]:
    """Set attributes of a global through BUILD, by its dictionary and by its slots."""
    target = stack_global(module, name)
    for attribute in ATTRIBUTES:
        fields = b"}" + text(attribute) + text("changed") + b"s"
        for state in (fields, b"N" + fields + b"\x86"):
            yield target + state + b"b"
            yield call(target) + state + b"b"


READERS: tuple[Callable[[bytes], object], ...] = (
    lambda data: pickles.load(data, dcp_metadata.TABLE),
    lambda data: pickles.load(data, tensorpickle.TABLE),
    tensorpickle.parse_tensor,
    lambda data: values.decode_item(torch_zip({"data.pkl": data})),
)


def facts(root: Path) -> object:
    checkpoint = dcp_metadata.parse((root / ".metadata").read_bytes(), ".metadata")
    fields = ("fqns", "origins", "paths", "offsets", "lengths")
    return checkpoint.entries, [list(getattr(checkpoint.items, f)) for f in fields]


@pytest.mark.parametrize("key", OURS, ids=lambda key: ".".join(key))
def test_a_pickle_cannot_change_how_the_next_is_read(
    checkpoint: Path, key: tuple[str, str]
) -> None:
    before = facts(checkpoint)
    item = (FIXTURES / SMALL / "__0_0.distcp").read_bytes()
    for value in attribute_changes(*key):
        hostile = whole(value)
        assert dcp_metadata.parse(hostile, "hostile").faults
        for function in READERS:
            with contextlib.suppress(MalformedData):
                function(hostile)
    assert facts(checkpoint) == before
    assert (checkpoint / "__0_0.distcp").read_bytes() == item
    assert look(checkpoint).report.findings == ()


# --- hostile items ----------------------------------------------------------------------------

GOOD_TENSOR = call(
    line_global("torch._utils", "_rebuild_tensor_v2"),
    tuple_of(
        text("storage"), line_global("torch", "FloatStorage"), text("0"), text("cpu"), b"K\x02"
    )
    + b"Q",
    b"K\x00",
    b"K\x02\x85",
    b"K\x01\x85",
    b"\x89",
    call(line_global("collections", "OrderedDict")),
)
"""Two floats, as torch describes them."""


def write_checkpoint(root: Path, items: dict[str, bytes], *, tensors: bool) -> None:
    """Write a checkpoint of the given items, each a tensor of two floats or an object."""
    metadata = pytest.importorskip("torch.distributed.checkpoint.metadata")
    filesystem = pytest.importorskip("torch.distributed.checkpoint.filesystem")
    torch = pytest.importorskip("torch")
    one = torch.Size([2])
    entries, places, data = {}, {}, b""
    for fqn, item in items.items():
        if tensors:
            chunk = metadata.ChunkStorageMetadata(torch.Size([0]), one)
            properties = metadata.TensorProperties(torch.float32)
            entries[fqn] = metadata.TensorStorageMetadata(properties, one, [chunk])
            index = metadata.MetadataIndex(fqn, torch.Size([0]))
        else:
            entries[fqn] = metadata.BytesStorageMetadata()
            index = metadata.MetadataIndex(fqn)
        places[index] = filesystem._StorageInfo("__0_0.distcp", len(data), len(item))
        data += item
    root.mkdir(parents=True, exist_ok=True)
    (root / "__0_0.distcp").write_bytes(data)
    saved = metadata.Metadata(entries, {fqn: (fqn,) for fqn in items}, places)
    (root / ".metadata").write_bytes(pickle.dumps(saved, protocol=4))


@pytest.mark.parametrize("name", EXECUTIONS)
def test_objects_that_are_payloads(
    tmp_path: Path, payload: Callable[[str], bytes], name: str
) -> None:
    item = torch_zip({"data.pkl": whole(payload(name))})
    with contextlib.suppress(MalformedData):
        values.decode_item(item)
    root = tmp_path / "run" / "step-1"
    write_checkpoint(
        root, {"one": item, "two": torch_zip({"data.pkl": whole(b"K\x07")})}, tensors=False
    )
    store = open_store(root)
    (place,) = find(store)
    one, two = Viewer(store, place).objects()
    assert one.problem or isinstance(one.value, values.Described | list | tuple)
    assert (two.value, two.problem) == (7, "")
    look(root)


@pytest.mark.parametrize("name", EXECUTIONS)
@pytest.mark.parametrize("alone", [True, False])
def test_tensors_that_are_payloads(
    tmp_path: Path, payload: Callable[[str], bytes], name: str, alone: bool
) -> None:
    good = whole(GOOD_TENSOR)
    hostile = whole(payload(name)) if alone else behind(good, payload(name))
    with pytest.raises(MalformedData):
        tensorpickle.parse_tensor(hostile)
    numbers = {"data/0": b"\0" * 8, "version": b"3\n"}
    items = {
        "good": torch_zip({"data.pkl": good, **numbers}),
        "hostile": torch_zip({"data.pkl": hostile, **numbers}),
    }
    root = tmp_path / "run" / "step-1"
    write_checkpoint(root, items, tensors=True)
    (finding,) = look(root).report.findings
    assert finding.check in ("item-structure", "unsafe-item")
    assert finding.where.fqn == "hostile"


def tensor_v3(dtype: bytes, shape: bytes = b")", flags: bytes = b"}") -> bytes:
    storage = tuple_of(
        text("storage"),
        line_global("torch.storage", "UntypedStorage"),
        text("0"),
        text("cpu"),
        b"K\x08",
    )
    function = line_global("torch._utils", "_rebuild_tensor_v3")
    hooks = call(line_global("collections", "OrderedDict"))
    return call(function, storage + b"Q", b"K\x00", shape, shape, b"\x89", hooks, dtype, flags)


def item_bombs() -> dict[str, bytes]:
    """Bombs that aim at what items may hold and metadata may not."""
    floats = line_global("torch", "float32")
    return {
        "laughing devices": laughs(text("x" * 1000), device_bomb, 12),
        "laughing ranges": laughs(b"K\x01", range_bomb, 40),
        "a tensor of laughing dtype": tensor_v3(laughs(b"]", listed, 30)),
        "a tensor with laughing flags": tensor_v3(
            floats, flags=b"}" + laughs(b")", pair, 60) + b"\x88s"
        ),
        "a tensor of 300,000 dimensions": tensor_v3(
            floats, number(2**62) + b"q\x000(" + b"h\x00" * 300_000 + b"t"
        ),
        "laughing ordered dicts": laughs(
            b"}",
            lambda get: call(
                line_global("collections", "OrderedDict"), b"}K\x00" + get + b"sK\x01" + get + b"s"
            ),
            60,
        ),
        "laughing sets": laughs(
            b"N",
            lambda get: call(
                stack_global("builtins", "frozenset"),
                b"](K\x00" + get + b"\x86K\x01" + get + b"\x86e",
            ),
            60,
        ),
        "long strings encoded again and again": text("x" * MIB)
        + b"q\x000"
        + b"]q\x01("
        + call(line_global("_codecs", "encode"), b"h\x00", text("latin1")) * 2000
        + b"e",
        "long strings listed again and again": text("x" * MIB)
        + b"q\x000"
        + b"]q\x01("
        + call(line_global("__builtin__", "list"), b"h\x00") * 2000
        + b"e",
    }


ALL_BOMBS = {**bombs(), **item_bombs()}


@needs_proc
@pytest.mark.parametrize("name", ALL_BOMBS)
@pytest.mark.parametrize("kind", ["item", "tensor"])
def test_item_bombs(measured: Measured, tmp_path: Path, name: str, kind: str) -> None:
    data = whole(ALL_BOMBS[name])
    path = tmp_path / "bomb"
    path.write_bytes(torch_zip({"data.pkl": data}) if kind == "item" else data)
    measured(kind, path)


@needs_proc
def test_bombs_among_objects_do_not_hide_the_others(measured: Measured, tmp_path: Path) -> None:
    root = tmp_path / "step-1"
    chosen = ("LONG_BINPUT of 2**32-1", "BYTEARRAY8 of 2**40", "lists 200,000 deep")
    version = {"version": b"3\n"}
    items = {name: torch_zip({"data.pkl": whole(ALL_BOMBS[name]), **version}) for name in chosen}
    items["plain"] = torch_zip({"data.pkl": whole(b"K\x07"), **version})
    write_checkpoint(root, items, tensors=False)
    assert len(measured("show", root)) == 4
    assert measured("show", root)[-1] == "int"
    assert measured("verify", root) == ["too-large-item", "too-large-item"]


def test_an_object_that_nests_deeply_is_shortened(tmp_path: Path) -> None:
    item = torch_zip({"data.pkl": whole(b"]" * 10_000 + b"a" * 9_999)})
    value = values.decode_item(item)
    depth = 0
    while isinstance(value, list):
        (value,) = value
        depth += 1
    assert 10 <= depth <= 1000
    assert isinstance(value, values.Described)


# --- wrong types in valid metadata ------------------------------------------------------------

WRONG: dict[str, Any] = {
    "None": None,
    "-1": -1,
    "2**70": 2**70,
    "True": True,
    "1.5": 1.5,
    "'x'": "x",
    "b'x'": b"x",
    "[]": [],
    "{}": {},
    "tuple of strings": ("a", "b"),
    "tuple of -1": (-1,),
    "huge tuple": (2**70, 2**70),
    "lone surrogate": "\ud800",
    "int of many digits": 1 << 20_000,
    "opaque": textwrap.TextWrapper(),
}

TOLERATED = {
    # torch does not look at these, or accepts what is put there
    ("metadata", "planner_data"),
    ("metadata", "storage_meta"),
    ("metadata", "version"),
    ("tensor", "properties"),
    ("index", "index"),
    ("place", "transform_descriptors"),
    ("storage_meta", "checkpoint_id"),
    ("storage_meta", "save_id"),
    ("storage_meta", "load_id"),
    ("storage_meta", "modules"),
    ("properties", "dtype"),
    ("properties", "layout"),
    ("properties", "requires_grad"),
    ("properties", "pin_memory"),
}

FIELDS = {
    "metadata": ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"),
    "tensor": ("properties", "size", "chunks"),
    "chunk": ("offsets", "sizes"),
    "index": ("fqn", "offset", "index"),
    "place": ("relative_path", "offset", "length", "transform_descriptors"),
    "storage_meta": ("checkpoint_id", "save_id", "load_id", "modules"),
    "properties": ("dtype", "layout", "requires_grad", "pin_memory"),
}


def trusted_metadata(case: str) -> Any:
    """Load a fixture's metadata with torch itself."""
    pytest.importorskip("torch.distributed.checkpoint.filesystem")
    return pickle.loads((FIXTURES / case / ".metadata").read_bytes())


def part_of(metadata: Any, part: str) -> Any:
    """The object of the metadata that a part's name stands for."""
    tensor = next(e for e in metadata.state_dict_metadata.values() if hasattr(e, "chunks"))
    index = next(i for i in metadata.storage_data if i.offset)
    return {
        "metadata": metadata,
        "tensor": tensor,
        "chunk": tensor.chunks[0],
        "index": index,
        "place": metadata.storage_data[index],
        "storage_meta": metadata.storage_meta,
        "properties": tensor.properties,
    }[part]


def dump(value: Any) -> bytes:
    """Pickle without asking whether keys can be hashed."""
    return pickle.dumps(value, protocol=4)


@pytest.fixture(params=[0, 1 << 40], ids=["fast lane", "careful lane"])
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read metadata by columns, or object by object, whatever its size."""
    take_from(monkeypatch, request.param)


CASES = [SMALL, pytest.param(EVERY_KIND, marks=pytest.mark.slow)]


@pytest.mark.usefixtures("lane")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, names in FIELDS.items() for name in names]
)
def test_a_field_of_the_wrong_type(
    copy: Callable[..., Path], case: str, part: str, name: str, wrong: str
) -> None:
    root = copy(case)
    metadata = trusted_metadata(case)
    object.__setattr__(part_of(metadata, part), name, WRONG[wrong])
    (root / ".metadata").write_bytes(dump(metadata))
    verification = look(root)
    if (part, name) not in TOLERATED:
        assert errors(verification), verification.report.findings


@pytest.mark.usefixtures("lane")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("part", FIELDS)
def test_a_field_that_is_gone(copy: Callable[..., Path], case: str, part: str) -> None:
    for name in FIELDS[part]:
        root = copy(case, name)
        metadata = trusted_metadata(case)
        target = part_of(metadata, part)
        if part == "properties":
            continue  # pickled by position
        target.__dict__.pop(name, None)
        (root / ".metadata").write_bytes(dump(metadata))
        verification = look(root)
        if (part, name) not in TOLERATED:
            assert errors(verification), name


@pytest.mark.usefixtures("lane")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("part", FIELDS)
def test_an_object_without_any_state(copy: Callable[..., Path], case: str, part: str) -> None:
    """``NEWOBJ`` with no ``BUILD`` after it."""
    root = copy(case)
    metadata = trusted_metadata(case)
    target = part_of(metadata, part)
    if part == "properties":
        pytest.skip("pickled by position")
    target.__dict__.clear()
    (root / ".metadata").write_bytes(dump(metadata))
    verification = look(root)
    if part != "storage_meta":
        assert errors(verification)


@pytest.mark.usefixtures("lane")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("what", ["entry", "place", "fqn", "chunk", "path", "path element"])
def test_wrong_members_of_the_mappings(
    copy: Callable[..., Path], case: str, what: str, wrong: str
) -> None:
    root = copy(case)
    metadata = trusted_metadata(case)
    value = WRONG[wrong]
    tensor = part_of(metadata, "tensor")
    fqn = next(iter(metadata.state_dict_metadata))
    if what == "entry":
        metadata.state_dict_metadata[fqn] = value
    elif what == "place":
        metadata.storage_data[next(iter(metadata.storage_data))] = value
    elif what == "fqn":
        key = value if not isinstance(value, list | dict) else (fqn, "x")
        metadata.state_dict_metadata[key] = metadata.state_dict_metadata.pop(fqn)
    elif what == "chunk":
        tensor.chunks[0] = value
    elif what == "path":
        metadata.planner_data[fqn] = value
    else:
        metadata.planner_data[fqn] = ("model", value)
    (root / ".metadata").write_bytes(dump(metadata))
    verification = look(root)
    if what not in ("path", "path element"):
        assert errors(verification)


# --- damage without a plan --------------------------------------------------------------------

ROUNDS = [20, pytest.param(500, marks=pytest.mark.slow)]
"""A few in the default lane."""


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Cut, flip, overwrite, insert, drop or repeat some bytes."""
    out = bytearray(data)
    kind = rng.randrange(6)
    at = rng.randrange(len(out))
    if kind == 0:
        del out[at:]
    elif kind == 1:
        for _ in range(rng.randint(1, 4)):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        out[at : at + 8] = rng.randbytes(min(8, len(out) - at))
    elif kind == 3:
        out[at:at] = rng.randbytes(rng.randint(1, 8))
    elif kind == 4:
        del out[at : at + rng.randint(1, 64)]
    else:
        out[at:at] = out[at : at + rng.randint(1, 256)]
    return bytes(out)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.usefixtures("lane")
@pytest.mark.parametrize("case", [SMALL, EVERY_KIND, "zstd/step-12"])
def test_random_damage_of_metadata(copy: Callable[..., Path], case: str, rounds: int) -> None:
    root = copy(case)
    good = (root / ".metadata").read_bytes()
    rng = random.Random(f"{case} {rounds}")
    for round_number in range(rounds):
        bad = damaged(rng, good)
        (root / ".metadata").write_bytes(bad)
        try:
            verification = look(root)
        except Exception as error:
            raise AssertionError(f"round {round_number} of {case}") from error
        if len(bad) < len(good) and good.startswith(bad):
            assert errors(verification), f"cut to {len(bad)} bytes"


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("case", [SMALL, EVERY_KIND, "zstd/step-12", "dtype_zoo/step-1"])
def test_random_damage_of_items(copy: Callable[..., Path], case: str, rounds: int) -> None:
    root = copy(case)
    shards = sorted(path for path in root.glob("*.distcp") if path.stat().st_size)
    rng = random.Random(f"{case} {rounds}")
    for round_number in range(rounds):
        shard = rng.choice(shards)
        good = shard.read_bytes()
        bad = damaged(rng, good)
        shard.write_bytes(bad)
        try:
            verification = look(root, quick=round_number % 2 == 0)
        except Exception as error:
            raise AssertionError(f"round {round_number} of {case}") from error
        finally:
            shard.write_bytes(good)
        if len(bad) != len(good):
            assert errors(verification), f"{len(good)} bytes became {len(bad)}"


@pytest.mark.parametrize("rounds", ROUNDS)
def test_random_damage_of_decoded_items(rounds: int) -> None:
    metadata = dcp_metadata.parse((FIXTURES / "dtype_zoo/step-1/.metadata").read_bytes(), "")
    data = (FIXTURES / "dtype_zoo/step-1/__0_0.distcp").read_bytes()
    items = [data[item.offset : item.end] for item in metadata.items]
    rng = random.Random(rounds)
    for _ in range(20 * rounds):
        try:
            values.decode_item(damaged(rng, rng.choice(items)))
        except MalformedData:
            continue


@pytest.mark.parametrize("rounds", ROUNDS)
def test_random_damage_of_summaries(rounds: int) -> None:
    data = (FIXTURES / EVERY_KIND / ".metadata").read_bytes()
    rng = random.Random(rounds)
    for _ in range(rounds):
        summarise(damaged(rng, data), ".metadata", {})


def test_every_truncation_of_small_metadata_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "step-1"
    shutil.copytree(FIXTURES / SMALL, root)
    data = (root / ".metadata").read_bytes()
    for length in range(len(data)):
        parsed = dcp_metadata.parse(data[:length], ".metadata")
        assert not parsed.readable, length
        (fault,) = parsed.faults
        assert fault.kind is FaultKind.UNREADABLE_METADATA
