"""The public functions: ``verb(path_or_url, *, options) -> result``.

A path is a root, a checkpoint, a file inside one, a pointer, ``ROOT@latest`` or ``ROOT@STEP``;
without one it is ``CKPTCTL_ROOT``, else the current directory. Every result is frozen and has
``verdict``, ``exit_code``, ``findings`` and ``to_dict()``. ``framework`` is the one layout to ask,
where several could claim what lies there; ``progress`` is told about bytes as they are read.
Damage is in the result; an error says that there is no result, and is a ``CkptctlError``:

- ``UsageError`` for a request that makes no sense: an empty path, several checkpoints for one;
- ``NothingThere`` where no checkpoint is, ``NotFound`` where what was named is not there;
- ``StorageError`` where the storage does not answer.
"""

from __future__ import annotations

from ckptctl.api.looking import (
    diff,
    digest,
    history,
    list_checkpoints,
    resolve,
    schema,
    show,
    verify,
)
from ckptctl.api.publishing import commit, promote, prune, quarantine, release, undelete
from ckptctl.api.transforming import convert, reshard

__all__ = [
    "commit",
    "convert",
    "diff",
    "digest",
    "history",
    "list_checkpoints",
    "promote",
    "prune",
    "quarantine",
    "release",
    "reshard",
    "resolve",
    "schema",
    "show",
    "undelete",
    "verify",
]
