"""Files that hold parts of a checkpoint's state, each by itself: what ``torch.save`` wrote, safetensors.

A layout's rules say which they are, where in the state each belongs and which rank wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ckptctl.dataclass import dataclass, replace
from ckptctl.errors import MalformedData, Refused, StorageError
from ckptctl.formats.companions import LEGACY, Rule
from ckptctl.formats.parts import Read
from ckptctl.formats.ranks import unite_ranks
from ckptctl.model.checkpoint import Checkpoint, Fault, FaultKind, File
from ckptctl.model.finding import Location
from ckptctl.model.paths import join
from ckptctl.storage import Store

_INDEX = ".safetensors.index.json"
_ZIP, _END, _END_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22
_SAFETENSORS = (".safetensors", _INDEX)


@dataclass(frozen=True, slots=True)
class Holding:
    """One file that holds a part of the state: under which prefix, and which rank wrote it.

    Files of several ranks that have their ``series`` in common belong together.
    """

    path: str
    rule: Rule
    prefix: tuple[str, ...]
    rank: int | None = None
    series: tuple[str, ...] = ()

    @property
    def is_safetensors(self) -> bool:
        """Tell by its name how it is written."""
        return self.path.endswith(_SAFETENSORS)


def holdings(files: Iterable[str], rules: Iterable[Rule]) -> list[Holding]:
    """Return the files that hold parts of the state, in the order of the rules."""
    names = sorted(files)
    taken: set[str] = set()
    found = []
    for rule in rules:
        known = re.compile(rule.pattern)
        for path in names:
            match = None if path in taken else known.fullmatch(path)
            if match is None:
                continue
            taken.add(path)
            if rule.prefix is not None:
                groups = {key: text for key, text in match.groupdict().items() if text is not None}
                rank = groups.pop("rank", None)
                prefix = tuple(_filled(part, groups) for part in rule.prefix)
                found.append(
                    Holding(
                        path,
                        rule,
                        tuple(part for part in prefix if part),
                        None if rank is None else int(rank),
                        (rule.pattern, *prefix, *groups.values()),
                    )
                )
    return found


def _filled(template: str, groups: Mapping[str, str]) -> str:
    for key, text in groups.items():
        template = template.replace("{" + key + "}", text)
    return re.sub(r"\{\w+\}", "", template)


def read_files(
    store: Store, base: str, files: Mapping[str, File], held: Iterable[Holding]
) -> Iterator[Read]:
    """Read each file or set of files; damage becomes faults.

    Raises ``StorageError`` where the storage does not answer.
    """
    sets: dict[tuple[str, tuple[str, ...]], list[Holding]] = {}
    ranked: dict[tuple[str, ...], list[Holding]] = {}
    for one in held:
        if one.is_safetensors:
            sets.setdefault((one.path.rpartition("/")[0], one.prefix), []).append(one)
        elif one.rank is not None:
            ranked.setdefault(one.series, []).append(one)
        else:
            yield Read(_role(one), "", _torch(store, base, files, one))
    for members in ranked.values():
        parts: dict[int, Checkpoint] = {}
        for one in members:
            read = _torch(store, base, files, one)
            if one.rank is not None:
                parts[one.rank] = read
        whole = {rank: part for rank, part in parts.items() if part.readable}
        broken = [fault for part in parts.values() if not part.readable for fault in part.faults]
        if whole:
            united = unite_ranks(whole)
            yield Read(_role(members[0]), "", _with(united, broken))
        else:
            yield Read(_role(members[0]), "", Checkpoint("torch", {}, faults=tuple(broken)))
    for (directory, prefix), members in sets.items():
        yield from _safetensors(store, base, files, directory, prefix, members)


def _with(found: Checkpoint, faults: list[Fault]) -> Checkpoint:
    return replace(found, faults=(*found.faults, *faults))


def _role(one: Holding) -> str:
    return ".".join(one.prefix) or one.path.rpartition(".")[0]


def _torch(store: Store, base: str, files: Mapping[str, File], one: Holding) -> Checkpoint:
    from ckptctl.formats.torch import reader as torchfile

    file = files[one.path]
    if not file.is_file or not file.size:
        return Checkpoint(torchfile.NAME, {one.path: file})  # said of it as a companion
    with store.open(join(base, one.path)) as reader:
        return torchfile.read(reader, file, prefix=one.prefix, rank=one.rank)


def _safetensors(
    store: Store,
    base: str,
    files: Mapping[str, File],
    directory: str,
    prefix: tuple[str, ...],
    members: list[Holding],
) -> Iterator[Read]:
    """Read the sets of one directory, each by itself: they may have the same keys."""
    from ckptctl.formats.safetensors import reader as safetensors

    at = join(base, directory)
    inside = {
        one.path.rpartition("/")[2]: replace(files[one.path], path=one.path.rpartition("/")[2])
        for one in members
        if files[one.path].is_file
    }
    if len(inside) < len(members):
        faults = [
            Fault(
                FaultKind.NOT_A_FILE,
                "a directory or a special file stands where a file should be",
                Location(file=one.path),
                one.rule.holds,
            )
            for one in members
            if not files[one.path].is_file
        ]
        yield Read("", "", Checkpoint(safetensors.NAME, {}, faults=tuple(faults)))
    for name, group in safetensors.sets_in(store, at, inside).items():
        try:
            found = safetensors.read(store, at, {member: inside[member] for member in group})
        except Refused as error:
            where = Location(file=name)
            found = Checkpoint(
                safetensors.NAME,
                inside,
                faults=(Fault(FaultKind.MALFORMED_ENTRY, str(error), where),),
            )
        role = ".".join(prefix) or name.partition(".")[0]
        yield Read(role, directory, found)


def problem_of(store: Store, path: str, one: Holding) -> str:
    """Say what a look at the ends of a file tells to be wrong with it, or return nothing."""
    from ckptctl.formats.pickles.values import value_table
    from ckptctl.formats.safetensors.reader import read_header
    from ckptctl.formats.torch import saved

    try:
        with store.open(path) as reader:
            if one.path.endswith(_INDEX):
                return ""
            if one.is_safetensors:
                read_header(reader)
            elif reader.read(0, min(2, reader.size)) == _ZIP[:2]:
                end = reader.read(max(0, reader.size - _END_SIZE), reader.size)
                return "" if end[:4] == _END else "is cut off: its zip has no end"
            elif reader.read(0, min(len(LEGACY), reader.size)) == LEGACY:
                saved.read(reader, value_table())
    except MalformedData as error:
        return f"is damaged: {error}"
    except StorageError:
        return "cannot be read"
    return ""
