"""The fast lane for large metadata, taken for small ones too and without a process of its own."""

from __future__ import annotations

import io

import pytest

from ckptctl.formats.dcp import apart
from ckptctl.formats.dcp.columns import Unusual, parse_columns
from ckptctl.formats.dcp.metadata import Parsed
from ckptctl.storage import Reader


def read_here(reader: Reader, source: str) -> Parsed | None:
    """Read by columns in this process; send and receive what came of it, as a child does."""
    try:
        found = parse_columns(io.BytesIO(reader.read(0, reader.size)), reader.size, source)
    except (Unusual, MemoryError):
        return None
    sent = io.BytesIO()
    apart.send(found, sent)
    sent.seek(0)
    return apart.receive(sent, source)


def fast_from(patch: pytest.MonkeyPatch, size: int) -> None:
    """Take the fast lane, in this process, for metadata of so many bytes and more."""
    patch.setattr(apart, "FAST_FROM", size)
    patch.setattr(apart, "parse_apart", read_here)
