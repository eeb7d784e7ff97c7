"""Amendments of a manifest: a series whose newest record says what the manifest says by now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ckptctl.errors import CkptctlError, Conflict, MalformedData, StorageError
from ckptctl.model.amendment import AMENDMENTS, Amendment
from ckptctl.model.manifest import Manifest
from ckptctl.model.paths import join
from ckptctl.protocol.series import all_of, copy_path, listed, read_series
from ckptctl.storage import Store, WritableStore

_MEND = "there is a copy of it, from which `ckptctl commit --amend` writes it again"


def amended(store: Store, checkpoint: str, manifest: Manifest) -> Manifest:
    """Return what a manifest says by its newest amendment; its digest stays what it was.

    Raises ``MalformedData`` where the newest amendment is damaged, gone, or of another manifest,
    and ``StorageError`` where it could not be read: what the manifest said before counts no more.
    """
    found = read_series(store, join(checkpoint, AMENDMENTS), Amendment, _numbered)
    if found.problems:
        kept = (
            f"; {_MEND}"
            if found.copy is not None and found.copy.manifest == manifest.digest
            else ""
        )
        raise (StorageError if found.failed else MalformedData)(f"{found.problems[0]}{kept}")
    if found.newest is None:
        return manifest
    if found.newest.manifest != manifest.digest:
        raise MalformedData(f"{join(checkpoint, found.newest.path)}: it amends another manifest")
    return found.newest.applied(manifest)


def mended(store: Store, checkpoint: str, manifest: Manifest) -> Manifest | None:
    """Return what a manifest says by the copy of its newest amendment, where that is damaged or gone."""
    found = read_series(store, join(checkpoint, AMENDMENTS), Amendment, _numbered)
    copy = found.copy if found.problems else None
    known = copy is not None and copy.manifest == manifest.digest
    return copy.applied(manifest) if copy is not None and known else None


def amendments(store: Store, checkpoint: str) -> Iterator[Amendment | str]:
    """Yield all amendments of a checkpoint, oldest first; a damaged one as what is wrong with it."""
    return all_of(store, join(checkpoint, AMENDMENTS), Amendment, _numbered)


def last_amendment(store: Store, checkpoint: str) -> int:
    """Return the highest number that an amendment has or had, 0 where there is none."""
    return listed(store, join(checkpoint, AMENDMENTS)).last


def amend(store: WritableStore, checkpoint: str, record: Amendment) -> None:
    """Create an amendment; ``Conflict`` if somebody else amended the checkpoint meanwhile."""
    path, data = join(checkpoint, record.path), record.encode()
    try:
        store.create(path, data)
    except Conflict:
        raise Conflict(
            f"{checkpoint}: somebody else amended it at the same time; nothing was changed"
        ) from None
    with suppress(CkptctlError):
        store.put(copy_path(path), data)


def _numbered(found: Amendment, number: int) -> bool:
    return found.revision == number
