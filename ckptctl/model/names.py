"""What the name of a directory or a file says: the step, the epoch, whether it is temporary."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STAGING = re.compile(
    r"(?:[.-](?:tmp|temp|partial|unfinished|incomplete|inprogress)(?:[.-][\w.-]*)?"
    r"|\.orbax-checkpoint-tmp-[\w.-]*)$",
    re.IGNORECASE,
)
_STAGING_PREFIX = re.compile(r"^(?:\.?tmp[_-]|\.)(?=\w)", re.IGNORECASE)
_STEP = re.compile(
    r"(?:(?:global)?[_-]?step|checkpoint|ckpt|iter(?:ation)?)s?[-_=]?(\d+)$", re.IGNORECASE
)
_EPOCH = re.compile(r"(?:^|[-_])ep(?:och)?[-_=]?(\d+)(?=$|[-_])", re.IGNORECASE)
_INNER_STEP = re.compile(r"(?:^|[-_])(?:global_)?(?:step|ba)[-_=]?(\d+)(?=$|[-_.])", re.IGNORECASE)
_FILE_SUFFIX = re.compile(r"\.(?:ckpt|pt|pth|bin)$", re.IGNORECASE)


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
    stem, staging = text, False
    match = _STAGING.search(stem)
    if match:
        stem, staging = stem[: match.start()], True
    match = _STAGING_PREFIX.match(stem)
    if match and not stem.startswith("."):
        stem, staging = stem[match.end() :], True
    stem = _FILE_SUFFIX.sub("", stem)
    if re.fullmatch(r"\d{1,18}", stem):
        return CheckpointName(text, int(stem), None, staging)
    epoch = _EPOCH.search(stem)
    step = _STEP.fullmatch(stem) or (_INNER_STEP.search(stem) if epoch or "=" in stem else None)
    return CheckpointName(
        text, int(step[1]) if step else None, int(epoch[1]) if epoch else None, staging
    )
