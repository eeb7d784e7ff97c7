"""``ckptctl verify``: all stages, one after the other, and the verdict that they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.completeness.audit import Audit, Wanted
from ckptctl.dataclass import dataclass, field, replace
from ckptctl.errors import StorageError
from ckptctl.model.finding import Finding, Report
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place, not_read
from ckptctl.operations.progress import Progress
from ckptctl.operations.surroundings import Surroundings
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.stages import run_stages
from ckptctl.operations.verify.verdict import judge
from ckptctl.operations.verify.work import Work, begin
from ckptctl.provenance.evidence import Identity
from ckptctl.storage import Store

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["Options", "Verdict", "Verification", "examine", "verification_of", "verify"]


_DOUBTFUL = frozenset({"suspected-shard", "exchanged-shards", "torn-step"})
"""Checks of identity whose warnings are about a file, and not about a name or the whole."""


@dataclass(frozen=True, slots=True)
class Verification(Answer):
    """What one checkpoint was found to be; ``why`` says in words what the verdict rests on."""

    checkpoint: str = field(metadata=PATH)
    step: int | None
    format: str
    verdict: Verdict = field()
    report: Report
    why: str = ""
    keys: int = 0
    items: int = 0
    ranks: tuple[int, ...] = ()
    size: int = 0
    world_size: int | None = None
    manifest: str | None = None
    run_id: str | None = None
    problem: str = ""
    audit: Audit | None = None
    identity: Identity = field(default_factory=Identity)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with it, the worst first."""
        return self.report.findings

    @property
    def good(self) -> bool:
        """True if nothing was found wrong, also where only its own files say which step it is of."""
        return self.verdict in (Verdict.OK, Verdict.UNVERIFIED)

    @property
    def doubt(self) -> Finding | None:
        """The first reason to suspect that a file is of another step, if there is one.

        A wrong name, old metadata or a copy of another checkpoint make it suspect too, but what it
        holds is of one step.
        """
        doubts = (f for f in self.report.findings if f.check in _DOUBTFUL and not f.accepted)
        return next(doubts, None)

    @property
    def accepted(self) -> tuple[Finding, ...]:
        """What is wrong with it and was accepted by a person."""
        return tuple(finding for finding in self.report.findings if finding.accepted)

    def wanted(self, asked: Wanted) -> Wanted:
        """Return what is wanted of it still: a component that a person accepted to be missing is not."""
        lacking = {one.about for one in self.accepted if one.check == "missing-component"}
        return replace(asked, allowed=asked.allowed | lacking)


def verify(
    store: Store,
    place: Place,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    around: Surroundings | None = None,
) -> Verification:
    """Verify one checkpoint; whatever is wrong with it is in the report, never an exception.

    Whoever verifies many of one root says by ``around`` that what lies around is listed once. Where it has a manifest, the digests in it prove the content, and a file that fails them is
    looked at item by item to say what is lost; elsewhere the CRC of each record must do.
    """
    located = Located(store, place, around or Surroundings())
    if not place.problem and not place.readable and place.format:
        return _unexamined(located, Verdict.NOT_EXAMINED, not_read(place))
    if place.problem:
        return _unexamined(located, Verdict.UNFINISHED, place.problem)
    try:
        work = examine(located, options or Options(), progress=progress, executor=executor)
    except StorageError as error:
        return _unexamined(located, Verdict.UNFINISHED, str(error))
    return verification_of(work)


def examine(
    located: Located,
    options: Options,
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Work:
    """Run all stages on one checkpoint; for whoever needs more of it than the verdict.

    Raises ``StorageError`` where not even its metadata could be read.
    """
    return run_stages(begin(located, options, progress=progress, executor=executor))


def verification_of(work: Work) -> Verification:
    """Sum up what all stages found."""
    context, url = work.context, work.located.url
    checkpoint, manifest = context.checkpoint, context.seal.manifest
    verdict, why = judge(work)
    return Verification(
        url,
        _step(work),
        work.located.place.format,
        verdict,
        _addressed(work.report, url),
        why,
        keys=len(checkpoint.entries),
        items=len(checkpoint.items),
        ranks=checkpoint.ranks,
        size=sum(file.size for file in checkpoint.files.values()),
        world_size=len(checkpoint.sources) if checkpoint.replicated else None,
        manifest=manifest.digest if manifest is not None else None,
        run_id=manifest.run_id if manifest is not None else None,
        problem=work.problem,
        audit=context.audit,
        identity=context.assessment.identity,
    )


def _step(work: Work) -> int | None:
    """Return the step by the manifest, else by the name, else what all files state."""
    manifest, named = work.context.seal.manifest, work.located.place.name.step
    if manifest is not None and manifest.step is not None:
        return manifest.step
    return named if named is not None else work.context.assessment.identity.agreed


def _unexamined(located: Located, verdict: Verdict, why: str) -> Verification:
    place = located.place
    return Verification(
        located.url, place.name.step, place.format, verdict, Report(), why, problem=why
    )


def _addressed(report: Report, url: str) -> Report:
    """Write the checkpoint's name into every finding and the commands it recommends."""
    root = url.rstrip("/").rpartition("/")[0] or "."
    return Report.of(
        (
            replace(
                finding,
                where=replace(finding.where, checkpoint=url),
                remedy=finding.remedy.replace("{checkpoint}", url).replace("{root}", root),
            )
            for finding in report.findings
        ),
        report.coverage,
    )
