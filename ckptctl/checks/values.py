"""Stage 5: are the numbers in tensors ones that training can go on from?

Each tensor is judged as a whole, after all of its pieces were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ckptctl.checks.base import Check, Context, Hit, Override
from ckptctl.model.components import component_of, elements
from ckptctl.model.finding import Location, Severity, Stage
from ckptctl.model.tensor_values import Bad, TensorValues
from ckptctl.pattern import pattern
from ckptctl.words import listed

HUGE = 1e15
"""Larger than anything that a tensor of a run counts or weighs.

Weights and moments of healthy runs stay many orders below, counts of tokens below 1e14. What a
flipped exponent bit makes of a usual weight lies above 1e30.
"""

_FEW = 64
"""Tensors of fewer elements hold scales, counters and fill values, which may be of any size."""

_MANY = 1024
"""Elements from which on it is worth a note that all of them are zero."""

_MOST_NAMES = 8

_MASK = pattern(r"(?:mask|masked_bias|min_vals?|max_vals?)$")
_SENTINEL = pattern(r"(?:^|_)(?:best|kth|min|max|lowest|highest)(?:_|$)")

_EARLIER = (
    "training was broken before this was saved: choose an earlier checkpoint that `ckptctl verify "
    "--values` passes, and mark this one with `ckptctl quarantine {checkpoint} --reason ...`"
)


def _component(context: Context, values: TensorValues) -> tuple[str, str]:
    """Return the component of a tensor and the last element of its key."""
    fqn = values.entry.fqn
    path = elements(fqn, context.checkpoint.paths_in_state.get(fqn))
    return component_of(path), str(path[-1]).rpartition(".")[2] if path else ""


def _tolerated(context: Context, values: TensorValues) -> str:
    """Say why what is no finite number does no harm in this tensor, or return the empty string."""
    nan, infinite, negative = values.totals()
    component, name = _component(context, values)
    numel = values.entry.numel
    if component == "data":
        return "buffered samples may hold anything"
    if nan or component == "optimizer":
        return ""
    if _MASK.search(name):
        return "masks and ranges are filled with infinities"
    if numel == 1 and _SENTINEL.search(name):
        return "it stands for none so far"
    if component == "model" and infinite == negative < numel and not values.largest:
        return "all else is zero, as it is in masks"
    return ""


def _nan(context: Context, _: None) -> Iterator[Hit]:
    for values in context.values.values():
        if values.bad and not _tolerated(context, values):
            yield _bad(context, values, values.bad)


def _harmless(context: Context, _: None) -> Iterator[Hit]:
    for values in context.values.values():
        why = _tolerated(context, values) if values.bad else ""
        if why:
            yield _bad(context, values, values.bad, why)
        if values.padding:
            why = "padding between parameters is saved uninitialised and never read"
            yield _bad(context, values, values.padding, why)


def _bad(
    context: Context, values: TensorValues, boxes: dict[tuple[int, ...], Bad], why: str = ""
) -> Hit:
    first = min(boxes.values(), key=lambda bad: bad.first)
    nan, infinite = sum(b.nan for b in boxes.values()), sum(b.infinite for b in boxes.values())
    counts = [f"{n:,} {word}" for n, word in ((nan, "NaN"), (infinite, "Inf")) if n]
    message = " and ".join(counts)
    if values.entry.shape:
        message += f" among {values.entry.numel:,} values, first at {list(first.first)}"
    pieces = len(values.entry.boxes)
    if pieces > 1:
        message += f"; in {len(boxes):,} of its {pieces:,} pieces"
    if context.checkpoint.replicated:
        ranks = sorted({rank for bad in boxes.values() for rank in bad.ranks})
        message += f"; in the copies of rank{'s' * (len(ranks) > 1)} {listed(ranks, _MOST_NAMES)}"
    return Hit(f"{message}: {why}" if why else message, context.where(first.item))


def _huge(context: Context, _: None) -> Iterator[Hit]:
    for values in context.values.values():
        component, name = _component(context, values)
        if (
            values.largest_in is not None
            and values.largest >= HUGE
            and values.entry.numel >= _FEW
            and component in ("model", "optimizer")
            and not (component == "model" and (_MASK.search(name) or values.extreme))
        ):
            yield Hit(
                f"largest magnitude {values.largest:.3g}, and nothing that training leaves behind "
                f"reaches {HUGE:g}",
                context.where(values.largest_in),
            )


def _zero(context: Context, _: None) -> Iterator[Hit]:
    yield from _notes(context, lambda v: not v.largest and v.entry.numel >= _MANY, "zero")


def _subnormal(context: Context, _: None) -> Iterator[Hit]:
    yield from _notes(
        context,
        lambda v: bool(v.largest) and v.subnormal and v.entry.numel >= _FEW,
        "subnormal where they are not zero",
    )


def _notes(context: Context, applies: Callable[[TensorValues], bool], what: str) -> Iterator[Hit]:
    """Say it of each tensor where it is true of a few, and of all of them at once otherwise."""
    found = [
        values
        for values in context.values.values()
        if values.whole and not values.bad and applies(values)
    ]
    if len(found) > _MOST_NAMES:
        names = sorted(values.entry.fqn for values in found)
        yield Hit(
            f"all values of {len(found):,} float tensors are {what}: {listed(names, _MOST_NAMES)}"
        )
        return
    for values in found:
        largest = f"; the largest is {values.largest:.3g}" if values.largest else ""
        where = Location(fqn=values.entry.fqn)
        yield Hit(f"all {values.entry.numel:,} values are {what}{largest}", where)


CHECKS: tuple[Check[None], ...] = (
    Check(
        "nan-value",
        Stage.VALUES,
        Severity.ERROR,
        "A tensor holds NaN or infinities.",
        _EARLIER,
        _nan,
        override=Override(
            "the bytes are those that were saved, and training may go on from some of them"
        ),
    ),
    Check(
        "tolerated-value",
        Stage.VALUES,
        Severity.NOTE,
        "NaN or infinities where they do no harm: in masks, padding, buffered samples.",
        "nothing, unless they surprise you",
        _harmless,
    ),
    Check(
        "huge-value",
        Stage.VALUES,
        Severity.WARNING,
        "A tensor holds numbers larger than training leaves behind.",
        _EARLIER,
        _huge,
        override=Override("the bytes are those that were saved, and some models have such numbers"),
    ),
    Check(
        "zero-tensor",
        Stage.VALUES,
        Severity.NOTE,
        "A whole float tensor is zero, as fresh biases and first moments are.",
        "nothing, if these were never trained; otherwise look at how they were saved",
        _zero,
    ),
    Check(
        "subnormal-tensor",
        Stage.VALUES,
        Severity.NOTE,
        "A float tensor holds nothing but subnormal numbers and zeros.",
        "look whether its gradients underflow, or its bytes are of another dtype",
        _subnormal,
    ),
)
"""Asked once the values of all tensors were looked at."""
