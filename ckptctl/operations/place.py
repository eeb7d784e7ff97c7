"""One checkpoint of a store: its path, its layout, what it is made of, and how it is read."""

from __future__ import annotations

import posixpath
from typing import TypeAlias

from ckptctl import protocol
from ckptctl.dataclass import dataclass
from ckptctl.errors import Refused
from ckptctl.formats import registry
from ckptctl.formats.base import Layout, Reads
from ckptctl.formats.listing import as_file
from ckptctl.model.amendment import AMENDMENTS
from ckptctl.model.checkpoint import Checkpoint, File
from ckptctl.model.manifest import MANIFEST, Manifest
from ckptctl.model.names import CheckpointName, parse_name
from ckptctl.storage import Entry, Store

UNKNOWN = "unknown"
"""The format of a directory that is named like a checkpoint and that no layout claims."""

FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pkl")
"""What the names of single files of tensors end in."""

ALONE = (*FILES, ".safetensors.index.json")
"""What a path may end in that names one file, or one set of files, in a directory of several."""

RECORDS = ".ckptctl"
"""What is added to the name of a checkpoint that is a file, for the directory of its records."""


Order: TypeAlias = tuple[bool, int, int, str]
"""Numeric order of checkpoints; what has no number comes first."""


@dataclass(frozen=True, slots=True)
class Place:
    """One checkpoint of a store: its path below the root, its layout, and what it is made of.

    ``entries`` are the direct children of its directory, or its files where it is a set of files.
    ``format`` is the layout's name, empty for an empty directory that is named like a checkpoint;
    ``problem`` says why nothing can be told of it. ``linked`` means that a link leads to it.
    """

    path: str
    name: CheckpointName
    entries: tuple[Entry, ...]
    format: str = ""
    problem: str = ""
    members: tuple[str, ...] | None = None
    lacks: tuple[str, ...] = ()
    staging: str = ""
    number: int | None = None
    resume: str = ""
    linked: bool = False

    @property
    def reads(self) -> Reads:
        """How far this release reads it."""
        if self.problem or self.format in ("", UNKNOWN):
            return Reads.NAMES
        return self.layout.reads

    @property
    def readable(self) -> bool:
        """True if this release reads the whole of it."""
        return self.reads is Reads.WHOLE

    @property
    def layout(self) -> Layout:
        """The layout that claims it; raises ``UsageError`` where none does."""
        return registry.layout(self.format)

    @property
    def base(self) -> str:
        """The directory that the paths of its files are relative to."""
        return self.path if self.members is None else self.path.rpartition("/")[0]

    @property
    def records(self) -> str:
        """The directory of ckptctl's records about it: its own, or one beside its files."""
        return self.path if self.members is None else f"{self.path}{RECORDS}"

    @property
    def committed(self) -> bool:
        """True if it has a manifest, whatever that says."""
        return any(entry.name == MANIFEST for entry in self.entries)

    @property
    def order(self) -> Order:
        """Numeric step order; what has no step comes first, never by text or time."""
        name = self.name
        first = (name.step, self.number, name.epoch)
        known = next((one for one in first if one is not None), None)
        return (known is not None, known or 0, name.epoch or 0, self.path)

    def files(self, store: Store) -> dict[str, File]:
        """List all its files by path relative to ``base``, records of ckptctl too."""
        if self.format in ("", UNKNOWN):
            return registry.UNCLAIMED.files(store, self.base, self.members)
        flat = self.members is None and all(one.kind != "directory" for one in self.entries)
        if flat and not self.problem:  # they were listed already
            return {one.name: as_file(one.name, one) for one in self.entries}
        return self.layout.files(store, self.base, self.members)


def name_of_root(store: Store) -> CheckpointName:
    """Return what the name of the store's root says."""
    url = store.url.rstrip("/")
    if "://" not in url:
        url = posixpath.abspath(url or "/")
    return parse_name(posixpath.basename(url))


def read_checkpoint(store: Store, place: Place) -> Checkpoint:
    """Read what listing and metadata of a checkpoint say; damage becomes faults of it.

    Raises ``Refused`` for a layout whose contents are not read, ``StorageError`` where the storage
    does not answer.
    """
    if place.reads is Reads.NAMES:
        raise Refused(f"{address(store, place.path)}: {place.problem or not_read(place)}")
    return place.layout.read(store, place.base, place.files(store))


def read_manifest(store: Store, place: Place) -> Manifest | None:
    """Read the manifest of a checkpoint; its amendments only where it was listed with some.

    For whoever reads those of a whole root: an object store is not asked again what it listed.
    """
    amended = any(entry.name == AMENDMENTS for entry in place.entries)
    read = protocol.read_manifest if amended else protocol.read_sealed
    return read(store, place.records)


def not_read(place: Place) -> str:
    """Say that a checkpoint's format is not one that this release reads."""
    if place.format in ("", UNKNOWN):
        return "of no format that this release knows"
    if place.reads is Reads.TENSORS:
        return f"{place.layout.title}: read by digest, diff and convert, and not verified yet"
    return f"{place.layout.title}: contents not read yet"


def address(store: Store, path: str) -> str:
    """Return a path below a store's root as a user would type it."""
    root = store.url.rstrip("/")
    if not path:
        return store.url
    return path if root == "." else f"{root}/{path}"


def split(url: str) -> tuple[str, str]:
    """Split a path or URL into the directory that holds it and its own name, either may be empty."""
    if "://" not in url:
        parent, _, name = posixpath.abspath(url).rpartition("/")
        shown = url.rstrip("/").rpartition("/")[0] or "."
        return (shown if posixpath.abspath(shown) == parent else parent or "/"), name
    scheme, _, rest = url.partition("://")
    parent, _, name = rest.rstrip("/").rpartition("/")
    return (f"{scheme}://{parent}" if parent else ""), name
