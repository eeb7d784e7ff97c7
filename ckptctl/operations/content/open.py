"""Opening whatever holds tensors: a DCP checkpoint, safetensors files, a ``torch.save`` file."""

from __future__ import annotations

from dataclasses import dataclass

from ckptctl.errors import NotFound, NothingThere
from ckptctl.formats.base import as_file
from ckptctl.formats.dcp import reader as dcp
from ckptctl.formats.safetensors import reader as safetensors
from ckptctl.formats.torch import reader as torchfile
from ckptctl.model.checkpoint import Checkpoint, Fault
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.find import find, split
from ckptctl.storage import Store, open_store


@dataclass(frozen=True, slots=True)
class Opened:
    """One source of tensors: ``base`` is its directory in the store, ``url`` what the user named."""

    store: Store
    base: str
    checkpoint: Checkpoint
    url: str

    def source(self) -> TensorSource:
        """Open its tensors for reading."""
        return TensorSource(self.store, self.base, self.checkpoint)

    @property
    def serious(self) -> tuple[Fault, ...]:
        """What is wrong with its metadata."""
        return self.checkpoint.problems


def open_tensors(url: str) -> Opened:
    """Open a DCP checkpoint, a directory of safetensors files, or one file of tensors.

    Raises ``NothingThere`` where there is none of them or several, ``StorageError`` where the
    storage does not answer.
    """
    store = open_store(url)
    if url.endswith((safetensors.SUFFIX, *torchfile.SUFFIXES)):
        file = _one_file(url)
        if file is not None:
            return file
    try:
        entries = store.entries()
    except NotFound:
        raise NothingThere(f"{url}: no such directory or file") from None
    names = [entry.name for entry in entries]
    if dcp.detect(names):
        checkpoint = dcp.read(store, "")
        if not checkpoint.readable:
            raise NothingThere(
                f"{url}: no readable metadata; `ckptctl verify {url}` says what is there"
            )
        return Opened(store, "", checkpoint, url)
    if safetensors.detect(names):
        files = {e.name: as_file(e.name, e) for e in entries if e.kind == "file"}
        return Opened(store, "", safetensors.read(store, "", files), url)
    below = [place.path for place in find(store) if place.readable]
    hint = f"; below it are {', '.join(below[:4])}" if below else ""
    raise NothingThere(f"{url}: neither DCP metadata nor safetensors files here{hint}")


def _one_file(url: str) -> Opened | None:
    """Open a single file, or return None where the name is that of a directory."""
    parent, name = split(url)
    store = open_store(parent or ".")
    try:
        entry = store.stat(name)
    except NotFound:
        raise NothingThere(f"{url}: no such file") from None
    if entry.kind == "directory":
        return None
    file = as_file(name, entry)
    if url.endswith(safetensors.SUFFIX):
        return Opened(store, "", safetensors.read(store, "", {name: file}), url)
    with store.open(name) as reader:
        return Opened(store, "", torchfile.read(reader, file), url)
