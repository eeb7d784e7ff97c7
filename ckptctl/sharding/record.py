"""What an unfinished reshard leaves in its destination, so that it can be finished later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ckptctl.model.manifest import FileRecord, Record

RESHARD = "ckptctl.reshard.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardRecord(Record):
    """The plan being carried out, by its digest, and the files that are written and durable."""

    SCHEMA: ClassVar[str] = "ckptctl/reshard/1"
    plan: str
    save_id: str
    files: tuple[FileRecord, ...] = ()
    time: str = ""
    actor: str = ""
