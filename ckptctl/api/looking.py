"""The verbs that look: list, show, verify, digest, diff, resolve, history; and schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ckptctl.dataclass import replace

if TYPE_CHECKING:
    from ckptctl import results
    from ckptctl.model.commit_state import State

Path = str | os.PathLike[str] | None


def list_checkpoints(
    path: Path = None,
    *,
    committed: bool = False,
    states: Iterable[State | str] = (),
    limit: int | None = None,
    check: bool = False,
    framework: str = "",
) -> results.Listing:
    """List the checkpoints of a root in numeric order of their steps, or the one that is named.

    Names, sizes and small metadata are looked at; with ``check`` also large metadata is parsed.
    """
    from ckptctl.model.commit_state import State
    from ckptctl.operations.catalog import list as catalog
    from ckptctl.operations.target import open_target

    wanted = {State(state) for state in states}
    if committed:
        wanted |= {State.COMMITTED, State.PROMOTED}
    target = open_target(path, framework)
    return catalog.list_checkpoints(
        target.store,
        check=check,
        states=wanted,
        limit=limit,
        places=target.places,
        whole=not target.single,
    )


def show(
    path: Path = None,
    *,
    tensors: bool = False,
    objects: bool = False,
    files: bool = False,
    layout: str | None = None,
    pattern: str = "*",
    framework: str = "",
) -> results.Shown:
    """Show a checkpoint at a glance, or its tensors, objects or files, or one tensor's layout.

    Raises ``MalformedData`` where its metadata cannot be read.
    """
    from ckptctl.operations.catalog import view
    from ckptctl.operations.target import open_target

    target = open_target(path, framework)
    return view.show(
        target.store,
        target.one(),
        tensors=tensors,
        objects=objects,
        files=files,
        layout=layout,
        pattern=pattern,
    )


def verify(
    path: Path = None,
    *more: Path,
    quick: bool = False,
    sample: float | None = None,
    part: tuple[int, int] | None = None,
    values: bool = False,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    require: Iterable[str] = (),
    allow_missing: Iterable[str] = (),
    mapping: Mapping[str, str] | None = None,
    fail_on: str = "error",
    workers: int | None = None,
    framework: str = "",
    progress: results.Progress | None = None,
    each: Callable[[results.Verification], object] | None = None,
) -> results.Verifications:
    """Prove that a checkpoint is whole, or all of a root: files, metadata, items, content.

    ``quick`` reads no payload, ``sample`` a random share, ``part`` the k-th of n equal shares.
    ``require`` takes ``manifest`` and one of ``resume``, ``weights``, ``serve``; ``mapping`` says
    which component the keys of a pattern are. ``each`` is told about a checkpoint once it is done.
    Of several paths, one that cannot be opened is among the ``failures``.
    """
    from ckptctl.operations import requests
    from ckptctl.operations.verify.several import verify_all

    options = requests.verification(
        quick=quick,
        sample=sample,
        part=part,
        values=values,
        select=select,
        ignore=ignore,
        require=require,
        allow_missing=allow_missing,
        mapping=mapping or {},
        fail_on=fail_on,
        workers=workers,
    )
    return verify_all(
        (path, *more), options=options, progress=progress, framework=framework, each=each
    )


def digest(
    path: Path = None,
    *,
    only: Iterable[str] = (),
    strict: bool = False,
    workers: int | None = None,
    framework: str = "",
    progress: results.Progress | None = None,
) -> results.Content:
    """Digest what every tensor and object holds, whatever its sharding and format.

    All bytes are read and every CRC is checked; what cannot be digested says why. What there is no
    reader for is left out and named, and is a finding only with ``strict``.
    """
    from ckptctl.operations.content.digest import digest_content
    from ckptctl.operations.content.open import open_tensors
    from ckptctl.operations.content.unread import unread_files
    from ckptctl.operations.target import checkpoint_of

    only = tuple(only)
    opened = open_tensors(checkpoint_of(path, framework), framework)
    found = digest_content(opened, only=only, workers=workers, progress=progress)
    unread = () if only else tuple(unread_files(opened))
    faults = tuple(fault.message for fault in opened.serious)
    return replace(found, faults=faults, unread=unread, strict=strict)


def diff(
    a: Path,
    b: Path,
    *,
    values: bool = False,
    quick: bool = False,
    only: Iterable[str] = (),
    fail_on: str = "any",
    workers: int | None = None,
    framework: str = "",
    progress: results.Progress | None = None,
) -> results.Diff:
    """Compare two checkpoints: identity of the run, keys, shapes, dtypes, progress, content.

    The verdict is ``findings`` for a difference of the kind ``fail_on`` or worse:
    ``breaks-load``, ``changes-data-order``, ``changes-numerics`` or ``any``. Raises
    ``MalformedData`` where the metadata of one is damaged.
    """
    from ckptctl.operations.diff import diff as comparing
    from ckptctl.operations.target import checkpoint_of

    options = comparing.DiffOptions.of(
        only=only, quick=quick, values=values, fail_on=fail_on, framework=framework
    )
    if workers is not None:
        options = options.with_workers(workers)
    return comparing.diff(
        checkpoint_of(a, framework), checkpoint_of(b, framework), options=options, progress=progress
    )


def resolve(
    path: Path = None,
    *,
    full: bool = False,
    quick: bool = False,
    require_world_size: int | None = None,
    min_step: int | None = None,
    run_id: str | None = None,
    max_loss: int | str | None = None,
    allow_uncommitted: bool = False,
    pointer_fallback: bool = False,
    allow_missing_root: bool = False,
    workers: int | None = None,
    framework: str = "",
    progress: results.Progress | None = None,
) -> results.Resolution:
    """Choose the newest committed checkpoint of a root that verifies and fits.

    What is newer and was not taken is in ``skipped``, how far behind the answer is in ``lost``:
    ``max_loss`` is how many steps, or what age such as ``2h``, that may be. Raises
    ``NothingThere`` where the root is there and holds nothing that could be a checkpoint,
    ``RootMissing`` where it is not there (``allow_missing_root`` takes that for a run that has not
    begun), ``NoneUsable`` where some exist and none is good, ``TooMuchLost`` where the best is too
    far behind, and ``Undecided`` where it is not known what was decided last (``pointer_fallback``
    takes the decision before): then do not start from nothing.
    """
    from ckptctl.errors import RootMissing
    from ckptctl.operations.catalog import resolve as resolving
    from ckptctl.operations.catalog.resolution import Limit
    from ckptctl.operations.target import open_root

    options = resolving.ResolveOptions(
        full=full,
        quick=quick,
        world_size=require_world_size,
        min_step=min_step,
        run_id=run_id,
        max_loss=Limit.of(max_loss),
        allow_uncommitted=allow_uncommitted,
        pointer_fallback=pointer_fallback,
    )
    if workers is not None:
        options = options.with_workers(workers)
    try:
        store, places = open_root(path, framework, missing=allow_missing_root)
    except RootMissing as error:
        advice = (
            "what it should lie in is not there either"
            if allow_missing_root
            else "if the run has not begun, say so with `allow_missing_root`"
        )
        raise RootMissing(
            f"{error}: not mounted, or misspelled? {advice}; do not start from nothing otherwise"
        ) from None
    return resolving.resolve(store, options=options, progress=progress, places=places)


def history(path: Path = None, *, framework: str = "") -> results.History:
    """Read who committed, promoted, rolled back and quarantined what, when and why."""
    from ckptctl.operations.catalog import history as records
    from ckptctl.operations.target import open_root

    store, places = open_root(path, framework)
    return records.history(store, places=places)


def schema(name: str = "") -> results.Schema:
    """Return the JSON Schema of what a command prints with ``--json``, or the names of all."""
    from ckptctl.operations import schemas

    return schemas.schema(name)
