"""torchsnapshot: a directory with a manifest that is written last, and byte ranges beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckptctl.formats.base import Claim, Folder, Layout, Reads, Sure
from ckptctl.formats.claims import directory
from ckptctl.model.checkpoint import Checkpoint, File
from ckptctl.storage import Store

_METADATA = ".snapshot_metadata"
_OWN_FOLDERS = frozenset(("batched", "sharded", "replicated"))


class TorchSnapshot(Layout):
    """Directories that ``Snapshot.take`` writes."""

    name = "torchsnapshot"
    title = "torchsnapshot"
    reads = Reads.WHOLE

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory with the manifest, or what is there before the manifest is."""
        if _METADATA in folder.files:
            yield directory(self.name, folder, Sure.OWN)
        elif not folder.files and _OWN_FOLDERS & folder.folders:
            others = folder.folders - _OWN_FOLDERS
            if folder.name.recognised and all(name.isdigit() for name in others):
                yield directory(self.name, folder, Sure.PATTERN, lacks=(_METADATA,))

    def metadata(self, files: Iterable[str]) -> list[str]:
        """Return the manifest."""
        return [_METADATA] if _METADATA in files else []

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        """Read the manifest; damage becomes faults."""
        from ckptctl.formats.torchsnapshot import reader

        return reader.read(store, base, files)
