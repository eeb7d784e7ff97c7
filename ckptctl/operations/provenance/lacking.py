"""Which keys do all older checkpoints of a run have, and this one lacks? Only metadata is read.

As long as the one before has nothing more, no other is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ckptctl.completeness.classifier import Classifier
from ckptctl.errors import CkptctlError
from ckptctl.model.checkpoint import Checkpoint, TensorEntry
from ckptctl.model.components import KeyName, elements
from ckptctl.operations.provenance.compare_items import readable_beside
from ckptctl.operations.provenance.siblings import Sibling
from ckptctl.pattern import pattern
from ckptctl.provenance.counters import moment_of, tails_of
from ckptctl.provenance.evidence import Lacking

_MOST_OLDER, _MOST_NEWER = 4, 2
_DIGITS = pattern(r"\d+")


def lacking_beside(own: Checkpoint, known: Sequence[Sibling], step: int | None) -> Lacking:
    """Return the keys that every older checkpoint has of those that could be read.

    Raises nothing for what cannot be read: it is left out.
    """
    if step is None or not own.entries or not own.readable:
        return Lacking()
    older = [one for one in known if one.step is not None and one.step < step]
    names: list[str] = []
    gone: dict[str, str] = {}
    nearest: Checkpoint | None = None
    for one in older[:_MOST_OLDER]:
        other = _read(one)
        if other is None:
            continue
        more = _missing(own, other)
        gone = more if not names else {key: gone[key] for key in gone if key in more}
        names.append(one.path)
        nearest = nearest or other
        if not gone:
            return Lacking()
    if nearest is None:
        return Lacking()
    classes = Classifier(own)
    gone = _not_renamed(own, classes, nearest, gone)
    if not gone:
        return Lacking()
    newer = [one for one in known if one.step is not None and one.step > step]
    later = next((one.path for one in newer[:_MOST_NEWER] if _lacks_all(one, gone)), "")
    keys: dict[str, list[str]] = {}
    for fqn, component in gone.items():
        keys.setdefault(component, []).append(fqn)
    left = {classes.component(fqn) for fqn in own.entries}
    weights = left <= {"model", "other"} and "model" in left and "model" not in keys
    found = {component: tuple(sorted(fqns)) for component, fqns in keys.items()}
    return Lacking(tuple(names), found, export=weights, later=later)


def _not_renamed(
    own: Checkpoint, classes: Classifier, other: Checkpoint, gone: dict[str, str]
) -> dict[str, str]:
    """Leave out components that have many keys of other names instead: of a wrapper, or another model."""
    fresh = Counter(classes.component(fqn) for fqn in own.entries if fqn not in other.entries)
    lost = Counter(gone.values())
    return {fqn: name for fqn, name in gone.items() if 2 * fresh[name] < lost[name]}


def _read(one: Sibling) -> Checkpoint | None:
    try:
        return readable_beside(one.located)
    except CkptctlError:
        return None


def _lacks_all(one: Sibling, gone: Iterable[str]) -> bool:
    other = _read(one)
    return other is not None and not any(key in other.entries for key in gone)


def _missing(own: Checkpoint, other: Checkpoint) -> dict[str, str]:
    """Return the keys of another one that are not here, with their components.

    Numbers are places in lists, ranks and buckets, which come and go; in the names of parameters they
    are layers.
    """
    absent = [fqn for fqn in other.entries if fqn not in own.entries]
    if not absent:
        return {}
    classes = Classifier(other)
    texts = {_text(own, fqn) for fqn in own.entries}
    forms = {_DIGITS.sub("#", text) for text in texts}
    parameters: set[str] = set()
    for checkpoint in (own, other):
        for fqn, entry in checkpoint.entries.items():
            if isinstance(entry, TensorEntry) and moment_of(fqn) is None:
                parameters.update(tails_of(fqn))
    moments = (moment_of(fqn) for fqn in own.entries)
    with_state = {parts[0] for parts in moments if parts is not None}
    found: dict[str, str] = {}
    for fqn in absent:
        parts = moment_of(fqn)
        if parts is not None and parts[0] in with_state:
            continue  # of another optimizer; what one of its own kind lacks is the audit's to say
        text, component = _text(other, fqn), classes.component(fqn)
        form = _DIGITS.sub("#", text)
        if text in texts or (form in forms and not _counted(other, fqn, component, parameters)):
            continue
        found[fqn] = component
    return found


def _counted(checkpoint: Checkpoint, fqn: str, component: str, parameters: set[str]) -> bool:
    """Tell whether a key counts by itself: a weight, or the state of one."""
    entry = checkpoint.entries[fqn]
    if not isinstance(entry, TensorEntry) or entry.shape == ():
        return False
    if component == "model":
        return True
    parts = moment_of(fqn)
    return component == "optimizer" and parts is not None and parts[0] in parameters


def _text(checkpoint: Checkpoint, fqn: str) -> str:
    return KeyName.of(elements(fqn, checkpoint.paths_in_state.get(fqn))).text
