"""Opening whatever holds tensors, by its layout: a checkpoint, or a single file of one."""

from __future__ import annotations

from ckptctl.dataclass import dataclass
from ckptctl.errors import Findings, NotFound, NothingThere, RootMissing
from ckptctl.formats.base import Reads
from ckptctl.model.checkpoint import Checkpoint, Fault
from ckptctl.operations.content.tensors import TensorSource
from ckptctl.operations.find import find, place_of_file
from ckptctl.operations.place import ALONE, Place, address, read_checkpoint, split
from ckptctl.storage import Store, open_store


@dataclass(frozen=True, slots=True)
class Opened:
    """One source of tensors: ``base`` is its directory in the store, ``url`` what the user named."""

    store: Store
    base: str
    checkpoint: Checkpoint
    url: str
    place: Place | None = None

    def source(self) -> TensorSource:
        """Open its tensors for reading."""
        return TensorSource(self.store, self.base, self.checkpoint)

    @property
    def serious(self) -> tuple[Fault, ...]:
        """What is wrong with its metadata."""
        return self.checkpoint.problems


def open_tensors(url: str, framework: str = "") -> Opened:
    """Open a checkpoint of any layout whose tensors are read, or one file of tensors.

    Raises ``NothingThere`` where there is none of them or several, ``Refused`` where its contents
    are not read, ``StorageError`` where the storage does not answer.
    """
    if url.endswith(ALONE):
        parent, name = split(url)
        store = open_store(parent or ".")
        try:
            place = place_of_file(store, name, framework)
        except NotFound:
            raise RootMissing(f"{url}: no such file") from None
        if place is not None:
            return open_place(store, place, url)
    store = open_store(url)
    places = find(store, framework)
    for place in places:
        if not place.path:
            return open_place(store, place, url)
    below = [place.path for place in places if place.reads > Reads.NAMES]
    hint = f"; below it are {', '.join(below[:4])}" if below else ""
    raise NothingThere(f"{url}: no checkpoint whose tensors are read{hint}")


def open_place(store: Store, place: Place, url: str = "") -> Opened:
    """Open a checkpoint that was found.

    Raises ``Findings`` where its metadata cannot be read, ``Refused`` where its contents are not
    read.
    """
    url = url or address(store, place.path)
    checkpoint = read_checkpoint(store, place)
    if not checkpoint.readable and place.readable:
        why = checkpoint.faults[0].message if checkpoint.faults else "it is not there"
        raise Findings(
            f"{url}: its metadata cannot be read: {why}; `ckptctl verify {url}` says more"
        )
    return Opened(store, place.base, checkpoint, url, place)
