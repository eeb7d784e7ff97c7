"""Shortcuts through metadata: what they read is what the machine reads opcode by opcode.

They leave out objects that nothing refers to again. Here a pickle does refer to them, or takes from
the stack what a shortcut has put away, at every place where that is possible.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ckptctl.errors import MalformedData
from ckptctl.formats.budget import fault_kind
from ckptctl.formats.dcp import runs
from ckptctl.formats.dcp.metadata import Parsed
from ckptctl.formats.pickles.shortcuts import Detour, Fence
from ckptctl.model.checkpoint import TensorEntry
from formats.test_metadata_writer import huge, written
from support.effort import calls
from support.lanes import carefully, usually

torch = pytest.importorskip("torch")
metadata = pytest.importorskip("torch.distributed.checkpoint.metadata")
filesystem = pytest.importorskip("torch.distributed.checkpoint.filesystem")


def saved(keys: int = 6, ranks: int = 2, *, transforms: bool = False) -> bytes:
    """Pickle metadata of tensors cut by rows, of scalars and of objects."""
    entries: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    info = filesystem._StorageInfo
    for key in range(keys):
        name, step, state = f"model.{key}.weight", f"optim.{key}.step", f"object.{key}"
        chunks = [
            metadata.ChunkStorageMetadata(torch.Size((300 * rank, 0)), torch.Size((300, 70_000)))
            for rank in range(ranks)
        ]
        properties = metadata.TensorProperties(torch.bfloat16, requires_grad=bool(key % 2))
        size = torch.Size((300 * ranks, 70_000))
        entries[name] = metadata.TensorStorageMetadata(properties, size, chunks)
        for rank, chunk in enumerate(chunks):
            index = metadata.MetadataIndex(name, torch.Size(tuple(chunk.offsets)), rank)
            places[index] = info(f"__{rank}_0.distcp", key << 33, 42_000_000)
        one = metadata.ChunkStorageMetadata(torch.Size(()), torch.Size(()))
        entries[step] = metadata.TensorStorageMetadata(
            metadata.TensorProperties(torch.float32), torch.Size(()), [one]
        )
        places[metadata.MetadataIndex(step, one.offsets, 0)] = info(
            "__0_0.distcp", (key << 33) + 4096, 1513
        )
        entries[state] = metadata.BytesStorageMetadata()
        places[metadata.MetadataIndex(state)] = info("__1_0.distcp", key << 33, 1261)
    for place in places.values() if transforms else ():
        place.transform_descriptors = ["stream.zstd/1"]
    planner = {fqn: tuple(fqn.split(".")) for fqn in entries}
    meta = metadata.StorageMeta(checkpoint_id="/run/step-1", save_id="0a-1")
    return pickle.dumps(metadata.Metadata(entries, planner, places, meta, "1.0.0"), 4)


SAVED = saved()


def plain(found: Parsed) -> list[object]:
    """Return what was read as values that can be compared."""
    return [
        [
            (fqn, one.dtype, one.shape, list(one.boxes), one.requires_grad)
            if isinstance(one, TensorEntry)
            else (fqn, None)
            for fqn, one in found.entries.items()
        ],
        list(found.items),
        found.identity,
        found.paths_in_state,
        found.opaque_classes,
        [(fault.kind, fault.message) for fault in found.faults],
    ]


def agree(data: bytes) -> str:
    """Read in both ways; return what came of it."""
    try:
        usual = usually(data)
    except MalformedData as error:
        assert [fault.kind for fault in carefully(data).faults] == [fault_kind(error)]
        return "refused"
    if usual is None:
        return "read again"
    assert plain(usual) == plain(carefully(data))
    return "equal"


@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 9])
def test_nearly_everything_is_read_in_runs(ranks: int, transforms: bool) -> None:
    assert_quick(saved(60, ranks, transforms=transforms))


def assert_quick(data: bytes) -> None:
    """Both ways agree, and one of them does much less."""
    assert agree(data) == "equal"
    quick, _ = calls(lambda: usually(data))
    slow, _ = calls(lambda: carefully(data))
    assert quick < slow * 0.6


def test_a_dictionary_of_many_batches() -> None:
    """Each thousand keys have a mark of their own."""
    assert agree(saved(1100, 1)) == "equal"


def test_what_is_written_here_is_read_in_runs_too() -> None:
    entries, items, paths = huge(40, 30)
    assert_quick(written(entries, items, paths))


@pytest.mark.parametrize("gap", range(0, 2000, 97))
def test_frames_may_end_anywhere(gap: int) -> None:
    ends = sorted(boundaries(SAVED))
    at = min(end for end in ends if end > 60 + gap)
    body = SAVED[11:at], SAVED[at:]
    framed = b"".join(b"\x95" + len(part).to_bytes(8, "little") + part for part in body)
    assert agree(SAVED[:2] + framed) == "equal"


def boundaries(data: bytes) -> Iterator[int]:
    """Yield where opcodes begin, behind the first frame's."""
    import pickletools

    return (position for op, _, position in pickletools.genops(data) if op.name != "FRAME")


TRICKS = {
    "nothing": b"",
    "a look at what was left out": b"j%b0",
    "the same as a value": b"j%b\x94",
    "remembered once more": b"\x94",
    "taken away": b"0",
    "all taken away": b"1",
    "doubled": b"2",
    "doubled and taken away": b"20",
    "in a tuple": b"\x85",
    "in a pair": b"\x86",
    "all in a tuple": b"t",
    "all in a list": b"l",
    "all in a mapping": b"d",
    "all in a set": b"\x90",
    "all appended": b"e",
    "filled in": b"}b",
    "filled in with a field": b"}\x8c\x04sizeNsb",
    "called": b")R",
    "made": b")\x81",
    "a key of it": b"N\x8c\x01xs",
    "an end too early": b"u",
    "an end, and as before": b"u(",
    "an end and the mapping itself as a value": b"u\x94(",
    "another mapping": b"u0}\x94(",
    "the end of it all": b".",
    "a number by hand": b"q\x05",
    "a mark": b"(",
    "no value": b"N",
    "a value too many": b"NN",
    "an empty frame": b"\x95\0\0\0\0\0\0\0\0",
    "a class": b"\x8c\x02os\x8c\x06system\x93",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_tells_the_difference(trick: str) -> None:
    """Between any two opcodes; where a number is given, it is that of what came shortly before."""
    opcodes = TRICKS[trick]
    flat = SAVED[:2] + SAVED[11:]  # frames say how long they are
    seen: Counter[str] = Counter()
    remembered = 0
    for count, position in enumerate(sorted(boundaries(flat))[2:]):
        remembered += flat[position] == 0x94
        if count % 9:
            continue
        for back in (1, 2, 5, 9) if b"%b" in opcodes else (0,):
            more = opcodes
            if back:
                more = opcodes.replace(b"%b", max(0, remembered - back).to_bytes(4, "little"))
            seen[agree(flat[:position] + more + flat[position:])] += 1
    assert seen.total() > 150
    if trick in ("nothing", "an empty frame"):
        assert set(seen) == {"equal"}


def test_a_fence_is_taken_away_once_and_by_its_own_mapping() -> None:
    target: dict[Any, Any] = {}
    fence = Fence(target)
    with pytest.raises(Detour):
        fence.close({})
    fence.close(target)
    with pytest.raises(Detour):
        fence.close(target)
    with pytest.raises(TypeError):
        hash(fence)


def test_the_same_bytes_are_looked_at_once() -> None:
    """Descriptions of tensors that are alike are compared as a whole and not read again."""
    few, _ = calls(lambda: usually(saved(50, 1)))
    wide, _ = calls(lambda: usually(saved(50, 17)))
    items = 50 * 16
    assert wide - few < 40 * items
    assert runs._PREFIX < 64
