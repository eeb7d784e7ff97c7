"""Files of a checkpoint that hold state and are not read as a part of it: nothing is said of them."""

from __future__ import annotations

from ckptctl.errors import Findings, NotFound
from ckptctl.formats.items.runs import block_of
from ckptctl.formats.torch.layout import SUFFIXES
from ckptctl.hashing import algorithm_of, digest_of
from ckptctl.model.checkpoint import File
from ckptctl.model.manifest import FileRecord, Manifest, is_record
from ckptctl.model.paths import join
from ckptctl.operations.content.open import Opened
from ckptctl.operations.place import FILES
from ckptctl.storage import Store

_STATE = (*FILES, ".distcp", ".npz", ".npy", ".pickle", ".msgpack", ".h5", ".zarr", ".tar")
_WITH_CRC = SUFFIXES
_WHY = "a file that is not read as a part of this checkpoint"


def files_apart(opened: Opened) -> dict[str, File]:
    """Return all files of a checkpoint but those that its keys were read from, and our records."""
    checkpoint = opened.checkpoint
    read = {*checkpoint.sources, *checkpoint.items.paths}
    return {
        path: file
        for path, file in checkpoint.files.items()
        if path not in read and not is_record(path)
    }


def holds_state(path: str) -> bool:
    """Tell by a file's name whether it may hold tensors or other state of a run."""
    return path.endswith(_STATE)


def unread_files(opened: Opened) -> dict[str, str]:
    """Name the files that may hold state and are not read, each with the reason."""
    return {path: _WHY for path in files_apart(opened) if holds_state(path)}


def unproven_sources(opened: Opened, manifest: Manifest | None) -> tuple[str, ...]:
    """Name the files of metadata whose bytes nothing proves.

    A ``torch.save`` file has CRCs, of the others only a manifest has digests, and they are checked
    here. Raises ``Findings`` where one does not fit.
    """
    promised = {file.path: file for file in manifest.files} if manifest is not None else {}
    items = opened.checkpoint.items
    crcs: dict[str, bool] = {}
    for index, one in items.stored.items():
        crcs[items.paths[index]] = crcs.get(items.paths[index], False) or one.crc is not None
    bare = {path for path, recorded in crcs.items() if not recorded}  # saved without any CRC
    found = []
    for path in opened.checkpoint.sources:
        if path.endswith(_WITH_CRC) and path not in bare:
            continue
        record = promised.get(path)
        if record is None:
            found.append(path)
        elif not is_sound(opened.store, opened.base, record):
            raise Findings(f"{opened.url}: {path} is not what its manifest promises")
    return tuple(found)


def is_sound(store: Store, base: str, file: FileRecord) -> bool:
    """Tell whether a file is still what was written."""
    try:
        with store.open(join(base, file.path)) as reader:
            block, algorithm = block_of(reader), algorithm_of(file.digest)
            return reader.size == file.size and file.digest == digest_of(
                reader, file.size, algorithm, block=block
            )
    except NotFound:
        return False
