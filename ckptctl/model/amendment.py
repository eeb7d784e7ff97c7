"""What was said of a checkpoint after its commit: a record of its own, which promises no byte.

An amendment holds all that may be amended, as it is from then on, so that the newest one counts
alone. It names the manifest by its digest, and that stays the identity of what was sealed: pointers
and rollbacks mean the same checkpoint before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ckptctl.dataclass import dataclass, field, replace
from ckptctl.model.acceptance import Acceptance
from ckptctl.model.manifest import Manifest, Record

AMENDMENTS = "ckptctl.amendments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment(Record):
    """One change of what a manifest says; revisions count from 1 and are only ever created.

    ``accepted`` is all that was accepted so far, in spite of checks: it is only ever added to.
    """

    SCHEMA: ClassVar[str] = "ckptctl/amendment/2"
    ALSO_READ: ClassVar[tuple[str, ...]] = ("ckptctl/amendment/1",)
    revision: int
    manifest: str
    step: int | None
    run_id: str | None = None
    world_size: int | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    accepted: tuple[Acceptance, ...] = ()
    time: str = ""
    actor: str = ""
    reason: str = ""

    @property
    def path(self) -> str:
        """Where the record lies in its checkpoint."""
        return f"{AMENDMENTS}/{self.revision:08d}.json"

    def applied(self, manifest: Manifest) -> Manifest:
        """Return what the manifest says by now; its digest and its files' digests stay."""
        files = tuple(
            replace(file, step=self.step) if file.step in (None, manifest.step) else file
            for file in manifest.files
        )
        return replace(
            manifest,
            step=self.step,
            run_id=self.run_id,
            world_size=self.world_size,
            identity=self.identity,
            progress=self.progress,
            files=files,
            accepted=tuple(dict.fromkeys((*manifest.accepted, *self.accepted))),
        )
