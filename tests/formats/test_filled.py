"""Bytes that are whole items, one behind the other, and what is not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from ckptctl.formats.items.filled import filled
from ckptctl.storage import open_store


def item(value: object) -> bytes:
    """Return what ``torch.save`` writes."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


A, B = item(torch.arange(5.0)), item({"step": 7})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (A, 1),
        (A + B + A, 3),
        (b"", 0),
        (bytes(200), 0),
        (A[1:], 0),
        (A[:-1], 0),
        (A + b"x", 0),
        (b"x" + A, 0),
        (b"x" * 300 + A, 0),
        (A + bytes(100) + B, 0),
        (A[: len(A) // 2] + B, 0),
        (A[:-34] + b"\xff" * 8 + A[-26:], 0),
    ],
)
def test_whole_items_are_counted(tmp_path: Path, data: bytes, expected: int) -> None:
    (tmp_path / "shard").write_bytes(b"before" + data + b"behind")
    with open_store(tmp_path).open("shard") as reader:
        assert filled(reader, 6, 6 + len(data)) == expected
