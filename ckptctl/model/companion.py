"""Files beside a checkpoint's tensors: how each is written, and where it says which step it is of."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ckptctl.dataclass import dataclass, field

UPDATES = "updates"
"""The way of counting of what grows by one whenever the optimizer takes a step."""


class Kind(enum.Enum):
    """What counts, the most telling first."""

    PROGRESS = "progress"
    OPTIMIZER = "optimizer"
    GROUP = "parameter group"
    SCHEDULER = "scheduler"


class Form(str, enum.Enum):
    """How a file is written: records with CRCs, text without any, or digests of other files."""

    TORCH = "torch"
    JSON = "json"
    DIGESTS = "digests"


@dataclass(frozen=True, slots=True)
class Told:
    """Where a file states a step: the keys that lead to it, and what to add to what is there.

    With ``exact`` it can be no other step than that of the whole checkpoint. ``scheme`` names the
    way of counting where other files count in the same one. Where the file has one of the keys in
    ``unless``, nothing follows.
    """

    path: tuple[str, ...]
    kind: Kind = Kind.PROGRESS
    offset: int = 0
    exact: bool = False
    scheme: str = ""
    unless: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Companion:
    """One file beside the tensors.

    ``holds`` is what is lost with it. What is not ``known`` is only named like such a file, so that
    what does not fit in it is no damage. ``state`` moves on from save to save. ``needs`` are keys
    that have to be there, with the types of what they hold. What lies below ``prefix`` in the
    checkpoint's state is this file's, where it is read as a part of the state.
    """

    path: str
    form: Form
    holds: str = ""
    known: bool = True
    state: bool = True
    told: tuple[Told, ...] = ()
    needs: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
