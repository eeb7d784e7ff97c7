"""What reshard and convert leave beside what they write: an unfinished one, and a finished one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ckptctl.dataclass import dataclass, field
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.manifest import FileRecord, Record

RESHARD = "ckptctl.reshard.json"
"""Of an attempt that is not finished, of either command."""

CONVERTED = "ckptctl.converted.json"

_TEMPORARY = (".ckptctl-", ".tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardRecord(Record):
    """The plan being carried out, by its digest, and the files that are written and durable."""

    SCHEMA: ClassVar[str] = "ckptctl/reshard/1"
    plan: str
    save_id: str
    files: tuple[FileRecord, ...] = ()
    time: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedRecord(Record):
    """What ``convert`` wrote: its files, and the keys of the source that are not in there.

    ``lost`` are those of them that damage took, ``accepted`` is what a person accepted of the source
    in spite of a check: a commit of what was written says so. ``proof`` says what
    the result was compared by, and what that is over.
    """

    SCHEMA: ClassVar[str] = "ckptctl/converted/2"
    ALSO_READ: ClassVar[tuple[str, ...]] = ("ckptctl/converted/1",)
    source: str
    to: str
    files: tuple[FileRecord, ...] = ()
    tensors: str = ""
    proof: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    accepted: tuple[Acceptance, ...] = ()
    time: str = ""
    actor: str = ""
    tool: str = ""


def staging_name(name: str, purpose: str = "") -> str:
    """Return the temporary name for what is to have a name: letters only, so that it has no step."""
    import hashlib

    digest = hashlib.sha256(f"{purpose}\0{name}".encode("utf-8", "surrogatepass")).digest()
    letters = "".join(chr(ord("a") + byte % 26) for byte in digest[:16])
    return f"{_TEMPORARY[0]}{letters}{_TEMPORARY[1]}"


def temporary(name: str) -> bool:
    """Tell whether a name is one of those that ckptctl gives to what is not finished."""
    return name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1])
