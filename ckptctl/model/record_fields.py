"""The fields of records: entries of lists of files, and of which type each field has to be."""

from __future__ import annotations

from typing import Any

from ckptctl.dataclass import dataclass
from ckptctl.errors import MalformedData
from ckptctl.model.acceptance import acceptance_of
from ckptctl.model.paths import is_contained
from ckptctl.pattern import pattern

_DIGEST = pattern(r"(?:xxh3-128:[0-9a-f]{32}|sha256:[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: path in the checkpoint, bytes, digest with its algorithm, rank and step if known."""

    path: str
    size: int
    digest: str
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Unpromised:
    """What lay in a checkpoint's directory and is no part of it: a file, or a folder with ``/``.

    ``size`` is what it had at the commit, of a folder that of all files in it.
    """

    path: str
    size: int
    why: str = ""


def typed(body: dict[str, Any]) -> dict[str, Any]:
    """Make entries of the lists in a record's body; raises ``MalformedData`` for what is none."""
    if "files" in body:
        if not isinstance(body["files"], list):
            raise MalformedData("its list of files is not a list")
        body["files"] = tuple(map(_file, body["files"]))
    for name in ("passed_over", "unchecked", "left_out", "lost"):
        if isinstance(body.get(name), list):
            if not all(isinstance(one, str) for one in body[name]):
                raise MalformedData(f"its field {name} has the wrong type")
            body[name] = tuple(body[name])
    if isinstance(body.get("unpromised"), list):
        body["unpromised"] = tuple(map(_unpromised, body["unpromised"]))
    if isinstance(body.get("accepted"), list):
        body["accepted"] = tuple(map(acceptance_of, body["accepted"]))
    return body


def _unpromised(body: object) -> Unpromised:
    try:
        record = Unpromised(**body) if isinstance(body, dict) else None
    except TypeError:
        record = None
    if (
        record is None
        or not isinstance(record.path, str)
        or type(record.size) is not int
        or record.size < 0
        or not isinstance(record.why, str)
    ):
        raise MalformedData(
            f"an entry of its list of unpromised files is not valid: {str(body)[:80]}"
        )
    return record


def _file(body: object) -> FileRecord:
    try:
        record = FileRecord(**body) if isinstance(body, dict) else None
    except TypeError:
        record = None
    if (
        record is None
        or not isinstance(record.path, str)
        or not is_contained(record.path)
        or type(record.size) is not int
        or record.size < 0
        or not isinstance(record.digest, str)
        or not _DIGEST.fullmatch(record.digest)
        or type(record.rank) not in (int, type(None))
        or type(record.step) not in (int, type(None))
    ):
        raise MalformedData(f"an entry of its list of files is not valid: {str(body)[:80]}")
    return record


_TYPES: dict[str, tuple[type, ...]] = {
    "rank": (int,),
    "world_size": (int, type(None)),
    "step": (int, type(None)),
    "revision": (int,),
    "quarantined": (bool,),
    "number": (int,),
    "contents": (dict,),
    "rollback": (bool,),
    "passed_over": (tuple,),
    "left_out": (tuple,),
    "lost": (tuple,),
    "files": (tuple,),
    "unpromised": (tuple,),
    "accepted": (tuple,),
    "unchecked": (tuple,),
    "links": (dict,),
    "run_id": (str, type(None)),
    "save_id": (str, type(None)),
    "torch": (str, type(None)),
    "previous": (str, type(None)),
    "identity": (dict,),
    "progress": (dict,),
    "components": (dict,),
    "provenance": (dict,),
    "proof": (dict,),
}


def fits(name: str, value: object) -> bool:
    """Tell whether a value has the type that the field of this name has in every record."""
    return type(value) in _TYPES.get(name, (str,))
