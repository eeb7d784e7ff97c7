"""Content digests and boxes of tensors: the same whatever the sharding, and what torch itself holds."""

from __future__ import annotations

import json
import random
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl.errors import Findings, MalformedData, Refused, StorageError
from ckptctl.formats.safetensors import reader as st
from ckptctl.hashing import Hasher
from ckptctl.model.checkpoint import FaultKind
from ckptctl.model.geometry import Box
from ckptctl.operations.content.digest import digest_content
from ckptctl.operations.content.open import Opened, open_tensors
from ckptctl.operations.content.tensors import TensorSource
from conftest import FIXTURES
from support.cli import run
from support.damage import edited, flip_field, remove
from support.gloo import NAMES

torch = pytest.importorskip("torch")


def raw(tensor: Any) -> bytes:
    """The row-major bytes of a tensor."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def hashed(data: bytes) -> str:
    hasher = Hasher()
    hasher.update(data)
    return hasher.text()


def source_of(opened: Opened) -> TensorSource:
    return TensorSource(opened.store, opened.base, opened.checkpoint)


@pytest.fixture(scope="session")
def full(layouts: Path) -> dict[str, Any]:
    """The state itself."""
    return dict(torch.load(layouts / "full.pt"))


def test_digests_are_equal_whatever_the_sharding(
    layouts: Path, full: dict[str, Any], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "as_safetensors"
    folder.mkdir()
    half = len(full) // 2
    save_file(dict(list(full.items())[:half]), folder / "model-00001-of-00002.safetensors")
    save_file(dict(list(full.items())[half:]), folder / "model-00002-of-00002.safetensors")
    contents = {n: digest_content(open_tensors(f"{layouts}/{n}/step-7")) for n in NAMES}
    contents["safetensors"] = digest_content(open_tensors(str(folder)))
    assert {content.problems for content in contents.values()} == {()}
    assert len({content.tensors_digest for content in contents.values()}) == 1
    assert len({contents[name].objects_digest for name in NAMES}) == 1
    expected = {key: hashed(raw(tensor)) for key, tensor in full.items()}
    for content in contents.values():
        assert {row.fqn: row.digest for row in content.tensors} == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [8, 40, 1 << 20])
def test_any_box_is_read_from_any_sharding(
    layouts: Path, full: dict[str, Any], name: str, block: int
) -> None:
    chance = random.Random(f"{name} {block}")
    with source_of(open_tensors(f"{layouts}/{name}/step-7")) as source:
        for fqn, tensor in full.items():
            for _ in range(6):
                low = [chance.randint(0, n) for n in tensor.shape]
                high = [chance.randint(a, n) for a, n in zip(low, tensor.shape, strict=True)]
                box = Box(tuple(low), tuple(b - a for a, b in zip(low, high, strict=True)))
                part = tensor[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
                data = b"".join(bytes(piece) for piece in source.read(fqn, box, block=block))
                assert data == raw(part), (fqn, box)


@pytest.mark.parametrize(
    "case", ["dtype_zoo/step-1", "zstd/step-12", "tp_fsdp/step-12", "no_crc/step-1", "ddp/step-12"]
)
def test_digests_are_those_of_what_torch_loads(case: str) -> None:
    import torch.distributed.checkpoint as dcp

    content = digest_content(open_tensors(str(FIXTURES / case)))
    assert content.problems == ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex halves, and a single process
        loaded = {
            r.fqn: torch.empty(r.shape, dtype=getattr(torch, r.dtype)) for r in content.tensors
        }
        dcp.load(loaded, checkpoint_id=FIXTURES / case, no_dist=True)
    for row in content.tensors:
        assert row.digest == hashed(raw(loaded[row.fqn])), row.fqn


def test_the_writers_options_do_not_change_digests() -> None:
    cases = ("dedup_lowest_rank", "file_per_item", "thread_count_3", "zstd")
    found = {
        digest_content(open_tensors(str(FIXTURES / case / "step-12"))).tensors_digest
        for case in cases
    }
    assert len(found) == 1
    assert found != {""}


def test_another_step_has_other_digests() -> None:
    first, second = (
        digest_content(open_tensors(str(FIXTURES / "fsdp2" / step)))
        for step in ("step-8", "step-12")
    )
    same = {r.fqn for r in first.tensors} & {
        a.fqn for a, b in zip(first.tensors, second.tensors, strict=True) if a.digest == b.digest
    }
    assert not any("exp_avg" in fqn for fqn in same)
    assert first.objects_digest != second.objects_digest


def test_damage_is_a_problem_of_one_tensor(copy: Callable[..., Path]) -> None:
    checkpoint = copy("fsdp2/step-12")
    flip_field(checkpoint, fqn="model.embed.weight", origin=(3, 0), at=9)
    whole = digest_content(open_tensors(str(FIXTURES / "fsdp2/step-12")))
    content = digest_content(open_tensors(str(checkpoint)))
    (problem,) = content.problems
    assert problem.startswith("model.embed.weight: __1_0.distcp")
    assert "CRC-32" in problem
    assert content.tensors_digest == ""
    good = {row.fqn: row.digest for row in whole.tensors if row.fqn != "model.embed.weight"}
    assert {row.fqn: row.digest for row in content.tensors if row.digest} == good


def test_a_missing_piece_is_said(copy: Callable[..., Path]) -> None:
    checkpoint = copy("fsdp2/step-12")
    remove(checkpoint, file="__2_0.distcp")
    ended = run("digest", checkpoint, "--only", "model.*")
    assert ended.code == 10
    assert "__2_0.distcp" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_part_outside_all_pieces_is_refused() -> None:
    with source_of(open_tensors(str(FIXTURES / "fsdp2/step-12"))) as source:
        rows = source.entry("model.embed.weight").shape[0]
        with pytest.raises(Refused, match="elements of a part"):
            list(source.read("model.embed.weight", Box((rows, 0), (1, 8))))


def test_the_command_prints_one_line_for_each_key() -> None:
    ended = run("digest", FIXTURES / "no_dist/step-12")
    assert (ended.code, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) == 19 + 27 + 2
    assert all(line.startswith("xxh3-128:") for line in lines)
    machine = run("digest", FIXTURES / "no_dist/step-12", "--json").json()
    assert lines[-2].startswith(machine["tensors_digest"])
    short = run("digest", FIXTURES / "no_dist/step-12", "--summary")
    assert short.stdout.splitlines() == lines[-2:]


# --- safetensors -------------------------------------------------------------------------------


def file_of(path: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: list[Any], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("I8", [3], 8, 11)}

BAD: dict[str, tuple[object, bytes, int | None, str]] = {
    "header longer than the file": (GOOD, bytes(11), 10_000, "claims 10000 bytes"),
    "header of 2^63 bytes": (GOOD, bytes(11), 1 << 63, "claims"),
    "no JSON": (b"{", b"", None, "no JSON"),
    "deep JSON": (b"[" * 100_000, b"", None, "no JSON"),
    "a list": ([1], b"", None, "no JSON object"),
    "cut data": (GOOD, bytes(10), None, "end at byte"),
    "bytes behind the data": (GOOD, bytes(12), None, "end at byte"),
    "a hole": ({"a": entry("I8", [1], 0, 1), "b": entry("I8", [1], 2, 3)}, bytes(3), None, "begin"),
    "an overlap": (
        {"a": entry("I8", [2], 0, 2), "b": entry("I8", [2], 1, 3)},
        bytes(3),
        None,
        "be",
    ),
    "too few bytes": ({"a": entry("F32", [3], 0, 8)}, bytes(8), None, "needs 12"),
    "negative": ({"a": entry("I8", [-1], 0, 1)}, bytes(1), None, "not made of sizes"),
    "a float shape": ({"a": entry("I8", [1.0], 0, 1)}, bytes(1), None, "not made of sizes"),
    "backwards": ({"a": entry("I8", [0], 1, 0)}, bytes(1), None, "bytes"),
    "unknown dtype": ({"a": entry("F13", [1], 0, 1)}, bytes(1), None, "not known"),
    "a name twice": (b'{"a":{},"a":{}}', b"", None, "twice"),
    "metadata of numbers": ({"__metadata__": {"x": 1}}, b"", None, "__metadata__"),
    "huge product": ({"a": entry("I8", [1 << 61, 1 << 61], 0, 1)}, bytes(1), None, "needs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_safetensors_files_are_said_and_nothing_is_read(tmp_path: Path, name: str) -> None:
    header, data, length, said = BAD[name]
    path = file_of(tmp_path / "x.safetensors", header, data, length=length)
    ended = run("digest", path)
    assert ended.code == 10
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_every_cut_of_a_safetensors_file_is_found(tmp_path: Path) -> None:
    whole = file_of(tmp_path / "x.safetensors", GOOD, bytes(range(11))).read_bytes()
    assert digest_content(open_tensors(str(tmp_path / "x.safetensors"))).problems == ()
    for size in range(len(whole)):
        (tmp_path / "x.safetensors").write_bytes(whole[:size])
        with pytest.raises(Findings, match="cannot be read"):
            open_tensors(str(tmp_path / "x.safetensors"))


def test_safetensors_of_every_dtype(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {
        name: torch.arange(6).to(getattr(torch, name)).reshape(2, 3)
        for name in st.DTYPES.values()
        if name not in ("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz")
    }
    tensors["scalar"], tensors["empty"] = torch.tensor(2.5), torch.empty(0, 4)
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    content = digest_content(open_tensors(str(tmp_path / "x.safetensors")))
    assert {row.fqn: (row.dtype, row.digest) for row in content.tensors} == {
        name: (str(value.dtype).removeprefix("torch."), hashed(raw(value)))
        for name, value in tensors.items()
    }


def test_an_index_that_names_a_missing_file(tmp_path: Path) -> None:
    file_of(tmp_path / "model-00001-of-00002.safetensors", GOOD, bytes(11))
    weights = {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00001-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors",
    }
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weights}))
    (fault,) = open_tensors(str(tmp_path)).serious
    assert (fault.kind, fault.where.file) == (
        FaultKind.MISSING_FILE,
        "model-00002-of-00002.safetensors",
    )
    assert "1 tensors are lost" in fault.message
    del weights["c"]
    weights["b"] = "model-00003-of-00003.safetensors"
    index.write_text(json.dumps({"weight_map": weights}))
    (fault,) = open_tensors(str(tmp_path)).serious
    assert "stale" in fault.message


def test_sharded_safetensors_of_torch_are_put_together(samples: Path) -> None:
    whole = digest_content(open_tensors(str(samples / "dcp/hf_safetensors_consolidated")))
    parts = digest_content(open_tensors(str(samples / "dcp/hf_safetensors_sharded")))
    assert parts.problems == whole.problems == ()
    known = {row.fqn: (row.shape, row.digest) for row in whole.tensors}
    # torch 2.13 consolidates 0-d tensors to 0.0, so only the others can agree
    rows = [row for row in parts.tensors if row.shape]
    assert rows
    for row in rows:
        assert known[row.fqn] == (row.shape, row.digest)


def test_an_item_whose_metadata_lies_about_it_is_not_digested(copy: Callable[..., Path]) -> None:
    from support.damage import change_tensor

    checkpoint = copy("no_dist/step-12")
    change_tensor(checkpoint, fqn="model.embed.weight", dtype="int32")
    with (
        source_of(open_tensors(str(checkpoint))) as source,
        pytest.raises(MalformedData, match="holds float32"),
    ):
        list(source.read("model.embed.weight"))


def test_a_compressed_item_may_not_grow_past_its_tensor(copy: Callable[..., Path]) -> None:
    import zstandard

    checkpoint = copy("zstd/step-12")
    bomb = zstandard.compress(bytes(64 << 20))
    (checkpoint / "bomb.distcp").write_bytes(bomb)
    with edited(checkpoint) as metadata:
        key = next(k for k in metadata.storage_data if k.fqn == "model.embed.weight")
        place = metadata.storage_data[key]
        place.relative_path, place.offset, place.length = "bomb.distcp", 0, len(bomb)
    (problem,) = digest_content(open_tensors(str(checkpoint))).problems
    assert "decompresses to more than" in problem


def test_a_storage_that_fails_is_no_damage(
    copy: Callable[..., Path],
) -> None:
    checkpoint = copy("fsdp2/step-12")
    (checkpoint / "__1_0.distcp").rename(checkpoint / "aside")
    (checkpoint / "__1_0.distcp").symlink_to(
        "__1_0.distcp"
    )  # opening a loop is an error of its own
    with pytest.raises(StorageError, match="__1_0"):
        digest_content(open_tensors(str(checkpoint)))
    assert run("digest", checkpoint).code == 4
