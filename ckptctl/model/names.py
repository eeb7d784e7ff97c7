"""What the name of a directory or a file says: the step, the epoch, whether it is temporary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptctl.dataclass import dataclass, replace
from ckptctl.pattern import pattern

_STAGING = pattern(
    r"(?:[.-](?:tmp|temp|partial|unfinished|incomplete|inprogress)(?:[.-][\w.-]*)?"
    r"|\.orbax-checkpoint-tmp-[\w.-]*)$",
    re.IGNORECASE,
)
_STAGING_PREFIX = pattern(r"^(?:\.?tmp[_-]|\.)(?=\w)", re.IGNORECASE)
_STEP = pattern(
    r"(?:(?:global)?[_-]?step|checkpoint|ckpt|iter(?:ation)?)s?[-_=]?(\d+)$", re.IGNORECASE
)
_EPOCH = pattern(r"(?:^|[-_])ep(?:och)?[-_=]?(\d+)(?=$|[-_])", re.IGNORECASE)
_INNER_STEP = pattern(r"(?:^|[-_])(?:global_)?(?:step|ba)[-_=]?(\d+)(?=$|[-_.])", re.IGNORECASE)
_FILE_SUFFIX = pattern(r"\.(?:ckpt|pt|pth|bin)$", re.IGNORECASE)

_SUFFIX = pattern(r"\.(?:ckpt|pt|pth|bin|pkl|safetensors)$", re.IGNORECASE)
_BACKUP = pattern(
    r"(?:^|[^A-Za-z])(?:bak|backup|old|copy|orig|broken|bad|corrupt(?:ed)?|failed|deleted|trash)"
    r"(?=$|[^A-Za-z])|~$",
    re.IGNORECASE,
)
_ODD = pattern(r"[^\w.=+@,-]")
_NUMBER = pattern(r"\d+")
_LABEL = pattern(r"(?:^|[^A-Za-z])([A-Za-z]+)[-_=]?$")
_LABEL_AFTER = pattern(r"[-_]?([A-Za-z]+)(?=$|[^A-Za-z])")
_STEPS = pattern(r"(?:global)?steps?|iters?|iterations?|ba|updates?|it", re.IGNORECASE)
_ORIGIN = pattern(r"(?:^|[-_])(?:from|since|after|before|resume[ds]?|init)[-_]?[A-Za-z_]*[-_=]?$")
_EPOCHS = pattern(r"ep|epochs?", re.IGNORECASE)
_NO_STEP = pattern(
    r"rank|size|world|of|v|version|seed|run|exp|trial|lr|bs|dp|tp|pp|mp|cp|node|gpu|worker|part"
    r"|shard|split|fold|top|layer|stage|expert|job|local|attempt",
    re.IGNORECASE,
)
_DATE = pattern(r"(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d{4}|\d{6})?")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """What a directory's name says; ``staging`` means the writer marks it as not finished."""

    text: str
    step: int | None = None
    epoch: int | None = None
    staging: bool = False

    @property
    def recognised(self) -> bool:
        """True if trainers give such names to checkpoints."""
        return self.step is not None or self.epoch is not None


def parse_name(text: str) -> CheckpointName:
    """Read a directory or file name as trainers write it: ``step-12``, ``iter_0000012.tmp``, ...

    The number must end the name: ``step-88.bak`` is somebody's backup and not step 88.
    """
    stem, staging = _without_marks(text)
    stem = _FILE_SUFFIX.sub("", stem)
    if re.fullmatch(r"\d{1,18}", stem):
        return CheckpointName(text, int(stem), None, staging)
    epoch = _EPOCH.search(stem)
    step = _STEP.fullmatch(stem) or (_INNER_STEP.search(stem) if epoch or "=" in stem else None)
    return CheckpointName(text, _number_in(step), _number_in(epoch), staging)


def _number_in(match: re.Match[str] | None) -> int | None:
    """Return the number that was found; one of too many digits counts nothing."""
    return int(match[1]) if match and len(match[1]) <= _MOST_DIGITS else None


def _without_marks(text: str) -> tuple[str, bool]:
    """Return a name without what marks it as not finished, and whether there was such a mark."""
    stem, staging = text, False
    match = _STAGING.search(stem)
    if match:
        stem, staging = stem[: match.start()], True
    match = _STAGING_PREFIX.match(stem)
    if match and not stem.startswith("."):
        stem, staging = stem[match.end() :], True
    return stem, staging


@dataclass(frozen=True, slots=True)
class _Number:
    """One run of digits in a name, and what the letters around it make of it."""

    value: int
    step: bool = False
    epoch: bool = False
    possible: bool = True


def steps_of(names: Sequence[str]) -> list[CheckpointName]:
    """Read the names of siblings, each with the number in which it differs from the others.

    A number with a label (``train_step_900``, ``step900-unsharded``, ``900_steps``, ``ep3-ba900``)
    is the step by itself; one without (``model_000100.pt``, ``policy_ver_3``) only where siblings
    are named alike and differ in it. Of several such the one that counts furthest is the step:
    ``checkpoint_1_500.pt`` is an epoch and a step. Numbers of ranks, versions and sizes, and
    dates, are none; neither is any in the name of a backup. The order of the result is that of
    ``names``.
    """
    found = [parse_name(text) for text in names]
    alike: dict[str, list[tuple[int, list[_Number]]]] = {}
    for index, one in enumerate(found):
        stem = _SUFFIX.sub("", _without_marks(one.text)[0])
        if one.step is not None or _BACKUP.search(stem) or _ODD.search(stem):
            continue
        numbers = _numbers(stem)
        epoch = next((number.value for number in numbers if number.epoch), one.epoch)
        step = next((number.value for number in reversed(numbers) if number.step), None)
        found[index] = replace(one, step=step, epoch=epoch)
        if step is None and numbers:
            kind = _SUFFIX.search(_without_marks(one.text)[0])
            form = _NUMBER.sub("#", stem) + (kind[0] if kind else "/")
            alike.setdefault(form, []).append((index, numbers))
    for group in alike.values():
        place = _differing([numbers for _, numbers in group])
        if place is not None:
            for index, numbers in group:
                found[index] = replace(found[index], step=numbers[place].value)
    return found


def _numbers(stem: str) -> list[_Number]:
    numbers = []
    for match in _NUMBER.finditer(stem):
        before, after = stem[: match.start()], stem[match.end() :]
        decimal = re.search(r"\d\.$", before) or re.match(r"\.\d", after)
        if len(match[0]) > _MOST_DIGITS or decimal or _ORIGIN.search(before):
            numbers.append(_Number(0, possible=False))
            continue
        value = int(match[0])
        label = _LABEL.search(before)
        word = label[1] if label else ""
        next_ = _LABEL_AFTER.match(after)
        trailing = next_[1] if next_ else ""
        if _STEPS.fullmatch(word) or (_STEPS.fullmatch(trailing) and not after[1:2].isupper()):
            numbers.append(_Number(value, step=True))
        elif _EPOCHS.fullmatch(word):
            numbers.append(_Number(value, epoch=True, possible=False))
        else:
            sized = after[:1].isalpha() and trailing.lower() != "k"
            refused = _NO_STEP.fullmatch(word) or _DATE.fullmatch(match[0]) or trailing == "of"
            refused = refused or sized
            numbers.append(_Number(value, possible=not refused))
    return numbers


def _differing(group: list[list[_Number]]) -> int | None:
    """Return which number tells siblings apart, or None where none or several alike do."""
    best: tuple[int, int] | None = None
    distinct = {tuple(numbers) for numbers in group}  # a name may also stand there as unfinished
    for place, column in enumerate(zip(*distinct, strict=True)):
        values = {number.value for number in column}
        if len(values) < 2 or len(values) < len(column) or not all(n.possible for n in column):
            continue
        best = max(best or (0, 0), (max(values), place))
    return best[1] if best else None
