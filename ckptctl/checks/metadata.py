"""Stage 2: is the metadata readable and safe, and do its chunks make up every tensor?"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.checks.base import Check, Context, Hit, Override, from_faults, never
from ckptctl.model.checkpoint import FaultKind, TensorEntry
from ckptctl.model.dtypes import NAMES
from ckptctl.model.finding import Location, Severity, Stage
from ckptctl.model.geometry import Tiling, describe

_DAMAGED = (
    "the metadata is damaged: restore the metadata from another copy, or choose another checkpoint "
    "with `ckptctl list {root}`"
)
_OVERSIZED = "no writer makes such bytes: do not load {checkpoint}, and find out who wrote it"
_QUIET_MODULES = ("torch.", "megatron.", "olmo_core.", "nvidia_resiliency_ext.", "builtins.")


_NAMED = frozenset("Size device dtype finfo iinfo layout memory_format Tensor Generator".split())
"""What may be named of the module ``torch`` itself, besides dtypes and storages."""


def _is_strange(name: str) -> bool:
    module, _, own = name.rpartition(".")
    return module == "torch" and own not in _NAMED and not own.endswith("Storage")


def _unknown_class(context: Context, _: None) -> Iterator[Hit]:
    unsafe = any(fault.kind is FaultKind.UNSAFE_METADATA for fault in context.checkpoint.faults)
    opaque = context.checkpoint.opaque_classes
    source = context.checkpoint.sources[0] if context.checkpoint.sources else None
    for name in [] if unsafe else [n for n in opaque if _is_strange(n)][:4]:
        yield Hit(
            f"names {name}, which no metadata of torch does: where a torch lacks it, it cannot read "
            "the checkpoint at all",
            Location(file=source),
            severity=Severity.WARNING,
            remedy="try `dcp.load` of {checkpoint} with the torch that is to read it",
        )
    names = [n for n in opaque if not n.startswith(_QUIET_MODULES)]
    if names and not unsafe:
        yield Hit(
            f"holds objects of {', '.join(names[:4])}, which were kept closed",
            Location(file=source),
        )


def _tilings(context: Context) -> Iterator[tuple[TensorEntry, Tiling]]:
    for entry in context.checkpoint.entries.values():
        if isinstance(entry, TensorEntry):
            tiling = context.tiling(entry)
            if not tiling.exact:
                yield entry, tiling


def _hole(context: Context, _: None) -> Iterator[Hit]:
    for entry, tiling in _tilings(context):
        for box in tiling.holes:
            part = describe(box, entry.shape)
            yield Hit(
                f"{part} of {list(entry.shape)} are covered by no chunk; loading leaves whatever "
                "was in memory there",
                Location(file=_source(context), fqn=entry.fqn, box=box),
                f"{part} of {entry.fqn}",
            )


def _overlap(context: Context, _: None) -> Iterator[Hit]:
    for entry, tiling in _tilings(context):
        for first, second, common in tiling.overlaps:
            one, two = entry.boxes[first], entry.boxes[second]
            yield Hit(
                f"{describe(common, entry.shape)} are covered twice, by the chunks at "
                f"{list(one.offsets)} and {list(two.offsets)}; which one wins is chance",
                Location(file=_source(context), fqn=entry.fqn, box=common),
                f"{describe(common, entry.shape)} of {entry.fqn}",
            )


def _bounds(context: Context, _: None) -> Iterator[Hit]:
    for entry, tiling in _tilings(context):
        for index in tiling.outside:
            box = entry.boxes[index]
            yield Hit(
                f"a chunk at {list(box.offsets)} of size {list(box.sizes)} reaches outside the "
                f"tensor's {list(entry.shape)}",
                Location(file=_source(context), fqn=entry.fqn, box=box),
                f"part of {entry.fqn}",
            )


def _tangled(context: Context, _: None) -> Iterator[Hit]:
    for entry, tiling in _tilings(context):
        if not tiling.finished:
            yield Hit(
                f"its {len(entry.boxes)} chunks form no grid and overlap so much that covering "
                "could not be decided",
                Location(file=_source(context), fqn=entry.fqn),
                entry.fqn,
            )


def _source(context: Context) -> str | None:
    return context.checkpoint.sources[0] if context.checkpoint.sources else None


def _path_mismatch(context: Context, _: None) -> Iterator[Hit]:
    paths, entries = context.checkpoint.paths_in_state, context.checkpoint.entries
    if not paths:
        return  # the planner kept none, as Megatron's does
    for fqn, path in paths.items():
        if fqn not in entries:
            yield Hit(
                "the planner recorded a path for this key, but the key itself is gone",
                Location(file=_source(context), fqn=fqn),
                fqn,
            )
        elif ".".join(map(str, path)) != fqn:
            yield Hit(
                f"the planner recorded its path as {'.'.join(map(str, path))!r}, which gives "
                "another name",
                Location(file=_source(context), fqn=fqn),
                fqn,
            )
    for fqn in entries:
        if fqn not in paths:
            yield Hit(
                "the planner recorded paths for the other keys and none for this one",
                Location(file=_source(context), fqn=fqn),
                fqn,
            )


def _unknown_dtype(context: Context, _: None) -> Iterator[Hit]:
    for entry in context.checkpoint.entries.values():
        if isinstance(entry, TensorEntry) and entry.dtype not in NAMES:
            yield Hit(
                f"dtype {entry.dtype} is not one of torch 2.13; its bytes are compared and not "
                "interpreted",
                Location(file=_source(context), fqn=entry.fqn),
            )


CHECKS: tuple[Check[None], ...] = (
    Check(
        "unreadable-metadata",
        Stage.METADATA,
        Severity.ERROR,
        "The metadata cannot be read, or is not what its format says.",
        _DAMAGED,
        from_faults(FaultKind.UNREADABLE_METADATA),
        override=never("without metadata nothing tells what the bytes are"),
    ),
    Check(
        "unsafe-metadata",
        Stage.METADATA,
        Severity.ERROR,
        "The metadata asks its reader to run something; torch would run it.",
        "do not load {checkpoint} with torch; find out who wrote it",
        from_faults(FaultKind.UNSAFE_METADATA),
        override=never("torch would run it, whoever accepts that"),
    ),
    Check(
        "too-large",
        Stage.METADATA,
        Severity.ERROR,
        "The metadata asks for more memory or time than its size allows.",
        _OVERSIZED,
        from_faults(FaultKind.TOO_LARGE),
        override=never("no reader may take it, and no writer makes it"),
    ),
    Check(
        "too-deep",
        Stage.METADATA,
        Severity.ERROR,
        "The metadata nests deeper than any reader follows.",
        _OVERSIZED,
        from_faults(FaultKind.TOO_DEEP),
        override=never("no reader may take it, and no writer makes it"),
    ),
    Check(
        "trailing-metadata",
        Stage.METADATA,
        Severity.ERROR,
        "Bytes follow the end of the metadata.",
        _DAMAGED,
        from_faults(FaultKind.TRAILING_METADATA),
        override=Override("what torch reads ends before these bytes, and was read whole"),
    ),
    Check(
        "malformed-entry",
        Stage.METADATA,
        Severity.ERROR,
        "An entry of the metadata does not have the form that torch gives it.",
        _DAMAGED,
        from_faults(FaultKind.MALFORMED_ENTRY),
        override=never("torch cannot load the entry, or loads it as something else"),
    ),
    Check(
        "unknown-class",
        Stage.METADATA,
        Severity.NOTE,
        "The metadata holds objects of classes this tool does not know. A warning for a name of the "
        "module `torch` itself that no metadata has: a torch that lacks it cannot read the metadata.",
        "nothing to do, unless the names surprise you",
        _unknown_class,
    ),
    Check(
        "missing-rank",
        Stage.METADATA,
        Severity.ERROR,
        "Ranks saved separately and one rank's metadata is absent.",
        "restore the rank's files from its node, or choose another checkpoint with "
        "`ckptctl list {root}`",
        from_faults(FaultKind.MISSING_RANK),
        override=never("the state of the rank is not there"),
    ),
    Check(
        "hole",
        Stage.METADATA,
        Severity.ERROR,
        "Part of a tensor is covered by no chunk.",
        _DAMAGED,
        _hole,
        override=never("loading leaves in that part whatever was in memory"),
    ),
    Check(
        "overlap",
        Stage.METADATA,
        Severity.ERROR,
        "Part of a tensor is covered by two chunks.",
        _DAMAGED,
        _overlap,
        override=never("which of the two is loaded is chance"),
    ),
    Check(
        "out-of-bounds",
        Stage.METADATA,
        Severity.ERROR,
        "A chunk reaches outside its tensor.",
        _DAMAGED,
        _bounds,
        override=never("loading writes outside the tensor, or fails"),
    ),
    Check(
        "undecided-cover",
        Stage.METADATA,
        Severity.ERROR,
        "The chunks of a tensor are too tangled to tell whether they cover it.",
        _DAMAGED,
        _tangled,
        override=Override("it says that covering could not be decided, not that it is damaged"),
    ),
    Check(
        "path-mismatch",
        Stage.METADATA,
        Severity.ERROR,
        "A key and its recorded path in the state dict do not name the same thing.",
        _DAMAGED,
        _path_mismatch,
        override=Override(
            "a planner of one's own may name keys its own way; only who wrote it knows"
        ),
    ),
    Check(
        "unknown-dtype",
        Stage.METADATA,
        Severity.NOTE,
        "A dtype that torch 2.13 does not have.",
        "a newer release of ckptctl may know it",
        _unknown_dtype,
    ),
)
