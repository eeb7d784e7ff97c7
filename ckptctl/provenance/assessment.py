"""All evidence of identity weighed together, once for the checks that report on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from ckptctl.dataclass import dataclass, replace
from ckptctl.model.checkpoint import Checkpoint, Items, rank_of
from ckptctl.model.companion import Kind
from ckptctl.model.names import parse_name
from ckptctl.model.seal import Seal
from ckptctl.provenance.consensus import Consensus, Dissent, Support, consensus, dissents
from ckptctl.provenance.counters import Stamp
from ckptctl.provenance.evidence import Evidence, FileStep, Identity, Source
from ckptctl.provenance.peers import PeerView, keeps_pace, odd_times, peer_views, supports
from ckptctl.provenance.restarts import settled
from ckptctl.provenance.similarity import Alike, Home, Proof, Tie, compare, home_of
from ckptctl.provenance.tears import Tear, tears

SAVED_AS = "the path it was saved under"
"""The key of what metadata says by the path that it holds."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Files that are equal in a neighbour, and where they belong, by what."""

    alike: Alike
    home: Home
    reason: str = ""


class Assessment:
    """What follows from the evidence of one checkpoint; everything is derived on first use."""

    def __init__(self, checkpoint: Checkpoint, seal: Seal, evidence: Evidence) -> None:
        """Derive nothing yet."""
        self._checkpoint, self._seal = checkpoint, seal
        self.evidence = evidence

    @cached_property
    def stamps(self) -> tuple[Stamp, ...]:
        """What the files state, and the metadata by its path where others can be of one step only."""
        stamps, sources = self.evidence.stamps, self._checkpoint.sources
        if self.saved_as is None or not sources or not any(stamp.exact for stamp in stamps):
            return stamps
        return (*stamps, Stamp(sources[0], SAVED_AS, Kind.PROGRESS, self.saved_as, exact=True))

    @cached_property
    def common(self) -> Consensus:
        """What the files agree on."""
        return consensus(self.stamps, self.evidence.declared)

    @property
    def step(self) -> int | None:
        """The step that the files are compared with: their own, else the declared one."""
        return self.common.step if self.common.step is not None else self.evidence.declared

    @cached_property
    def saved_as(self) -> int | None:
        """The step in the path under which the metadata was saved, where it is named alike.

        A slot of a rotation, a process's number or an index is no step: only a part of the path
        that differs from the directory's name in nothing but its number counts.
        """
        path = self._checkpoint.identity.checkpoint_id
        stem = _stem(self.evidence.named)
        for part in reversed((path or "").split("/")):
            name = parse_name(part)
            if name.step is not None:
                return name.step if _stem(part) == stem else None
        return None

    @cached_property
    def views(self) -> dict[str, list[PeerView]]:
        """The counters that ranks keep for themselves, by file."""
        found: dict[str, list[PeerView]] = {}
        for view in peer_views(self.evidence.counters, self.step):
            found.setdefault(view.file, []).append(view)
        return found

    @cached_property
    def odd(self) -> dict[str, float]:
        """Files that were written long before or after the others, by seconds."""
        files = self._checkpoint.files
        return self._odd({path: file.modified for path, file in files.items()})

    def _odd(self, times: Mapping[str, float | None]) -> dict[str, float]:
        files = (p for p in self.evidence.files if p not in self._checkpoint.companions)
        shards = {p: t for p in files if (t := times.get(p)) is not None}
        sources = [times.get(name) for name in self._checkpoint.sources]
        known = [time for time in sources if time is not None]
        return odd_times(shards, known[0] if len(known) == 1 else None)

    @cached_property
    def dissents(self) -> list[Dissent]:
        """Files that contradict the rest by what they count."""
        stamps = self.stamps
        confined = _confinement(self._checkpoint.items, stamps)
        found = dissents(stamps, self.common, confined=confined, support=self._support)
        return settled(found, stamps, self.evidence.neighbours)

    @cached_property
    def tears(self) -> list[Tear]:
        """Optimizers that look as if they had been saved while they took a step."""
        evidence = self.evidence
        return tears(evidence.stamps, self._checkpoint, evidence.declared, evidence.neighbours)

    def _support(self, files: frozenset[str], step: int, common: int) -> Support:
        ranks = {rank_of(path) for path in files}
        if len(files) > 1 and len(ranks) == 1 and None not in ranks:  # all files of one rank
            files |= {path for path in self.evidence.files if rank_of(path) in ranks}
        for view in (view for file in sorted(files) for view in self.views.get(file, ())):
            if supports(view, step, common):
                return Support(view.text, firm=True)
        if files <= self.odd.keys():
            return Support(written(self.odd[min(files)]))
        return Support()

    @cached_property
    def ties(self) -> list[Tie]:
        """What was compared with each neighbour."""
        evidence = self.evidence
        return [compare(n, evidence.files) for n in evidence.neighbours]

    @cached_property
    def placed(self) -> list[Placed]:
        """Files that are equal in a neighbour while others differ, with where they belong."""
        found: list[Placed] = []
        for tie in self.ties:
            placed = [
                Placed(alike, *self._home(alike, tie))
                for alike in tie.alike
                if alike.proof is not Proof.NONE
            ]
            decided = {one.home for one in placed} - {Home.OPEN}
            if len(decided) == 1:  # files went one way only, from one of the two to the other
                home = decided.pop()
                reason = next(one.reason for one in placed if one.home is home)
                placed = [
                    replace(one, home=home, reason=f"other files shared with it: {reason}")
                    if one.home is Home.OPEN
                    else one
                    for one in placed
                ]
            found.extend(placed)
        return found

    def _home(self, alike: Alike, own: Tie) -> tuple[Home, str]:
        mine = set(alike.files)
        for tie in self.ties:
            other = tie.neighbour
            apart = tie is not own and tie.alike and not mine & other.alike
            if apart and other.alike >= (other.alike | other.unlike) - mine:
                return Home.THERE, f"all other files are those of {other.name}"
        neighbour = own.neighbour
        for name, shared in neighbour.kin.items():
            if neighbour.unlike and not mine & shared and shared >= neighbour.unlike:
                return Home.HERE, f"all other files of {neighbour.name} are those of {name}"
        estimates = {
            path: [view.estimate for view in views if view.estimate is not None]
            for path, views in self.views.items()
        }
        strays = {p for p, views in self.views.items() if any(v.outlier and v.exact for v in views)}
        return home_of(
            alike,
            common=self.step,
            stamps=self.evidence.stamps,
            estimates=estimates,
            strays=frozenset(strays),
            dissenting=frozenset(d.file for d in self.dissents),
            odd_here=self.odd,
            odd_there=self._odd(neighbour.modified),
        )

    @cached_property
    def identity(self) -> Identity:
        """The step of the whole, and how each file is known to be of it."""
        manifest = self._seal.manifest
        if manifest is not None and manifest.step is not None:
            promised = {record.path for record in manifest.files}
            stands = [
                FileStep(path, Source.RECORDED, (manifest.step,))
                for path in self.evidence.files
                if path in promised
            ]
            return Identity(manifest.step, tuple(stands), one_run=True)
        files = self.evidence.files
        marked = {mark.file for mark in self.evidence.runs}
        runs = tuple(sorted({mark.text for mark in self.evidence.runs}))
        one_run = len(files) == 1 or (len(runs) == 1 and marked >= set(files))
        return Identity(self.step, tuple(map(self._step_of, files)), one_run, runs)

    @cached_property
    def _stamps(self) -> dict[str, list[Stamp]]:
        found: dict[str, list[Stamp]] = {}
        for stamp in self.evidence.stamps:
            found.setdefault(stamp.file, []).append(stamp)
        return found

    @cached_property
    def _against(self) -> dict[str, Dissent]:
        return {dissent.file: dissent for dissent in self.dissents}

    def _step_of(self, path: str) -> FileStep:
        stamps = self._stamps.get(path, ())
        views = self.views.get(path, ())
        if path in self._against:
            return FileStep(path, Source.AT_ODDS, (self._against[path].step,))
        good = sorted({stamp.step for stamp in stamps if self.common.agrees(stamp)})
        if good:
            return FileStep(path, Source.COUNTED, tuple(good))
        if any(view.outlier and view.moves for view in views):
            worth = [round(v.estimate) for v in views if v.outlier and v.estimate is not None]
            return FileStep(path, Source.AT_ODDS, tuple(worth[:1]))
        if self.step is not None and any(keeps_pace(view, self.step) for view in views):
            return FileStep(path, Source.PEERS, (self.step,))
        return FileStep(path, Source.NONE)


def written(seconds: float) -> str:
    """Say that a file is out of line by its time."""
    how = "before" if seconds < 0 else "after"
    return f"it was written {abs(seconds):.0f} s {how} the others"


def _stem(name: str) -> str:
    """Take the number and the marks of an unfinished save out of a name."""
    return re.sub(r"[\d._=-]+|tmp|temp|partial", "", name.lower())


def _confinement(items: Items, stamps: Iterable[Stamp]) -> Callable[[Stamp], bool]:
    """Return what tells whether all state of a stamp's parameter lies in the stamp's file."""
    files: dict[str, set[str]] | None = None
    wanted = {stamp.key.rpartition(".")[0] for stamp in stamps}

    def confined(stamp: Stamp) -> bool:
        nonlocal files
        if files is None:
            files = {}
            for fqn, path in zip(items.fqns, items.paths, strict=True):
                parent = fqn.rpartition(".")[0]
                if parent in wanted:
                    files.setdefault(parent, set()).add(path)
        return files.get(stamp.key.rpartition(".")[0], set()) <= {stamp.file}

    return confined
