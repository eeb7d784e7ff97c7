"""What state a checkpoint is in, read off what exists and never kept in a flag."""

from __future__ import annotations

import enum


class State(str, enum.Enum):
    """The states of a checkpoint, from unfinished to proven."""

    STAGING = "staging"
    INCOMPLETE = "incomplete"
    UNREADABLE = "unreadable"
    COMPLETE = "complete"
    COMMITTED = "committed"
    PROMOTED = "promoted"
    QUARANTINED = "quarantined"
    NOT_EXAMINED = "not examined"
