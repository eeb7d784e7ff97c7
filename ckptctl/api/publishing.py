"""The verbs that publish, mark and delete: commit, promote, quarantine, release, prune, undelete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptctl import results

Path = str | os.PathLike[str] | None


def commit(
    path: Path = None,
    *,
    publish_as: str | None = None,
    step: int | None = None,
    run_id: str | None = None,
    world_size: int | None = None,
    identity: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    algorithm: str = "xxh3-128",
    mapping: Mapping[str, str] | None = None,
    workers: int | None = None,
    amend: bool = False,
    accept: Iterable[str] = (),
    reason: str = "",
    dry_run: bool = False,
    framework: str = "",
    progress: results.Progress | None = None,
) -> results.Committed:
    """Verify a checkpoint, hash its files in the same pass, and seal it with a manifest.

    ``identity`` are facts about the run, or a JSON, YAML or TOML file of them. One that is committed
    already, with the same bytes and as the same thing, is left as it is. With ``amend`` it gets
    another step, run, number of ranks or facts, and promises what it did. ``accept`` names checks, or
    ``CHECK:GLOB`` with a pattern of files or keys, whose findings are accepted and recorded with the
    ``reason``; none of them may prove damage. Raises ``Findings`` for
    what is not whole, ``Refused`` or ``Conflict`` where it is committed as something else or the
    store cannot commit, ``OutcomeUnknown`` where the last answer was lost.
    """
    from ckptctl.errors import UsageError
    from ckptctl.operations import requests
    from ckptctl.operations.publish.commit import commit_checkpoint
    from ckptctl.operations.publish.options import CommitOptions
    from ckptctl.operations.target import open_for_records, text_of

    if isinstance(identity, str | os.PathLike):
        from pathlib import Path as FilePath

        from ckptctl.operations.provenance.facts_file import read_identity

        identity = read_identity(FilePath(identity))
    options = CommitOptions(
        step=step,
        run_id=run_id,
        world_size=world_size,
        publish_as=publish_as,
        identity=identity or {},
        algorithm=algorithm,
        mapping=requests.wanted("", (), mapping or {}).mapping,
        dry_run=dry_run,
        accepting=requests.accepting(accept, reason, path=text_of(path)),
    )
    if workers is not None:
        options = options.with_workers(workers)
    store, place = open_for_records(path, framework)
    if amend:
        from ckptctl.operations.publish.amend import amend_checkpoint

        return amend_checkpoint(store, place, options=options, reason=reason, progress=progress)
    if reason and not options.accepting.wishes:
        raise UsageError("`reason` is for `amend` and `accept`: a commit needs none")
    return commit_checkpoint(store, place, options=options, progress=progress)


def promote(
    path: Path = None,
    *,
    reason: str = "",
    quick: bool = False,
    values: bool = False,
    require: str = "resume",
    allow_missing: Iterable[str] = (),
    mapping: Mapping[str, str] | None = None,
    expect: int | None = None,
    rollback: bool = False,
    accept: Iterable[str] = (),
    workers: int | None = None,
    dry_run: bool = False,
    framework: str = "",
    progress: results.Progress | None = None,
) -> results.Promoted:
    """Verify a committed checkpoint against its manifest and move ``latest_committed`` to it.

    ``accept`` is what it is for ``commit``: the acceptance is an amendment of the manifest.
    Raises ``Findings`` for what does not verify, ``Refused`` for what is not committed, is
    quarantined, or is older than what the pointer names (unless ``rollback``), ``Conflict`` where
    another moved it first.
    """
    from ckptctl.operations import requests
    from ckptctl.operations.publish import promote as promoting
    from ckptctl.operations.target import open_for_records, text_of

    accepting = requests.accepting(accept, reason, path=text_of(path))
    wanted = requests.wanted(require, allow_missing, mapping or {})
    store, place = open_for_records(path, framework)
    return promoting.promote(
        store,
        place,
        reason=reason,
        quick=quick,
        values=values,
        wanted=wanted,
        expect=expect,
        rollback=rollback,
        dry_run=dry_run,
        workers=workers,
        accepting=accepting,
        progress=progress,
    )


def quarantine(
    path: Path = None, *, reason: str, dry_run: bool = False, framework: str = ""
) -> results.Marked:
    """Mark a checkpoint as not to be used; ``resolve`` passes it over.

    Raises ``Refused`` without a reason, ``Conflict`` where another marks it at the same time.
    """
    from ckptctl.operations.publish.quarantine import set_mark
    from ckptctl.operations.target import open_for_records

    store, place = open_for_records(path, framework, unread=True)
    return set_mark(store, place, quarantined=True, reason=reason, dry_run=dry_run)


def release(
    path: Path = None, *, reason: str, dry_run: bool = False, framework: str = ""
) -> results.Marked:
    """Take a quarantine back; raises ``Refused`` for what is not quarantined."""
    from ckptctl.operations.publish.quarantine import set_mark
    from ckptctl.operations.target import open_for_records

    store, place = open_for_records(path, framework, unread=True)
    return set_mark(store, place, quarantined=False, reason=reason, dry_run=dry_run)


def prune(
    path: Path = None,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    older_than: float | str | None = None,
    min_age: float | str = "1d",
    verify: str = "",
    include_quarantined: bool = False,
    ignore_pointer: Iterable[str] = (),
    empty_trash: bool = False,
    trash_days: float | None = None,
    dry_run: bool = False,
    framework: str = "",
    confirm: Callable[[results.Plan], bool] | None = None,
) -> results.Plan:
    """Move old checkpoints of a root into its trash, or delete them where a store cannot rename.

    Ages are seconds, or text such as ``7d``. ``verify`` is how far those that count as kept are
    looked at: ``quick``, ``full``, or by default the newest in full and others quickly.
    ``empty_trash`` deletes for good what was moved before, ``trash_days`` what was moved so many
    days ago. Raises ``Refused`` where no checkpoint is proven to be good, where a pointer cannot be
    resolved that ``ignore_pointer`` does not name, and where ``confirm`` does not agree.
    """
    from ckptctl.errors import UsageError
    from ckptctl.operations.retention import prune as pruning
    from ckptctl.operations.retention.policy import DAY, Policy, seconds
    from ckptctl.operations.target import open_for_pruning, open_for_trash

    if empty_trash and trash_days is not None:
        raise UsageError("choose one of `empty_trash` and `trash_days`")
    trash_age = 0.0 if empty_trash else None if trash_days is None else trash_days * DAY
    policy = Policy(
        keep_last=keep_last,
        keep_every=keep_every,
        older_than=None if older_than is None else seconds("older_than", older_than),
        min_age=seconds("min_age", min_age),
        verify=verify,
        include_quarantined=include_quarantined,
        ignored=tuple(ignore_pointer),
        trash_older_than=trash_age,
    )
    if policy.keeps:
        store, places = open_for_pruning(path, framework)
        return pruning.prune(store, policy, places=places, dry_run=dry_run, confirm=confirm)
    if trash_age is None:
        raise UsageError("say what to keep: `keep_last`, `keep_every` or `older_than`")
    return pruning.prune(open_for_trash(path), policy, dry_run=dry_run, confirm=confirm)


def undelete(path: Path = None, name: str = "", *, dry_run: bool = False) -> results.Undeleted:
    """Bring back a checkpoint that ``prune`` moved into a root's trash, by its path or last name.

    Of several of that name it is the one that was moved last. Raises ``NotFound`` where the trash
    does not have it, ``UsageError`` where none is named and there are several, ``Conflict`` where
    its place is taken by now, ``Refused`` where a part of it is gone.
    """
    from ckptctl.operations.retention import trash
    from ckptctl.operations.target import open_for_trash

    return trash.undelete(open_for_trash(path), name, dry_run=dry_run)
