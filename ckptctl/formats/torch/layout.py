"""Layouts whose files were written by ``torch.save``: each is read, and they are united."""

from __future__ import annotations

from collections.abc import Mapping

from ckptctl.formats.base import Layout, Reads
from ckptctl.model.checkpoint import Checkpoint, File
from ckptctl.model.paths import join
from ckptctl.storage import Store, open_listed

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pkl")


class ReadsTorch(Layout):
    """Reads every ``torch.save`` file of a checkpoint; keys that several have get the file's name."""

    reads = Reads.TENSORS

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        """Read the directories and pickles of all files; damage becomes faults."""
        from ckptctl.formats.parts import Read, unite
        from ckptctl.formats.torch import reader as torchfile

        found = []
        for name, file in sorted(files.items()):
            if file.is_file and name.endswith(SUFFIXES):
                with open_listed(store, join(base, name), file.size) as opened:
                    one = torchfile.read(opened, file)
                found.append(Read(name.rpartition(".")[0], "", one))
        return found[0].checkpoint if len(found) == 1 else unite(torchfile.NAME, files, found)
