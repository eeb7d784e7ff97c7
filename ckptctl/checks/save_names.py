"""Does the metadata belong to what lies beside it, and the directory's name to both?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptctl.checks.base import Context, Hit
from ckptctl.model.companion import Kind
from ckptctl.model.finding import Location, Severity
from ckptctl.pattern import pattern
from ckptctl.provenance.assessment import Assessment

_REUSED = (
    "nothing, if the trainer uses one metadata for several saves: it fits these files; else compare "
    "with `ckptctl diff`"
)
_COUNTS_STEPS = pattern(r"step|iter", re.IGNORECASE)


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
    if _proven(context):
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


def _proven(context: Context) -> bool:
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
