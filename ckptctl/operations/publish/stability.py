"""Did anybody write to the files while they were read? Asked before a manifest vouches for them.

A file system's change time cannot be set back: whoever writes to a file, and sets its time back, is
seen all the same. Bytes that a process changes through a mapping are seen once they have been
written back before, which is why files are synchronised first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from ckptctl.errors import Refused, StorageError
from ckptctl.formats.items.runs import block_of
from ckptctl.hashing import algorithm_of, digest_of
from ckptctl.model.belonging import foreign
from ckptctl.model.checkpoint import File
from ckptctl.model.manifest import is_record
from ckptctl.operations.located import Located

_TICK = 0.02
"""Seconds after which a file system gives another change time, by the clock of its kernel."""


def settle(files: Iterable[File]) -> None:
    """Wait until a change would show in the times of files, if one was changed just now."""
    newest = max((file.changed for file in files if file.changed is not None), default=0.0)
    wait = newest + _TICK - time.time()
    if 0 < wait <= _TICK:
        time.sleep(wait)


def refuse_changes(
    located: Located,
    before: Mapping[str, File],
    promised: Collection[str],
    digests: Mapping[str, tuple[int, str]],
) -> None:
    """Raise ``Refused`` where a promised file was written to since it was listed, or others came.

    What only had its change time moved (a hard link was made, a mode was changed) is read again.
    Files that are not promised may change and go.
    """
    after = located.files()
    changed, touched = [], []
    for path in sorted(promised):
        if path not in before or path not in after or _differ(before[path], after[path]):
            changed.append(path)
        elif before[path].changed != after[path].changed:
            touched.append(path)
    changed += sorted(path for path in after.keys() - before.keys() if _counts(after[path]))
    if not changed and touched:
        changed = [path for path in touched if not _same(located, path, digests[path])]
        later = located.files()
        changed += [
            path for path in touched if path not in changed and later.get(path) != after[path]
        ]
    if changed:
        raise Refused(
            f"{located.place.path}: {', '.join(changed[:4])} changed while it was being verified: a "
            "save is still running; nothing was changed"
        )


def _differ(one: File, other: File) -> bool:
    return (one.size, one.is_file, one.modified, one.version) != (
        other.size,
        other.is_file,
        other.modified,
        other.version,
    )


def _counts(file: File) -> bool:
    """Tell whether a file that appeared may be one that a save has just written."""
    return not file.behind and not is_record(file.path) and not foreign(file.path)


def _same(located: Located, path: str, known: tuple[int, str]) -> bool:
    size, digest = known
    try:
        with located.open(path) as reader:
            if reader.size != size:
                return False
            block = block_of(reader)
            return digest_of(reader, size, algorithm_of(digest), block=block) == digest
    except StorageError:
        return False
