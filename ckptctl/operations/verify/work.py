"""One checkpoint on its way through the stages, and what is found of it on that way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ckptctl import protocol
from ckptctl.checks import IDENTITY_CHECKS, Check, Context, by_id
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import StorageError
from ckptctl.model.finding import Coverage, Finding, Report, Severity
from ckptctl.model.observation import Against
from ckptctl.model.seal import Seal
from ckptctl.operations.located import Located
from ckptctl.operations.progress import Progress
from ckptctl.operations.provenance.collect import Collection
from ckptctl.operations.verify.accepting import Acceptances
from ckptctl.operations.verify.options import Options
from ckptctl.storage.traffic import both

if TYPE_CHECKING:
    from concurrent.futures import Executor


@dataclass(frozen=True, slots=True)
class Sealing:
    """What a commit asks for beside a verification: which files are hashed, and the step it declares."""

    algorithm: str
    step: int | None = None
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Work:
    """A checkpoint, how it is looked at, and what was found so far; a stage returns a new one.

    ``asked`` are the checks that had something to ask. ``problem`` is why reading had to stop.
    ``digests`` hold size and digest of each file, ``checked`` what its bytes were checked against,
    and ``unread`` what could not be read of which file, where a commit asked for them.
    """

    located: Located
    options: Options
    context: Context
    report: Report = field(default_factory=Report)
    asked: frozenset[str] = frozenset()
    problem: str = ""
    collected: Collection | None = None
    sealing: Sealing | None = None
    digests: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    checked: Mapping[str, Against] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    progress: Progress | None = None
    executor: Executor | None = None

    @property
    def wants_identity(self) -> bool:
        """True if any check of identity is to be asked, so that what tells of it is collected."""
        return any(self.options.asks(check.id) for check in IDENTITY_CHECKS)

    @property
    def _acceptances(self) -> Acceptances:
        manifest = self.context.seal.manifest
        return Acceptances(manifest.accepted if manifest else (), self.options.accepting)

    @property
    def errors(self) -> list[Finding]:
        """What was found that nobody may accept, in the order in which checks are asked."""
        order = {check: number for number, check in enumerate(by_id())}
        found = [f for f in self.report.findings if f.severity is Severity.ERROR]
        return sorted(found, key=lambda finding: order[finding.check])

    def ask(
        self,
        checks: Iterable[Check[None]],
        context: Context,
        rows: Iterable[Coverage] = (),
        *,
        examined: bool,
    ) -> Work:
        """Ask checks about what is known by now; ``examined`` tells whether there was anything."""
        chosen = [check for check in checks if self.options.asks(check.id)]
        findings = [finding for check in chosen for finding in check.ask(context, None)]
        asked = {check.id for check in chosen if examined and check.has_subject(context)}
        return self.found(Report.of(findings, rows), asked, context=context)

    def found(self, report: Report, asked: Iterable[str] = (), **changes: Any) -> Work:
        """Add what a stage found; what is accepted is a note from then on."""
        changes["report"] = self.report.merge(self._acceptances.weigh(report))
        return replace(self, asked=self.asked | set(asked), **changes)


def begin(
    located: Located,
    options: Options,
    *,
    sealing: Sealing | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Work:
    """Read metadata and records of a checkpoint; nothing is asked yet.

    Raises ``StorageError`` where the storage does not answer.
    """
    checkpoint, seal = both(
        located.store,
        located.read,
        lambda: Seal() if sealing is not None else _seal(located, options),
    )
    context = Context.of(checkpoint, seal, wanted=options.wanted)
    return Work(located, options, context, sealing=sealing, progress=progress, executor=executor)


def _seal(located: Located, options: Options) -> Seal:
    """Read the checkpoint's records and the pointer, where one names it."""
    store, place = located.store, located.place
    asked = place.path and options.asks("pointer-mismatch")
    found, seal = both(
        store,
        lambda: protocol.read_pointer(store) if asked else protocol.Pointer(),
        lambda: protocol.read_seal(
            store,
            located.records,
            name=place.name.text,
            required=options.require_manifest,
        ),
    )
    if found.failed:
        raise StorageError(found.problems[0])
    pointer = found.decided
    named = pointer is not None and pointer.target == place.path
    return replace(seal, pointers=(pointer,) if pointer is not None and named else ())
