"""Items that ckptctl writes are, byte for byte, what torch writes."""

from __future__ import annotations

import io
import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.errors import MalformedData
from ckptctl.formats.torch.zip_writer import (
    QUANTIZED,
    WRITABLE,
    item_length,
    payload_size,
    strides,
    write_tensor,
)
from ckptctl.model.dtypes import ITEM_SIZE, SUB_BYTE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")

SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (7,),
    (255,),
    (256,),
    (0, 3),
    (3, 0),
    (4, 0, 2),
    (3, 5),
    (1, 1),
    (300, 3),
    (2, 3, 4),
    (2, 2, 2, 3),
    (1, 2, 1, 3, 1),
    (70_000,),
    (1, 66_000),
)


def saved(tensor: Any) -> bytes:
    out = io.BytesIO()
    torch.save(tensor, out)
    return out.getvalue()


def tensor_of(dtype: str, shape: tuple[int, ...], seed: int = 1) -> Any:
    """A tensor of any dtype with bytes that are all over the place."""
    size = payload_size(dtype, shape)
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.manual_seed(seed))
    if dtype == "bool":
        data = data % 2
    if size == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return data.view(getattr(torch, dtype)).reshape(shape).contiguous()


def bytes_of(tensor: Any) -> bytes:
    if not tensor.numel():
        return b""
    stored = torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())
    return bytes(stored.numpy().tobytes())


@pytest.mark.parametrize("dtype", sorted(WRITABLE))
def test_an_item_is_what_torch_saves(dtype: str) -> None:
    for shape in SHAPES:
        tensor = tensor_of(dtype, shape)
        payload, out = bytes_of(tensor), io.BytesIO()
        written = write_tensor(out, dtype, shape, (payload[:5], payload[5:6], payload[6:]))
        assert out.getvalue() == saved(tensor), shape
        assert written.length == len(out.getvalue()) == item_length(dtype, shape)
        assert written.crc == zlib.crc32(payload)


def test_every_dtype_of_whole_bytes_can_be_written_or_says_why_not() -> None:
    assert set(ITEM_SIZE) == WRITABLE | QUANTIZED
    for dtype in (*SUB_BYTE, *QUANTIZED, "?", "no_such"):
        with pytest.raises(MalformedData, match="only copied"):
            write_tensor(io.BytesIO(), dtype, (2,), (b"ab",))
        with pytest.raises(MalformedData, match="only copied"):
            item_length(dtype, (2,))


@settings(max_examples=150)
@given(
    dtype=st.sampled_from(sorted(WRITABLE)),
    shape=st.lists(st.integers(0, 9), max_size=7).map(tuple).filter(lambda s: len(s) < 7 or 0 in s),
    cuts=st.lists(st.integers(0, 4000), max_size=5),
)
def test_any_shape_in_any_pieces(dtype: str, shape: tuple[int, ...], cuts: list[int]) -> None:
    if payload_size(dtype, shape) > 1 << 20:
        shape = shape[:3]
    tensor = tensor_of(dtype, shape)
    payload, out = bytes_of(tensor), io.BytesIO()
    edges = sorted({0, len(payload), *(c for c in cuts if c < len(payload))})
    pieces = [memoryview(payload)[a:b] for a, b in itertools.pairwise(edges)]
    assert write_tensor(out, dtype, shape, pieces).length == item_length(dtype, shape)
    assert out.getvalue() == saved(tensor)
    assert strides(shape) == tensor.stride()


@pytest.mark.parametrize("size", [0, 3, 5, 9])
def test_a_payload_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(MalformedData, match="bytes came where 4 were expected"):
        write_tensor(io.BytesIO(), "int32", (1,), (b"x" * size,))


class Recorder:
    """Keeps size and CRC of everything."""

    def __init__(self) -> None:
        self.size = self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.crc = zlib.crc32(view, self.crc)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing to do."""


def zeros(size: int) -> Iterator[memoryview]:
    block = memoryview(bytes(1 << 20))
    while size:
        yield block[: min(size, len(block))]
        size -= min(size, len(block))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1 << 32) - 1000, (1 << 32) - 1, (1 << 32) + 64])
def test_an_item_past_4_gib_is_what_torch_saves(tmp_path: Path, size: int) -> None:
    place = tmp_path / "sparse"
    place.touch()
    os.truncate(place, size)
    tensor = torch.from_file(str(place), shared=True, size=size, dtype=torch.uint8)
    theirs, ours = Recorder(), Recorder()
    torch.save(tensor, theirs)
    written = write_tensor(ours, "uint8", (size,), zeros(size))
    assert written.length == item_length("uint8", (size,)) == theirs.size == ours.size
    assert theirs.crc == ours.crc
