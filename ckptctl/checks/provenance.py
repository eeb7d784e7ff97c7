"""Stage 6: are all files of one step of one run? PyTorch loads a shard of another step in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ckptctl.checks.base import Check, Context, Hit, Override, never
from ckptctl.checks.save_names import misnamed, stale
from ckptctl.checks.wording import MOST_NAMES, others, votes, what, who, whose
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.finding import Location, Severity, Stage, Touched
from ckptctl.model.manifest import RECEIPTS
from ckptctl.provenance.assessment import Assessment, Placed, written
from ckptctl.provenance.consensus import Dissent, Level
from ckptctl.provenance.evidence import Exchanged, Source
from ckptctl.provenance.similarity import Home, Proof
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


def _foreign(context: Context, _: None) -> Iterator[Hit]:
    for one in context.assessment.placed:
        if one.alike.proof is Proof.CERTAIN and one.home is Home.THERE:
            files = one.alike.files
            yield Hit(
                f"{_equal(one)}; it is of that save: {one.reason}",
                _where(files),
                touched=Touched.of(files=files),
            )


def _exchanged(context: Context, _: None) -> Iterator[Hit]:
    """Find files that look like another one in every checkpoint beside that could be compared."""
    neighbours = context.evidence.neighbours
    at_home = {path for one in neighbours for path in one.matched}
    seen: dict[str, list[tuple[str, Exchanged]]] = {}
    for neighbour in neighbours:
        for one in neighbour.exchanged:
            seen.setdefault(one.file, []).append((neighbour.name, one))
    for path, found in sorted(seen.items()):
        told = [one.here for _, one in found if one.here is not None]
        if path in at_home or (told and not any(told)):
            continue
        sure = bool(told) or len(found) > 1
        name, first = found[0]
        why = (
            "the optimizer's moments go with the weights in the other file"
            if told
            else f"so it is in {len(found)} others"
            if sure
            else "nothing tells in which of the two they were exchanged"
        )
        yield Hit(
            f"its numbers go on from those of {first.other} in {name}, and not from its own there: "
            f"two files were exchanged; {why}",
            _where([path]),
            severity=None if sure else Severity.WARNING,
        )


def _equal(one: Placed) -> str:
    alike = one.alike
    moved = listed(list(alike.moved), 3)
    return f"equal to the one in {alike.neighbour}, though {moved} moved on in other files"


def _suspected(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    said = _proven(found)
    for one in found.dissents:
        if one.level is Level.LIKELY and one.file not in said:
            said.add(one.file)
            yield Hit(
                f"{votes([one.file])} {one.step} ({what([one])}), {others(found, one.step)}; "
                "parameters frozen or added later could look like this",
                _where([one.file]),
            )
    for placed in found.placed:
        proof, home = placed.alike.proof, placed.home
        unsure = home is Home.OPEN and proof is Proof.CERTAIN
        if said & set(placed.alike.files) or home is Home.HERE:
            continue
        if unsure or proof is Proof.LIKELY:
            reason = placed.reason or "nothing tells which of the two it belongs to"
            yield Hit(f"{_equal(placed)}; {reason}", _where(placed.alike.files))


def _proven(found: Assessment) -> set[str]:
    """Name the files of which another check says with certainty that they are of another step."""
    said = {one.file for one in found.dissents if one.level is Level.CERTAIN}
    for placed in found.placed:
        if placed.alike.proof is Proof.CERTAIN and placed.home is Home.THERE:
            said.update(placed.alike.files)
    return said


def _shared(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    ours: dict[str, list[Placed]] = {}
    rows: dict[str, list[Placed]] = {}
    for one in found.placed:
        if one.home is Home.HERE and one.alike.proof >= Proof.LIKELY:
            ours.setdefault(one.alike.neighbour, []).append(one)
        elif one.alike.proof is Proof.EXPLAINED:
            rows.setdefault(one.alike.neighbour, []).append(one)
    for name, placed in rows.items():
        files = [path for one in placed for path in one.alike.files]
        yield Hit(
            f"{listed(files, MOST_NAMES)}: equal in {name}, though "
            f"{placed[0].alike.moved[0]} moved on in other files; rows that were not looked up look "
            "like this, and so does a copied file",
            _where(files),
        )
    # of a checkpoint that is itself mixed, nothing is said about its neighbours
    for name, placed in ours.items() if not _proven(found) else ():
        files = [path for one in placed for path in one.alike.files]
        yield Hit(
            f"{who(files)}: equal in {name} and belonging here ({placed[0].reason}), so it is that "
            "one that is mixed",
            _where(files),
        )
    for tie in found.ties:
        step = tie.neighbour.step
        shown = tie.everything and (not tie.moving or _original(found, step))
        if shown and _other_step(found, step):
            why = "that one is a copy" if tie.moving else "a copy, or nothing was learned between"
            yield Hit(
                f"all that was compared is equal to {tie.neighbour.name} of step {step}: {why}"
            )


def _other_step(found: Assessment, step: int | None) -> bool:
    declared = found.evidence.declared
    return declared is not None and step is not None and declared != step


def _original(found: Assessment, step: int | None) -> bool:
    """Tell whether what a checkpoint holds is of the step that it declares."""
    said = {stamp.step for stamp in found.evidence.stamps}
    saved = found.saved_as
    if (found.evidence.declared in said) != (step in said):
        return found.evidence.declared in said
    return saved is not None and saved == found.evidence.declared


def _duplicate(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    for tie in found.ties:
        step = tie.neighbour.step
        moving = tie.everything and tie.moving
        if moving and _other_step(found, step) and not _original(found, step):
            yield Hit(
                f"all that was compared, moments and counters too, is equal to "
                f"{tie.neighbour.name} of step {step}: one is a copy of the other"
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
    proven = _proven(found)
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
        ("foreign-shard", error, "A file is the one of another checkpoint.", _CHOOSE, _foreign),
        (
            "exchanged-shards",
            error,
            "Two files lie under each other's names.",
            _CHOOSE,
            _exchanged,
        ),
        (
            "suspected-shard",
            warning,
            "A file may be of another step; the evidence allows something harmless too.",
            _LOOK,
            _suspected,
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
            _duplicate,
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
            _shared,
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
        "stale-metadata",
    }
)
"""Checks for which other checkpoints of the root are looked at."""
