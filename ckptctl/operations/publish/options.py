"""What a commit is told, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptctl.dataclass import dataclass, field, replace
from ckptctl.hashing import DEFAULT
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.manifest import Manifest, Unpromised
from ckptctl.model.result.answer import Answer
from ckptctl.model.result.plain import PATH
from ckptctl.operations.place import address
from ckptctl.operations.publish.promote import Promoted
from ckptctl.operations.verify.accepting import Accepting
from ckptctl.storage import WritableStore


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What a commit is told that the files do not say; ``publish_as`` is the final name."""

    step: int | None = None
    run_id: str | None = None
    world_size: int | None = None
    publish_as: str | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = DEFAULT
    mapping: tuple[tuple[str, str], ...] = ()
    workers: int | None = None
    dry_run: bool = False
    accepting: Accepting = field(default_factory=Accepting)

    def with_workers(self, workers: int) -> CommitOptions:
        """Return the same options with another number of threads."""
        return replace(self, workers=workers)


@dataclass(frozen=True, slots=True)
class Committed(Answer):
    """A checkpoint that is sealed now; ``dry_run`` means that it only could be.

    ``amendment`` is the number of the newest one, 0 where there is none.
    ``by`` and ``time`` say who sealed it and when; ``changed`` is false where that was done before.
    ``unpromised`` lay there as well and is no part of it; ``lost`` are keys that damage took when it
    was made from another, so that no command hands it out. ``checked`` counts files by what their
    bytes were checked against: CRCs, the receipt of a rank, or nothing, which ``unchecked`` names.
    ``links`` are links to files elsewhere, by what they say. ``promoted`` is what became of the
    pointer, where that was asked for as well. ``accepted`` is what a person accepted in spite of a
    check, by now, and ``unmatched`` what was asked for so and fits no finding.
    """

    checkpoint: str = field(metadata=PATH)
    name: str
    step: int | None
    manifest: str
    run_id: str | None
    world_size: int | None
    files: int
    size: int
    unpromised: tuple[Unpromised, ...] = ()
    lost: tuple[str, ...] = ()
    checked: Mapping[str, int] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
    time: str = ""
    amendment: int = 0
    changed: bool = True
    dry_run: bool = False
    promoted: Promoted | None = None
    accepted: tuple[Acceptance, ...] = ()
    unmatched: tuple[str, ...] = ()


def result_of(
    store: WritableStore, final: str, manifest: Manifest, options: CommitOptions
) -> Committed:
    """Describe a checkpoint as its manifest does; what was checked is not said by it."""
    return Committed(
        address(store, final),
        manifest.name,
        manifest.step,
        manifest.digest,
        manifest.run_id,
        manifest.world_size,
        len(manifest.files),
        manifest.size,
        unpromised=manifest.unpromised,
        lost=tuple(sorted({key for keys in manifest.lost.values() for key in keys})),
        unchecked=manifest.unchecked,
        links=manifest.links,
        by=manifest.actor,
        time=manifest.time,
        dry_run=options.dry_run,
        accepted=manifest.accepted,
    )
