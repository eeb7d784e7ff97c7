"""The ways in which metadata is read: each by itself, whatever its size."""

from __future__ import annotations

import io

import pytest

from ckptctl.errors import MalformedData
from ckptctl.formats.budget import Budget
from ckptctl.formats.dcp import apart, metadata
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
    """Read metadata of so many bytes and more by columns, in this process."""
    only_apart(patch, size)
    patch.setattr(apart, "parse_apart", read_here)


def only_apart(patch: pytest.MonkeyPatch, size: int = 0) -> None:
    """Read metadata of so many bytes and more in a process of its own, without shortcuts."""
    patch.setattr(apart, "FAST_FROM", size)
    patch.setattr(apart, "read_usual", lambda *_: None)


def usually(data: bytes, source: str = ".metadata") -> Parsed | None:
    """Read by way of shortcuts; None where they do not lead to the end."""
    return metadata.read_usual(data, source, Budget(len(data)))


def carefully(data: bytes, source: str = ".metadata") -> Parsed:
    """Read opcode by opcode, without any shortcut."""
    try:
        return metadata.read_carefully(data, source, Budget(len(data)))
    except MalformedData as error:
        return metadata.unreadable(source, error)
