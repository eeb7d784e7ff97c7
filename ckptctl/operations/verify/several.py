"""The verification of everything that was named: checkpoints, roots, several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import CkptctlError
from ckptctl.exit_codes import ExitCode
from ckptctl.model.finding import Finding
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.model.result.verdict import Verdict
from ckptctl.operations.progress import Progress
from ckptctl.operations.surroundings import Surroundings
from ckptctl.operations.target import Named, open_target, text_of
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verification, verify


@dataclass(frozen=True, slots=True)
class Failure:
    """One of several paths that could not be verified, and why."""

    path: str = field(metadata=PATH)
    error: str
    message: str
    exit_code: ExitCode


@dataclass(frozen=True, slots=True)
class Verifications(Answer):
    """What all checkpoints were found to be, and which of the paths could not be opened."""

    checkpoints: tuple[Verification, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all; a path that could not be opened leaves it unfinished."""
        found = [one.verdict for one in self.checkpoints]
        return Verdict.worst([*found, *(Verdict.UNFINISHED for _ in self.failures)])

    @property
    def exit_code(self) -> ExitCode:
        """Damage outranks an unfinished check, which outranks a path that is not there."""
        code = Verdict.worst(one.verdict for one in self.checkpoints).exit_code
        if code == ExitCode.FINDINGS:
            return code
        return max([code, *(failure.exit_code for failure in self.failures)])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with any of them."""
        return tuple(finding for one in self.checkpoints for finding in one.report.findings)


def verify_all(
    paths: Iterable[Named],
    *,
    options: Options,
    progress: Progress | None = None,
    framework: str = "",
    each: Callable[[Verification], object] | None = None,
) -> Verifications:
    """Verify every checkpoint that is named; ``each`` is told about one as soon as it is done.

    One path that cannot be opened raises; of several it is a failure beside the others.
    """
    named = [*dict.fromkeys(paths)]
    results: list[Verification] = []
    failures: list[Failure] = []
    for path in named:
        try:
            target = open_target(path, framework)
        except CkptctlError as error:
            if len(named) == 1:
                raise
            kind = type(error).__name__
            failures.append(Failure(text_of(path), kind, str(error), error.exit_code))
            continue
        around = Surroundings()
        for place in target.places:
            result = verify(target.store, place, options=options, progress=progress, around=around)
            results.append(result)
            if each is not None:
                each(result)
    return Verifications(tuple(results), tuple(failures))
