"""Items that other planners wrote: what is not understood is said, and is no damage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl.formats.dcp import metadata as dcp_metadata
from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.pickles.tensors import parse_tensor
from ckptctl.model.checkpoint import Item, ObjectEntry
from ckptctl.model.finding import Severity, Stage
from ckptctl.model.observation import ItemSeen
from ckptctl.operations.verify.verify import Verdict
from ckptctl.storage import open_store
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


@pytest.mark.parametrize("text", [b"x", b"{", b"[1, ", b"ERROR 500 "])
def test_other_text_beside_saved_objects_is_an_error(
    copy: Callable[..., Path], text: bytes
) -> None:
    root = copy(SAVED)
    written_over(root, "train_state.epoch")
    written_over(root, "rng.rank_0.numpy", text=lambda n: (text * n)[:n])
    result = run(root)
    (finding,) = (f for f in result.report.findings if f.check == "unknown-encoding")
    assert (finding.severity, finding.where.fqn) == (Severity.ERROR, "rng.rank_0.numpy")
    assert result.verdict is Verdict.FINDINGS
    assert cli.run("commit", root).code == 10
    assert cli.run("resolve", root.parent, "--allow-uncommitted").code == 10


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
