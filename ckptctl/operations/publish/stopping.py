"""A commit that somebody stops leaves no half of anything, and says what is there and what to type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckptctl.errors import CkptctlError, Interrupted, NotFound
from ckptctl.model.manifest import MANIFEST
from ckptctl.model.paths import join
from ckptctl.operations.place import Place, address
from ckptctl.storage import Store


@contextmanager
def told_when_stopped(store: Store, place: Place, final: str) -> Iterator[None]:
    """Say how far a commit came that is stopped; ``final`` is where it was to be sealed."""
    try:
        yield
    except KeyboardInterrupt as stop:
        said = f"{stop or 'interrupted'}: {_how_far(store, place, final)}"
        raise Interrupted(said, stop) from None


def _how_far(store: Store, place: Place, final: str) -> str:
    """Look at what is there: each step of a commit is done or is not."""
    records = final if final != place.path else place.records
    with suppress(CkptctlError):
        if _there(store, join(records, MANIFEST)):
            return f"{address(store, final)} is sealed all the same; the same command says as what"
        if final != place.path and not _there(store, place.path) and _there(store, final):
            return (
                f"{address(store, place.path)} is called {address(store, final)} by now and is not "
                f"sealed: `ckptctl commit {address(store, final)}` does that"
            )
    return f"{address(store, place.path)} was not sealed; the same command begins again"


def _there(store: Store, path: str) -> bool:
    try:
        store.stat(path)
    except NotFound:
        return False
    return True
