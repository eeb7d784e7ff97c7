"""Records that ckptctl keeps beside a checkpoint: receipts, manifests, pointers, quarantines.

All are canonical JSON: sorted keys, no spaces, ASCII, one newline at the end. Each names its
schema and carries a digest of itself, so that a torn or altered record is self-evident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from ckptctl.dataclass import dataclass, field, fields, is_dataclass, replace
from ckptctl.errors import MalformedData
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.belonging import clutter
from ckptctl.model.record_fields import FileRecord as FileRecord
from ckptctl.model.record_fields import Unpromised as Unpromised
from ckptctl.model.record_fields import fits, typed

MANIFEST = "ckptctl.manifest.json"
RECEIPTS = "ckptctl.receipts"
QUARANTINE = "ckptctl.quarantine"
POINTERS = "ckptctl.pointers"
TRASH = "ckptctl.trash"
LATEST = "latest_committed"
MAX_RECORD = 1 << 30
"""Bytes above which a file is not taken for a record: a manifest of 5 million files fits."""

_RECORDS = ("ckptctl.", ".ckptctl-")

RecordType = TypeVar("RecordType", bound="Record")


def is_record(path: str) -> bool:
    """Tell by its name whether a file of a checkpoint is ckptctl's own and not a framework's."""
    return path.startswith(_RECORDS)


def canonical(document: Mapping[str, object]) -> bytes:
    """Return the one encoding of a document."""
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii") + b"\n"


def _digest(body: dict[str, Any]) -> str:
    import hashlib

    return "sha256:" + hashlib.sha256(canonical(body)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of all records; ``digest`` is over everything else in canonical form."""

    SCHEMA: ClassVar[str] = ""
    ALSO_READ: ClassVar[tuple[str, ...]] = ()
    digest: str = ""

    def document(self) -> dict[str, Any]:
        """Return the record as JSON has it, with schema and digest."""
        body: dict[str, Any] = {"schema": self.SCHEMA}
        for item in fields(self):
            if item.name != "digest":
                body[item.name] = _plain(getattr(self, item.name))
        body["digest"] = _digest(body)
        return body

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return canonical(self.document())

    def sealed(self: RecordType) -> RecordType:
        """Return the record with its digest filled in."""
        return replace(self, digest=self.document()["digest"])

    def upgraded(self: RecordType, _schema: str, /) -> RecordType:
        """Return a record of an older schema as this release understands it."""
        return self


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Record):
    """One rank's share of a save, written after its files are durable."""

    SCHEMA: ClassVar[str] = "ckptctl/receipt/1"
    rank: int
    world_size: int
    step: int | None
    files: tuple[FileRecord, ...]
    run_id: str | None = None
    save_id: str | None = None
    time: str = ""

    @property
    def path(self) -> str:
        """Where the receipt lies in its checkpoint."""
        return f"{RECEIPTS}/rank-{self.rank:05d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Record):
    """What a commit promises; its existence is the commit. ``time`` is UTC, ISO 8601.

    ``unpromised`` lay there as well and may go or change. ``unchecked`` are files whose bytes were
    hashed and could be compared with nothing. ``links`` are links to files elsewhere, or with ``/`` to
    directories, with where they lead: what is promised of them is content. ``accepted`` is what a
    person accepted in spite of a check.
    """

    SCHEMA: ClassVar[str] = "ckptctl/manifest/3"
    ALSO_READ: ClassVar[tuple[str, ...]] = ("ckptctl/manifest/1", "ckptctl/manifest/2")
    name: str
    step: int | None
    files: tuple[FileRecord, ...]
    commit_id: str
    format: str = ""
    run_id: str | None = None
    save_id: str | None = None
    world_size: int | None = None
    torch: str | None = None
    time: str = ""
    actor: str = ""
    tool: str = ""
    identity: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    components: Mapping[str, Any] = field(default_factory=dict)
    previous: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    unpromised: tuple[Unpromised, ...] = ()
    unchecked: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    accepted: tuple[Acceptance, ...] = ()

    def upgraded(self, schema: str, /) -> Manifest:
        """Take back the promise of what lay there by chance: the first releases sealed all that did."""
        if schema != "ckptctl/manifest/1":
            return self
        others = tuple(
            Unpromised(file.path, file.size, clutter(file.path))
            for file in self.files
            if clutter(file.path)
        )
        if not others:
            return self
        files = tuple(file for file in self.files if not clutter(file.path))
        return replace(self, files=files, unpromised=others)

    @property
    def lost(self) -> dict[str, tuple[str, ...]]:
        """The keys that damage took when the checkpoint was made from another, by how it was made."""
        found = {}
        for how, told in self.provenance.items():
            lost = told.get("lost") if isinstance(told, Mapping) else None
            if lost:
                keys = lost if isinstance(lost, list | tuple | dict) else [lost]
                found[how] = tuple(sorted(map(str, keys)))
        return found

    @property
    def accepted_before(self) -> tuple[str, ...]:
        """What a person accepted of the checkpoint that this was made from, in words."""
        found = []
        for how, told in self.provenance.items():
            rows = told.get("accepted") if isinstance(told, Mapping) else None
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, Mapping):
                    what = f"{how.replace('_', ' ')} one of which {row.get('check')} was accepted"
                    found.append(f"{what}: {row.get('reason')}")
        return tuple(found)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerRevision(Record):
    """One move of a pointer; revisions count from 1 and are only ever created.

    ``passed_over`` names the committed checkpoints that a rollback turned its back on.
    """

    SCHEMA: ClassVar[str] = "ckptctl/pointer/1"
    name: str
    revision: int
    target: str
    step: int | None
    manifest: str
    rollback: bool = False
    passed_over: tuple[str, ...] = ()
    time: str = ""
    actor: str = ""
    reason: str = ""

    @property
    def path(self) -> str:
        """Where the revision lies in its root."""
        return pointer_path(self.name, self.revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRecord(Record):
    """A checkpoint was marked as not to be used, or released again."""

    SCHEMA: ClassVar[str] = "ckptctl/quarantine/1"
    revision: int
    quarantined: bool
    reason: str
    time: str = ""
    actor: str = ""

    @property
    def path(self) -> str:
        """Where the record lies in its checkpoint."""
        return quarantine_path(self.revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashRecord(Record):
    """A checkpoint was moved aside; ``contents`` has the size of each file by path.

    ``path`` is where it was below the root, and paths of files are relative to the directory that
    it was in.
    """

    SCHEMA: ClassVar[str] = "ckptctl/trashed/1"
    number: int
    path: str
    step: int | None
    state: str
    contents: Mapping[str, Any]
    reason: str
    time: str = ""
    actor: str = ""

    @property
    def folder(self) -> str:
        """The directory in the trash that holds the record and what was moved."""
        return f"{TRASH}/{self.number:08d}"

    @property
    def record(self) -> str:
        """Where the record lies in its root."""
        return trash_path(self.number)


def trash_path(number: int) -> str:
    """Where the record of something moved aside lies in its root."""
    return f"{TRASH}/{number:08d}/ckptctl.trashed.json"


def pointer_path(name: str, revision: int) -> str:
    """Where a pointer's revision lies in its root."""
    return f"{POINTERS}/{name}/{revision:08d}.json"


def quarantine_path(revision: int) -> str:
    """Where a quarantine record lies in its checkpoint."""
    return f"{QUARANTINE}/{revision:08d}.json"


def decode(kind: type[RecordType], data: bytes) -> RecordType:
    """Read a record of one kind.

    Raises ``MalformedData`` for bytes that are no such record: torn, altered, of another schema
    or of a version this release does not know.
    """
    if len(data) > MAX_RECORD:
        raise MalformedData(f"{len(data)} bytes are too many for a record")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedData("it is no JSON: torn, or not written by ckptctl") from None
    if not isinstance(body, dict):
        raise MalformedData("it is no record of ckptctl")
    schema = body.get("schema")
    _check_schema(kind, schema)
    stated = body.pop("digest", None)
    try:
        actual = _digest(body)
        whole = canonical({**body, "digest": actual})
    except (ValueError, RecursionError):
        raise MalformedData("it holds what no record can hold") from None
    if stated != actual:
        raise MalformedData("its digest does not fit its content: it was altered")
    if data != whole:
        raise MalformedData("it is not in the encoding of records: torn or altered")
    del body["schema"]
    known = {item.name: item for item in fields(kind)}
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise MalformedData(f"it holds fields this schema does not have: {', '.join(unknown)[:80]}")
    try:
        record = kind(**typed(body), digest=actual)
    except TypeError:
        raise MalformedData("fields are missing from it") from None
    for item in fields(record):
        value = getattr(record, item.name)
        nameless = item.name == "world_size" and value is None and isinstance(record, Receipt)
        if nameless or not fits(item.name, value):
            raise MalformedData(f"its field {item.name} has the wrong type")
    return record if schema == kind.SCHEMA else record.upgraded(str(schema))


def _check_schema(kind: type[Record], schema: object) -> None:
    if schema == kind.SCHEMA or schema in kind.ALSO_READ:
        return
    stem, _, version = kind.SCHEMA.rpartition("/")
    if isinstance(schema, str) and schema.rpartition("/")[0] == stem:
        raise MalformedData(
            f"it is of schema {schema[:60]}, and this release reads version {version}: a newer "
            "release of ckptctl wrote it"
        )
    raise MalformedData(f"it is of schema {str(schema)[:60]!r} where {kind.SCHEMA} was expected")
