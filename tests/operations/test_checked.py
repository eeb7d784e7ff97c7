"""What bytes are checked against before they are used, and what damage touches."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ckptctl.errors import MalformedData
from ckptctl.model.checkpoint import Item, Stored
from ckptctl.model.finding import Finding, Location, Severity, Touched
from ckptctl.model.geometry import Box
from ckptctl.operations.content.assemble import Piece
from ckptctl.operations.content.checked import Checked, Recorded, Storages, Unrecorded
from ckptctl.operations.content.digest import digest_content
from ckptctl.operations.content.open import open_tensors
from ckptctl.operations.reshard.touched import damage_of
from conftest import FIXTURES
from support.cli import run

DATA = bytes(range(256)) * 16
ITEM = Item("w", (0,), "f", 0, len(DATA))


class Counted:
    """Bytes that count how often they are read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size, self.read_bytes = data, len(data), 0

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.data[start : start + len(buffer)]
        self.read_bytes += len(buffer)


def stored(crc: int | None) -> Stored:
    return Stored("uint8", (16,), (1,), 100, 0, len(DATA), crc)


def test_a_storage_is_read_once_however_many_tensors_view_it() -> None:
    reader: Any = Counted(DATA)
    storages = Storages()
    for _ in range(5):
        assert storages.check(reader, ITEM, stored(zlib.crc32(DATA))) == Checked()
    assert reader.read_bytes == len(DATA)
    assert storages.check(reader, ITEM, stored(None)) == Unrecorded()
    with pytest.raises(MalformedData, match="was written"):
        Storages().check(reader, ITEM, stored(1))


def test_a_piece_that_was_not_read_in_order_is_read_again_before_it_is_believed() -> None:
    good: Any = Counted(DATA)
    for crc, wrong in ((zlib.crc32(DATA), False), (zlib.crc32(DATA) ^ 1, True)):
        box = Box((0,), (len(DATA),))
        piece = Piece(box, ITEM, good, 0, len(DATA), Recorded(crc))
        piece.read_into(100, memoryview(bytearray(50)))
        assert not piece.passed
        if wrong:
            with pytest.raises(MalformedData, match="CRC-32"):
                piece.settle()
        else:
            piece.settle()
            assert piece.passed


@pytest.mark.parametrize("rows", [(0, 3), (2, 5), (1, 6)])
@pytest.mark.parametrize("turned", [False, True])
def test_every_bit_around_a_view_counts(
    tmp_path: Path, rows: tuple[int, int], *, turned: bool
) -> None:
    """A view of a larger storage, contiguous or not: a bit anywhere in the storage is seen."""
    whole = torch.arange(24.0).reshape(6, 4)
    view = whole[rows[0] : rows[1]]
    torch.save({"v": view.t() if turned else view}, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    at = data.index(whole.numpy().tobytes())
    assert digest_content(open_tensors(str(tmp_path / "x.pt"))).problems == ()
    for byte in range(0, 96, 5):
        bad = bytearray(data)
        bad[at + byte] ^= 2
        (tmp_path / "x.pt").write_bytes(bad)
        assert digest_content(open_tensors(str(tmp_path / "x.pt"))).problems != (), byte


def test_files_without_any_checksum_are_named(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3), "step": 3}, tmp_path / "x.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    ended = run("convert", tmp_path / "x.pt", "--to", "safetensors", "--out", tmp_path / "o")
    assert ended.code == 0 and "not checked" in ended.stdout and "x.pt, a;" in ended.stdout
    assert run("digest", tmp_path / "x.pt", "--json").json()["unchecked"] == ["a"]


# --- what damage touches -----------------------------------------------------------------------


def error(check: str, touched: Touched | None = None, **where: Any) -> Finding:
    return Finding(check, Severity.ERROR, "", Location(**where), touched=touched)


CHECKPOINT = open_tensors(str(FIXTURES / "fsdp2/step-12")).checkpoint
ITEMS = CHECKPOINT.items
FIRST = ITEMS.paths[0]
INSIDE = frozenset(f for f, path in zip(ITEMS.fqns, ITEMS.paths, strict=True) if path == FIRST)


@pytest.mark.parametrize(
    ("finding", "keys"),
    [
        (error("checksum", file=FIRST, fqn="model.scale", start=0, stop=9), {"model.scale"}),
        (error("missing-file", file=FIRST), INSIDE),
        (error("mixed-step", Touched.of(files=(FIRST,)), file="other"), INSIDE),
        (error("exchanged-entries", Touched.of(("a", "b")), file=FIRST, fqn="a"), {"a", "b"}),
        (error("unreferenced-bytes", Touched.of(unnamed=("bytes",)), file=FIRST), set()),
        (error("altered-file", file=FIRST), set()),
        (error("missing-metadata", file=".metadata"), None),
        (error("quarantined", file="ckptctl.quarantine"), None),
        (error("mixed-step", Touched.of(files=("nowhere",))), None),
    ],
    ids=lambda one: one.check if isinstance(one, Finding) else "",
)
def test_only_what_a_finding_touches_is_left_out(finding: Finding, keys: set[str] | None) -> None:
    found = damage_of([finding], CHECKPOINT)
    assert (found.keys if found is not None else None) == keys
    if finding.check == "altered-file":
        assert found is not None and found.altered == {FIRST}


def test_the_bytes_of_a_finding_are_those_of_its_keys() -> None:
    start, stop = ITEMS.offsets[0], ITEMS.offsets[0] + ITEMS.lengths[0]
    found = damage_of([error("x", file=FIRST, start=start, stop=stop)], CHECKPOINT)
    assert found is not None and found.keys == {ITEMS.fqns[0]}


def test_an_altered_file_costs_only_what_no_crc_proves(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    """A flipped bit in one item of a committed checkpoint: the CRCs say which one it is."""
    from support.damage import flip_field

    source = copy("fsdp2/step-12")
    assert run("commit", source).code == 0
    flip_field(source, fqn="model.scale", origin=(0,), part="data", record="data/0")
    words = ("reshard", source, "--world-size", "2", "--rng", "drop", "--data", "drop", "--yes")
    assert run(*words, "--out", tmp_path / "a/step-12").code == 10
    done = run(*words, "--out", tmp_path / "b/step-12", "--force", "--json")
    assert done.code == 0 and done.json()["lost"] == ["model.scale"]
