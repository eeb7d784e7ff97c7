"""The committed checkpoints of a root in the order in which they are asked, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckptctl.dataclass import dataclass, field
from ckptctl.errors import MalformedData, StorageError
from ckptctl.model.manifest import LATEST, Manifest, PointerRevision
from ckptctl.operations.catalog.resolution import Skipped
from ckptctl.operations.place import Place, read_manifest
from ckptctl.operations.pointers import pointers
from ckptctl.storage import Store
from ckptctl.storage.traffic import ahead


@dataclass(frozen=True, slots=True)
class Candidate:
    """A committed checkpoint; ``newer`` than what the pointer names, or ``named`` by it."""

    place: Place
    manifest: Manifest
    how: str
    newer: bool = False
    named: bool = False


@dataclass(slots=True)
class Root:
    """What lies in a root: manifests by path, what was passed over, and what could not be read."""

    places: list[Place]
    manifests: dict[str, tuple[Place, Manifest]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, places: Iterable[Place]) -> Root:
        """Read the manifests of all places; what cannot be read is passed over."""
        root = cls(list(places))
        sealed = [place for place in root.places if place.committed]
        manifests = ahead(store, lambda place: read_manifest(store, place), sealed)
        for place in root.places:
            if place.problem:
                root.fail(place, f"unreadable: {place.problem}", place.problem)
            if not place.committed:
                continue
            try:
                manifest = next(manifests)()
            except MalformedData as error:
                root.skip(place, place.name.step, f"its manifest: {error}")
                continue
            except StorageError as error:
                root.fail(place, f"its manifest could not be read: {error}", str(error))
                continue
            if manifest is not None:
                root.manifests[place.path] = (place, manifest)
        return root

    def skip(self, place: Place, step: int | None, reason: str) -> None:
        """Pass one over."""
        self.skipped.append(Skipped(place.path, step, reason))

    def fail(self, place: Place, reason: str, trouble: str) -> None:
        """Pass one over that the storage does not give."""
        self.skip(place, place.name.step, reason)
        self.troubles.append(trouble)
        self.unread[place.path] = reason

    @property
    def paths(self) -> set[str]:
        """The paths of all checkpoints."""
        return {place.path for place in self.places}

    def newest(self) -> list[tuple[Place, Manifest]]:
        """Return the committed checkpoints, newest first."""
        return sorted(
            self.manifests.values(),
            key=lambda pair: (
                -1 if pair[1].step is None else pair[1].step,
                pair[1].time,
                pair[0].path,
            ),
            reverse=True,
        )

    def in_order(
        self, newest: list[tuple[Place, Manifest]], revision: PointerRevision | None
    ) -> list[Candidate]:
        """Put the committed checkpoints, newest first, around the one that the pointer names."""
        if revision is None:
            how = "newest committed one; there is no pointer"
            return [Candidate(place, manifest, how) for place, manifest in newest]
        target = self.manifests.get(revision.target)
        if target is None and revision.target not in self.unread:
            self.notes.append(
                f"pointer {LATEST} (revision {revision.revision}) is dangling: it names "
                f"{revision.target}, which is not there or not committed"
            )
        candidates = []
        before = True
        for place, manifest in newest:
            if target is None:
                before = None not in (manifest.step, revision.step) and (manifest.step or 0) > (
                    revision.step or 0
                )
            if target is not None and place.path == revision.target:
                before = False
                how = f"named by pointer {LATEST}, revision {revision.revision}"
                candidates.append(Candidate(place, manifest, how, named=True))
            elif manifest.digest in revision.passed_over:
                reason = f"passed over by the rollback at revision {revision.revision}"
                self.skip(place, manifest.step, reason)
            elif before:
                if target is not None:
                    self.notes.append(
                        f"pointer {LATEST} (revision {revision.revision}) is stale: it names "
                        f"{revision.target}, and {place.path} was committed since"
                    )
                how = "committed after the pointer last moved"
                candidates.append(Candidate(place, manifest, how, newer=True))
            else:
                how = "newest committed one that is good"
                candidates.append(Candidate(place, manifest, how))
        return candidates

    def disagreements(self, store: Store, revision: PointerRevision | None) -> Iterator[str]:
        """Say which frameworks' pointers name something else than what is committed."""
        steps = {place.path: place.name.step for place in self.places}
        sealed = [manifest.step for _, manifest in self.manifests.values()]
        newest = max((step for step in sealed if step is not None), default=None)
        for found in pointers(store, self.places):
            if found.target is None:
                if found.name != LATEST or revision is None:
                    text = found.text or "nothing"
                    yield f"{found.name} is dangling: it names {text}, which is not here"
            elif found.others:
                both = " and ".join(found.targets)
                yield f"{found.name} is ambiguous: it says {found.text}, the step of {both}"
            elif found.target in self.unread:
                continue
            elif found.target not in self.manifests:
                yield f"{found.name} names {found.target}, which is not committed"
            elif newest is not None and (steps[found.target] or 0) < newest:
                yield (
                    f"{found.name} is stale: it names {found.target}, and step {newest} is committed"
                )
