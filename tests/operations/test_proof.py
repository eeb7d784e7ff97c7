"""The proof of what was written, by digest and by CRC: what is not what the source holds gets no name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl.crc import crc32
from ckptctl.model.geometry import Box
from ckptctl.model.manifest import MANIFEST
from ckptctl.operations.content import assemble
from ckptctl.operations.content.cut import Sums
from ckptctl.operations.content.proof import BUDGET, ProofBy
from ckptctl.operations.content.segments import Run, extend, whole
from ckptctl.operations.reshard import target as reshard_target
from ckptctl.protocol import read_manifest
from ckptctl.sharding import plan
from ckptctl.storage.posix import PosixStore, PosixUpload
from conftest import FIXTURES
from support.cli import Ended, run
from support.damage import flip_field
from support.sharded import save

torch = pytest.importorskip("torch")

KEEP = ("--rng", "keep", "--data", "keep")
BOTH = pytest.mark.parametrize("proof", ["crc", "digest"])
ROWS, COLUMNS = ("--dim-rule", "*=0"), ("--dim-rule", "*=1")
CUTS = pytest.mark.parametrize("cut", [ROWS, COLUMNS], ids=["rows", "columns"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One tensor of 4 ranks, cut by rows."""
    whole = torch.arange(64 * 1024, dtype=torch.int32).reshape(64, 1024)
    boxes = [Box((16 * rank, 0), (16, 1024)) for rank in range(4)]
    save(tmp_path / "a" / "step-1", {"w": (whole, boxes)})
    return tmp_path / "a" / "step-1"


def reshard(source: Path, out: Path, *words: str) -> Ended:
    return run("reshard", source, "--world-size", "3", "--out", out, *KEEP, *words)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def no_result(out: Path) -> bool:
    return not list(out.parent.rglob(MANIFEST)) and not out.exists()


@BOTH
@CUTS
def test_a_flipped_bit_of_the_source_ends_with_10(
    source: Path, tmp_path: Path, proof: str, cut: tuple[str, ...]
) -> None:
    payload = (source / "__2_0.distcp").read_bytes().index(torch.tensor([33 * 1024]).int().numpy())
    flip(source / "__2_0.distcp", payload + 1)
    out = tmp_path / "b" / "step-1"
    done = reshard(source, out, "--proof", proof, *cut)
    assert done.code == 10 and "CRC-32" in done.stderr and "w" in done.stderr
    assert no_result(out) and not list(tmp_path.glob("b/.ckptctl-*"))


@BOTH
@CUTS
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_bit_that_flips_in_the_buffer_of_a_write_ends_with_10(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proof: str,
    cut: tuple[str, ...],
    number: int,
) -> None:
    """After its CRC was taken, before the disk has it."""
    write, out = PosixUpload.write, tmp_path / "b" / "step-1"

    def writing(self: PosixUpload, data: bytes | memoryview) -> object:
        if self._final.name == f"__{number}_0.distcp" and len(data) > 30_000:
            changed = bytearray(data)
            changed[20_000] ^= 16
            data = bytes(changed)
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(PosixUpload, "write", writing)
        done = reshard(source, out, "--proof", proof, *cut)
        assert done.code == 10 and "not committed" in done.stderr
        assert no_result(out)
    done = reshard(source, out, "--proof", proof, *cut, "--resume", "--json")
    assert done.code == 0 and done.json()["reused"] == 3  # two shards and the metadata


@CUTS
def test_a_bit_that_flips_after_it_was_read_ends_with_10(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cut: tuple[str, ...],
) -> None:
    """In the memory of the process: the CRC of what was read fits, and what is written does not."""
    read, out = assemble.Piece.read_into, tmp_path / "b" / "step-1"

    def reading(self: assemble.Piece, position: int, buffer: memoryview) -> int | None:
        found = read(self, position, buffer)
        if "a/step-1" in str(getattr(self.source, "_path", "")) and len(buffer) > 30_000:
            flipped.append(self.item.path)
            buffer[77] ^= 2
        return found

    flipped: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(assemble.Piece, "read_into", reading)
        done = reshard(source, out, "--proof", "crc", *cut)
    assert done.code == 10 and "not committed" in done.stderr and flipped
    assert no_result(out)


@CUTS
def test_an_attempt_by_crc_goes_on_where_it_was_ended(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: tuple[str, ...]
) -> None:
    out = tmp_path / "b" / "step-1"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reshard_target, "write_metadata", stop)
        assert reshard(source, out, "--proof", "crc", *cut).code == 130
    done = reshard(source, out, "--proof", "crc", *cut, "--resume", "--json")
    assert done.code == 0 and done.json()["reused"] == 3
    assert done.json()["proven_by"] == "crc" and "4 pieces" in done.json()["covers"]


@BOTH
def test_one_file_of_several_that_are_written_together_may_be_missing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proof: str
) -> None:
    out = tmp_path / "b" / "step-1"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reshard_target, "write_metadata", stop)
        assert reshard(source, out, "--proof", proof, *COLUMNS).code == 130
    (missing,) = tmp_path.glob("b/.ckptctl-*/__1_0.distcp")
    missing.unlink()
    done = reshard(source, out, "--proof", proof, *COLUMNS, "--resume", "--json")
    assert done.code == 0 and done.json()["reused"] == 2 and done.json()["proven_by"] == proof


@BOTH
def test_more_files_than_are_written_together(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proof: str
) -> None:
    """Their source is read for each group, which is said before, and proven all the same."""
    monkeypatch.setattr(plan.Plan.together, "__defaults__", (2,))
    out, words = tmp_path / "b" / "step-1", ("--world-size", "5", *COLUMNS, "--json")
    planned = run("reshard", source, "--out", out, *words, "--dry-run").json()
    assert planned["bytes_read"] == 3 * 64 * 1024 * 4
    done = run("reshard", source, "--out", out, *words, "--proof", proof)
    assert done.code == 0 and done.json()["proven_by"] == proof


@pytest.mark.parametrize(
    "case", ["dtype_zoo/step-1", "zstd/step-12", "no_crc/step-1", "ddp/step-12"]
)
def test_the_proof_by_crc_gives_way_where_tensors_are_not_read(tmp_path: Path, case: str) -> None:
    """The bytes are the same in any case, and what was given is said."""
    for proof in ("crc", "digest"):
        out = tmp_path / proof / Path(case).name
        done = reshard(FIXTURES / case, out, "--proof", proof, "--json")
        assert done.code == 0, done.stderr
        expected = "digest" if case.startswith("dtype_zoo") else proof
        assert done.json()["proven_by"] == expected and done.json()["covers"]
        manifest = read_manifest(PosixStore(out), "")
        assert manifest is not None
        told = manifest.provenance["resharded_from"]["proof"]
        assert told == {"by": expected, "covers": done.json()["covers"]}
    for file in (tmp_path / "crc").rglob("*.distcp"):
        assert (
            file.read_bytes() == (tmp_path / "digest" / file.parent.name / file.name).read_bytes()
        )


def test_damage_is_left_out_by_force_whatever_the_proof(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    damaged = copy("fsdp2/step-12")
    flip_field(damaged, fqn="model.embed.weight", origin=(3, 0))
    told = []
    for proof in ("crc", "digest"):
        done = reshard(
            damaged, tmp_path / proof / "step-12", "--proof", proof, "--force", "--yes", "--json"
        )
        assert done.code == 0 and done.json()["lost"] == ["model.embed.weight"]
        told.append((done.json()["tensors_digest"], done.json()["proven_by"]))
    assert told == [(told[0][0], "digest")] * 2


@pytest.mark.parametrize("to", ["safetensors", "torch", "dcp"])
@BOTH
def test_convert_gives_either_proof(source: Path, tmp_path: Path, to: str, proof: str) -> None:
    start: Path = source
    if to == "dcp":
        start = tmp_path / "w.pt"
        assert run("convert", source, "--to", "torch", "--out", start).code == 0
    out = tmp_path / "out" / ("w.pt" if to == "torch" else "w")
    words = ("--to", to, "--world-size", "3") if to == "dcp" else ("--to", to)
    done = run("convert", start, *words, "--out", out, "--proof", proof, "--json")
    assert done.code == 0, done.stderr
    said = done.json()
    pieces = "1 piece" if to == "dcp" else "4 pieces"
    assert said["proven_by"] == proof and said["proof"].startswith("xxh3-128:")
    assert (pieces if proof == "crc" else "content digest") in said["covers"]
    if to != "torch":
        record = json.loads((out / "ckptctl.converted.json").read_bytes())
        assert record["proof"] == {"by": proof, "covers": said["covers"]}


@pytest.mark.parametrize("to", ["safetensors", "torch"])
@BOTH
def test_what_convert_writes_is_not_believed_either(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, proof: str
) -> None:
    write, out = PosixUpload.write, tmp_path / "b" / "w.pt"

    def writing(self: PosixUpload, data: bytes | memoryview) -> object:
        changed = bytearray(data)
        if len(data) > 30_000:
            changed[20_000] ^= 16
        return write(self, bytes(changed))

    with monkeypatch.context() as patch:
        patch.setattr(PosixUpload, "write", writing)
        done = run("convert", source, "--to", to, "--out", out, "--proof", proof)
    assert done.code == 10 and not out.exists()
    payload = (source / "__2_0.distcp").read_bytes().index(torch.tensor([33 * 1024]).int().numpy())
    flip(source / "__2_0.distcp", payload + 1)
    done = run("convert", source, "--to", to, "--out", out, "--proof", proof)
    assert done.code == 10 and not out.exists() and "CRC-32" in done.stderr


def test_a_cast_is_proven_by_digest(tmp_path: Path) -> None:
    values = torch.randn(8, 8)
    save(tmp_path / "a", {"w": (values, [Box((0, 0), (8, 8))])})
    words = ("--to", "safetensors", "--dtype", "bfloat16", "--proof", "crc", "--json")
    done = run("convert", tmp_path / "a", "--out", tmp_path / "b", *words)
    assert done.code == 0 and done.json()["covers"] == "1 tensor by content digest (xxh3-128)"


def test_the_default_is_the_stronger_proof_where_it_costs_little() -> None:
    assert ProofBy.fitting(committed=True, size=1 << 40) is ProofBy.DIGEST
    assert ProofBy.fitting(committed=False, size=BUDGET) is ProofBy.DIGEST
    assert ProofBy.fitting(committed=False, size=BUDGET + 1) is ProofBy.CRC
    assert run("reshard", FIXTURES / "ddp/step-12", "--world-size", "2", "--proof", "x").code == 2


def test_runs_make_up_a_piece_only_where_they_lie_end_to_end() -> None:
    data = bytes(range(100))
    runs: list[Run] = []
    for start, stop in ((0, 10), (10, 40), (60, 100)):
        extend(runs, start, stop - start, crc32(data[start:stop]))
    assert len(runs) == 2 and whole(runs, 100) is None
    extend(runs, 40, 20, crc32(data[40:60]))
    assert whole(runs, 100) == crc32(data)
    assert whole([*runs, runs[0]], 100) == crc32(data)
    assert whole(runs, 99) is None
    assert whole([*runs, Run(0, 40, 7)], 100) is None  # it was read twice, and not the same


@pytest.mark.parametrize("block", [3, 8, 17, 96])
def test_the_sums_of_boxes_are_those_of_their_bytes(block: int) -> None:
    whole = torch.arange(96, dtype=torch.uint8).reshape(8, 12)
    rows = [Box((5, 0), (3, 12)), Box((0, 0), (2, 12)), Box((2, 0), (3, 12))]
    grid = [Box((0, 0), (8, 5)), Box((4, 5), (4, 7)), Box((0, 5), (4, 7))]
    for boxes in (rows, grid, [*grid, *rows]):
        sums = Sums((8, 12), 1, boxes)
        raw = memoryview(bytearray(whole.numpy().tobytes()))
        for start in range(0, 96, block):
            part = raw[start : start + block]
            sums.feed(part, crc32(part) if start % 2 else None)
        cut = [whole[b.offsets[0] : b.ends[0], b.offsets[1] : b.ends[1]] for b in boxes]
        crcs = [crc32(one.contiguous().numpy().tobytes()) for one in cut]
        assert not sums.differ(crcs)
        assert sums.differ([crc ^ 1 for crc in crcs])
    assert Sums((8, 12), 1, rows).differ([0, 0, 0])
