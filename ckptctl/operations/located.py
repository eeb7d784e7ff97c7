"""One checkpoint where it lies: what is passed around instead of a store and a path in it."""

from __future__ import annotations

from collections.abc import Mapping

from ckptctl.dataclass import dataclass, field, replace
from ckptctl.model.checkpoint import Checkpoint, Fault, FaultKind, File
from ckptctl.model.finding import Location
from ckptctl.model.paths import join
from ckptctl.operations.place import Place, address, read_checkpoint
from ckptctl.operations.surroundings import Surroundings
from ckptctl.storage import Reader, Store, open_listed

_REMAINS = Fault(
    FaultKind.MISSING_METADATA,
    "neither metadata nor shards: what is left of a checkpoint that was deleted, or never written",
    loss="everything: there is nothing to load",
)


@dataclass(frozen=True, slots=True)
class Located:
    """A checkpoint's store and its place in it, and what is known of what lies around it."""

    store: Store
    place: Place
    around: Surroundings = field(default_factory=Surroundings, compare=False)

    @property
    def url(self) -> str:
        """Its path or URL as a user would type it."""
        return address(self.store, self.place.path)

    @property
    def base(self) -> str:
        """The directory that the paths of its files are relative to."""
        return self.place.base

    @property
    def records(self) -> str:
        """The directory of ckptctl's records about it."""
        return self.place.records

    def open(
        self, path: str, files: Mapping[str, File] | None = None, *, ahead: bool = True
    ) -> Reader:
        """Open one of its files; ``files`` are those that were listed, whose sizes are not asked again.

        Without ``ahead`` only single places of it will be read.
        """
        file = files.get(path) if files is not None else None
        size = file.size if file is not None else None
        return open_listed(self.store, join(self.base, path), size, ahead=ahead)

    def files(self) -> dict[str, File]:
        """List its files as they are now, by path relative to its base."""
        return self.place.layout.files(self.store, self.base, self.place.members)

    def read(self) -> Checkpoint:
        """Read what listing and metadata say; damage becomes faults of it.

        Raises ``StorageError`` where the storage does not answer.
        """
        if not self.place.format:  # a directory that is only named like a checkpoint
            return Checkpoint("", {}, faults=(_REMAINS,))
        found = read_checkpoint(self.store, self.place)
        said = {fault.where.file for fault in found.faults}
        lacking = tuple(
            Fault(FaultKind.MISSING_FILE, "it is not there", Location(file=name))
            for name in self.place.lacks
            if name not in said and name not in found.files
        )
        return replace(found, faults=(*found.faults, *lacking)) if lacking else found
