"""Checkpoints made of parts: DCP directories, files of ``torch.save``, safetensors.

Each part is read by itself; what frameworks put beside them stays in the list of files. A part without which nothing can be resumed, and which is not there, is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping

from ckptctl.dataclass import dataclass, replace
from ckptctl.formats.base import Layout, Reads, StateSeen
from ckptctl.formats.companions import Rule, companions_of, misfits
from ckptctl.formats.dcp import reader
from ckptctl.formats.files import holdings, problem_of, read_files
from ckptctl.formats.layouts.dcp import Dcp
from ckptctl.formats.parts import Read, below, unite
from ckptctl.model.checkpoint import Checkpoint, Fault, FaultKind, File, rank_of
from ckptctl.model.commit_state import State
from ckptctl.model.companion import Kind
from ckptctl.model.finding import Location
from ckptctl.model.paths import join
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


class Accompanied(Layout):
    """A layout whose trainer needs files beside the tensors; ``rules`` say what is in which of them."""

    rules: tuple[Rule, ...] = ()

    def tied(self, checkpoint: Checkpoint) -> frozenset[Kind]:
        """Return the counters among the tensors that count as companions do, which need not be any."""
        return frozenset()

    def accompanied(
        self, store: Store, base: str, found: Checkpoint, files: Mapping[str, File]
    ) -> Checkpoint:
        """Add the companions to what was read of the tensors, and what is wrong with their names."""
        held = holdings(files, self.rules)
        tensors = {*found.sources, *found.items.paths}
        tensors -= {one.path for one in held if not one.is_safetensors}
        tensors |= {one.path for one in held if one.is_safetensors}
        companions = companions_of(files, self.rules, tensors=tensors)
        for one in held:
            if one.path in companions:
                companions[one.path] = replace(companions[one.path], prefix=one.prefix)
        absent = self.absent(store, base, files)
        more = (*absent, *misfits(companions, files))
        found = replace(found, companions=companions, faults=(*found.faults, *more))
        return replace(found, tied=self.tied(found))

    def beside(self, store: Store, base: str, files: Mapping[str, File]) -> Mapping[str, str]:
        """Return the files that have to lie beside the tensors, and what is lost without each."""
        return {}

    def absent(self, store: Store, base: str, files: Mapping[str, File]) -> list[Fault]:
        """Return a fault for each of them that is not there."""
        return [
            Fault(FaultKind.MISSING_FILE, "it is not there", Location(file=name), loss)
            for name, loss in self.beside(store, base, files).items()
            if name not in files
        ]

    def with_companions(
        self, store: Store, base: str, files: Mapping[str, File], seen: StateSeen
    ) -> StateSeen:
        """Call what is whole otherwise incomplete, where a companion is absent, no file, or empty."""
        if seen.state is not State.COMPLETE:
            return seen
        bad = self.absent(store, base, files)
        bad += misfits(companions_of(files, self.rules), files)
        if not bad:
            return seen
        said = bad[0].message.removeprefix("it ")
        return StateSeen(State.INCOMPLETE, f"{bad[0].where.file} {said}")


class AccompaniedDcp(Accompanied, Dcp):
    """A DCP directory whose trainer needs files beside the shards."""

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        """Read the metadata, and say which companions are not there."""
        found = super().read(store, base, files)
        return self.accompanied(store, base, found, files) if found.readable else found

    def state(
        self,
        store: Store,
        base: str,
        files: Mapping[str, File],
        known: MutableMapping[object, object],
        *,
        check: bool,
    ) -> StateSeen:
        """Compare sizes with the metadata, then look for companions."""
        seen = super().state(store, base, files, known, check=check)
        return self.with_companions(store, base, files, seen)


class Composite(Accompanied):
    """A layout with DCP directories as parts, or files by its rules."""

    reads = Reads.WHOLE
    parts: tuple[Part, ...] = ()

    def directories(self, files: Iterable[str]) -> dict[str, Part]:
        """Return the parts that are there, by the names of their directories."""
        names = sorted({path.partition("/")[0] for path in files if "/" in path})
        return {
            name: part for part in self.parts for name in names if re.fullmatch(part.pattern, name)
        }

    def is_one(self, path: str) -> bool:
        """Shards and metadata are files."""
        return reader.must_be_file(path)

    def needed(self, files: Mapping[str, File]) -> tuple[Part, ...]:
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
                reader.read(store, join(base, name), below(files, name)),
            )
            for name, part in there.items()
        ]
        found += read_files(store, base, files, holdings(files, self.rules))
        whole = unite(reader.NAME if there else self.name, files, found, faults)
        return self.accompanied(store, base, whole, files) if found else whole

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
            at = join(base, name)
            seen = _DCP.state(store, at, below(files, name), known, check=check)
            if seen.state is not State.COMPLETE:
                return StateSeen(seen.state, f"{name}: {seen.reason}")
        for one in holdings(files, self.rules):
            problem = problem_of(store, join(base, one.path), one)
            if problem:
                return StateSeen(State.INCOMPLETE, f"{one.path} {problem}")
        return self.with_companions(store, base, files, StateSeen(State.COMPLETE))


def ranks_of(files: Iterable[str]) -> int:
    """Return how many ranks wrote shards, by their names."""
    ranks = {rank_of(path) for path in files if reader.is_shard(path)}
    return max((rank for rank in ranks if rank is not None), default=-1) + 1


def _role(name: str, part: Part) -> str:
    number = re.search(r"_(\d+)$", name)
    role = part.role or name
    return role if number is None or int(number[1]) == 0 else f"{role}_{number[1]}"
