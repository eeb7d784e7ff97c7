"""Sealing: what `commit` promises, what it leaves to others, and what it must not put a proof on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases.companions import LAYOUTS, both, name_of
from cases.frame import (
    SHARD,
    Build,
    Case,
    Meanwhile,
    committed,
    cuts,
    each,
    flips,
    links,
    named,
    promoted,
    quarantined,
    ran,
    removes,
    saved,
    writes,
)
from ckptctl.errors import Terminated
from ckptctl.model.manifest import MANIFEST, Manifest, Unpromised, decode

PLACE = "step-12"
OLMO = name_of("olmo", 12)
COMMIT = ("commit", f"{{root}}/{PLACE}")
AMEND = (*COMMIT, "--amend")
AMENDMENT = f"{PLACE}/ckptctl.amendments/00000001.json"
PROMOTE = ("promote", f"{{root}}/{PLACE}", "--require", "none")
VERIFY = ("verify", f"{{root}}/{PLACE}")
RESOLVE = ("resolve", "{root}")
STATED = "fsdp2/step-12"
"""Every file of it says which step it is of."""
SAVED, SEALED = saved(12), committed(12)
READ = "ckptctl.operations.publish.commit.run_stages"
"""Called for the structure first and for the content then."""

CLUTTER = (
    ".nfs000000000a4c9d0000005011",
    f".{SHARD}.Xa3fQz",
    f"._{SHARD}",
    "._.metadata",
    ".DS_Store",
    "Thumbs.db",
    ".config.json.swp",
    "config.json~",
    "train.log",
    "events.out.tfevents.1700000000.host.1.0",
    "__0_0.distcp.part",
    "core.4711",
    "notes.txt",
    "samples/image_0.png",
)


def inside(*names: str, text: str | bytes = b"not of the checkpoint") -> Build:
    """Leave files in the checkpoint."""
    return each(*(writes(f"{PLACE}/{name}", text) for name in names))


def loses(*names: str) -> Build:
    """Take files out of the checkpoint."""
    return removes(*(f"{PLACE}/{name}" for name in names))


def alters(path: str = f"{PLACE}/{SHARD}", at: int = 2000) -> Build:
    """Turn over a bit in place and set the time back, as ``rsync --inplace -t`` does."""

    def build(root: Path) -> None:
        times = (root / path).stat()
        flips(path, at)(root)
        os.utime(root / path, ns=(times.st_atime_ns, times.st_mtime_ns))

    return build


def grows(path: str) -> Build:
    """Add to a file."""

    def build(root: Path) -> None:
        with (root / path).open("ab") as stream:
            stream.write(b"more\n")

    return build


def denies(name: str) -> Callable[[Manifest], Mapping[str, Any]]:
    """Have a manifest call a file no part of the checkpoint."""
    return lambda one: {
        "files": tuple(file for file in one.files if file.path != name),
        "unpromised": (Unpromised(name, 1),),
    }


def rewrites(change: Callable[[Manifest], Mapping[str, Any]], place: str = PLACE) -> Build:
    """Change the manifest and make its digest fit again, as a bug or an attacker would."""

    def build(root: Path) -> None:
        path = root / place / MANIFEST
        manifest = decode(Manifest, path.read_bytes())
        path.write_bytes(replace(manifest, **change(manifest)).encode())

    return build


def leaves_out(name: str) -> Build:
    """Make a manifest that does not promise a file."""
    return rewrites(lambda one: {"files": tuple(f for f in one.files if f.path != name)})


def moves_away(name: str) -> Build:
    """Put a directory of a checkpoint elsewhere and leave a link to it."""

    def build(root: Path) -> None:
        (root / OLMO / name).rename(root / "away")
        (root / OLMO / name).symlink_to("../away")

    return build


def thousands(root: Path) -> None:
    """Leave more files in a checkpoint than anybody wants to read of."""
    (root / PLACE / "plots").mkdir()
    for number in range(1200):
        (root / PLACE / "plots" / f"{number}.png").touch()
    (root / PLACE / "notes.txt").touch()


def stops(how: type[BaseException]) -> Build:
    """Have somebody stop the command."""

    def build(root: Path) -> None:
        raise how

    return build


LOST = rewrites(lambda _: {"provenance": {"resharded_from": {"lost": ["model.w"]}}})
OUTSIDE = each(writes("data/train.bin", b"a data set"), links(f"{PLACE}/data", "../data"))
ELSEWHERE = each(
    lambda root: (root / PLACE / SHARD).rename(root / "shard-of-an-older-one"),
    links(f"{PLACE}/{SHARD}", "../shard-of-an-older-one"),
)
ODD_FILES = each(
    lambda root: os.mkfifo(root / PLACE / "pipe"),
    links(f"{PLACE}/self", "."),
    links(f"{PLACE}/again", "."),
    links(f"{PLACE}/up", "../.."),
    links(f"{PLACE}/gone", "nowhere"),
    links(f"{PLACE}/round", "round"),
)


def during(name: str, act: Build, code: int = 0, **more: Any) -> Case:
    """A row in which something happens once all bytes were read and before the seal is made."""
    what = {"gone": (f"{PLACE}/{MANIFEST}",)} if code else {"made": (f"{PLACE}/{MANIFEST}",)}
    return Case(name, SAVED, COMMIT, code, meanwhile=Meanwhile(READ, act, 2), **{**what, **more})


CASES: list[Case] = [
    # ------------------------------------------------------------------ what is promised
    Case(
        "what others left there is listed and not promised",
        each(SAVED, inside(*CLUTTER), inside("wandb/run/files/config.yaml", "wandb/a.log")),
        COMMIT,
        says=("not promised: train.log, 21 B: a log", "AppleDouble", "rsync", "NFS keeps"),
        facts={"unpromised": named(*CLUTTER, "wandb/", key="path"), "links": {}},
    ),
    Case(
        "and may go",
        each(SAVED, inside(*CLUTTER), ran(*COMMIT), loses(*CLUTTER)),
        RESOLVE,
        says=(PLACE,),
        facts={"name": PLACE, "skipped": []},
    ),
    Case(
        "and may change",
        each(SAVED, inside(*CLUTTER), ran(*COMMIT), inside(*CLUTTER, text="changed")),
        (*VERIFY, "--fail-on", "warning"),
        says=("OK",),
    ),
    Case(
        "a log that begins after the commit is a note at most",
        each(SEALED, inside("train.log", ".nfs000000000a4c9d0000005011")),
        (*VERIFY, "--fail-on", "warning"),
        says=("a log", "OK"),
    ),
    Case(
        "a shard that comes after the commit is a warning",
        each(SEALED, inside("__7_0.distcp")),
        (*VERIFY, "--fail-on", "warning"),
        10,
        says=("unexpected-file",),
    ),
    Case(
        "what holds state is promised, whoever wrote it",
        each(SAVED, inside("rng_rank_0.pt"), ran(*COMMIT), loses("rng_rank_0.pt")),
        VERIFY,
        10,
        says=("missing-promised-file: rng_rank_0.pt",),
    ),
    Case(
        "so is a shard that the metadata does not name",
        each(SAVED, inside("__7_0.distcp")),
        COMMIT,
        facts={"unpromised": [], "files": 8},
    ),
    Case(
        "what was checked against nothing is named",
        SAVED,
        COMMIT,
        says=("1 against nothing (.metadata)",),
        facts={"unchecked": [".metadata"], "checked.crc": lambda n: n >= 2},
    ),
    Case(
        "so is a state file that no checksum covers",
        each(SAVED, inside("rng_rank_0.pt")),
        COMMIT,
        facts={"unchecked": [".metadata", "rng_rank_0.pt"]},
    ),
    # ------------------------------------------------------------------ links and odd files
    Case(
        "a link to a directory outside promises nothing of it",
        each(SAVED, OUTSIDE),
        COMMIT,
        says=("not promised: data/",),
        facts={"unpromised": named("data/", key="path")},
    ),
    Case(
        "and what it leads to may change",
        each(SAVED, OUTSIDE, ran(*COMMIT), writes("data/train.bin", b"more"), writes("data/a")),
        RESOLVE,
        facts={"name": PLACE, "skipped": []},
    ),
    Case(
        "a shard that is a link to a file elsewhere is promised by its content",
        each(SAVED, ELSEWHERE),
        COMMIT,
        says=(f"{SHARD} is a link",),
        facts={"links": {SHARD: "../shard-of-an-older-one"}, "unpromised": []},
    ),
    Case(
        "which may be copied in",
        each(
            SAVED,
            ELSEWHERE,
            ran(*COMMIT),
            loses(SHARD),
            lambda root: (root / "shard-of-an-older-one").rename(root / PLACE / SHARD),
        ),
        VERIFY,
        says=("OK",),
    ),
    Case(
        "and may not change",
        each(SAVED, ELSEWHERE, ran(*COMMIT), flips("shard-of-an-older-one")),
        RESOLVE,
        10,
    ),
    Case(
        "loops, pipes and links that lead nowhere are no part of it",
        each(SAVED, ODD_FILES),
        COMMIT,
        facts={"unpromised": named("again/", "gone", "pipe", "round", "self/", "up/", key="path")},
    ),
    Case("nor do they keep it from being found", each(SAVED, ODD_FILES, ran(*COMMIT)), RESOLVE),
    Case(
        "a companion that is a link to nowhere is no companion",
        each(SAVED, links(f"{PLACE}/common.pt", "nowhere")),
        COMMIT,
        10,
        says=("common.pt is no regular file",),
        gone=(f"{PLACE}/{MANIFEST}",),
    ),
    *(
        Case(
            f"all that {layout} keeps is promised",
            both(layout),
            ("commit", f"{{root}}/{name_of(layout, 12)}"),
            facts={"unpromised": [], "links": {}, "files": lambda n: n > 5},
        )
        for layout in LAYOUTS
    ),
    Case(
        "a part on another disk is promised by its content",
        each(both("olmo"), moves_away("train")),
        ("commit", f"{{root}}/{OLMO}"),
        says=("train/ is a link, ../away: its content is promised",),
        facts={"links": {"train/": "../away"}, "unpromised": []},
    ),
    Case(
        "and what it holds may not go",
        each(both("olmo"), moves_away("train"), ran("commit", f"{{root}}/{OLMO}"),
             removes("away/rank1.pt")),
        ("verify", f"{{root}}/{OLMO}"),
        10,
        says=("train/rank1.pt",),
    ),
    Case(
        "a companion without CRCs is covered by the manifest's digest",
        each(both("trainer"), ran("commit", f"{{root}}/{name_of('trainer', 12)}")),
        ("verify", f"{{root}}/{name_of('trainer', 12)}"),
        says=("whole, content checked by digest",),
    ),
    # ------------------------------------------------------------------ manifests that vouch for less
    *(
        Case(f"{name} left out of the manifest is found by {command[0]}",
             each(SEALED, leaves_out(name)), command, 10, says=("incomplete-manifest",))
        for name in (SHARD, ".metadata")
        for command in (VERIFY, PROMOTE,
                        (*RESOLVE, "--full"))
    ),
    Case(
        "a companion that the manifest calls no part of it",
        each(both("olmo"), ran("commit", f"{{root}}/{OLMO}"),
             rewrites(denies("train/rank1.pt"), OLMO)),
        ("verify", f"{{root}}/{OLMO}"),
        10,
        says=("incomplete-manifest: train/rank1.pt",),
    ),
    *(
        Case(f"keys lost to damage stop {command[0]}", each(SEALED, LOST), command, 10,
             says=("lost-keys", "model.w"))
        for command in (VERIFY, PROMOTE, RESOLVE)
    ),
    # ------------------------------------------------------------------ the step
    Case(
        "where the name gives no step, it is the one that all files state",
        saved("final", source=STATED),
        ("commit", "{root}/final"),
        says=("step 12",),
        facts={"step": 12},
    ),
    Case(
        "a given step that the files contradict",
        saved("final", source=STATED),
        ("commit", "{root}/final", "--step", "13"),
        5,
        says=("its step is 13 by --step", "says 12"),
        gone=(f"final/{MANIFEST}",),
    ),
    Case(
        "a given step that they state",
        saved("final", source=STATED),
        ("commit", "{root}/final", "--step", "12"),
        facts={"step": 12},
    ),
    Case(
        "a given step where they state none",
        saved("final"),
        ("commit", "{root}/final", "--step", "13"),
        facts={"step": 13},
    ),
    Case("a step that the name contradicts", SAVED, (*COMMIT, "--step", "13"), 5, untouched=True),
    # ------------------------------------------------------------------ the same once more
    Case(
        "the same commit again is done already",
        SEALED,
        COMMIT,
        untouched=True,
        says=("is committed already, with the same bytes",),
        facts={"changed": False, "checked.digest": lambda n: n >= 3},
    ),
    Case(
        "by whoever, whatever others left meanwhile",
        each(SAVED, inside(*CLUTTER), ran(*COMMIT), loses(*CLUTTER[2:4]), inside("new.log", "new")),
        (*COMMIT, "--run-id", "r1"),
        5,
        says=("its run is not known, not r1",),
    ),
    Case(
        "which is no other commit",
        each(SAVED, inside(*CLUTTER), ran(*COMMIT), loses(*CLUTTER[2:4]), inside("new.log", "new")),
        COMMIT,
        untouched=True,
        facts={"changed": False},
    ),
    Case("other bytes are refused", each(SEALED, flips(f"{PLACE}/{SHARD}")), COMMIT, 5,
         untouched=True, says=("committed already by", "not what was sealed then")),
    Case("a missing file too", each(SEALED, loses(SHARD)), COMMIT, 5, untouched=True),
    Case("a shard more too", each(SEALED, inside("__7_0.distcp")), COMMIT, 5, untouched=True,
         says=("__7_0.distcp was added since",)),
    Case("another step too", SEALED, (*COMMIT, "--step", "13"), 5, untouched=True,
         says=("its step is 12, not 13",)),
    Case("the same facts are no other facts", each(SAVED, ran(*COMMIT, "--run-id", "r1")),
         (*COMMIT, "--run-id", "r1", "--step", "12"), untouched=True, facts={"changed": False}),
    Case("a quarantine is no matter of bytes", each(SEALED, quarantined(12)), COMMIT,
         untouched=True, facts={"changed": False}),
    # ------------------------------------------------------------------ amendments
    Case(
        "an amendment says more and promises the same",
        each(SEALED, promoted(12)),
        (*AMEND, "--run-id", "r1", "--world-size", "2", "--reason", "forgotten"),
        left=(f"{PLACE}/{MANIFEST}", f"{PLACE}/{SHARD}", "ckptctl.pointers"),
        made=(AMENDMENT,),
        facts={"run_id": "r1", "world_size": 2, "amendment": 1, "changed": True},
    ),
    Case(
        "the pointer means the same afterwards",
        each(SEALED, promoted(12), ran(*AMEND, "--run-id", "r1")),
        (*RESOLVE, "--run-id", "r1"),
        facts={"name": PLACE, "how": lambda how: "named by pointer" in how},
    ),
    Case(
        "a rollback that passed it over means it too",
        each(committed(8, 12), ran("promote", "{root}/step-12", "--require", "none"),
             ran("promote", "{root}/step-8", "--require", "none", "--rollback", "--yes"),
             ran(*AMEND, "--run-id", "r1")),
        RESOLVE,
        facts={"name": "step-8"},
    ),
    Case(
        "nor does the pointer move back before what was amended since",
        each(saved("final"), ran("commit", "{root}/final"), SEALED,
             ran("promote", "{root}/final", "--require", "none"),
             ran("commit", "{root}/final", "--amend", "--step", "13")),
        PROMOTE,
        5,
        says=("names step 13 (final)", "--rollback"),
    ),
    Case(
        "the history has it",
        each(SEALED, ran(*AMEND, "--run-id", "r1", "--reason", "forgotten")),
        ("history", "{root}"),
        says=("amended (revision 1)", "forgotten"),
        facts={"events.-1.what": "amended", "events.-1.reason": "forgotten"},
    ),
    Case(
        "and so does a look at the checkpoint",
        each(SEALED, ran(*AMEND, "--run-id", "r1", "--reason", "forgotten")),
        ("show", f"{{root}}/{PLACE}"),
        says=("as step 12 of run r1", "1 time, last by", "forgotten"),
        facts={"description.sealed.run_id": "r1", "description.sealed.amended": 1},
    ),
    Case(
        "thousands of files of others are listed by folder, and may go",
        each(SAVED, thousands, ran(*COMMIT),
             removes(f"{PLACE}/plots"), writes(f"{PLACE}/another.txt")),
        (*VERIFY, "--fail-on", "warning"),
        says=("OK",),
    ),
    Case(
        "the newest of several counts",
        each(SEALED, ran(*AMEND, "--run-id", "r1"), ran(*AMEND, "--run-id", "r2")),
        (*RESOLVE, "--run-id", "r1"),
        10,
        says=("of run r2, not r1",),
    ),
    Case(
        "a step for what had none",
        each(saved("final"), ran("commit", "{root}/final")),
        ("commit", "{root}/final", "--amend", "--step", "13"),
        facts={"step": 13},
        made=("final/ckptctl.amendments/00000001.json",),
    ),
    Case(
        "a step that the files contradict",
        each(saved("final", source=STATED), ran("commit", "{root}/final")),
        ("commit", "{root}/final", "--amend", "--step", "13"),
        5,
        says=("says 12",),
        untouched=True,
    ),
    Case("a step that the name contradicts is none", SEALED, (*AMEND, "--step", "13"), 5,
         untouched=True),
    Case("ranks that wrote files are counted", SEALED, (*AMEND, "--world-size", "1"), 5,
         says=("rank 1 wrote files",), untouched=True),
    Case("the same amendment again changes nothing", each(SEALED, ran(*AMEND, "--run-id", "r1")),
         (*AMEND, "--run-id", "r1"), untouched=True, facts={"changed": False, "amendment": 1}),
    Case("nor does the same commit", each(SEALED, ran(*AMEND, "--run-id", "r1")),
         (*COMMIT, "--run-id", "r1"), untouched=True, facts={"changed": False}),
    Case("what is not committed has nothing to amend", SAVED, (*AMEND, "--run-id", "r1"), 5,
         untouched=True),
    Case("what is damaged is not amended", each(SEALED, cuts(f"{PLACE}/{SHARD}")),
         (*AMEND, "--run-id", "r1"), 10, untouched=True),
    Case("nothing said is nothing amended", SEALED, AMEND, 2, untouched=True),
    *(
        Case(f"a newest amendment that {how} is never the one before: {command[0]}",
             each(SEALED, ran(*AMEND, "--run-id", "r1"), ran(*AMEND, "--run-id", "r2"), harm),
             command, code, says=("00000002",))
        for how, harm in (
            ("is damaged", cuts(f"{PLACE}/ckptctl.amendments/00000002.json")),
            ("is gone", removes(f"{PLACE}/ckptctl.amendments/00000002.json")),
        )
        for command, code in ((VERIFY, 10), (RESOLVE, 10), (COMMIT, 5), (PROMOTE, 10))
    ),
    Case(
        "and is written again from its copy",
        each(SEALED, ran(*AMEND, "--run-id", "r1"), cuts(AMENDMENT)),
        AMEND,
        facts={"run_id": "r1", "amendment": 2},
    ),
    Case(
        "older ones may be cleaned away",
        each(SEALED, ran(*AMEND, "--run-id", "r1"), ran(*AMEND, "--run-id", "r2"),
             removes(AMENDMENT)),
        (*RESOLVE, "--run-id", "r2"),
    ),
    Case(
        "amendments of another manifest amend nothing",
        each(SEALED, ran(*AMEND, "--run-id", "r1"), rewrites(lambda _: {"commit_id": "another"})),
        VERIFY,
        10,
        says=("it amends another manifest",),
    ),
    Case(
        "nor does a new commit begin with them",
        each(SEALED, ran(*AMEND, "--run-id", "r1"), removes(f"{PLACE}/{MANIFEST}")),
        COMMIT,
        5,
        says=("amendments of a manifest that is gone",),
        untouched=True,
    ),
    # ------------------------------------------------------------------ while it is read
    during("a shard changed in place, its time set back", alters(), 5, says=(SHARD, "changed")),
    during("the metadata too", alters(f"{PLACE}/.metadata", 40), 5, says=(".metadata",)),
    during("a shard that grew", grows(f"{PLACE}/{SHARD}"), 5, says=(SHARD,)),
    during("a shard that came", inside("__7_0.distcp"), 5, says=("__7_0.distcp",)),
    during("a shard that went", loses(SHARD), 5, says=(SHARD,)),
    during("a log that began", inside("train.log")),
    during("another name for a shard", lambda root: os.link(root / PLACE / SHARD, root / "other")),
    during("Ctrl-C", stops(KeyboardInterrupt), 130, says=("was not sealed; the same command",)),
    during("SIGTERM", stops(Terminated), 143, says=("was not sealed; the same command",)),
    during("another mode of a shard", lambda root: (root / PLACE / SHARD).chmod(0o600)),
    Case(
        "a log that was there grows meanwhile",
        each(SAVED, inside("train.log")),
        COMMIT,
        meanwhile=Meanwhile(READ, grows(f"{PLACE}/train.log"), 2),
        made=(f"{PLACE}/{MANIFEST}",),
    ),
]  # fmt: skip
