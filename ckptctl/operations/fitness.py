"""Is a checkpoint fit to be handed out? One answer for ``promote``, which refuses, and ``resolve``.

A verification says what is wrong with it by itself. Beside the one that was promoted before it,
it must hold what that one held: a save that lost its weights is whole, and no use.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

from ckptctl.checks import AUDIT_CHECKS, IDENTITY_CHECKS
from ckptctl.completeness.audit import PROFILES, Presence, Wanted
from ckptctl.completeness.classifier import Classifier
from ckptctl.dataclass import dataclass
from ckptctl.errors import CkptctlError
from ckptctl.model.checkpoint import TensorEntry
from ckptctl.model.finding import Finding
from ckptctl.model.manifest import Manifest
from ckptctl.operations.located import Located
from ckptctl.operations.place import Place
from ckptctl.operations.verify.audit import audit_of
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, Verification
from ckptctl.operations.verify.work import begin
from ckptctl.storage import Store
from ckptctl.words import listed

_OF_RANKS = ("rng", "data")
"""Components whose keys are of ranks, so that another number of ranks has others."""
_ALWAYS = ("model", "optimizer")
_MOST_NAMED = 3


class Flaw(enum.Enum):
    """In which way a checkpoint is not fit."""

    DAMAGED = "damaged"
    LACKING = "lacking"
    SUSPECT = "suspect"
    UNFINISHED = "unfinished"
    UNEXAMINED = "unexamined"


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a checkpoint is not fit, in words."""

    flaw: Flaw
    text: str


def objection(found: Verification, options: Options) -> Objection | None:
    """Say what speaks against a checkpoint by itself; None where nothing does."""
    if found.verdict is Verdict.FINDINGS:
        bad = [one for one in found.report.findings if one.severity >= options.fail_on]
        audited = {check.id for check in AUDIT_CHECKS}
        first = next((one for one in bad if one.check not in audited), None)
        if first is None:
            return Objection(Flaw.LACKING, "; ".join(one.message for one in bad))
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return Objection(Flaw.DAMAGED, f"{_said(first)}{more}")
    if found.verdict is Verdict.UNFINISHED:
        return Objection(Flaw.UNFINISHED, found.why)
    if found.verdict in (Verdict.NOTHING, Verdict.NOT_EXAMINED):
        return Objection(Flaw.UNEXAMINED, f"{found.verdict.value}: {found.why}")
    if found.verdict is Verdict.SUSPECT and found.doubt is not None:
        return Objection(Flaw.SUSPECT, _said(found.doubt))
    return None


def suspicion(found: Verification) -> Objection | None:
    """Say why one is suspect that nobody vouches for, be it only that its name is wrong."""
    if found.verdict is not Verdict.SUSPECT:
        return None
    ids = {check.id for check in IDENTITY_CHECKS}
    first = next((one for one in found.report.findings if one.check in ids), None)
    return Objection(Flaw.SUSPECT, found.why if first is None else _said(first))


def _said(finding: Finding) -> str:
    where = f"{finding.where.file}: " if finding.where.file else ""
    return f"{finding.check}: {where}{finding.message}"


def loss_of(manifest: Manifest) -> Objection | None:
    """Say what was lost when a checkpoint was made, by its manifest."""
    keys = sorted({key for lost in manifest.lost.values() for key in lost})
    if not keys:
        return None
    were = "key was" if len(keys) == 1 else "keys were"
    text = f"lost-keys: {len(keys)} {were} lost when it was made: {listed(keys, _MOST_NAMED)}"
    return Objection(Flaw.LACKING, text)


@dataclass(frozen=True, slots=True)
class Held:
    """What a checkpoint holds: the tensors of each component, and which components fall short."""

    name: str
    tensors: Mapping[str, frozenset[str]]
    components: frozenset[str]
    lacks: frozenset[str]


def held(store: Store, place: Place) -> Held | None:
    """Read what a checkpoint holds by its metadata; None where that cannot be told."""
    located = Located(store, place)
    try:
        context = begin(located, Options(ignore=frozenset({"pointer-mismatch"}))).context
        audit = audit_of(located, context)
    except CkptctlError:
        return None
    if audit is None or not context.checkpoint.entries:
        return None
    classes = Classifier(context.checkpoint)
    tensors: dict[str, set[str]] = {}
    components = set()
    for fqn, entry in context.checkpoint.entries.items():
        component = classes.component(fqn)
        components.add(component)
        if isinstance(entry, TensorEntry):
            tensors.setdefault(component, set()).add(fqn)
    lacks = frozenset(
        part.name
        for part in audit.parts
        if part.presence is Presence.ABSENT or any(not gap.harmless for gap in part.gaps)
    )
    return Held(
        place.path,
        {name: frozenset(keys) for name, keys in tensors.items()},
        frozenset(components),
        lacks,
    )


def bar(before: Held | None) -> Wanted:
    """Return what a newer one must hold: all that a resume needs, as far as the one before has it.

    Where none before it can be read, nothing is required.
    """
    return Wanted("resume", before.lacks) if before is not None else Wanted()


def shrunk(now: Held | None, before: Held | None, wanted: Wanted) -> Objection | None:
    """Say what the one before holds and this one does not; None where that is nothing.

    Without a profile nothing is asked; ``weights`` and ``serve`` ask for the model alone.
    """
    if now is None or before is None or not wanted.profile:
        return None
    asked = set(before.components)
    if wanted.profile != "resume":
        asked &= set(PROFILES[wanted.profile])
    text = "; ".join(_gone(now, before, asked - wanted.allowed))
    return Objection(Flaw.LACKING, f"shrunk: {text}") if text else None


def emptied(now: Held | None, before: Held | None) -> Objection | None:
    """Say that weights or optimizer are gone that the save before it has."""
    if now is None or before is None:
        return None
    gone = [name for name in _ALWAYS if name in before.components - now.components]
    text = "; ".join(f"it has no {name}, and {before.name} has" for name in gone)
    return Objection(Flaw.LACKING, f"shrunk: {text}") if text else None


def _gone(now: Held, before: Held, asked: set[str]) -> Iterator[str]:
    for name in sorted(asked):
        accepts = f" (`allow_missing={name}` accepts that)"
        if name not in now.components and name != "other":
            yield f"it has no {name}, and {before.name} has{accepts}"
            continue
        kept = now.tensors.get(name, frozenset())
        gone = before.tensors.get(name, frozenset()) - kept
        if gone and name not in _OF_RANKS:
            keys = listed(sorted(gone), _MOST_NAMED)
            yield f"it lacks {len(gone)} tensors of {name} that {before.name} has: {keys}{accepts}"
