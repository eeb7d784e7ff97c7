"""Is the training state complete: every component, for every parameter and every rank?

What a profile requires and is not there is an error. Without a profile weights alone are as good
as a whole training state, and only what is there for some ranks and not for others is accused.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.checks.base import Check, Context, Hit, Override
from ckptctl.completeness.audit import COSTS, Gap, Lack, Part, Presence, Wanted
from ckptctl.model.finding import Location, Severity, Stage

_WITHOUT_PROFILE: dict[Lack, Severity] = {
    Lack.RANKS: Severity.WARNING,
    Lack.PARTS: Severity.WARNING,
    Lack.MOMENTS: Severity.WARNING,
    Lack.ORPHANS: Severity.WARNING,
}
"""What is legal nowhere; all else is a note, because there are states in which it is meant."""

_SAVE_IT = (
    "resume from a checkpoint that has it: `ckptctl verify {root} --require resume --quick` says "
    "which"
)


def _missing(context: Context, _: None) -> Iterator[Hit]:
    for part in _parts(context):
        if part.presence is Presence.ABSENT and part.name in context.wanted.required:
            severity, remedy = _judge(context.wanted, part.name, Severity.NOTE)
            yield Hit(
                f"there is no {_noun(part.name)}, which {context.wanted.profile!r} requires"
                + _option(severity, part.name),
                _where(context),
                loss=COSTS[part.name],
                severity=severity,
                remedy=remedy,
                about=part.name,
            )


def _empty(context: Context, _: None) -> Iterator[Hit]:
    for part in _parts(context):
        for gap in part.gaps:
            if gap.lack is Lack.EMPTY:
                yield _hit(context, part, gap, Severity.NOTE)


def _partial(context: Context, _: None) -> Iterator[Hit]:
    for part in _parts(context):
        for gap in part.gaps:
            if gap.lack is not Lack.EMPTY and not gap.harmless:
                yield _hit(context, part, gap, _WITHOUT_PROFILE.get(gap.lack, Severity.NOTE))


def _stateless(context: Context, _: None) -> Iterator[Hit]:
    strict = "optimizer" in context.wanted.required
    for part in _parts(context):
        for gap in part.gaps:
            if gap.lack is Lack.GONE:
                severity = Severity.WARNING if strict else Severity.NOTE
                message = f"{part.name}: {gap.message}"
                yield Hit(message, _where(context), severity=severity, about=part.name)
            elif gap.harmless and context.wanted.profile:
                yield Hit(f"{part.name}: {gap.message}", _where(context))


def _unneeded(context: Context, _: None) -> Iterator[Hit]:
    if context.wanted.profile == "serve":
        names = [p.name for p in _parts(context) if p.keys and p.name not in ("model", "other")]
        if names:
            yield Hit(f"a server needs none of {', '.join(names)}", _where(context))


def _parts(context: Context) -> tuple[Part, ...]:
    return context.audit.parts if context.audit is not None else ()


def _hit(context: Context, part: Part, gap: Gap, otherwise: Severity) -> Hit:
    severity, remedy = _judge(context.wanted, part.name, otherwise)
    if part.name == "data" and gap.lack is Lack.SHARED and severity is Severity.ERROR:
        severity = Severity.WARNING  # ranks that advance together may well keep one position
    loss = COSTS[part.name]
    if gap.ranks and gap.lack in (Lack.RANKS, Lack.LATER_RANKS):
        word = "rank" if gap.count == 1 else "ranks"
        more = " and more" if gap.count > len(gap.ranks) else ""
        loss = f"for {word} {', '.join(map(str, gap.ranks))}{more}: {loss}"
    rank = gap.ranks[0] if gap.count == 1 and len(gap.ranks) == 1 else None
    message = f"{part.name}: {gap.message}{_option(severity, part.name)}"
    return Hit(message, _where(context, rank), loss, severity, remedy, about=part.name)


def _where(context: Context, rank: int | None = None) -> Location:
    sources = context.checkpoint.sources
    return Location(file=sources[0] if sources else None, rank=rank)


def _option(severity: Severity, name: str) -> str:
    return f" (`allow_missing={name}` accepts that)" if severity is Severity.ERROR else ""


def _judge(wanted: Wanted, name: str, otherwise: Severity) -> tuple[Severity, str]:
    """Return the severity for a component, and what to do, where that is more than the usual."""
    if name in wanted.allowed:
        return Severity.NOTE, f"nothing: `allow_missing={name}` accepts it"
    if name in wanted.required:
        return Severity.ERROR, (
            f"use a checkpoint that has it: `ckptctl verify {{root}} --require {wanted.profile} "
            "--quick` says which"
        )
    return (otherwise if not wanted.profile else Severity.NOTE), ""


def _noun(name: str) -> str:
    return {
        "model": "model",
        "progress": "training progress (steps, samples)",
        "data": "data position",
        "rng": "random generator state",
    }.get(name, f"{name} state")


CHECKS: tuple[Check[None], ...] = (
    Check(
        "missing-component",
        Stage.AUDIT,
        Severity.ERROR,
        "A component that the required profile needs is not in the checkpoint.",
        _SAVE_IT,
        _missing,
        applies=lambda context: bool(context.wanted.required),
        override=Override("what a run needs to go on is known to whoever runs it", words=True),
    ),
    Check(
        "empty-component",
        Stage.AUDIT,
        Severity.NOTE,
        "A component has keys and holds nothing.",
        _SAVE_IT,
        _empty,
        override=Override("what a run needs to go on is known to whoever runs it", words=True),
    ),
    Check(
        "partial-component",
        Stage.AUDIT,
        Severity.WARNING,
        "A component is there for some ranks or parameters and missing for others.",
        _SAVE_IT,
        _partial,
        override=Override("what a run needs to go on is known to whoever runs it", words=True),
    ),
    Check(
        "stateless-parameters",
        Stage.AUDIT,
        Severity.NOTE,
        "Parameters without optimizer state: frozen, unused or lost.",
        "compare with the parameters that the run trains; nothing is wrong if these are frozen",
        _stateless,
        override=Override("what a run needs to go on is known to whoever runs it", words=True),
    ),
    Check(
        "unneeded-component",
        Stage.AUDIT,
        Severity.NOTE,
        "Training state in a checkpoint that is to be served.",
        "nothing, or save the weights alone: they load faster",
        _unneeded,
        applies=lambda context: context.wanted.profile == "serve",
    ),
)
