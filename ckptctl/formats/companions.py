"""The files beside a checkpoint's tensors: which names are whose, and what is in those that are text.

What ``torch.save`` wrote is looked at with the shards, item and file being the same there. JSON has
no CRC: of it only the form is checked, and what its digests say of other files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData
from ckptctl.model.belonging import foreign
from ckptctl.model.checkpoint import Fault, FaultKind, File
from ckptctl.model.companion import Companion, Form, Told
from ckptctl.model.finding import Location
from ckptctl.model.manifest import is_record
from ckptctl.pattern import pattern
from ckptctl.storage import Reader

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
"""What the names of files that ``torch.save`` wrote end in."""

LARGEST = 32 << 20
"""Bytes above which JSON is not read."""

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""What ``torch.save`` begins a file with that is no zip: there are no CRCs in it."""

_DIGEST = pattern(r"[0-9a-f]{64}")
_ALGORITHM = "sha256"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a layout knows of files by a pattern of their paths; the rest is as in ``Companion``.

    What is in files that have a ``prefix`` is a part of the checkpoint's state, under that prefix: a
    template, in which groups of the pattern may stand. A group ``rank`` is the rank that wrote one.
    """

    pattern: str
    form: Form
    holds: str
    state: bool = True
    told: tuple[Told, ...] = ()
    needs: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    prefix: tuple[str, ...] | None = None

    def of(self, path: str) -> Companion:
        """Describe one file."""
        return Companion(
            path,
            self.form,
            self.holds,
            state=self.state,
            told=self.told,
            needs=self.needs,
        )


def companions_of(
    files: Mapping[str, File], rules: Iterable[Rule] = (), *, tensors: Collection[str] = ()
) -> dict[str, Companion]:
    """Describe the files that rules know, and what else is named like one that ``torch.save`` wrote.

    ``tensors`` are files that are read otherwise. What lies behind a link to a directory is no part.
    """
    known = [(re.compile(rule.pattern), rule) for rule in rules]
    found: dict[str, Companion] = {}
    for path, file in files.items():
        if path in tensors or is_record(path):
            continue
        rule = next((rule for pattern, rule in known if pattern.fullmatch(path)), None)
        if rule is not None:
            found[path] = rule.of(path)
        elif path.endswith(SUFFIXES) and not file.behind and not foreign(path):
            found[path] = Companion(path, Form.TORCH, known=False)
    return found


def misfits(companions: Mapping[str, Companion], files: Mapping[str, File]) -> list[Fault]:
    """Return a fault for each companion that is no file, or that has no bytes."""
    found = []
    for path, one in companions.items():
        file, where = files[path], Location(file=path)
        if not file.is_file and one.known:
            message = "a directory or a special file stands where a file should be"
            found.append(Fault(FaultKind.NOT_A_FILE, message, where, one.holds))
        elif not file.size and one.known:
            message = "it is empty"
            found.append(Fault(FaultKind.MALFORMED_COMPANION, message, where, one.holds))
    return found


def read_json(reader: Reader, companion: Companion) -> dict[str, object]:
    """Read a companion that is JSON; raises ``MalformedData`` where it is not what it should be."""
    if reader.size > LARGEST:
        raise MalformedData(f"{reader.size} bytes are more than is read of it ({LARGEST})")
    try:
        found = json.loads(reader.read(0, reader.size).decode("utf-8"), parse_int=_integer)
    except MalformedData:
        raise
    except (ValueError, RecursionError):
        raise MalformedData("it is not readable as JSON") from None
    if not isinstance(found, dict):
        raise MalformedData(f"it holds a {type(found).__name__} where an object was expected")
    check_needs(companion, found)
    return found


def _integer(text: str) -> int | float:
    if len(text) > 40:
        raise MalformedData("a number in it has too many digits")
    return int(text)


def check_needs(
    companion: Companion, value: Mapping[object, object] | Mapping[str, object]
) -> None:
    """Raise ``MalformedData`` where a key that is needed is absent or holds another type."""
    for key, types in companion.needs.items():
        if key not in value:
            raise MalformedData(f"it has no {key}")
        found = value[key]
        if not isinstance(found, types) or (isinstance(found, bool) and bool not in types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise MalformedData(f"its {key} is a {type(found).__name__} and no {expected}")


def digests_in(value: Mapping[str, object]) -> dict[str, str]:
    """Return the digests by path that a companion of digests holds; raises ``MalformedData``."""
    algorithm, files = value.get("algorithm"), value.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(path, str) and isinstance(text, str) for path, text in files.items()
    ):
        raise MalformedData("it has no table of files")
    if algorithm != _ALGORITHM:
        raise MalformedData(f"its algorithm is {str(algorithm)[:40]!r}, which is not known")
    for path, text in files.items():
        if not _DIGEST.fullmatch(text):
            raise MalformedData(f"what it says of {path[:80]} is no digest")
    return {path: f"{_ALGORITHM}:{text}" for path, text in files.items()}
