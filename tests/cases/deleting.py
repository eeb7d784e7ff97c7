"""Deleting: what ``prune`` gives up, what it never touches, and how a mistake is undone.

Most rows ask ``prune --keep-last 1`` for a root of committed checkpoints, all ten days old.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases.frame import (
    FIXTURES,
    SHARD,
    SMALL,
    STEPS,
    Build,
    Case,
    Meanwhile,
    committed,
    cuts,
    deleted,
    each,
    every,
    flips,
    hard_links,
    links,
    nothing,
    promoted,
    quarantined,
    ran,
    reason,
    removes,
    save,
    saved,
    shares,
    shelf,
    writes,
)
from support.cli import make_old
from support.publish import done

ALL = committed(*STEPS)
NAMES = tuple(f"step-{step}" for step in STEPS)
OLDER = NAMES[:-1]
PRUNE = ("prune", "{root}", "--keep-last", "1", "--yes")
PLANNED = "ckptctl.operations.retention.prune.plan"


def prunes(
    name: str,
    build: Build,
    gone: tuple[str, ...] = OLDER,
    why: Mapping[str, str] | None = None,
    *,
    options: tuple[str, ...] = (),
    left: tuple[str, ...] | None = None,
    **more: Any,
) -> Case:
    """A row of which exactly some checkpoints go; the others stay byte by byte, for a reason each."""
    reasons = [reason(one, words) for one, words in (why or {}).items()]
    return Case(
        name,
        each(ALL, build),
        (*PRUNE, *options),
        facts={"fates": every(deleted(*gone), *reasons)},
        gone=gone,
        left=tuple(one for one in NAMES if one not in gone) if left is None else left,
        old=10,
        **more,
    )


def stays(name: str, build: Build, why: str, step: int = 200, **more: Any) -> Case:
    """A row of which one checkpoint, beside the newest, has to stay."""
    kept = f"step-{step}"
    gone = tuple(one for one in OLDER if one != kept)
    return prunes(name, build, gone, {kept: why}, **more)


def refuses(name: str, build: Build, says: str, *options: str) -> Case:
    """A row of which nothing may be decided."""
    return Case(
        name,
        each(ALL, build),
        (*PRUNE, *options),
        5,
        says=(says,),
        facts={"verdict": "refused"},
        untouched=True,
        old=10,
    )


def meanwhile(
    name: str, do: Build, why: Mapping[str, str], *, build: Build = nothing, code: int = 0
) -> Case:
    """A row of which something happens between the plan and the deletion."""
    gone = tuple(one for one in OLDER if one not in why)
    return prunes(
        name, build, gone, why, left=tuple(why), code=code, meanwhile=Meanwhile(PLANNED, do)
    )


# ---------------------------------------------------------------------------------- states


def trainer(root: Path) -> None:
    """Two checkpoints of the HF Trainer with FSDP: a model and an optimizer of each."""
    from support import companions  # which needs torch

    for step in (8, 12):
        path = root / f"checkpoint-{step}"
        for part in ("pytorch_model_fsdp_0", "optimizer_0"):
            save(path, part, f"fsdp2/step-{step}")
        companions.trainer(path, step, ranks=4)


def restored(root: Path) -> None:
    """A copy out of a backup that keeps times goes on: the newest is half here."""
    save(root, "step-2000")
    (root / "step-2000" / SHARD).unlink()
    (root / "step-2000" / f".{SHARD}.Xy12Zz").write_bytes(b"half")
    make_old(root.parent, days=10)


@functools.cache
def _torch_file() -> Path:
    place = shelf() / "one.pt"
    done("convert", FIXTURES / SMALL, "--to", "torch", "--out", place)
    return place


def files(*names: str) -> Build:
    """Put checkpoints there that are files of their own, not committed."""
    return lambda root: [shutil.copy(_torch_file(), root / name) for name in names]


EPOCHS = tuple(f"epoch={n}-step={100 * n}.ckpt" for n in (1, 2, 3))
"""Names that Lightning gives."""


def trash(*steps: int) -> Build:
    """Move all but the newest aside, those of these steps alone."""
    return each(committed(*steps, 1000), promoted(1000), ran(*PRUNE, "--min-age", "0m"))


def torn_trash_record(root: Path) -> None:
    record = root / "ckptctl.trash/00000001/ckptctl.trashed.json"
    record.write_bytes(record.read_bytes()[:40])


def promoted_then_pruned(root: Path) -> None:
    """Let our pointer name what is in the trash, as a race with an older release leaves it."""
    record = root / "ckptctl.trash/00000002/ckptctl.trashed.json"
    kept = root / "kept.json"
    shutil.copy(record, kept)
    done("undelete", root, "step-200")
    done("promote", root / "step-200", "--require", "none", "--rollback")
    (root / "ckptctl.trash/00000002").mkdir()
    (root / "step-200").rename(root / "ckptctl.trash/00000002/step-200")
    kept.rename(record)


def as_committed(*names: str) -> Build:
    """Is called afterwards: are these byte by byte what was committed?"""

    def then(root: Path) -> None:
        for name in names:
            fresh = root.parent / "fresh"
            committed(name)(_made(fresh))
            for path in (fresh / name).rglob("*"):
                if path.is_file():
                    assert (root / path.relative_to(fresh)).read_bytes() == path.read_bytes()
            assert done("verify", root / name, "--require", "manifest", "--quiet").code == 0

    return then


def _made(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


# ---------------------------------------------------------------------------------- rows

STRAY = [
    prunes("a stray shard in the root", each(promoted(1000), writes("__0_0.distcp"))),
    prunes("a stray leftover in the root", writes(".metadata.tmp", b"")),
    prunes("a stray manifest's leftover in the root", writes(".ckptctl-1.tmp", b"")),
    Case(
        "a stray shard in the root, and more are kept than there are",
        each(ALL, promoted(1000), writes("__0_0.distcp")),
        ("prune", "{root}", "--keep-last", "5", "--yes"),
        facts={"fates": deleted()},
        untouched=True,
        old=10,
    ),
    Case(
        "a stray shard in the directory above, which is pruned",
        each(ALL, promoted(1000), writes("../__0_0.distcp")),
        ("prune", "{root}/..", "--keep-last", "5", "--yes"),
        2,
        says=("name the root that holds it",),
        untouched=True,
        old=10,
    ),
    Case(
        "a stray shard two directories above, which is pruned",
        each(ALL, promoted(1000), writes("../../__0_0.distcp")),
        ("prune", "{root}/../..", "--keep-last", "5", "--yes"),
        2,
        says=("name the root that holds it",),
        untouched=True,
        old=10,
    ),
    Case(
        "a stray shard and leftovers of minutes ago",
        each(ALL, promoted(1000), writes("__0_0.distcp"), writes(".metadata.tmp")),
        ("prune", "{root}", "--keep-last", "5", "--yes"),
        facts={"fates": deleted()},
        untouched=True,
    ),
    Case(
        "the root is a checkpoint itself",
        saved("."),
        PRUNE,
        2,
        says=("name the root that holds it",),
        untouched=True,
        old=10,
    ),
    prunes(
        "a save of somebody else's inside, as its root",
        lambda root: save(root / "step-200", "step-7"),
        ("step-100", "step-300"),
        {"step-200/step-7": "one of the last 1"},
    ),
    stays(
        "a save of somebody else's inside",
        lambda root: save(root / "step-200", "more/step-7"),
        "may be of another checkpoint",
    ),
]

PROVEN = [
    prunes(
        "the newest has a flipped bit",
        flips(f"step-1000/{SHARD}"),
        ("step-100", "step-200"),
        {"step-300": "one of the last 1", "step-1000": "not proven: findings"},
    ),
    prunes(
        "the newest is cut",
        cuts(f"step-1000/{SHARD}"),
        ("step-100", "step-200"),
        {"step-300": "one of the last 1", "step-1000": "not proven"},
    ),
    prunes(
        "the newest lacks a promised file",
        removes(f"step-1000/{SHARD}"),
        ("step-100", "step-200"),
        {"step-300": "one of the last 1", "step-1000": "not proven"},
    ),
    Case(
        "the newest holds fewer tensors than those before it",
        each(committed(100, 200, source="no_dist/step-12"), committed(300)),
        PRUNE,
        facts={
            "fates": every(
                deleted("step-100"),
                reason("step-300", "it lacks"),
                reason("step-200", "one of the last 1"),
            )
        },
        left=("step-200", "step-300"),
        gone=("step-100",),
        old=10,
    ),
    prunes(
        "the newest is whole, without CRCs and not committed",
        saved(2000, source="no_crc/step-1"),
        OLDER,
        {"step-1000": "one of the last 1"},
        left=("step-1000", "step-2000"),
    ),
    *(
        prunes(
            f"one that is not committed has a flipped bit, and keepers are verified {how}",
            each(saved(2000), flips(f"step-2000/{SHARD}")),
            OLDER,
            {"step-1000": "one of the last 1", "step-2000": "not proven"},
            options=("--verify", how),
            left=("step-1000", "step-2000"),
        )
        for how in ("quick", "full")
    ),
    prunes(
        "the second of two keepers is not committed and has a flipped bit",
        each(saved(2000, 2001), flips(f"step-2000/{SHARD}")),
        OLDER,
        {"step-2001": "one of the last 2", "step-1000": "one of the last 2"},
        options=("--keep-last", "2"),
        left=("step-1000", "step-2000", "step-2001"),
    ),
    refuses(
        "all are damaged",
        each(*(flips(f"{name}/{SHARD}") for name in NAMES)),
        "no checkpoint here is proven to be good; step-1000 is not: findings",
    ),
    refuses("all are quarantined", quarantined(*STEPS), "no checkpoint here is proven to be good"),
    refuses(
        "all are quarantined, and those are asked for",
        quarantined(*STEPS),
        "no checkpoint here is proven to be good",
        "--include-quarantined",
    ),
    Case(
        "one that was never committed and has no CRCs is no keeper",
        saved(100, 200, source="no_crc/step-1"),
        PRUNE,
        5,
        says=("no checkpoint here is proven to be good",),
        untouched=True,
        old=10,
    ),
]

AGE = [
    Case(
        "saves of minutes ago",
        ALL,
        PRUNE,
        facts={"fates": every(deleted(), reason("step-300", "younger than a day"))},
        untouched=True,
    ),
    Case(
        "a restore that keeps old times goes on",
        each(ALL, restored),
        PRUNE,
        facts={"fates": every(deleted(), reason("step-2000", "younger than a day"))},
        untouched=True,
    ),
    Case(
        "`--min-age` is no permission to delete a save that may go on",
        each(ALL, restored),
        (*PRUNE, "--min-age", "0m"),
        facts={"fates": every(deleted(*OLDER), reason("step-2000", "younger than a day"))},
        left=("step-1000", "step-2000"),
        gone=OLDER,
    ),
    prunes(
        "an old save that was cut off",
        each(saved(2000), removes(f"step-2000/{SHARD}")),
        (*OLDER, "step-2000"),
    ),
    prunes("an old save under a temporary name", saved("step-2000.tmp"), (*OLDER, "step-2000.tmp")),
]

SPELLINGS: dict[str, str | bytes] = {
    "plain": "step-200",
    "a slash": "step-200/\n",
    "a dot": "./step-200\n",
    "an absolute path": "{root}/step-200\n",
    "a path on another mount": "/elsewhere/run/step-200\n",
    "a URL": "s3://bucket/run/step-200",
    "quotes": '"step-200"\n',
    "a carriage return": "step-200\r\n",
    "a byte order mark": "\ufeffstep-200\n",
    "UTF-16": "step-200\n".encode("utf-16"),
    "backslashes": "..\\run\\step-200",
    "the path of a file in it": "step-200/.metadata",
    "its step": "200\n",
    "two lines": "step-200\nwritten by the trainer\n",
}
FILES = {
    "LATEST": "step-200",
    "latest.txt": "200",
    "LATEST.txt": "step-200",
    "latest_checkpointed_iteration.txt": "200",
    "resume_from": "./step-200\n",
}

POINTED = [
    *(
        stays(f"a pointer with {how}", writes("latest", text), "latest names it")
        for how, text in SPELLINGS.items()
    ),
    *(
        stays(f"a pointer in {name}", writes(name, text), f"{name} names it")
        for name, text in FILES.items()
    ),
    stays("a link", links("latest", "step-200"), "the link latest"),
    stays("a link by way of above", links("latest", "../run/step-200"), "the link latest"),
    stays(
        "a link to a link",
        each(links("good", "step-200"), links("latest", "good")),
        "the link",
    ),
    stays("an absolute link", links("LATEST", "{root}/step-200"), "the link LATEST"),
    stays(
        "a link as another mount has it", links("LATEST", "/elsewhere/run/step-200"), "LATEST names"
    ),
    stays("a link further down", links("eval/now", "../step-200"), "the link eval/now"),
    stays(
        "a link to a file of it",
        links("export/model.distcp", f"../step-200/{SHARD}"),
        "the link export/model.distcp",
    ),
    stays(
        "a link beside the root",
        links("../latest", "run/step-200"),
        "the link latest beside this root",
    ),
    *(
        stays(
            f"a file beside the root with {how}",
            writes("../resume_from", text),
            "resume_from beside this root",
        )
        for how, text in {
            "a path": "run/step-200\n",
            "an absolute path": "{root}/step-200",
            "quotes": '"./run/step-200/"\n',
            "the path of a file": "run/step-200/.metadata",
        }.items()
    ),
    prunes(
        "a file beside the root with a name that leads elsewhere", writes("../note", "step-200")
    ),
    prunes("a file beside the root that is no text", writes("../core", b"\x00/\xff" * 9)),
    stays("our own pointer", each(promoted(1000), promoted(200, "--rollback")), "latest_committed"),
    refuses(
        "a pointer to what is not here",
        writes("latest", "step-999"),
        "latest names step-999, which is not here",
    ),
    refuses("an empty pointer", writes("latest", ""), "latest names nothing"),
    refuses("a link to nowhere", links("LATEST", "/mnt/gone/run"), "LATEST names /mnt/gone/run"),
    refuses(
        "the newest record of our pointer is torn",
        each(
            promoted(100),
            promoted(200),
            cuts("ckptctl.pointers/latest_committed/00000002.json", 40),
        ),
        "00000002.json",
    ),
    prunes(
        "a pointer to what is not here is named, and goes for none",
        writes("latest", "step-999"),
        options=("--ignore-pointer", "latest"),
    ),
    prunes("a link to nowhere that is no pointer", links("data", "/mnt/gone")),
    prunes("a number in a file of another name", writes("world_size", "200")),
    prunes("notes of several lines", writes("notes.txt", "step-200\nwas\nfine\n")),
]

SHARED = [
    stays("links into an older one", shares(1000, 200), "is a link into it"),
    stays(
        "the promoted one is made of links into an older one",
        each(promoted(1000), shares(1000, 200)),
        "is a link into it",
    ),
    prunes(
        "links to links",
        each(shares(300, 200), shares(1000, 300)),
        ("step-100",),
        {"step-200": "is a link into it", "step-300": "is a link into it"},
    ),
    stays(
        "one file has two names",
        hard_links(f"step-1000/{SHARD}", f"step-200/{SHARD}"),
        "shares files with it",
    ),
    stays("all files have two names", shares(1000, 200, hard=True), "shares files with it"),
    prunes("two share a file and both go", hard_links(f"step-100/{SHARD}", f"step-200/{SHARD}")),
    prunes("one that goes links into one that goes", shares(200, 100)),
    Case(
        "a checkpoint in two parts goes or stays as one",
        trainer,
        PRUNE,
        facts={"fates": deleted("checkpoint-8")},
        left=("checkpoint-12",),
        gone=("checkpoint-8",),
        old=10,
    ),
]

MARKED = [
    stays("quarantined evidence", quarantined(200), "quarantined by"),
    prunes(
        "quarantined evidence that is asked for",
        quarantined(200),
        options=("--include-quarantined",),
    ),
    Case(
        "the only whole copy is quarantined",
        each(committed(100), quarantined(100)),
        ("prune", "{root}", "--older-than", "0m", "--yes"),
        5,
        says=("no checkpoint here is proven to be good",),
        untouched=True,
        old=10,
    ),
    Case(
        "the newest is quarantined, and more are kept than there are",
        each(committed(100, 200), quarantined(200)),
        ("prune", "{root}", "--keep-last", "3", "--yes"),
        facts={"fates": deleted()},
        untouched=True,
        old=10,
    ),
    Case(
        "the only copy",
        committed(100),
        ("prune", "{root}", "--keep-every", "7", "--yes"),
        facts={"fates": deleted()},
        untouched=True,
        old=10,
    ),
]

WAITING = [
    meanwhile(
        "the pointer moves", promoted(200), {"step-200": "pointer latest_committed names it by now"}
    ),
    meanwhile(
        "a trainer writes its pointer",
        writes("latest", "step-200"),
        {"step-200": "latest names it by now"},
    ),
    meanwhile(
        "somebody leaves a link",
        links("eval/now", "../step-200"),
        {"step-200": "the link eval/now leads to it by now"},
    ),
    meanwhile("it is marked", quarantined(200), {"step-200": "it is quarantined by now"}),
    meanwhile(
        "its keeper is marked",
        quarantined(1000),
        dict.fromkeys(OLDER, "which was to be kept instead, is quarantined by now"),
        code=5,
    ),
    meanwhile(
        "its keeper is cut",
        cuts(f"step-1000/{SHARD}"),
        dict.fromkeys(OLDER, "which was to be kept instead, has changed"),
        code=5,
    ),
    meanwhile(
        "its keeper is gone",
        removes("step-1000"),
        dict.fromkeys(OLDER, "step-1000 is not there any more"),
        code=5,
    ),
    meanwhile(
        "somebody adds a file",
        writes("step-200/eval.json", "{}"),
        {"step-200": "step-200/eval.json was not there when this was planned"},
    ),
    meanwhile(
        "somebody changes a file",
        writes(f"step-200/{SHARD}"),
        {"step-200": f"step-200/{SHARD} was changed since"},
    ),
    meanwhile(
        "a new save is made of links into it",
        each(saved(1100), shares(1100, 200)),
        {"step-200": "is a link into it"},
    ),
    meanwhile(
        "a pointer comes to name what is not here",
        writes("latest", "step-"),
        dict.fromkeys(OLDER, "latest names step-, which is not here"),
        code=5,
    ),
    meanwhile(
        "a trainer goes back to an older one, and the newest is marked",
        each(writes("latest", "step-200"), quarantined(1000)),
        {
            **dict.fromkeys(OLDER, "which was to be kept instead, is quarantined by now"),
            "step-200": "latest names it by now",
        },
        build=promoted(1000),
        code=5,
    ),
]

TRASH = [
    Case(
        "a mistake is undone",
        trash(100, 200),
        ("undelete", "{root}", "step-200"),
        facts={"name": "step-200", "step": 200},
        gone=("ckptctl.trash/00000002",),
        left=("step-1000", "ckptctl.trash/00000001"),
        then=as_committed("step-200"),
    ),
    Case(
        "undelete without a name, and there are two",
        trash(100, 200),
        ("undelete", "{root}"),
        2,
        says=("name one of them",),
        untouched=True,
    ),
    Case(
        "undelete where a new save has the name",
        each(trash(200), saved(200)),
        ("undelete", "{root}", "step-200"),
        5,
        says=("is there already",),
        untouched=True,
    ),
    Case(
        "undelete of what was being emptied",
        each(trash(200), removes(f"ckptctl.trash/00000001/step-200/{SHARD}")),
        ("undelete", "{root}", "step-200"),
        5,
        says=("is missing",),
        untouched=True,
    ),
    Case(
        "undelete of what is not there",
        trash(200),
        ("undelete", "{root}", "step-7"),
        4,
        untouched=True,
    ),
    Case(
        "emptying leaves what nobody moved there",
        each(
            trash(100, 200),
            writes("ckptctl.trash/notes", "mine"),
            writes("ckptctl.trash/00000002/step-200/mine"),
        ),
        ("prune", "{root}", "--empty-trash", "--yes"),
        says=("deleted 1 checkpoint in the trash for good", "was not there when it was moved"),
        left=("ckptctl.trash/notes", "ckptctl.trash/00000002", "step-1000"),
        gone=("ckptctl.trash/00000001",),
    ),
    Case(
        "emptying by age leaves what is young",
        trash(100),
        ("prune", "{root}", "--trash-days", "1", "--yes"),
        facts={"emptied": []},
        untouched=True,
    ),
    Case(
        "emptying leaves what has a torn record",
        each(trash(100, 200), torn_trash_record),
        ("prune", "{root}", "--empty-trash", "--yes"),
        says=("stays in the trash",),
        left=("ckptctl.trash/00000001",),
        gone=("ckptctl.trash/00000002",),
    ),
    Case(
        "emptying leaves what our pointer names",
        each(trash(100, 200), promoted_then_pruned),
        ("prune", "{root}", "--empty-trash", "--yes"),
        says=("stays in the trash: step-200: pointer latest_committed names it",),
        left=("ckptctl.trash/00000002",),
        gone=("ckptctl.trash/00000001",),
    ),
    Case(
        "emptying leaves what a trainer's pointer names",
        each(trash(100, 200), writes("latest", "./step-200\n")),
        ("prune", "{root}", "--empty-trash", "--yes"),
        says=("stays in the trash: step-200: latest names it",),
        left=("ckptctl.trash/00000002",),
        gone=("ckptctl.trash/00000001",),
    ),
    Case(
        "emptying leaves the last copies where what was kept is damaged by now",
        each(trash(100, 200), flips(f"step-1000/{SHARD}")),
        ("prune", "{root}", "--empty-trash", "--yes"),
        5,
        says=("stays in the trash: step-200: no checkpoint beside where it was is proven",),
        untouched=True,
    ),
    Case(
        "emptying leaves the last copies where what was kept is gone",
        each(trash(100, 200), removes("step-1000", "ckptctl.pointers", "latest_committed")),
        ("prune", "{root}", "--empty-trash", "--yes"),
        5,
        says=("no checkpoint beside where it was is proven",),
        untouched=True,
    ),
    Case(
        "emptying stops at a pointer that cannot be resolved",
        each(trash(100), writes("latest", "step-77")),
        ("prune", "{root}", "--empty-trash", "--yes"),
        5,
        says=("latest names step-77, which is not here",),
        untouched=True,
    ),
    Case(
        "what goes now is not emptied at once",
        each(trash(100), committed(300)),
        (*PRUNE, "--min-age", "0m", "--empty-trash"),
        gone=("step-300", "ckptctl.trash/00000001/step-100"),
        made=("ckptctl.trash/00000001/step-300",),
    ),
    Case(
        "without an answer nothing is deleted",
        ALL,
        ("prune", "{root}", "--keep-last", "1"),
        says=("would delete 3 checkpoints",),
        untouched=True,
        old=10,
    ),
]

NOT_PROVEN = "not verified yet; nothing is deleted"
"""Files of ``torch.save`` are read, and not yet verified: none of them counts as kept."""

GONE = ran("prune", "{root}", "--keep-last", "1", "--min-age", "0m", "--yes")
MOVED = "was moved away or deleted in the same moment"

AT_ONCE = [
    Case(
        "it is moved aside in the moment in which it is marked",
        ALL,
        ("quarantine", "{root}/step-200", "--reason", "odd", "--yes"),
        5,
        says=(MOVED,),
        meanwhile=Meanwhile("ckptctl.storage.posix.PosixStore.prove", GONE),
        gone=("step-200",),
        then=ran("undelete", "{root}", "step-200"),
    ),
    Case(
        "it is moved aside in the moment in which it is sealed",
        each(ALL, saved(250)),
        ("commit", "{root}/step-250"),
        5,
        says=(MOVED,),
        meanwhile=Meanwhile("ckptctl.operations.publish.commit.refuse_changes", GONE),
        gone=("step-250",),
        then=ran("undelete", "{root}", "step-250"),
    ),
]

SINGLE = [
    Case(
        "files of Lightning's",
        files(*EPOCHS),
        PRUNE,
        facts={"fates": deleted(*EPOCHS[:2])},
        left=EPOCHS[2:],
        gone=EPOCHS[:2],
        old=10,
    ),
    Case(
        "files of Lightning's beside checkpoints that are proven",
        each(ALL, files(*EPOCHS), links("last.ckpt", EPOCHS[2])),
        PRUNE,
        facts={"fates": deleted(*OLDER, *EPOCHS[:2])},
        left=(EPOCHS[2], "last.ckpt", "step-1000"),
        gone=(*OLDER, *EPOCHS[:2]),
        old=10,
    ),
]

CASES: list[Case] = [
    *STRAY,
    *PROVEN,
    *AGE,
    *POINTED,
    *SHARED,
    *MARKED,
    *(replace(case, name=f"while it waits: {case.name}") for case in WAITING),
    *TRASH,
    *AT_ONCE,
    *SINGLE,
]
