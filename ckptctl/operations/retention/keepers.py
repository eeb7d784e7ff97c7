"""Which checkpoints count as kept: only those that are proven now, never those that look right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import CkptctlError
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.commit_state import State
from ckptctl.model.finding import GapKind
from ckptctl.operations.catalog.list import Row
from ckptctl.operations.place import Place, read_checkpoint
from ckptctl.operations.retention.contents import Contents
from ckptctl.operations.retention.policy import Policy
from ckptctl.operations.surroundings import Surroundings
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, verify
from ckptctl.storage import Store

_MOST_BEFORE = 4
WHOLE = (State.PROMOTED, State.COMMITTED, State.COMPLETE)
_ELSEWHERE = frozenset({"pointer-mismatch"})
"""Checks that are about the pointer and not about what it names."""


@dataclass(slots=True)
class Subject:
    """One checkpoint to decide on; ``verified`` and ``counted`` are set where it is a keeper.

    ``above`` says why one that is newer than the last keeper stays all the same.
    """

    row: Row
    place: Place
    contents: Contents
    problem: str = ""
    verified: str = ""
    counted: int = 0
    above: str = ""
    keeper: str = ""

    @property
    def damaged(self) -> bool:
        """True for what was committed and is not whole any more: no save that still goes on."""
        return self.row.state is State.INCOMPLETE and self.place.committed

    @property
    def unfinished(self) -> bool:
        """True for what looks like a save that goes on, or was cut off."""
        return self.row.state in (State.STAGING, State.INCOMPLETE) and not self.damaged

    @property
    def group(self) -> tuple[str, str]:
        """Those of one directory and one format are kept and counted together."""
        return self.place.path.rpartition("/")[0], self.place.format


@dataclass(slots=True)
class Groups:
    """The newest keeper of each directory and format, and of each directory."""

    newest: dict[tuple[str, str], Subject] = field(default_factory=dict)
    by_folder: dict[str, Subject] = field(default_factory=dict)

    def keeper(self, subject: Subject) -> Subject | None:
        """Return what must be there for this one to go; for what is cut off any beside it will do."""
        folder, _ = subject.group
        return self.by_folder.get(folder) if subject.unfinished else self.newest.get(subject.group)


def count_keepers(store: Store, subjects: Sequence[Subject], policy: Policy) -> Groups:
    """Verify from the newest on until enough of each group are proven, and mark those that count."""
    groups: dict[tuple[str, str], list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.group, []).append(subject)
    found = Groups()
    for group, members in groups.items():
        newest = _Count(store, policy).count([m for m in reversed(members) if not m.unfinished])
        if newest is None:
            continue
        found.newest[group] = newest
        other = found.by_folder.get(group[0])
        if other is None or (other.row.step or 0) < (newest.row.step or 0):
            found.by_folder[group[0]] = newest
    return found


class _Count:
    """The counting of one group; the names of tensors are read once for each checkpoint."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store, self._policy = store, policy
        self._tensors: dict[str, frozenset[str]] = {}
        self._around = Surroundings()

    def count(self, members: Sequence[Subject]) -> Subject | None:
        """Mark what counts, from the newest on, and return the newest that does."""
        wanted = self._policy.keep_last or 1
        newest: Subject | None = None
        passed: list[Subject] = []
        count = 0
        for place, subject in enumerate(members):
            bare = subject.row.state is State.COMPLETE and self._policy.verify != "quick"
            full = bare or self._policy.full(newest=newest is None)
            subject.problem = _problem(
                self._store, subject, self._around, full=full
            ) or self._lacking(subject, members[place + 1 :])
            if subject.problem:
                if subject.row.state is not State.QUARANTINED:
                    passed.append(subject)
                continue
            count += 1
            subject.counted, subject.verified = count, "full" if full else "quick"
            newest = newest or subject
            for one in passed:
                one.above = f"newer than one that is kept, and not proven: {one.problem}"
            passed.clear()
            if count == wanted:
                return newest
        for one in passed:
            one.above = f"there are no {wanted} that are proven, nor is this: {one.problem}"
        return newest

    def _lacking(self, subject: Subject, older: Iterable[Subject]) -> str:
        """Say which tensors of those just before it a checkpoint has no more."""
        whole = (one for one in older if one.row.state in WHOLE and one.place.readable)
        for one in islice(whole, _MOST_BEFORE):
            gone = self._names(one) - self._names(subject)
            if gone:
                return f"it lacks {len(gone)} tensors that {one.row.name} has, such as {min(gone)}"
        return ""

    def _names(self, subject: Subject) -> frozenset[str]:
        name = subject.row.name
        if name not in self._tensors:
            try:
                entries = read_checkpoint(self._store, subject.place).entries
            except CkptctlError:
                entries = {}
            found = (key for key, entry in entries.items() if isinstance(entry, TensorEntry))
            self._tensors[name] = frozenset(found)
        return self._tensors[name]


def _problem(store: Store, subject: Subject, around: Surroundings, *, full: bool) -> str:
    """Say why a checkpoint does not count as kept; empty where it is proven."""
    row, place = subject.row, subject.place
    if row.linked:
        return "it is a link, and what it leads to is not part of this root"
    if place.staging or row.state not in WHOLE:
        return f"{row.state.value}{': ' if row.reason else ''}{row.reason}"
    if row.state is State.COMPLETE and not full:
        return "it is not committed, and `quick` looks at nothing that proves its content"
    options = Options(quick=not full, sizes_only=not full, ignore=_ELSEWHERE)
    try:
        found = verify(store, place, options=options, around=around)
    except CkptctlError as error:
        return str(error)
    suspect = found.verdict is Verdict.SUSPECT and found.doubt is None
    if not found.good and not suspect:
        return f"{found.verdict}: {found.why or found.problem}"
    committed = row.state is not State.COMPLETE
    if committed and found.manifest is None:
        return "its manifest vanished while it was verified"
    bare = any(gap.kind is GapKind.NO_CRC for one in found.report.coverage for gap in one.gaps)
    if not committed and bare:
        return "some of it has no CRC and it is not committed, so that its content is not proven"
    return ""
