"""From what a user asks for, in plain words, to the options of operations; what makes no sense is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckptctl.checks import VALUE_CHECKS, by_id
from ckptctl.completeness.audit import PROFILES, Wanted
from ckptctl.completeness.classifier import NAMES
from ckptctl.errors import Refused, UsageError
from ckptctl.model.acceptance import LONGEST
from ckptctl.model.finding import Severity
from ckptctl.operations.verify.accepting import Accepting, Wish
from ckptctl.operations.verify.options import Options

MANIFEST = "manifest"
"""What ``require`` calls a checkpoint that is committed."""


def wanted(profile: str, allow_missing: Iterable[str], mapping: Mapping[str, str]) -> Wanted:
    """Check what must be there; ``none`` and an empty profile require nothing.

    Raises ``UsageError`` for a profile or a component that is not known.
    """
    if profile not in (*PROFILES, "none", ""):
        raise UsageError(f"`require` takes {', '.join(PROFILES)} or none, not {profile!r}")
    allowed = frozenset(allow_missing)
    for option, names in (("allow_missing", sorted(allowed)), ("mapping", mapping.values())):
        for name in names:
            if name not in NAMES:
                known = ", ".join(NAMES)
                raise UsageError(f"`{option}`: there is no component {name!r}; there are {known}")
    return Wanted(profile if profile != "none" else "", allowed, tuple(mapping.items()))


def accepting(accept: Iterable[str], reason: str, *, path: str) -> Accepting:
    """Read what is to be accepted in spite of checks, each ``CHECK`` or ``CHECK:GLOB``, and why.

    Raises ``UsageError`` for what names no check, and without a reason; ``Refused`` for a check
    that proves damage.
    """
    asked = (accept,) if isinstance(accept, str) else accept
    wishes = tuple(dict.fromkeys(map(_wish, asked)))
    if not wishes:
        return Accepting()
    from ckptctl.operations.publish.actor import actor, now

    known = by_id()
    for wish in wishes:
        if wish.check not in known:
            raise UsageError(f"`accept`: there is no check {wish.check!r}{_nearest(wish.check)}")
    for wish in wishes:
        override = known[wish.check].acceptable
        if override.most is None:
            raise Refused(_why_not(wish.check, override.why, path))
    reason = reason.strip()
    if not reason:
        raise UsageError(
            "`accept` needs a `reason`: whoever is on call next will ask why it was accepted"
        )
    if len(reason) > LONGEST or not reason.isprintable():
        raise UsageError(
            f"`reason` takes one line of at most {LONGEST:,} characters, without control characters"
        )
    return Accepting(wishes, reason, actor(), now())


def accepting_only(accept: Iterable[str], reason: str, *, path: str) -> Accepting:
    """Read the same where nothing else takes a reason."""
    found = accepting(accept, reason, path=path)
    if reason and not found.wishes:
        raise UsageError("`reason` is for `accept`: say what is accepted")
    return found


def _wish(text: str) -> Wish:
    check, colon, pattern = text.partition(":")
    if not check or (colon and not pattern) or len(pattern) > LONGEST:
        raise UsageError(
            f"`accept` takes CHECK or CHECK:GLOB, a pattern of files or keys, not {text[:80]!r}"
        )
    return Wish(check, pattern)


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, by_id(), n=1)
    return f"; did you mean {close[0]}?" if close else "; `ckptctl verify` names those that fail"


def _why_not(check: str, why: str, path: str) -> str:
    """Say why a check is not to be accepted, and what to do instead."""
    found = by_id()[check]
    said = f"`accept` of {check}: it cannot be accepted, as {why}; nothing was changed"
    if found.severity is Severity.NOTE:
        return said
    root = path.partition("@")[0] if "@" in path else path.rstrip("/").rpartition("/")[0] or "."
    remedy = found.remedy.replace("{checkpoint}", path).replace("{root}", root)
    if remedy.startswith("`"):  # a record is wrong, and not the checkpoint
        return f"{said}. Next: {remedy}"
    return (
        f"{said}. Next: {remedy}. `ckptctl resolve {root}` names what to resume from, `ckptctl "
        f"quarantine {path} --reason ...` keeps this one from being it, and `force` of reshard and "
        "convert takes what damage does not touch"
    )


def verification(
    *,
    quick: bool,
    sample: float | None,
    part: tuple[int, int] | None,
    values: bool,
    select: Iterable[str],
    ignore: Iterable[str],
    require: Iterable[str],
    allow_missing: Iterable[str],
    mapping: Mapping[str, str],
    fail_on: str,
    workers: int | None,
) -> Options:
    """Make the options of a verification; raises ``UsageError`` for what does not fit together."""
    if sum((quick, sample is not None, part is not None)) > 1:
        raise UsageError("choose one of `quick`, `sample` and `part`")
    if sample is not None and not 0 < sample <= 1:
        raise UsageError(f"`sample` takes a share such as 5% or 0.05, not {sample!r}")
    if part is not None and not 1 <= part[0] <= part[1]:
        raise UsageError(f"`part` takes a fraction such as 3/16, not {part[0]}/{part[1]}")
    chosen, left_out, known = frozenset(select), frozenset(ignore), by_id()
    for name in sorted(chosen | left_out):
        if name not in known:
            raise UsageError(
                f"there is no check {name!r}; the checks are {', '.join(sorted(known))}"
            )
    if fail_on not in ("warning", "error"):
        raise UsageError(f"`fail_on` takes warning or error, not {fail_on!r}")
    if values and quick:
        raise UsageError("`values` has to read what tensors hold, which `quick` leaves out")
    idle = chosen & {check.id for check in VALUE_CHECKS}
    if idle and not values:
        raise UsageError(f"`select` {min(idle)} needs `values`")
    asked = frozenset(require)
    for name in sorted(asked):
        if name not in (MANIFEST, *PROFILES):
            raise UsageError(f"`require` takes {MANIFEST}, {', '.join(PROFILES)}, not {name!r}")
    profiles = sorted(asked - {MANIFEST})
    if len(profiles) > 1:
        raise UsageError(f"`require` takes one of {' and '.join(profiles)}, not both")
    options = Options(
        quick=quick,
        sample=sample,
        part=part,
        select=chosen,
        ignore=left_out,
        fail_on=Severity[fail_on.upper()],
        values=values,
        require_manifest=MANIFEST in asked,
        wanted=wanted(profiles[0] if profiles else "", allow_missing, mapping),
    )
    return options if workers is None else options.with_workers(workers)
