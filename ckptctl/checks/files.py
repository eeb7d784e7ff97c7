"""Stage 1: are the files there that the metadata speaks of, and as long as it says?"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.checks.base import Check, Context, Hit, Override, from_faults, never, reported
from ckptctl.dataclass import replace
from ckptctl.model.checkpoint import FaultKind, rank_of
from ckptctl.model.finding import Location, Severity, Stage
from ckptctl.model.paths import is_contained

_ELSEWHERE = (
    "restore the file from another copy and run `ckptctl verify {checkpoint}` again, or choose "
    "another checkpoint with `ckptctl list {root}`"
)
_REPLACED = (
    "look what is missing with `ckptctl show {checkpoint}` before anything is deleted or resumed from it, or "
    "choose another checkpoint with `ckptctl list {root}`"
)
_MTIME_SLACK = 2.0
"""Seconds: clocks of several nodes and of file servers differ by less."""


def _missing(context: Context, _: None) -> Iterator[Hit]:
    yield from reported(context, FaultKind.MISSING_FILE)
    for path, layout in context.layouts.items():
        if path not in context.checkpoint.files and is_contained(path):
            count = len(layout.indices)
            yield Hit(
                f"not there; {layout.end} bytes with {count} items were expected",
                Location(file=path, rank=rank_of(path)),
                context.loss(layout.indices),
            )


def _not_a_file(context: Context, _: None) -> Iterator[Hit]:
    yield from reported(context, FaultKind.NOT_A_FILE)
    for path, layout in context.layouts.items():
        file = context.checkpoint.files.get(path)
        if file is not None and not file.is_file:
            yield Hit(
                "a directory or a special file stands where a shard should be",
                Location(file=path, rank=rank_of(path)),
                context.loss(layout.indices),
            )


def _empty(context: Context, _: None) -> Iterator[Hit]:
    for path, size in context.present.items():
        layout = context.layouts[path]
        if size == 0 and layout.end > 0:
            yield Hit(
                f"empty; {layout.end} bytes with {len(layout.indices)} items were expected",
                Location(file=path, rank=rank_of(path), start=0, stop=layout.end),
                context.loss(layout.indices),
            )


def _truncated(context: Context, _: None) -> Iterator[Hit]:
    items = context.checkpoint.items
    for path, size in context.present.items():
        layout = context.layouts[path]
        if 0 < size < layout.end and layout.contiguous:
            cut = [i for i in layout.indices if items.offsets[i] + items.lengths[i] > size]
            yield Hit(
                f"{size} of {layout.end} bytes; {len(cut)} of {len(layout.indices)} items are cut off",
                Location(file=path, rank=rank_of(path), start=size, stop=layout.end),
                context.loss(cut),
            )


def _unreferenced(context: Context, _: None) -> Iterator[Hit]:
    """Find shards that nothing refers to; more than what is referred to looks like the real save."""
    hits = list(reported(context, FaultKind.UNREFERENCED_FILE))
    sizes = [_size(context, hit) for hit in hits]
    used = sum(context.checkpoint.items.lengths)
    largest = max(sizes, default=0)
    if largest <= used or not context.checkpoint.entries:
        yield from hits
        return
    first = hits[sizes.index(largest)]
    for hit in hits:
        if hit is not first:
            yield hit
    yield replace(
        first,
        message=f"{first.message}; all that the metadata refers to is {used} bytes: a smaller save may have "
        "replaced the metadata of the one that this is of",
        severity=Severity.WARNING,
        remedy=_REPLACED,
    )


def _size(context: Context, hit: Hit) -> int:
    """Return the bytes of a shard; what is no shard of DCP counts nothing."""
    path = hit.where.file or ""
    file = context.checkpoint.files.get(path)
    return file.size if file is not None and path.endswith(".distcp") else 0


def _newer(context: Context, _: None) -> Iterator[Hit]:
    files, sources = context.checkpoint.files, context.checkpoint.sources
    written = [files[name].modified for name in sources if name in files]
    times = [time for time in written if time is not None]
    if len(times) != 1 or len(times) != len(written):
        return
    late = [
        path
        for path in context.layouts
        if path in files and (files[path].modified or 0.0) > times[0] + _MTIME_SLACK
    ]
    if late:
        yield Hit(
            f"{len(late)} of {len(context.layouts)} shards are newer than the metadata that "
            "describes them: a later save into this directory died before its end, or the files "
            "were copied without their times",
            Location(file=late[0], rank=rank_of(late[0])),
        )


CHECKS: tuple[Check[None], ...] = (
    Check(
        "missing-metadata",
        Stage.FILES,
        Severity.ERROR,
        "The metadata file is absent, so the save never finished or this is only a part.",
        "choose another checkpoint with `ckptctl list {root}`; if other nodes hold the rest, bring "
        "all files into one directory first",
        from_faults(FaultKind.MISSING_METADATA),
        override=never("without metadata nothing tells what the bytes are"),
    ),
    Check(
        "uncommitted-metadata",
        Stage.FILES,
        Severity.ERROR,
        "Only the temporary metadata file is there: the save was not completed.",
        "choose another checkpoint with `ckptctl list {root}`",
        from_faults(FaultKind.UNCOMMITTED_METADATA),
        override=never("the save itself says that it was not completed"),
    ),
    Check(
        "missing-file",
        Stage.FILES,
        Severity.ERROR,
        "A file that the metadata refers to is absent.",
        _ELSEWHERE,
        _missing,
        override=never("what lay in the file is not there"),
    ),
    Check(
        "not-a-file",
        Stage.FILES,
        Severity.ERROR,
        "A directory or special file stands where a file should be.",
        _ELSEWHERE,
        _not_a_file,
        override=never("what lay in the file is not there"),
    ),
    Check(
        "empty-file",
        Stage.FILES,
        Severity.ERROR,
        "A file that should hold items has no bytes.",
        _ELSEWHERE,
        _empty,
        override=never("what lay in the file is not there"),
    ),
    Check(
        "truncated-file",
        Stage.FILES,
        Severity.ERROR,
        "A file ends before its last item does.",
        _ELSEWHERE,
        _truncated,
        override=never("what lay behind the end is not there"),
    ),
    Check(
        "unreferenced-file",
        Stage.FILES,
        Severity.NOTE,
        "A shard that no entry refers to; loading ignores it. A warning where one is larger than all that "
        "the metadata refers to.",
        "it may be deleted once no save into {checkpoint} is running",
        _unreferenced,
        override=Override("what is in use is whole without it"),
    ),
    Check(
        "leftover-file",
        Stage.FILES,
        Severity.NOTE,
        "A temporary or superseded metadata file beside the one in use.",
        "it may be deleted once no save into {checkpoint} is running",
        from_faults(FaultKind.LEFTOVER_FILE),
    ),
    Check(
        "foreign-file",
        Stage.FILES,
        Severity.NOTE,
        "A file with the name of a shard in its own, which some other program left.",
        "it may be deleted; where it is that of a copy, look whether the copy was finished",
        from_faults(FaultKind.FOREIGN_FILE),
    ),
    Check(
        "newer-than-metadata",
        Stage.FILES,
        Severity.NOTE,
        "Shards carry later modification times than the metadata: weak evidence of a torn overwrite.",
        "compare the step inside with what you expect: `ckptctl show {checkpoint} --objects`",
        _newer,
    ),
)
