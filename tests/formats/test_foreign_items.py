"""Items that other planners wrote: what is not understood is said, and is no damage."""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from ckptctl.formats.dcp import metadata as dcp_metadata
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.pickles.tensors import parse_tensor
from ckptctl.model.checkpoint import Item, ObjectEntry
from ckptctl.model.finding import Severity, Stage
from ckptctl.model.observation import ItemSeen
from ckptctl.operations.verify.verify import Verdict
from ckptctl.storage import open_store
from conftest import FIXTURES
from support import cli
from support.damage import accused, run
from support.stores import torch_zip


def seen(folder: Path, data: bytes, *, tensor: bool) -> ItemSeen:
    """Look at one item that is a whole file."""
    (folder / "a").write_bytes(data)
    with open_store(folder).open("a") as reader:
        (found,) = scan_items(
            reader,
            [Item("x", None, "a", 0, len(data))],
            content=True,
            is_tensor=lambda _: tensor,
            expected_bytes=lambda _: None,
        )
    return found


def test_an_object_that_is_text_is_of_an_unknown_encoding(tmp_path: Path) -> None:
    found = seen(tmp_path, b'{"step": 3}\n', tensor=False)
    assert not found.damage
    assert found.payload is not None
    assert "unknown encoding" in found.payload.kind
    assert [record.proven for record in found.records] == [False]


@pytest.mark.parametrize(
    ("data", "tensor"),
    [
        (b'{"step": 3}\n', True),
        (bytes(2000), False),
        (torch_zip({"data.pkl": b"\x80\x02K\x03."})[:-1], False),
        (b"\xff" * 500, False),
        (b"text" * 100 + b"\0", False),
    ],
)
def test_what_may_be_damage_is_damage(tmp_path: Path, data: bytes, tensor: bool) -> None:
    assert seen(tmp_path, data, tensor=tensor).damage


def test_a_tensor_that_is_rebuilt_by_a_method_is_not_interpreted() -> None:
    """torch's weights-only reader refuses it as well; nothing is run here or there."""
    data = b"\x80\x02c__builtin__\ngetattr\ncfp8\nFp8\nX\x06\x00\x00\x00_again\x86R)R."
    assert parse_tensor(data).kind == "fp8.Fp8._again"


def json_of(length: int) -> bytes:
    return b'{"a": "' + b"x" * (length - 9) + b'"}'


def written_over(root: Path, *fqns: str, text: Callable[[int], bytes] = json_of) -> int:
    """Write text over objects, or over all of them, at the same length and times; count them."""
    parsed = dcp_metadata.parse((root / ".metadata").read_bytes(), ".metadata")
    objects = [item for item in parsed.items if isinstance(parsed.entries[item.fqn], ObjectEntry)]
    chosen = [item for item in objects if not fqns or item.fqn in fqns]
    for item in chosen:
        path = root / item.path
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(item.offset)
            assert file.write(text(item.length)) == item.length
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return len(chosen)


SAVED = "no_dist/step-12"
"""A fixture of which every file says its step, so that it is good without a manifest."""


def test_text_over_one_object_of_many_is_a_warning(copy: Callable[..., Path]) -> None:
    root = copy(SAVED)
    assert run(root).verdict is Verdict.OK
    assert written_over(root, "lr_scheduler.base_lrs", "train_state.epoch") == 2
    result = run(root)
    assert accused(result) == {"unknown-encoding"}
    (finding,) = (f for f in result.report.findings if f.check == "unknown-encoding")
    assert "lr_scheduler.base_lrs and 1 more objects are text" in finding.message
    assert "25 objects are" in finding.message
    assert "train_state.epoch" in finding.loss
    assert result.verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize("text", [b"step: 12", b"[1, ", b"ERROR 500 ", b"a: 1\nb:\t2\r\n"])
def test_other_text_beside_saved_objects_is_a_warning_and_not_examined(
    copy: Callable[..., Path], text: bytes
) -> None:
    root = copy(SAVED)
    written_over(root, "train_state.epoch", text=lambda n: (text * n)[:n])
    result = run(root)
    (finding,) = (f for f in result.report.findings if f.check == "unknown-encoding")
    assert (finding.severity, finding.where.fqn) == (Severity.WARNING, "train_state.epoch")
    assert "not examined" in finding.message
    gaps = [gap for row in result.report.coverage for gap in row.gaps]
    assert any("unknown encoding" in gap.reason for gap in gaps)
    assert result.verdict is Verdict.UNVERIFIED
    assert cli.run("verify", root, "--fail-on", "warning").code == 10


@pytest.mark.parametrize("text", [b"x", b"ERROR 500 "])
def test_text_over_what_is_saved_on_other_ranks_is_an_error(
    copy: Callable[..., Path], text: bytes
) -> None:
    root = copy("fsdp2/step-12")
    written_over(root, "train_state.epoch")
    written_over(root, "rng.rank_0.numpy", text=lambda n: (text * n)[:n])
    result = run(root)
    found = [f for f in result.report.findings if f.check == "unknown-encoding"]
    assert [(f.severity, f.where.fqn) for f in found] == [
        (Severity.ERROR, "rng.rank_0.numpy"),
        (Severity.WARNING, "train_state.epoch"),
    ]
    assert "rng.rank_0.numpy" in found[0].loss
    assert cli.run("commit", root).code == 10
    assert cli.run("resolve", root.parent, "--allow-uncommitted").code == 10


def test_text_over_what_is_saved_in_other_checkpoints_is_an_error(tmp_path: Path) -> None:
    def found() -> dict[str, str]:
        (checkpoint,) = cli.run("verify", tmp_path / "step-12", "--json").json()["checkpoints"]
        (one,) = (f for f in checkpoint["report"]["findings"] if f["check"] == "unknown-encoding")
        return {"severity": one["severity"], "message": one["message"]}

    for step in (8, 12, 16):
        shutil.copytree(FIXTURES / SAVED, tmp_path / f"step-{step}")
    written_over(tmp_path / "step-12", "train_state.epoch", text=lambda n: b"y" * n)
    assert found()["severity"] == "error"
    assert "and in step-16 it is one" in found()["message"]
    # where another one has text there too, a planner writes it
    written_over(tmp_path / "step-16", "train_state.epoch", text=lambda n: b"z" * n)
    assert found()["severity"] == "warning"


def test_flipped_first_bytes_of_an_object_are_damage(copy: Callable[..., Path]) -> None:
    root = copy(SAVED)
    parsed = dcp_metadata.parse((root / ".metadata").read_bytes(), ".metadata")
    item = next(one for one in parsed.items if one.fqn == "train_state.epoch")
    with (root / item.path).open("r+b") as file:
        file.seek(item.offset)
        file.write(b"step")
    assert accused(run(root)) == {"item-structure"}


def test_objects_that_are_all_text_are_no_damage_and_not_proven(copy: Callable[..., Path]) -> None:
    root = copy(SAVED)
    count = written_over(root)
    result = run(root)
    (finding,) = (f for f in result.report.findings if f.check == "unknown-encoding")
    assert finding.severity is Severity.NOTE
    assert accused(result) == set()
    assert result.verdict is Verdict.UNVERIFIED
    rows = [row for row in result.report.coverage if row.stage in (Stage.ITEMS, Stage.CONTENT)]
    assert [sum(gap.count for gap in row.gaps) for row in rows] == [count, count]


def test_a_digest_tells_text_from_what_was_saved(copy: Callable[..., Path]) -> None:
    root = copy(SAVED)
    assert cli.run("commit", root).code == 0
    written_over(root, "lr_scheduler.base_lrs")
    assert "altered-file" in accused(run(root))


def test_objects_that_are_text_are_compared_by_their_bytes(copy: Callable[..., Path]) -> None:
    one, other = copy(SAVED, "a"), copy(SAVED, "b")
    for root, text in ((one, b"epoch 3 "), (other, b"epoch 4 ")):
        written_over(root, "train_state.epoch", text=lambda n, text=text: (text * n)[:n])
    assert cli.run("diff", one, one).code == 0
    ended = cli.run("diff", one, other)
    assert ended.code == 10
    assert "train_state.epoch  by its bytes" in ended.stdout
    digests = [cli.run("digest", root, "--json").json()["objects_digest"] for root in (one, other)]
    assert digests[0] != digests[1]


def test_objects_that_are_text_are_resharded_and_not_converted(copy: Callable[..., Path]) -> None:
    root = copy(SAVED)
    written_over(root, "train_state.epoch", text=lambda n: (b"epoch 3 " * n)[:n])
    words = ("--world-size", "2", "--rng", "drop", "--data", "drop")
    ended = cli.run("reshard", root, *words, "--out", root.parent / "out", "--json")
    assert "train_state.epoch" in ended.json()["unchecked"]
    shards = (root.parent / "out").glob("*.distcp")
    assert any(b"epoch 3 epoch 3 " in shard.read_bytes() for shard in shards)
    ended = cli.run("convert", root, "--to", "torch", "--out", root.parent / "out.pt")
    assert (ended.code, "it is text in an unknown encoding" in ended.stderr) == (10, True)
    assert "it is text, which no torch.save item is" in cli.run("show", root, "--objects").stdout


def pickled_of(length: int) -> bytes:
    """Return a pickle of so many bytes, as a planner may write that pickles objects itself."""
    return pickle.dumps("ü" * ((length - 20) // 2)).ljust(length, b"\xf7")


def random_of(length: int) -> bytes:
    return random.Random(length).randbytes(length).replace(b"PK", b"xx")


@pytest.mark.parametrize("raw", [pickled_of, random_of])
def test_objects_that_are_all_of_another_encoding_are_no_damage(
    copy: Callable[..., Path], raw: Callable[[int], bytes]
) -> None:
    root = copy(SAVED)
    count = written_over(root, text=raw)
    result = run(root)
    assert accused(result) == set()
    (finding,) = (f for f in result.report.findings if f.check == "unknown-encoding")
    assert finding.severity is Severity.NOTE
    assert f"and {count - 1} more objects are in an unknown encoding" in finding.message
    assert result.verdict is Verdict.UNVERIFIED
    rows = [row for row in result.report.coverage if row.stage in (Stage.ITEMS, Stage.CONTENT)]
    assert [sum(gap.count for gap in row.gaps) for row in rows] == [count, count]
    ended = cli.run("commit", root, "--json")
    assert (ended.code, ended.json()["checked"]) == (0, {"crc in part": 1, "nothing": 1})
    assert cli.run("verify", root).code == 0


@pytest.mark.parametrize(
    "spared", ["train_state.epoch", "rng.rank_0.numpy"], ids=["one is saved", "another is"]
)
def test_one_object_that_is_saved_makes_damage_of_the_others(
    copy: Callable[..., Path], spared: str
) -> None:
    root = copy(SAVED)
    parsed = dcp_metadata.parse((root / ".metadata").read_bytes(), ".metadata")
    objects = [key for key, entry in parsed.entries.items() if isinstance(entry, ObjectEntry)]
    written_over(root, *(key for key in objects if key != spared), text=random_of)
    assert accused(run(root)) == {"item-structure"}


def test_what_is_left_of_one_makes_damage_of_all(copy: Callable[..., Path]) -> None:
    root = copy(SAVED)
    written_over(root, text=lambda n: random_of(n - 22) + b"PK\5\6" + bytes(18))
    assert accused(run(root)) == {"item-structure"}


@pytest.mark.parametrize(
    "hole", [bytes, lambda n: b"\xff" * n, lambda n: b"a" * 300 + bytes(n - 300)]
)
def test_holes_are_damage_also_where_all_objects_are_holes(
    copy: Callable[..., Path], hole: Callable[[int], bytes]
) -> None:
    root = copy(SAVED)
    written_over(root, text=hole)
    assert accused(run(root)) == {"item-structure"}


def test_other_checkpoints_tell_damage_from_an_encoding(tmp_path: Path) -> None:
    for step in (8, 12):
        shutil.copytree(FIXTURES / SAVED, tmp_path / f"step-{step}")
    written_over(tmp_path / "step-12", text=random_of)
    ended = cli.run("verify", tmp_path / "step-12")
    assert (ended.code, "error item-structure" in ended.stdout) == (10, True)
    written_over(tmp_path / "step-8", text=random_of)
    assert cli.run("verify", tmp_path / "step-12").code == 0


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
@pytest.mark.parametrize("data", [b"\x80\x04K\x05.", b"\xff\xfe5\0", b"\x07"])
def test_what_is_shorter_than_any_item_was_written_so(tmp_path: Path, data: bytes) -> None:
    class Own(DefaultSavePlanner):
        def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002
            own = write_item.index.fqn == "state.step"
            return io.BytesIO(data) if own else super().transform_object(write_item, object)

    state = {"model": {"w": torch.zeros(4)}, "state": {"step": 5, "epoch": 2}}
    dcp.save(state, checkpoint_id=tmp_path / "step-5", planner=Own(), no_dist=True)
    result = run(tmp_path / "step-5")
    (finding,) = (f for f in result.report.findings if f.severity > Severity.NOTE)
    assert (finding.check, finding.where.fqn) == ("unknown-encoding", "state.step")
    assert finding.severity is Severity.WARNING
    assert "state.step is in an unknown encoding" in finding.message
