"""What pickles may call: a list. Gadgets of every kind are refused, what people keep is not."""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptctl.errors import MalformedData, RunsCode
from ckptctl.formats.dcp import metadata as dcp_metadata
from ckptctl.formats.pickles import allowed, built, tensors, unpickler, values
from ckptctl.formats.pickles.stand_ins import Opaque
from ckptctl.formats.torch import reader as torch_reader
from ckptctl.model.checkpoint import FaultKind
from ckptctl.model.finding import Severity
from ckptctl.operations.find import find
from ckptctl.operations.verify.verify import Options, verify
from ckptctl.storage import open_store
from support import kinds
from support.stores import torch_zip

torch = pytest.importorskip("torch")

# --- gadgets ----------------------------------------------------------------------------------

NOT_IMPORTED = frozenset("antigravity this idlelib turtledemo turtle tkinter lib2to3 test".split())


def callables() -> list[tuple[str, str]]:
    """Name what can be called in Python's own modules and in those of torch."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in sorted(sys.stdlib_module_names - NOT_IMPORTED):
            if not name.startswith("_") or name in ("_io", "_posixsubprocess", "_thread"):
                with contextlib.suppress(ImportError, OSError):
                    importlib.import_module(name)
    found = set()
    own = sys.stdlib_module_names | {"torch"}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in own and isinstance(module, types.ModuleType):
            found |= {(name, inner) for inner, one in list(vars(module).items()) if callable(one)}
    return sorted(found)


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def calls(module: str, name: str) -> Iterator[bytes]:
    """Call a global with plain arguments, in each way that a pickle can."""
    named, text = f"c{module}\n{name}\n".encode(), _text("true")
    yield b"\x80\x03" + named + text + b"\x85R."
    yield b"\x80\x03(" + named + text + b"o."


def _metadata(data: bytes) -> bool:
    return [f.kind for f in dcp_metadata.parse(data, ".m").faults] == [FaultKind.UNSAFE_METADATA]


def _refuses(read: Callable[[bytes], object]) -> Callable[[bytes], bool]:
    def refused(data: bytes) -> bool:
        try:
            read(data)
        except RunsCode:
            return True
        except MalformedData:
            return False
        return False

    return refused


PLACES: dict[str, Callable[[bytes], bool]] = {
    "metadata": _metadata,
    "a tensor": _refuses(tensors.parse_tensor),
    "an object": _refuses(values.named_in),
    "a torch file": _refuses(torch_reader.unpickle),
    "a state beside it": _refuses(values.decode_pickle),
}

HARMLESS = {
    "metadata": dcp_metadata.TABLE,
    "a tensor": tensors.TABLE,
    "an object": built.value_table(),
    "a torch file": built.value_table(),
    "a state beside it": built.value_table(),
}


def is_listed(key: tuple[str, str], place: str) -> bool:
    """Tell whether a callable makes plain data of plain arguments, and is listed as such."""
    module, name = key
    return (
        key in HARMLESS[place]
        or (key in allowed.CALLS and allowed.may_call(module, name, ("true",)))
        or (module == "builtins" and name.endswith(("Error", "Exception", "Warning", "Exit")))
        or (module == "torch" and name in ("device", "Size"))
    )


@pytest.mark.parametrize("place", PLACES)
def test_no_callable_of_python_or_torch_is_called(place: str) -> None:
    refused = PLACES[place]
    found = callables()
    assert len(found) > 5000
    spelled = [(m, n) for m, n in found if "\n" not in f"{m}{n}" and n.isidentifier()]
    opcodes = 1 if place == "a tensor" else 2  # torch's own reader of tensors knows REDUCE alone
    passed = [
        f"{module}.{name}"
        for module, name in spelled
        if not is_listed((module, name), place)
        for data in list(calls(module, name))[:opcodes]
        if not refused(data.replace(b"\x80\x03", b"\x80\x02") if place == "a tensor" else data)
    ]
    assert passed == []


def test_what_is_listed_makes_data_and_nothing_else() -> None:
    """Each was looked at: nothing here opens, runs, imports, sends or deletes."""
    for module, name in allowed.CALLS:
        top = module.partition(".")[0]
        assert top in ("builtins", "functools", "_functools", "operator", "_operator", "types",
            "collections", "datetime", "zoneinfo", "decimal", "_decimal", "fractions", "re", "random",
            "logging", "array", "time", "copyreg", "inspect", "ipaddress", "signal", "http", "socket",
            "uuid", "calendar", "numpy", "torch", "itertools", "pathlib", "_codecs"), name  # fmt: skip


REDUCED: dict[str, bytes] = {
    "what is called is hidden in a rebuilt tensor": (
        b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nctorch\nTensor\n"
        + _text("true")
        + b"\x85}tR."
    ),
    "map over a function": b"c__builtin__\nmap\n(cos\nsystem\n](X\x01\x00\x00\x00aetR.",
    "a map that is made": b"c__builtin__\nmap\n(cos\nsystem\n](X\x01\x00\x00\x00aet\x81.",
    "a hook is planted": b"cpkg\nThing\n)\x81}" + _text("__setstate__") + b"cos\nsystem\nsb.",
    "a list's hook is planted": b"cpkg\nThing\n)\x81}" + _text("extend") + b"cos\nsystem\nsb.",
    "a partial is called": (
        b"cfunctools\npartial\ncos\nsystem\n\x85R(cos\nsystem\n" + _text("true") + b"\x85}Ntb)R."
    ),
    "what hangs on an object is called": (
        b"c__builtin__\ngetattr\n(cpkg\nThing\n)\x81}"
        + _text("Run")
        + b"cos\nsystem\nsb"
        + _text("Run")
        + b"tR"
        + _text("true")
        + b"\x85R."
    ),
    "a class is changed": b"ctorch\nTensor\n(N}" + _text("__setstate__") + b"cos\nsystem\nstb.",
    "an environment is changed": b"cos\nenviron\n" + _text("A") + _text("b") + b"s.",
    "a path is changed": b"csys\npath\n(" + _text("A") + b"e.",
    "an object of Python's is filled": b"cos\n_Environ\n)\x81" + _text("A") + _text("b") + b"s.",
    "a class is made": b"c__builtin__\ntype\n(" + _text("A") + b")}t\x81.",
    "a file is mapped": b"cnumpy\nmemmap\n(" + _text("f") + _text("u1") + _text("w+") + b"t\x81.",
    "iter of a function": b"c__builtin__\niter\n(cos\nsystem\nNtR.",
    "reduce with a function": b"cfunctools\nreduce\n(cos\nsystem\n](X\x01\x00\x00\x00aetR.",
}


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("place", ["metadata", "an object", "a torch file", "a state beside it"])
def test_ways_around_the_list(name: str, place: str) -> None:
    assert PLACES[place](b"\x80\x02" + REDUCED[name])


def test_a_class_of_another_module_is_not_the_class() -> None:
    good = (Path(__file__).parents[2] / "fixtures/no_dist/step-12/.metadata").read_bytes()
    for bit in (2744, 2747, 2748, 2749, 39064, 39067, 39068, 39069):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert dcp_metadata.parse(bytes(bad), ".metadata").faults, bit


def test_a_state_is_copied_as_torch_copies_it() -> None:
    """What is put into the dictionary after ``BUILD`` belongs to nobody."""
    key = ("pkg", "Thing")
    data = b"\x80\x02cpkg\nThing\n)\x81q\x00}q\x01K\x01K\x02sb0h\x01K\x03K\x04s0h\x00."
    value, machine, _ = unpickler.load(data, {})
    assert isinstance(value, Opaque)
    assert value.state == {1: 2}
    assert list(machine.unknown) == [key]


# --- what people keep -------------------------------------------------------------------------

KINDS = {**kinds.python(), **kinds.with_numpy(), **kinds.with_torch()}
UNSAVABLE = {"dataclass field", "memory format"}
PROTOCOLS = (1, 2, 4, 5)


def saved(value: Any, protocol: int) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, pickle_protocol=protocol)
    return out.getvalue()


def test_there_are_two_hundred_kinds() -> None:
    assert len(KINDS) >= 200


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(KINDS.keys() - UNSAVABLE))
def test_what_people_keep_is_no_damage(name: str) -> None:
    for protocol in PROTOCOLS:
        try:
            item = saved(KINDS[name](), protocol)
        except (TypeError, ValueError, AttributeError, pickle.PicklingError):
            continue  # some need a later protocol
        values.decode_item(item)


@pytest.mark.parametrize(
    "flags",
    [
        b"c__builtin__\ngetattr\n(cpkg\nBits\n" + _text("A") + b"tR",
        b"cpkg\nBits\nK\x04\x85R",
        b"K\x08",
    ],
    ids=["a member", "of a value", "a number"],
)
def test_flags_of_an_older_python_are_joined(flags: bytes) -> None:
    """Python 3.11.0 to 3.11.3 pickle a flag of two as ``or_`` of the two."""
    one = b"c__builtin__\ngetattr\n(cpkg\nBits\n" + _text("B") + b"tR"
    joined = b"\x80\x02c_operator\nor_\n(" + one + flags + b"tR."
    assert isinstance(unpickler.load(joined, {**values.value_table()})[0], Opaque)
    for refused in PLACES.values():
        assert refused(b"\x80\x02c_operator\nor_\n(" + one + b"cos\nsystem\ntR.")


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_all_kinds_has_no_finding(tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = {}
    for name in sorted(KINDS.keys() - UNSAVABLE):
        with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):
            saved(KINDS[name](), 2)
            state[name] = KINDS[name]()
    flat = {"extra": {f"{number:03}": (value,) for number, value in enumerate(state.values())}}
    root = tmp_path / "step-3"
    dcp.save({**flat, "train_state": {"step": 3}}, checkpoint_id=str(root), no_dist=True)
    store = open_store(root)
    (place,) = find(store)
    found = verify(store, place, options=Options(workers=1)).report.findings
    assert [f for f in found if f.severity is not Severity.NOTE] == []


def test_what_cannot_be_shown_is_described() -> None:
    item = torch_zip({"data.pkl": b"\x80\x02cpkg\nThing\n)\x81."})
    assert values.decode_item(item) == values.Described("opaque pkg.Thing")
