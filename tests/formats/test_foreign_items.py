"""Items that other planners wrote: what is not understood is said, and is no damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptctl.formats.items.scan import scan_items
from ckptctl.formats.pickles.tensors import parse_tensor
from ckptctl.model.checkpoint import Item
from ckptctl.model.observation import ItemSeen
from ckptctl.storage import open_store
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
