"""CRC-32 is the same whether zlib-ng or the standard library computes it."""

from __future__ import annotations

import platform
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl import crc
from conftest import FIXTURES
from support.cli import run_process

crcs = st.integers(0, (1 << 32) - 1)
WITHOUT = "import sys\nsys.modules['zlib_ng'] = None\n"
"""Makes every import of zlib-ng fail."""


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"), reason="no wheels here"
)
def test_the_fast_one_is_used() -> None:
    assert crc.crc32.__module__ == "zlib_ng.zlib_ng"


@given(st.data())
def test_a_run_of_bytes_cut_anywhere(data: st.DataObject) -> None:
    body = data.draw(st.randoms(use_true_random=False)).randbytes(data.draw(st.integers(0, 20_000)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    whole = zlib.crc32(body)
    running = together = slowly = 0
    for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
        part = memoryview(body)[start:stop]
        running = crc.crc32(part, running)
        together = crc.combine(together, zlib.crc32(part), len(part))
        slowly = crc.combine_slowly(slowly, crc.crc32(part), len(part))
    assert running == together == slowly == crc.crc32(body) == whole


@given(crcs, crcs, st.integers(0, 1 << 70))
def test_both_ways_combine_alike_whatever_size_a_file_claims(
    first: int, second: int, size: int
) -> None:
    assert crc.combine(first, second, size) == crc.combine_slowly(first, second, size)


@given(st.integers(0, 1 << 20))
def test_zeros(size: int) -> None:
    assert crc.zeros(size) == zlib.crc32(bytes(size))


def test_zeros_beyond_what_fits_in_memory_follow_from_halves() -> None:
    for size in (1 << 32, (1 << 63) + 5, (1 << 64) - 1):
        half = size // 2
        assert crc.zeros(size) == crc.combine_slowly(
            crc.zeros(half), crc.zeros(size - half), size - half
        )


def test_a_verify_without_zlib_ng_says_the_same() -> None:
    path = FIXTURES / "fsdp2" / "step-12"
    fast, slow = run_process("verify", path), run_process("verify", path, before=WITHOUT)
    assert (slow.code, slow.stdout, slow.stderr) == (fast.code, fast.stdout, fast.stderr)
    assert fast.code == 0
