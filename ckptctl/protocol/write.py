"""Writing records: each is one exclusive creation, and whoever loses learns who won.

A record of a series gets a copy beside it once it is there, so that readers notice where it is
gone or damaged later. Nothing depends on the copy having been written.
"""

from __future__ import annotations

from contextlib import suppress

from ckptctl.errors import CkptctlError, Conflict, MalformedData
from ckptctl.model.manifest import (
    LATEST,
    MANIFEST,
    Manifest,
    PointerRevision,
    QuarantineRecord,
    Receipt,
    decode,
)
from ckptctl.model.paths import join
from ckptctl.protocol.read import read_manifest
from ckptctl.protocol.series import copy_path
from ckptctl.storage import WritableStore


def stage(store: WritableStore, checkpoint: str, receipt: Receipt) -> None:
    """Write one rank's receipt, after its files are durable."""
    store.create(join(checkpoint, receipt.path), receipt.encode())


def seal(store: WritableStore, checkpoint: str, manifest: Manifest) -> Manifest:
    """Create the manifest: the commit. Return it with its digest.

    Raises ``Conflict`` naming the winner if the checkpoint is committed already, and
    ``OutcomeUnknown`` if it may or may not be.
    """
    try:
        store.create(join(checkpoint, MANIFEST), manifest.encode())
    except Conflict:
        raise Conflict(
            f"{checkpoint or store.url} {_winner(store, checkpoint)}; nothing was changed"
        ) from None
    return manifest.sealed()


def _winner(store: WritableStore, checkpoint: str) -> str:
    try:
        winner = read_manifest(store, checkpoint)
    except CkptctlError:
        winner = None
    if winner is None:
        return "has a manifest already"
    return f"was committed already by {winner.actor} at {winner.time}"


def point(store: WritableStore, revision: PointerRevision) -> PointerRevision:
    """Create the next revision of a pointer; ``Conflict`` says who created it first."""
    try:
        store.create(revision.path, revision.encode())
    except Conflict:
        raise Conflict(
            f"pointer {revision.name}: revision {revision.revision} {_mover(store, revision)}; "
            "nothing was changed"
        ) from None
    _keep_copy(store, revision.path, revision.encode())
    return revision.sealed()


def _mover(store: WritableStore, revision: PointerRevision) -> str:
    try:
        with store.open(revision.path) as reader:
            winner = decode(PointerRevision, reader.read(0, reader.size))
    except (CkptctlError, MalformedData):
        return "exists already"
    return f"was created first by {winner.actor} at {winner.time} and names {winner.target}"


def refresh_courtesy_copy(store: WritableStore, target: str) -> None:
    """Write the plain text file that shell scripts read; ckptctl itself never trusts it."""
    store.put(LATEST, f"{target}\n".encode())


def mark(store: WritableStore, checkpoint: str, record: QuarantineRecord) -> None:
    """Create a quarantine record; ``Conflict`` if somebody else marked the checkpoint meanwhile."""
    try:
        store.create(join(checkpoint, record.path), record.encode())
    except Conflict:
        raise Conflict(
            f"{checkpoint}: somebody else marked it at the same time; nothing was changed"
        ) from None
    _keep_copy(store, join(checkpoint, record.path), record.encode())


def _keep_copy(store: WritableStore, path: str, data: bytes) -> None:
    with suppress(CkptctlError):
        store.put(copy_path(path), data)
