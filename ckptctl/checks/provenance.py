"""Stage 6: are all files of one step of one run? PyTorch loads a shard of another step in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ckptctl.checks.base import Check, Context, Hit, Override, never
from ckptctl.checks.neighbours import (
    duplicate,
    exchanged,
    foreign,
    misnamed,
    proven_files,
    shared,
    shrunken,
    stale,
    suspected,
)
from ckptctl.checks.wording import MOST_NAMES, others, votes, what, who, whose
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.finding import Location, Severity, Stage, Touched
from ckptctl.model.manifest import RECEIPTS
from ckptctl.provenance.assessment import Assessment, written
from ckptctl.provenance.consensus import Dissent, Level
from ckptctl.provenance.evidence import Source
from ckptctl.provenance.tears import Tear
from ckptctl.words import listed


def _mixed(context: Context, _: None) -> Iterator[Hit]:
    yield from _recorded_steps(context)
    found = context.assessment
    yield from _contradictions(found, lambda one: abs(one.step - one.common) != 1)


def _torn(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    yield from _contradictions(found, lambda one: abs(one.step - one.common) == 1)
    for tear in found.tears:
        if tear.severity > Severity.NOTE:
            yield _torn_within(tear)


def _torn_within(tear: Tear) -> Hit:
    return Hit(
        f"{whose(tear.ahead)} took step {tear.step}, and {whose(tear.behind)} did not: saved while "
        f"the optimizer took a step; {tear.reason}",
        _where(tear.files),
        touched=Touched.of(files=tear.files),
        severity=tear.severity,
    )


def _contradictions(found: Assessment, applies: Callable[[Dissent], bool]) -> Iterator[Hit]:
    groups: dict[tuple[object, int], list[Dissent]] = {}
    for one in found.dissents:
        if one.level is Level.CERTAIN and applies(one):
            rank = rank_of(one.file)
            groups.setdefault((one.file if rank is None else rank, one.step), []).append(one)
    for (_, step), members in groups.items():
        files = [one.file for one in members]
        yield Hit(
            f"{votes(files)} {step} ({what(members)}), {others(found, step)}",
            _where(files),
            touched=Touched.of(files=files),
        )


def _where(files: Sequence[str]) -> Location:
    return Location(file=files[0], rank=rank_of(files[0]))


def _recorded_steps(context: Context) -> Iterator[Hit]:
    """Compare the steps that receipts and manifest state for single files and ranks."""
    receipts = context.evidence.receipts
    steps = {receipt.path: receipt.step for receipt in receipts if receipt.step is not None}
    if len(set(steps.values())) > 1:
        said = ", ".join(f"rank {r.rank} says {r.step}" for r in receipts[:MOST_NAMES])
        yield Hit(f"the ranks' receipts are of several steps: {said}", Location(file=RECEIPTS))
    manifest = context.seal.manifest
    for record in manifest.files if manifest else ():
        if manifest and record.step not in (None, manifest.step) and manifest.step is not None:
            yield Hit(
                f"the manifest calls it a file of step {record.step}, and the checkpoint one of "
                f"step {manifest.step}",
                Location(file=record.path, rank=record.rank),
            )


def _runs(context: Context, _: None) -> Iterator[Hit]:
    receipts = context.evidence.receipts
    for kinds, values in (
        ("runs", {receipt.run_id for receipt in receipts}),
        ("saves", {receipt.save_id for receipt in receipts}),
        ("world sizes", {receipt.world_size for receipt in receipts}),
    ):
        if len(values) > 1:
            said = listed(sorted(map(str, values)), 4)
            yield Hit(
                f"the ranks' receipts are of several {kinds}: {said}", Location(file=RECEIPTS)
            )
    by_key: dict[str, dict[str, list[str]]] = {}
    for mark in context.evidence.runs:
        by_key.setdefault(mark.key, {}).setdefault(mark.text, []).append(mark.file)
    for key, by_text in by_key.items():
        if len(by_text) < 2:
            continue
        # where every rank has an id of its own, that may be how this run names itself
        own = max(map(len, by_text.values())) < 2
        home = max(by_text, key=lambda text: len(by_text[text]))
        for text, files in by_text.items():
            if text != home:
                yield Hit(
                    f"{key} is {text!r} in {who(files)} and {home!r} in {who(by_text[home])}",
                    _where(files),
                    touched=Touched.of(files=files),
                    severity=Severity.NOTE if own else None,
                )


def _makers(context: Context, _: None) -> Iterator[Hit]:
    by_range: dict[str, list[str]] = {}
    for path, ranges in context.evidence.makers.items():
        for one in ranges:
            by_range.setdefault(one, []).append(path)
    if len(by_range) > 1:
        fewest = min(by_range, key=lambda one: (len(by_range[one]), one))
        rest = ", ".join(sorted(set(by_range) - {fewest}))
        yield Hit(
            f"items in {who(by_range[fewest])} were written by torch {fewest}, others by torch "
            f"{rest}",
            _where(by_range[fewest]),
        )


def _counters(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    proven = proven_files(found)
    for one in found.dissents:
        if one.level is Level.POSSIBLE and one.file not in proven:
            yield Hit(
                f"{votes([one.file])} {one.step} ({what([one])}), {others(found, one.step)}; a "
                "frozen parameter or a counter of another kind looks like this, and so does a file "
                "of another step",
                _where([one.file]),
            )
    for tear in found.tears:
        if tear.severity is Severity.NOTE:
            yield Hit(
                f"{whose(tear.behind)} did not take step {tear.step} that {whose(tear.ahead)} took; "
                f"{tear.reason}, and so does a save while the optimizer took a step",
                _where(tear.files),
            )
    voting = proven | {one.file for one in found.dissents} | set(found.identity.of(Source.COUNTED))
    for path, views in found.views.items():
        stray = [view for view in views if view.outlier and view.estimate is not None]
        if stray and path not in voting:
            yield Hit(
                f"{stray[0].text}, as of step {stray[0].estimate:.4g}; a position that started over "
                "looks like this, and so does a file of another step",
                _where([path]),
            )


def _times(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    said = {one.file for one in found.dissents if one.support}
    for path, seconds in sorted(found.odd.items()):
        if path not in said:
            yield Hit(f"{written(seconds)}: weak evidence of a replaced file", _where([path]))


_CHOOSE = (
    "do not resume from it: restore the file from the save it belongs to, or choose another "
    "checkpoint with `ckptctl list {root}`"
)
_DUPLICATE = (
    "it is no later state than the other: `ckptctl quarantine {checkpoint}` keeps it from being "
    "resumed from"
)
_SHRUNKEN = "look whether the trainer was to leave them out; else resume from one that has them: `ckptctl list {root}`"
_LOOK = "compare it with the other checkpoints of {root}, and do not resume from it unless sure"


_OVERRIDES = {
    "mixed-step": never("its files say themselves that they are of several steps"),
    "torn-step": never("its files say themselves that they are of several steps"),
    "mixed-run": Override(
        "a run that was forked, or resumed under another name, has both names", words=True
    ),
    "foreign-shard": never("the file is the one of another checkpoint, byte for byte"),
    "exchanged-shards": Override(
        "as a warning: nothing tells then in which of two checkpoints they were exchanged",
        Severity.WARNING,
        words=True,
    ),
    "suspected-shard": Override("parameters that are frozen look like this as well", words=True),
    "stale-metadata": Override("a directory may be copied or renamed on purpose", words=True),
    "misnamed-checkpoint": Override("a directory may be named as one likes", words=True),
    "duplicate-save": Override("a copy may be meant as one", words=True),
    "shrunken-checkpoint": Override(
        "what a run needs to go on is known to whoever runs it", words=True
    ),
    "mixed-torch": Override("releases of torch may differ between nodes, and files are read alike"),
}
"""What of it a person may accept: evidence that has a harmless explanation too."""


def _checks() -> Iterable[Check[None]]:
    error, warning, note = Severity.ERROR, Severity.WARNING, Severity.NOTE
    for id_, severity, summary, remedy, run in (
        ("mixed-step", error, "Files say that they are of different steps.", _CHOOSE, _mixed),
        (
            "torn-step",
            error,
            "Files, or parameters of one optimizer, are one step apart.",
            _CHOOSE,
            _torn,
        ),
        ("mixed-run", error, "Files or receipts are of different runs or saves.", _CHOOSE, _runs),
        ("foreign-shard", error, "A file is the one of another checkpoint.", _CHOOSE, foreign),
        (
            "exchanged-shards",
            error,
            "Two files lie under each other's names.",
            _CHOOSE,
            exchanged,
        ),
        (
            "suspected-shard",
            warning,
            "A file may be of another step; the evidence allows something harmless too.",
            _LOOK,
            suspected,
        ),
        (
            "stale-metadata",
            warning,
            "The metadata was written for another save than the files.",
            "loading may be right by luck: choose another checkpoint with `ckptctl list {root}`",
            stale,
        ),
        (
            "misnamed-checkpoint",
            warning,
            "The directory names another step than what it holds.",
            "rename {checkpoint} if the name is wrong, before anybody resumes by it",
            misnamed,
        ),
        (
            "duplicate-save",
            warning,
            "It holds the same as a checkpoint of another step.",
            _DUPLICATE,
            duplicate,
        ),
        (
            "shrunken-checkpoint",
            warning,
            "It lacks keys that every older checkpoint beside it has. An error where they are required.",
            _SHRUNKEN,
            shrunken,
        ),
        ("mixed-torch", warning, "Files were written by different torch builds.", _LOOK, _makers),
        (
            "odd-counter",
            note,
            "A counter differs from the others; a harmless cause is likely.",
            "look whether that parameter was frozen or added later, or that rank's data started over",
            _counters,
        ),
        (
            "odd-time",
            note,
            "A file was written long before or after the others.",
            "times mean little where files were copied; a save's own log would tell",
            _times,
        ),
        (
            "shared-shard",
            note,
            "A file is equal in another checkpoint as well.",
            "`ckptctl verify {root}` says what it makes of the other one",
            shared,
        ),
    ):
        yield Check(
            id_, Stage.IDENTITY, severity, summary, remedy, run, override=_OVERRIDES.get(id_)
        )


CHECKS: tuple[Check[None], ...] = tuple(_checks())
"""Asked last, of what all files were found to say."""

COMPARING = frozenset(
    {
        "foreign-shard",
        "exchanged-shards",
        "suspected-shard",
        "duplicate-save",
        "shared-shard",
        "shrunken-checkpoint",
        "stale-metadata",
    }
)
"""Checks for which other checkpoints of the root are looked at."""
