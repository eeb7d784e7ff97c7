"""Step, run and number of ranks: as given, as receipts have them, as the files say themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ckptctl.errors import Refused
from ckptctl.model.checkpoint import Checkpoint, rank_of
from ckptctl.model.companion import Kind
from ckptctl.model.manifest import Receipt
from ckptctl.model.names import parse_name
from ckptctl.operations.place import Place
from ckptctl.operations.publish.options import CommitOptions
from ckptctl.operations.verify.work import Work
from ckptctl.provenance.evidence import Source


def given_step(place: Place, receipts: Sequence[Receipt], options: CommitOptions) -> int | None:
    """Return the step as given, by name, or by receipts; raises ``Refused`` where they differ."""
    known = {
        "`step`": options.step,
        "its name": _named_step(place, options),
        "its receipts": receipts[0].step if receipts else None,
    }
    values = {step for step in known.values() if step is not None}
    if len(values) > 1:
        said = ", ".join(
            f"{step} by {source}" for source, step in known.items() if step is not None
        )
        raise Refused(f"{place.path}: its step is {said}; nothing was changed")
    return next(iter(values), None)


def only_given(place: Place, receipts: Sequence[Receipt], options: CommitOptions) -> bool:
    """Tell whether nothing but whoever commits says the step."""
    recorded = receipts[0].step if receipts else None
    return recorded is None and _named_step(place, options) is None


def stated_step(work: Work) -> int | None:
    """Return the step that all state that says one, where nothing else tells.

    Files that say none do not contradict; then a counter of progress has to be among those that do.
    """
    found = work.context.assessment
    if found.identity.agreed is not None or found.identity.of(Source.AT_ODDS):
        return found.identity.agreed
    steps = {stamp.step for stamp in found.evidence.stamps}
    told = any(stamp.kind is Kind.PROGRESS for stamp in found.evidence.stamps)
    return next(iter(steps)) if told and len(steps) == 1 else None


def refuse_other_step(place: Place, work: Work, step: int) -> None:
    """Raise ``Refused`` where a step was given and all that counts steps inside says another."""
    stamps = [one for one in work.context.evidence.stamps if one.kind is Kind.PROGRESS]
    steps = {one.step for one in stamps}
    if len(steps) == 1 and step not in steps:
        raise Refused(
            f"{place.path}: its step is {step} by `step`, and {stamps[0].file} says "
            f"{stamps[0].step} ({stamps[0].key}); nothing was changed"
        )


def _named_step(place: Place, options: CommitOptions) -> int | None:
    """Return the step in the name that the checkpoint is published under."""
    return parse_name(options.publish_as).step if options.publish_as else place.name.step


def given_run(place: Place, receipts: Sequence[Receipt], options: CommitOptions) -> str | None:
    """Return the run as given or by receipts; raises ``Refused`` where they differ."""
    run_ids = {receipt.run_id for receipt in receipts} - {None}
    if options.run_id and run_ids and run_ids != {options.run_id}:
        raise Refused(
            f"{place.path}: `run_id` {options.run_id}, but its receipts are of run "
            f"{', '.join(map(str, run_ids))}; nothing was changed"
        )
    return options.run_id or next(iter(run_ids), None)


def given_world_size(
    place: Place, checkpoint: Checkpoint, receipts: Sequence[Receipt], options: CommitOptions
) -> int | None:
    """Return the number of ranks: from the receipts, as given, else from the files that ranks wrote.

    DCP itself does not record it. Every rank opens a file, also one that has nothing to save.
    """
    given = options.world_size
    if receipts:
        known = receipts[0].world_size
        if given not in (None, known):
            raise Refused(
                f"{place.path}: `world_size` is {given}, and its receipts say {known}; nothing was "
                "changed"
            )
        return known
    highest = max(checkpoint.ranks, default=-1)
    if given is not None and given <= highest:
        raise Refused(
            f"{place.path}: `world_size` is {given}, and rank {highest} wrote files; nothing was "
            "changed"
        )
    if given is not None:
        return given
    ranks = {rank_of(path) for path in checkpoint.files}
    numbers = {rank for rank in ranks if rank is not None}
    return len(numbers) if numbers and max(numbers) + 1 == len(numbers) else None
