"""Stage 6, continued: what do names, metadata and the other checkpoints of the run tell of this one?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckptctl.checks.base import Context, Hit
from ckptctl.checks.wording import MOST_NAMES, others, votes, what, who
from ckptctl.model.checkpoint import rank_of
from ckptctl.model.companion import Kind
from ckptctl.model.finding import Location, Severity, Touched
from ckptctl.pattern import pattern
from ckptctl.provenance.assessment import Assessment, Placed
from ckptctl.provenance.consensus import Level
from ckptctl.provenance.evidence import Exchanged
from ckptctl.provenance.similarity import Home, Proof
from ckptctl.words import listed

_REUSED = (
    "nothing, if the trainer uses one metadata for several saves: it fits these files; else compare "
    "with `ckptctl diff`"
)
_FROZEN = "parameters frozen or added later could look like this"
_COUNTS_STEPS = pattern(r"step|iter", re.IGNORECASE)


def _where(files: Sequence[str]) -> Location:
    return Location(file=files[0], rank=rank_of(files[0]))


def foreign(context: Context, _: None) -> Iterator[Hit]:
    told: set[str] = set()  # several may hold the same file
    for one in context.assessment.placed:
        if one.alike.proof is Proof.CERTAIN and one.home is Home.THERE:
            files = one.alike.files
            if told.issuperset(files):
                continue
            told.update(files)
            yield Hit(
                f"{_equal(one)}; it is of that save: {one.reason}",
                _where(files),
                touched=Touched.of(files=files),
            )


def exchanged(context: Context, _: None) -> Iterator[Hit]:
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


def suspected(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    said = proven_files(found)
    for one in found.dissents:
        if one.level is Level.LIKELY and one.file not in said:
            said.add(one.file)
            tied = any(stamp.scheme for stamp in one.stamps)
            why = "what started over looks like this too" if tied else _FROZEN
            yield Hit(
                f"{votes([one.file])} {one.step} ({what([one])}), {others(found, one.step)}; {why}",
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


def proven_files(found: Assessment) -> set[str]:
    """Name the files of which another check says with certainty that they are of another step."""
    said = {one.file for one in found.dissents if one.level is Level.CERTAIN}
    for placed in found.placed:
        if placed.alike.proof is Proof.CERTAIN and placed.home is Home.THERE:
            said.update(placed.alike.files)
    return said


def shared(context: Context, _: None) -> Iterator[Hit]:
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
    for name, placed in ours.items() if not proven_files(found) else ():
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


def duplicate(context: Context, _: None) -> Iterator[Hit]:
    found = context.assessment
    for tie in found.ties:
        step = tie.neighbour.step
        moving = tie.everything and tie.moving
        if moving and _other_step(found, step) and not _original(found, step):
            yield Hit(
                f"all that was compared, moments and counters too, is equal to "
                f"{tie.neighbour.name} of step {step}: one is a copy of the other"
            )


def shrunken(context: Context, _: None) -> Iterator[Hit]:
    """Find what every older neighbour has and this one lacks."""
    found, wanted = context.evidence.lacking, context.wanted
    if not found.keys:
        return
    required = [
        name for name in found.keys if name in wanted.required and name not in wanted.allowed
    ]
    meant = found.export or bool(found.later) or set(found.keys) <= wanted.allowed
    why = (
        f"; {found.later} has none of them either"
        if found.later
        else "; what is left are the weights, as an export at the end has them"
        if found.export
        else ""
    )
    parts = [
        f"{len(keys)} of {name}, such as {keys[0]}" for name, keys in sorted(found.keys.items())
    ]
    keys = [key for one in found.keys.values() for key in one]
    yield Hit(
        f"it lacks keys that {listed(list(found.names), 4)} "
        f"{'has' if len(found.names) == 1 else 'have'}: {'; '.join(parts)}{why}",
        severity=Severity.ERROR if required else Severity.NOTE if meant else None,
        touched=Touched.of(keys),
        about=min(found.keys),
    )


def _source(context: Context) -> Location:
    sources = context.checkpoint.sources
    return Location(file=sources[0] if sources else None)


def stale(context: Context, _: None) -> Iterator[Hit]:
    """Find metadata that names another step than the directory, or that another checkpoint has too.

    A trainer may write it once and use it for every save: it fits the files, and they say the
    directory's own step.
    """
    found = context.assessment
    declared, saved = found.evidence.declared, found.saved_as
    said = declared is not None and any(s.step == declared for s in found.evidence.stamps)
    reused = said and _fits(context)
    severity, remedy = (Severity.NOTE, _REUSED) if reused else (None, "")
    if saved is not None and declared is not None and saved != declared:
        if not _holds(found, saved):
            votes = _votes_for(found, declared)
            yield Hit(
                f"it was written for step {saved} ({context.checkpoint.identity.checkpoint_id}), "
                f"and this is step {declared}{votes}",
                _source(context),
                severity=severity,
                remedy=remedy,
            )
        return
    if _digested(context):
        return
    for one in found.evidence.neighbours:
        other = one.step != declared and (one.step is not None or declared is None)
        if one.saved_as_one and one.unlike and other and saved != declared:
            yield Hit(
                f"{one.name} has the metadata of the same save "
                f"({context.checkpoint.identity.save_id}), and other files",
                _source(context),
                severity=severity,
                remedy=remedy,
            )


def _fits(context: Context) -> bool:
    """Tell whether all files are there and just as long as the metadata says."""
    present = context.present
    return all(
        layout.contiguous and present.get(path) == layout.end
        for path, layout in context.layouts.items()
    )


def _digested(context: Context) -> bool:
    """Tell whether a companion has the digest of the metadata: then it is of the save that is here."""
    altered = {fault.where.file for fault in context.content_faults}
    sources = context.checkpoint.sources
    return bool(sources) and all(
        name in context.beside.digests and name not in altered for name in sources
    )


def misnamed(context: Context, _: None) -> Iterator[Hit]:
    """Find a directory that names another step than what was saved in it.

    One step more or less is a habit of counting and says nothing.
    """
    found = context.assessment
    declared, saved = found.evidence.declared, found.saved_as
    if declared is None:
        return
    if saved is not None and abs(saved - declared) > 1 and _holds(found, saved):
        yield Hit(
            f"the directory says step {declared}, its metadata was written for step {saved} "
            f"({context.checkpoint.identity.checkpoint_id}), and its files say {saved} too"
        )
    elif saved in (None, declared) and _COUNTS_STEPS.search(found.evidence.named):
        step = _unanimous(found)
        if step is not None and abs(step - declared) > 1 and not _multiples(step, declared):
            yield Hit(
                f"the directory says step {declared}, and all that its files count says {step}"
            )


def _holds(found: Assessment, step: int) -> bool:
    """Tell whether what the files hold is of a step, and none of it of the declared one."""
    stamps = found.evidence.stamps
    return found.common.step == step and all(s.step != found.evidence.declared for s in stamps)


def _votes_for(found: Assessment, declared: int) -> str:
    held = {stamp.step for stamp in found.evidence.stamps}
    if declared in held:
        return ", of which its files are"
    return "; its files do not say" if not held else ""


def _unanimous(found: Assessment) -> int | None:
    """Return the step that progress and another way of counting agree on, if all files do."""
    stamps = found.evidence.stamps
    steps = {stamp.step for stamp in stamps}
    kinds = {stamp.kind for stamp in stamps}
    if len(steps) == 1 and Kind.PROGRESS in kinds and len(kinds) > 1:
        return next(iter(steps))
    return None


def _multiples(one: int, other: int) -> bool:
    low, high = sorted((one, other))
    return low == 0 or high % low == 0
