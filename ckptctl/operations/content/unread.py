"""Files of a checkpoint that hold state and are not read as a part of it: nothing is said of them."""

from __future__ import annotations

from ckptctl.model.checkpoint import File
from ckptctl.model.manifest import is_record
from ckptctl.operations.content.open import Opened
from ckptctl.operations.place import FILES

_STATE = (*FILES, ".distcp", ".npz", ".npy", ".pickle", ".msgpack", ".h5", ".zarr", ".tar")
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
