"""Checkpoints whose tensors lie in DCP directories that are parts of them.

Each part is read as any other DCP directory; what frameworks put beside them stays in the list of
files. A part without which nothing can be resumed, and which is not there, is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

from ckptctl.formats.base import Layout, Reads, StateSeen
from ckptctl.formats.claims import missing
from ckptctl.formats.dcp import reader
from ckptctl.formats.layouts.dcp import Dcp
from ckptctl.formats.parts import Read, below, unite
from ckptctl.model.checkpoint import Checkpoint, Fault, FaultKind, File, rank_of
from ckptctl.model.commit_state import State
from ckptctl.model.finding import Location
from ckptctl.storage import Store

_DCP = Dcp()


@dataclass(frozen=True, slots=True)
class Part:
    """A DCP directory below a checkpoint: a pattern of its name, the one that has to be there.

    ``holds`` says what is lost without it; ``role`` comes before keys that another part has too.
    """

    pattern: str
    required: str
    holds: str
    role: str = ""


class Composite(Layout):
    """A layout with DCP directories as parts; ``companions`` are files that have to lie beside.

    ``per_rank`` are templates of files that each rank has to have, as many as wrote shards.
    """

    reads = Reads.WHOLE
    parts: tuple[Part, ...] = ()
    companions: tuple[str, ...] = ()
    per_rank: tuple[str, ...] = ()

    def directories(self, files: Iterable[str]) -> dict[str, Part]:
        """Return the parts that are there, by the names of their directories."""
        names = sorted({path.partition("/")[0] for path in files if "/" in path})
        return {
            name: part for part in self.parts for name in names if re.fullmatch(part.pattern, name)
        }

    def is_one(self, path: str) -> bool:
        """Shards and metadata are files."""
        return reader.must_be_file(path)

    def needed(self, files: Mapping[str, File]) -> tuple[Part, ...]:  # noqa: ARG002
        """Return the parts that have to be there; all, where names do not tell otherwise."""
        return self.parts

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        """Read each part that is there, and unite them."""
        there = self.directories(files)
        faults = [
            Fault(
                FaultKind.MISSING_FILE,
                f"the directory with {part.holds} is not there",
                Location(file=part.required),
                part.holds,
            )
            for part in self.needed(files)
            if part not in there.values()
        ]
        found = [
            Read(
                _role(name, part),
                name,
                reader.read(store, f"{base}/{name}" if base else name, below(files, name)),
            )
            for name, part in there.items()
        ]
        return unite(reader.NAME, files, found, faults)

    def metadata(self, files: Iterable[str]) -> list[str]:
        """Return the metadata files of all parts."""
        names = list(files)
        return [
            f"{part}/{name}"
            for part in self.directories(names)
            for name in reader.metadata_files(
                path.removeprefix(f"{part}/") for path in names if path.startswith(f"{part}/")
            )
        ]

    def state(
        self,
        store: Store,
        base: str,
        files: Mapping[str, File],
        known: MutableMapping[object, object],
        *,
        check: bool,
    ) -> StateSeen:
        """Tell whether each part is whole and nothing that belongs beside it is missing."""
        there = self.directories(files)
        for part in self.needed(files):
            if part not in there.values():
                return StateSeen(State.INCOMPLETE, f"{part.required} is not there")
        for name in there:
            at = f"{base}/{name}" if base else name
            seen = _DCP.state(store, at, below(files, name), known, check=check)
            if seen.state is not State.COMPLETE:
                return StateSeen(seen.state, f"{name}: {seen.reason}")
        for name in self.beside(files):
            if name not in files:
                return StateSeen(State.INCOMPLETE, f"{name} is not there")
        return StateSeen(State.COMPLETE)

    def beside(self, files: Mapping[str, File]) -> list[str]:
        """Return the files that have to lie beside the parts, as far as names tell."""
        shards = {rank_of(path) for path in files if reader.is_shard(path)}
        count = max((rank for rank in shards if rank is not None), default=-1) + 1
        return [
            *self.companions,
            *(name for form in self.per_rank for name in missing(set(), form, count)),
        ]


def _role(name: str, part: Part) -> str:
    number = re.search(r"_(\d+)$", name)
    role = part.role or name
    return role if number is None or int(number[1]) == 0 else f"{role}_{number[1]}"
