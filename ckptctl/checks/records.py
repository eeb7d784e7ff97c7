"""Does the checkpoint still keep what its manifest promises, and do records and pointers agree?"""

from __future__ import annotations

from collections.abc import Iterator

from ckptctl.checks.base import (
    Check,
    Context,
    Hit,
    Override,
    from_faults,
    never,
    where_committed,
    where_promised,
)
from ckptctl.model.belonging import belongs, foreign
from ckptctl.model.checkpoint import FaultKind, rank_of
from ckptctl.model.finding import Location, Severity, Stage, Touched
from ckptctl.model.manifest import MANIFEST, QUARANTINE, is_record
from ckptctl.model.paths import is_contained
from ckptctl.words import listed

_ELSEWHERE = (
    "restore the file from another copy and run `ckptctl verify {checkpoint}` again, or let "
    "`ckptctl resolve {root}` choose another checkpoint"
)
_MOST_NAMED = 8
_RECORDS = (
    "the records are damaged, not necessarily the data: `ckptctl verify {checkpoint} --ignore "
    "unreadable-manifest` judges the data by themselves"
)


def _required(context: Context, _: None) -> Iterator[Hit]:
    seal = context.seal
    if seal.required and seal.manifest is None and not seal.problem:
        yield Hit(
            "it was never committed, so nothing says which run and step it is and what its bytes "
            "should be",
            Location(file=MANIFEST),
        )


def _unreadable(context: Context, _: None) -> Iterator[Hit]:
    if context.seal.problem:
        yield Hit(context.seal.problem.removeprefix(f"{MANIFEST}: "), Location(file=MANIFEST))


def _missing(context: Context, _: None) -> Iterator[Hit]:
    manifest, files = context.seal.manifest, context.checkpoint.files
    for record in manifest.files if manifest else ():
        # files that items lie in are reported, with what is lost, by the check of that name
        if record.path not in files and record.path not in context.layouts:
            yield Hit(
                f"the manifest promises {record.size} bytes, and it is not there",
                Location(file=record.path, rank=record.rank),
            )


def _resized(context: Context, _: None) -> Iterator[Hit]:
    manifest, files = context.seal.manifest, context.checkpoint.files
    for record in manifest.files if manifest else ():
        file = files.get(record.path)
        if file is not None and file.is_file and file.size != record.size:
            yield Hit(
                f"{file.size} bytes, and the manifest promises {record.size}",
                Location(file=record.path, rank=record.rank),
            )


def _unexpected(context: Context, _: None) -> Iterator[Hit]:
    manifest = context.seal.manifest
    if manifest is None:
        return
    known = {record.path for record in manifest.files}
    known |= {row.path for row in manifest.unpromised}
    folders = tuple(row.path for row in manifest.unpromised if row.path.endswith("/"))
    for path, file in context.checkpoint.files.items():
        if path in known or is_record(path) or file.behind or path.startswith(folders):
            continue
        if "./" in known and "/" not in path and not belongs(path):
            continue  # there were too many to name
        why = foreign(path)
        yield Hit(
            f"{file.size} bytes that the manifest does not know: added after the commit"
            + (f"; {why}" if why else ""),
            Location(file=path, rank=rank_of(path)),
            severity=Severity.NOTE if why else None,
        )


def _left_out(context: Context, _: None) -> Iterator[Hit]:
    manifest = context.seal.manifest
    if manifest is None:
        return
    promised = {record.path for record in manifest.files}
    for path in (*context.checkpoint.sources, *context.layouts):
        if path not in promised and is_contained(path):
            layout = context.layouts.get(path)
            what = "the metadata is" if layout is None else f"{len(layout.indices)} items lie"
            yield Hit(
                f"{what} in it, and the manifest does not promise it: nothing says what its bytes "
                "should be",
                Location(file=path, rank=rank_of(path)),
            )
    others = {row.path for row in manifest.unpromised}
    for path, companion in context.checkpoint.companions.items():
        if companion.known and path in others:
            yield Hit(
                "the manifest calls it no part of the checkpoint, and it is a companion that belongs "
                "to it: nothing says what its bytes should be",
                Location(file=path, rank=rank_of(path)),
            )


def _lost(context: Context, _: None) -> Iterator[Hit]:
    manifest = context.seal.manifest
    for how, keys in (manifest.lost if manifest else {}).items():
        yield Hit(
            f"{how.replace('_', ' ')} a damaged checkpoint, and it holds nothing of "
            f"{len(keys):,} key{'s' * (len(keys) != 1)} that damage took there: "
            f"{listed(keys, _MOST_NAMED)}",
            Location(file=MANIFEST),
            listed(keys, _MOST_NAMED),
            touched=Touched.of(keys),
        )


def _foreign(context: Context, _: None) -> Iterator[Hit]:
    manifest, identity = context.seal.manifest, context.checkpoint.identity
    if manifest and manifest.save_id and identity.save_id not in (None, manifest.save_id):
        yield Hit(
            f"the manifest was made for save {manifest.save_id} ({manifest.name}), and the metadata "
            f"is of save {identity.save_id}",
            Location(file=MANIFEST),
        )


def _renamed(context: Context, _: None) -> Iterator[Hit]:
    seal = context.seal
    if seal.manifest and seal.name and seal.manifest.name != seal.name:
        yield Hit(
            f"the manifest calls this checkpoint {seal.manifest.name} (step {seal.manifest.step}), "
            f"its directory is called {seal.name}",
            Location(file=MANIFEST),
        )


def _quarantined(context: Context, _: None) -> Iterator[Hit]:
    seal = context.seal
    if seal.quarantine_problem:
        yield Hit(
            f"its newest quarantine record cannot be read, so it counts as quarantined: "
            f"{seal.quarantine_problem}",
            Location(file=QUARANTINE),
        )
    elif seal.quarantine is not None and seal.quarantine.quarantined:
        record = seal.quarantine
        yield Hit(
            f"quarantined by {record.actor} at {record.time}: {record.reason}",
            Location(file=record.path),
        )


def _pointer(context: Context, _: None) -> Iterator[Hit]:
    seal = context.seal
    for pointer in seal.pointers:
        if seal.manifest is None:
            yield Hit(
                f"pointer {pointer.name} (revision {pointer.revision}) names this checkpoint, which "
                "has no usable manifest",
                Location(file=MANIFEST),
            )
        elif pointer.manifest != seal.manifest.digest:
            yield Hit(
                f"pointer {pointer.name} (revision {pointer.revision}) was moved to manifest "
                f"{pointer.manifest}, and the one here is {seal.manifest.digest}: the checkpoint "
                "was replaced after it was promoted",
                Location(file=MANIFEST),
            )


CHECKS: tuple[Check[None], ...] = (
    Check(
        "no-manifest",
        Stage.FILES,
        Severity.ERROR,
        "A manifest is required and the checkpoint has none.",
        "if it is the one you want, `ckptctl commit {checkpoint}` verifies and seals it",
        _required,
        applies=lambda context: context.seal.required,
        override=never("a commit is what answers it"),
    ),
    Check(
        "unreadable-manifest",
        Stage.FILES,
        Severity.ERROR,
        "The manifest is torn, altered, or written by a newer release.",
        _RECORDS,
        _unreadable,
        applies=lambda context: bool(context.seal.manifest or context.seal.problem),
        override=never("what was promised, and what was accepted, is not known"),
    ),
    Check(
        "missing-promised-file",
        Stage.FILES,
        Severity.ERROR,
        "A file that the manifest promises is absent.",
        _ELSEWHERE,
        _missing,
        applies=where_committed,
        override=never("what was promised is not there"),
    ),
    Check(
        "resized-file",
        Stage.FILES,
        Severity.ERROR,
        "A file does not have the size that the manifest promises.",
        _ELSEWHERE,
        _resized,
        applies=where_committed,
        override=never("the bytes are not those that were promised"),
    ),
    Check(
        "incomplete-manifest",
        Stage.FILES,
        Severity.ERROR,
        "The manifest leaves out a file that the metadata refers to, or a companion.",
        "the manifest was altered or made by something else: restore it from another copy, or let "
        "`ckptctl resolve {root}` choose another checkpoint",
        _left_out,
        applies=where_committed,
        override=never("nothing proves the bytes of what is left out; a new commit would"),
    ),
    Check(
        "lost-keys",
        Stage.FILES,
        Severity.ERROR,
        "The manifest says that keys were lost when the checkpoint was made from a damaged one.",
        "no command hands it out: whoever wants it without these keys gives its path to the trainer; "
        "`ckptctl verify {checkpoint} --ignore lost-keys` judges what it does hold",
        _lost,
        applies=where_committed,
        override=never("the keys are gone, whoever accepts that"),
    ),
    Check(
        "unexpected-file",
        Stage.FILES,
        Severity.WARNING,
        "A file that was added after the commit.",
        "remove it if it is not needed; loading may or may not look at it",
        _unexpected,
        applies=where_committed,
        override=Override("what was added changes none of the promised bytes", words=True),
    ),
    Check(
        "foreign-manifest",
        Stage.FILES,
        Severity.ERROR,
        "The manifest belongs to another save than the metadata.",
        "the manifest or the metadata was copied in from elsewhere: restore both from one copy",
        _foreign,
        applies=where_committed,
        override=never("what was promised is another save"),
    ),
    Check(
        "renamed-checkpoint",
        Stage.FILES,
        Severity.WARNING,
        "The directory's name is not the one the manifest was made for.",
        "trust the manifest's step, or give the directory its name back",
        _renamed,
        applies=where_committed,
        override=Override(
            "a directory may be renamed on purpose, and the manifest keeps the step", words=True
        ),
    ),
    Check(
        "quarantined",
        Stage.FILES,
        Severity.ERROR,
        "The checkpoint is marked as not to be used.",
        "`ckptctl release {checkpoint} --reason ...` takes the mark back once the cause is known",
        _quarantined,
        override=never("a release takes the mark back"),
    ),
    Check(
        "pointer-mismatch",
        Stage.FILES,
        Severity.ERROR,
        "A pointer was moved to another manifest than the one that is here.",
        "`ckptctl history {root}` shows who moved it; promote a checkpoint that verifies",
        _pointer,
        applies=lambda context: bool(context.seal.pointers),
        override=never("what was promoted is not what is here; promote settles it"),
    ),
)

DIGEST_CHECKS: tuple[Check[None], ...] = (
    Check(
        "altered-file",
        Stage.CONTENT,
        Severity.ERROR,
        "A file's bytes are not the ones that a digest was recorded of.",
        _ELSEWHERE,
        from_faults(FaultKind.ALTERED_FILE),
        applies=where_promised,
        override=never("the bytes are not those that a digest was recorded of"),
    ),
    Check(
        "rewritten-file",
        Stage.CONTENT,
        Severity.NOTE,
        "The metadata and one shard are not those that a companion has digests of; their CRCs are right.",
        "Megatron refuses it where it is to compare digests; `ckptctl commit {checkpoint}` gives it "
        "new ones, if you know who changed it",
        from_faults(FaultKind.REWRITTEN_FILE),
        applies=lambda context: bool(context.beside.digests),
    ),
    Check(
        "unstable-file",
        Stage.CONTENT,
        Severity.ERROR,
        "Two reads of one file gave different digests.",
        "look at the storage, its network and this machine's memory, then run "
        "`ckptctl verify {checkpoint}` again",
        from_faults(FaultKind.UNSTABLE_FILE),
        applies=where_promised,
        override=never("bytes that differ between two reads prove nothing"),
    ),
)
"""Asked once the files have been hashed."""
