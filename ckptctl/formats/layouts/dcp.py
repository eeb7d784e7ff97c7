"""PyTorch Distributed Checkpoint: a directory with ``.metadata`` and ``__R_n.distcp`` files.

torchtitan writes such directories, and so does whoever calls ``dcp.save``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from ckptctl.dataclass import replace
from ckptctl.errors import NotFound
from ckptctl.formats.base import (
    Claim,
    Folder,
    Layout,
    PointerRule,
    Reads,
    ShardWriter,
    StateSeen,
    Sure,
)
from ckptctl.formats.companions import companions_of
from ckptctl.formats.dcp import reader
from ckptctl.formats.dcp.summary import summarise_file
from ckptctl.model.checkpoint import Checkpoint, Entry, File, Items
from ckptctl.model.commit_state import State
from ckptctl.model.paths import join
from ckptctl.storage import Store, open_listed

EXAMINE_LIMIT = 4 << 20
"""Bytes of metadata above which a listing does not parse it unless told to."""


class DcpWriter(ShardWriter):
    """Writes ``.metadata`` beside one file per rank."""

    file = reader.METADATA

    def shard(self, rank: int) -> str:
        """Return the name that torch gives to a rank's first file."""
        return f"__{rank}_0.distcp"

    def encode(
        self,
        entries: Mapping[str, Entry],
        items: Items,
        paths: Mapping[str, tuple[str | int, ...]],
        *,
        save_id: str,
        checkpoint_id: str,
    ) -> Iterator[bytes]:
        """Yield the pickle of the metadata."""
        from ckptctl.formats.dcp.metadata_writer import encode_metadata

        return encode_metadata(entries, items, paths, save_id=save_id, checkpoint_id=checkpoint_id)


class Dcp(Layout):
    """Directories that ``torch.distributed.checkpoint`` writes."""

    name = reader.NAME
    title = "PyTorch DCP"
    reads = Reads.WHOLE
    pointers = (PointerRule("latest|last_checkpoint|latest_committed"),)
    writer = DcpWriter()

    def claim(self, folder: Folder) -> Iterator[Claim]:
        """Claim a directory that holds metadata or shards."""
        if reader.detect(folder.files):
            name = folder.name
            staging = "under a temporary name" if name.staging else ""
            yield Claim(
                self.name,
                folder.path,
                Sure.PATTERN,
                step=name.step,
                epoch=name.epoch,
                staging=staging,
            )

    def read(self, store: Store, base: str, files: Mapping[str, File]) -> Checkpoint:
        """Read the metadata, or what each rank's says; other files may be what ``torch.save`` wrote."""
        found = reader.read(store, base, files)
        tensors = {*found.sources, *set(found.items.paths)}
        return replace(found, companions=companions_of(files, tensors=tensors))

    def is_one(self, path: str) -> bool:
        """Shards and metadata are files."""
        return reader.must_be_file(path)

    def metadata(self, files: Iterable[str]) -> list[str]:
        """Return the metadata files, as torch would choose them."""
        return reader.metadata_files(files)

    def state(
        self,
        store: Store,
        base: str,
        files: Mapping[str, File],
        known: MutableMapping[object, object],
        *,
        check: bool,
    ) -> StateSeen:
        """Compare the sizes of files with what the metadata says, parsing each layout once."""
        sources = reader.metadata_files(files)
        if not sources:
            return StateSeen(State.INCOMPLETE, "no metadata")
        if sources == [reader.LEFTOVER]:
            return StateSeen(State.INCOMPLETE, "only .metadata.tmp: the save was not completed")
        if not check and sum(files[name].size for name in sources) > EXAMINE_LIMIT:
            return StateSeen(State.NOT_EXAMINED, "large metadata; parsed with `check`")
        for name in sources:
            if not files[name].is_file:
                return StateSeen(State.UNREADABLE, f"{name} is not a file")
            try:
                with open_listed(store, join(base, name), files[name].size) as opened:
                    summary = summarise_file(opened, name, known)
            except NotFound:
                return StateSeen(State.INCOMPLETE, f"{name} vanished while it was read")
            if summary.problem:
                return StateSeen(State.UNREADABLE, f"{name}: {summary.problem}")
            for path, length in summary.lengths.items():
                file = files.get(path)
                if file is None or not file.is_file:
                    return StateSeen(State.INCOMPLETE, f"{path} is not there")
                if file.size < length or (
                    file.size > length and not _only_items(store, join(base, path), length)
                ):
                    reason = f"{path} has {file.size} of {length} bytes"
                    return StateSeen(State.INCOMPLETE, reason)
        return StateSeen(State.COMPLETE)


def _only_items(store: Store, path: str, start: int) -> bool:
    """Tell whether whole items lie behind the last that the metadata lists: their keys are gone."""
    from ckptctl.formats.items.filled import filled  # rarely asked

    try:
        with store.open(path) as opened:
            return filled(opened, start, opened.size) > 0
    except NotFound:
        return False
