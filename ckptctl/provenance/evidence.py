"""What ties the files of a checkpoint to a step and a run, as it was found; nobody judged it yet.

From strong to weak: what a record of ckptctl states; content equal to another checkpoint's, which
proves a copy; steps that a file's own counters name; counters that keep pace with their peers'; times.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ckptctl.dataclass import dataclass, field
from ckptctl.model.checkpoint import Fault
from ckptctl.model.finding import Gap
from ckptctl.model.manifest import Receipt
from ckptctl.provenance.counters import Counter, RunMark, Stamp


class Likeness(enum.Enum):
    """What a probe is of; a moment of a trained parameter and a count change at every step."""

    MOMENT = "moment"
    WEIGHT = "weight"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Probe:
    """An item that was compared with its like in another checkpoint; all-zero ones are left out.

    ``fine`` numbers have enough digits that no step of training leaves all of them as they were.
    """

    file: str
    fqn: str
    kind: Likeness
    equal: bool
    fine: bool = False


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A file whose numbers look like those of ``other`` in another checkpoint, and not like its own.

    ``here`` is true where they were exchanged in this checkpoint, false for the other one, and None
    where nothing tells.
    """

    file: str
    other: str
    here: bool | None = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another checkpoint of the same root, compared file by file.

    ``step`` is the one its name or manifest states. ``probes`` are what was compared closely;
    ``alike`` names the files of which all that was compared is equal, ``unlike`` those of which
    something differs. ``saved_as_one`` is true where both metadata carry one save id. ``modified``
    are times of its files. ``matched`` are the files that look like themselves there, ``exchanged``
    those that look like another. ``kin`` names, for further checkpoints, which of its files they hold too.
    ``stamps`` are what it states of the steps that were asked for.
    """

    name: str
    step: int | None = None
    probes: tuple[Probe, ...] = ()
    alike: frozenset[str] = frozenset()
    unlike: frozenset[str] = frozenset()
    saved_as_one: bool = False
    modified: Mapping[str, float] = field(default_factory=dict)
    matched: frozenset[str] = frozenset()
    exchanged: tuple[Exchanged, ...] = ()
    kin: Mapping[str, frozenset[str]] = field(default_factory=dict)
    stamps: tuple[Stamp, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Keys by component that all older neighbours have, which are ``names``.

    ``export`` is true where the weights are all there and nothing else is; ``later`` names a newer
    checkpoint that has none of the keys either.
    """

    names: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    export: bool = False
    later: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it for one checkpoint.

    ``files`` are the data files in use. ``declared`` is the step that the manifest states, else
    the directory's name; ``named`` is the part of the path that says so. ``makers`` hold, for each
    file, the ranges of torch releases that write such items. ``beside`` counts the other checkpoints of
    the run, of which ``neighbours`` were compared; ``lacking`` is what all older ones have and this
    one has not. ``gaps`` say what was not looked at.
    """

    files: tuple[str, ...] = ()
    declared: int | None = None
    named: str = ""
    stamps: tuple[Stamp, ...] = ()
    counters: tuple[Counter, ...] = ()
    runs: tuple[RunMark, ...] = ()
    makers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    receipts: tuple[Receipt, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    beside: int = 0
    lacking: Lacking = field(default_factory=Lacking)
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """What companions that are text were found to say: steps and runs, and digests of other files.

    ``read`` are those that were read. ``digests`` are by path, and ``source`` is the file that has
    them. ``faults`` are what does not fit in any of them.
    """

    read: tuple[str, ...] = ()
    says: tuple[Stamp | RunMark, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    faults: tuple[Fault, ...] = ()


class Source(enum.Enum):
    """How a file's step is known: from best to not at all."""

    RECORDED = "recorded"
    COUNTED = "counted"
    PEERS = "in step with its peers"
    NONE = "nothing says it"
    AT_ODDS = "at odds with the rest"


@dataclass(frozen=True, slots=True)
class FileStep:
    """What is known of one file: the step it is of as far as it says so, and how that is known."""

    file: str
    source: Source
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """The step that a checkpoint as a whole is of, and how each of its files is known to be of it.

    ``one_run`` is true where nothing could be of another run: there is one file, or all name one;
    ``runs`` are the names of runs that files hold.
    """

    step: int | None = None
    files: tuple[FileStep, ...] = ()
    one_run: bool = False
    runs: tuple[str, ...] = ()

    def of(self, source: Source) -> tuple[str, ...]:
        """Name the files that are known in this way."""
        return tuple(one.file for one in self.files if one.source is source)

    @property
    def agreed(self) -> int | None:
        """The step that every file states by itself or by a record; None where one does not."""
        good = (Source.COUNTED, Source.RECORDED)
        whole = bool(self.files) and all(one.source in good for one in self.files)
        return self.step if whole else None
