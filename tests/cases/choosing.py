"""Choosing: what ``resolve``, ``list`` and ``promote`` hand out, and when nothing is there."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cases.frame import (
    Build,
    Case,
    Meanwhile,
    committed,
    cuts,
    each,
    every,
    flips,
    links,
    promoted,
    quarantined,
    ran,
    reason,
    removes,
    saved,
    writes,
)
from ckptctl.model.manifest import Manifest, decode

FULL = "fsdp2/step-12"
"""A checkpoint of four ranks that holds all that a resume needs."""
RESOLVE = ("resolve", "{root}")
ANY = ("resolve", "{root}", "--allow-uncommitted")
SERIES = "ckptctl.pointers/latest_committed"
MARKS = "step-200/ckptctl.quarantine"
VERIFIED = "ckptctl.operations.catalog.judging.verify"
PROVEN = "ckptctl.operations.publish.promote.verify"

TWO = committed(100, 200)
BACK = each(TWO, promoted(200), promoted(100, "--rollback"))
"""Revision 1 names step-200, revision 2 goes back to step-100."""
FREE = each(saved("step-8", source="fsdp2/step-8"), saved("step-12", source=FULL))
"""Two saves of one run that nobody committed."""
MARKED = each(
    TWO,
    quarantined(200),
    ran("release", "{root}/step-200", "--reason", "a plot", "--yes"),
    quarantined(200),
)
"""Quarantined, released, quarantined again."""


def renames(old: str, new: str) -> Build:
    """Give something another name."""
    return lambda root: (root / old).rename(root / new)


def forgets(older: int, *, marks: bool = False) -> Build:
    """Clean a record away as a lifecycle rule does, with its copy."""
    folder = MARKS if marks else SERIES
    return removes(f"{folder}/{older:08d}.json", f"{folder}/{older:08d}.copy")


def written(seconds: float, *names: str) -> Build:
    """Make what checkpoints hold so much younger than it is."""

    def build(root: Path) -> None:
        for name in names:
            for path in (root / name).iterdir():
                if path.is_file():
                    when = path.stat().st_mtime + seconds
                    os.utime(path, (when, when))

    return build


def loses(step: int, *keys: str) -> Build:
    """Make a manifest say that keys were lost when the checkpoint was made."""

    def build(root: Path) -> None:
        path = root / f"step-{step}" / "ckptctl.manifest.json"
        manifest = decode(Manifest, path.read_bytes())
        made = {"resharded_from": {"lost": list(keys)}}
        path.write_bytes(dataclasses.replace(manifest, provenance=made, digest="").encode())

    return build


def seals_again(step: int) -> Build:
    """Commit a checkpoint once more, in place of what it was committed as."""
    return each(
        removes(f"step-{step}/ckptctl.manifest.json"),
        ran("commit", f"{{root}}/step-{step}", "--run-id", "another"),
    )


def shrinks(root: Path) -> None:
    """Put a newer checkpoint there that lacks the optimizer of the promoted one."""
    committed(200)(root)


def lost(**wanted: Any) -> Callable[[Any], bool]:
    """Is asked of ``lost``: does it say this?"""
    return lambda found: {key: (found or {}).get(key) for key in wanted} == wanted


def choices(*names: str) -> Callable[[Any], bool]:
    """Is asked of ``choices``: are these the two?"""
    return lambda rows: [row["name"] for row in rows or ()] == list(names)


def undecided(name: str, build: Build, *names: str, says: str = "") -> Case:
    """A row in which it is not known what was decided last: 4, and both choices are named."""
    return Case(
        name,
        build,
        RESOLVE,
        4,
        says=("--pointer-fallback", "ckptctl promote", *((says,) if says else ())),
        facts={"error.type": "Undecided", "result.choices": choices(*names)},
        untouched=True,
    )


def takes(
    name: str,
    build: Build,
    answer: str,
    why: Mapping[str, str] | None = None,
    *,
    options: tuple[str, ...] = (),
    says: tuple[str, ...] = (),
    facts: Mapping[str, Any] | None = None,
    **more: Any,
) -> Case:
    """A row in which ``resolve`` hands one out; ``why`` says why others were passed over."""
    asked = [reason(name, words) for name, words in (why or {}).items()]
    return Case(
        name,
        build,
        (*RESOLVE, *options),
        says=(f"{{root}}/{answer}\n", *says),
        facts={"name": answer, "skipped": every(*asked), **(facts or {})},
        **more,
    )


def new(name: str, build: Build, code: int, says: str, command: str = "resolve") -> Case:
    """A row about a root in which there is no checkpoint."""
    return Case(name, build, (command, "{root}"), code, says=(says,), untouched=True)


def nothing_at_all(_: Path) -> None:
    """Leave the root empty."""


def fills(path: str) -> Build:
    """Copy a shard to a path."""
    return writes(path, b"\x80\x02\x00\x01state")


SERIES_OF_RECORDS = [
    undecided(
        "a flipped bit in the newest revision",
        each(BACK, flips(f"{SERIES}/00000002.json", 30)),
        "step-200",
        "step-100",
        says="00000002.json",
    ),
    undecided(
        "the newest revision is cut",
        each(BACK, cuts(f"{SERIES}/00000002.json")),
        "step-200",
        "step-100",
    ),
    undecided(
        "the newest revision is gone",
        each(BACK, removes(f"{SERIES}/00000002.json")),
        "step-200",
        "step-100",
        says="00000002.json is not there",
    ),
    undecided(
        "the newest revision and its copy are gone",
        each(BACK, forgets(2)),
        "step-200",
        "step-100",
        says="no revision names",
    ),
    undecided(
        "the newest revision has another name",
        each(
            BACK,
            renames(f"{SERIES}/00000002.json", f"{SERIES}/00000002.json.bak"),
            removes(f"{SERIES}/00000002.copy"),
        ),
        "step-200",
        "step-100",
        says="00000002.json.bak",
    ),
    undecided(
        "the newest revision has a short name",
        each(
            BACK,
            renames(f"{SERIES}/00000002.json", f"{SERIES}/2.json"),
            removes(f"{SERIES}/00000002.copy"),
        ),
        "step-200",
        "step-100",
        says="2.json",
    ),
    undecided(
        "a copy tool has the newest revision half",
        each(
            BACK,
            renames(f"{SERIES}/00000002.json", f"{SERIES}/.00000002.json.Xy12Zz"),
            removes(f"{SERIES}/00000002.copy"),
        ),
        "step-200",
        "step-100",
    ),
    undecided(
        "the newest revision is a directory",
        each(BACK, removes(f"{SERIES}/00000002.json"), writes(f"{SERIES}/00000002.json/x")),
        "step-200",
        "step-100",
    ),
    undecided(
        "the newest revision is a link that leads nowhere",
        each(BACK, removes(f"{SERIES}/00000002.json"), links(f"{SERIES}/00000002.json", "gone")),
        "step-200",
        "step-100",
    ),
    undecided(
        "the record of another revision in the newest one's place",
        each(
            BACK,
            lambda root: shutil.copy(
                root / SERIES / "00000001.json", root / SERIES / "00000002.json"
            ),
        ),
        "step-200",
        "step-100",
        says="another revision",
    ),
    undecided(
        "all revisions are gone and the text names another",
        each(BACK, removes("ckptctl.pointers")),
        "step-200",
        "step-100",
        says="no revision names",
    ),
    undecided(
        "the folder of pointers is a link that leads nowhere",
        each(BACK, removes("ckptctl.pointers"), links("ckptctl.pointers", "/mnt/gone")),
        "step-200",
        "step-100",
        says="leads nowhere",
    ),
    takes(
        "the older decision by request",
        each(BACK, flips(f"{SERIES}/00000002.json", 30)),
        "step-200",
        options=("--pointer-fallback",),
        says=("note: pointer latest_committed", "takes the older decision"),
    ),
    takes(
        "the oldest revision was cleaned away",
        each(BACK, forgets(1)),
        "step-100",
        {"step-200": "passed over by the rollback"},
    ),
    takes(
        "all but the newest of many revisions were cleaned away",
        each(
            TWO,
            *(
                promoted(n, *(["--rollback"] if n == 100 else []))
                for n in (100, 200, 100, 200, 100)
            ),
            *(forgets(n) for n in (1, 2, 4)),
        ),
        "step-100",
        {"step-200": "rollback at revision 5"},
    ),
    takes(
        "an older revision is damaged and the newest is not",
        each(BACK, flips(f"{SERIES}/00000001.json", 30)),
        "step-100",
    ),
    takes(
        "copies are damaged or gone",
        each(BACK, removes(f"{SERIES}/00000002.copy"), cuts(f"{SERIES}/00000001.copy")),
        "step-100",
    ),
    takes(
        "other files among the revisions",
        each(
            BACK,
            writes(f"{SERIES}/README"),
            writes(f"{SERIES}/.nfs0001"),
            writes(f"{SERIES}/.nfs0000000003c000120000004e"),
            writes(f"{SERIES}/.fuse_hidden0000000300000001"),
            writes(f"{SERIES}/.ckptctl-12345678abcdef.tmp"),
            writes(f"{SERIES}/00000001.json.bak"),
            writes(f"{SERIES}/old/00000009.json"),
        ),
        "step-100",
    ),
    takes(
        "a rollback that is whole",
        BACK,
        "step-100",
        {"step-200": "passed over by the rollback"},
        facts={"lost": lost(steps=100, newest="step-200")},
    ),
    takes(
        "a pointer that was moved twice",
        each(TWO, promoted(100), promoted(200)),
        "step-200",
        facts={"skipped": [], "lost": lost(steps=0, count=0)},
    ),
    takes(
        "the plain text names an older one",
        each(TWO, promoted(100), promoted(200), writes("latest_committed", "step-100\n")),
        "step-200",
    ),
    takes(
        "a promotion settles it",
        each(BACK, flips(f"{SERIES}/00000002.json", 30), promoted(100, "--rollback")),
        "step-100",
        {"step-200": "passed over by the rollback at revision 3"},
    ),
    Case(
        "the next revision is above the highest name",
        each(BACK, renames(f"{SERIES}/00000002.json", f"{SERIES}/00000007.json.old")),
        ("promote", "{root}/step-200", "--require", "none"),
        facts={"revision": 8},
        made=(f"{SERIES}/00000008.json",),
    ),
    Case(
        "a list where the newest revision is damaged",
        each(BACK, flips(f"{SERIES}/00000002.json", 30)),
        ("list", "{root}"),
        says=("revision 1 names step-200",),
        silent=("promoted",),
        facts={"undecided": lambda text: "00000002.json" in text},
    ),
    Case(
        "ROOT@latest where the newest revision is damaged",
        each(BACK, flips(f"{SERIES}/00000002.json", 30)),
        ("verify", "{root}@latest"),
        4,
        says=("revision 1 names step-200",),
    ),
    Case(
        "prune where the newest revision is gone",
        each(BACK, removes(f"{SERIES}/00000002.json")),
        ("prune", "{root}", "--keep-last", "1", "--yes"),
        5,
        says=("00000002.json is not there",),
        untouched=True,
        old=10,
    ),
    Case(
        "what was moved to the trash is in the history",
        each(
            committed(100, 200),
            ran("prune", "{root}", "--keep-last", "1", "--min-age", "0m", "--yes"),
        ),
        ("history", "{root}"),
        says=("moved to the trash",),
        facts={"events.-1.what": "moved to the trash", "events.-1.name": "step-100"},
    ),
    takes(
        "the first mark was cleaned away",
        each(MARKED, forgets(1, marks=True)),
        "step-100",
        {"step-200": "quarantined by"},
    ),
    takes(
        "the newest mark is gone",
        each(MARKED, removes(f"{MARKS}/00000003.json")),
        "step-100",
        {"step-200": "may be quarantined"},
    ),
    takes(
        "the newest mark is damaged",
        each(MARKED, flips(f"{MARKS}/00000003.json", 30)),
        "step-100",
        {"step-200": "may be quarantined"},
    ),
    takes(
        "the newest mark has another name",
        each(MARKED, renames(f"{MARKS}/00000003.json", f"{MARKS}/00000003.json~")),
        "step-100",
        {"step-200": "may be quarantined"},
    ),
    takes(
        "the folder of marks is a file",
        each(TWO, writes(MARKS)),
        "step-100",
        {"step-200": "may be quarantined"},
    ),
    takes(
        "the folder of marks is a link that leads nowhere",
        each(TWO, links(MARKS, "gone")),
        "step-100",
        {"step-200": "may be quarantined"},
    ),
    takes(
        "a mark that was taken back, the older records cleaned away",
        each(
            MARKED,
            ran("release", "{root}/step-200", "--reason", "fine", "--yes"),
            *(forgets(n, marks=True) for n in (1, 2, 3)),
        ),
        "step-200",
    ),
    Case(
        "a damaged mark is settled by a release",
        each(MARKED, flips(f"{MARKS}/00000003.json", 30)),
        ("release", "{root}/step-200", "--reason", "looked at", "--yes"),
        facts={"revision": 4},
    ),
]

NEWER = [
    takes(
        "a flipped bit in what the pointer names",
        each(TWO, promoted(200), flips("step-200/__0_0.distcp")),
        "step-100",
        {"step-200": "altered-file"},
        options=("--full",),
        facts={"lost": lost(steps=100, count=1, newest="step-200")},
        says=("LOST by resuming from step-100: 100 steps",),
        untouched=True,
    ),
    takes(
        "ten newer saves that nobody committed",
        each(committed(100), promoted(100), saved(*range(110, 210, 10)), written(7200, "step-200")),
        "step-100",
        {"step-200": "not committed", "step-110": "not committed"},
        facts={"lost": lost(steps=100, count=10, newest="step-200", seconds=7200.0)},
        says=(
            "LOST by resuming from step-100: 100 steps and 2 h, up to step-200, the newest of 10",
        ),
    ),
    takes(
        "newer ones in any state",
        each(
            committed(100),
            promoted(100),
            saved(200, 300, 400),
            removes("step-200/__0_0.distcp"),
            renames("step-300", "step-300.tmp"),
            cuts("step-400/.metadata"),
            writes("step-500/foo.bin"),
            lambda root: (root / "step-600").mkdir(),
            committed(700),
            cuts("step-700/ckptctl.manifest.json"),
        ),
        "step-100",
        {
            "step-200": "__0_0.distcp is not there",
            "step-300.tmp": "temporary name",
            "step-400": "unreadable",
            "step-500": "",
            "step-600": "empty",
            "step-700": "its manifest",
        },
        facts={"lost": lost(count=6, newest="step-700", steps=600)},
    ),
    takes(
        "a newer one whose name gives no step",
        each(committed(100), promoted(100), saved("best"), written(7200, "best")),
        "step-100",
        {"best": "not committed"},
        facts={"lost": lost(steps=None, seconds=7200.0, count=1)},
        says=("an unknown number of steps and 2 h",),
    ),
    takes(
        "an older one whose name gives no step",
        each(committed(100), promoted(100), saved("best"), written(-7200, "best")),
        "step-100",
        facts={"skipped": [], "lost": lost(count=0)},
    ),
    takes(
        "not even a quiet answer hides what is newer",
        each(committed(100), promoted(100), saved(200)),
        "step-100",
        options=("--quiet",),
        says=("LOST by resuming from step-100: 100 steps",),
    ),
    takes(
        "less is lost than may be",
        each(committed(100), promoted(100), saved(200)),
        "step-100",
        options=("--max-loss", "100"),
    ),
    Case(
        "more steps are lost than may be",
        each(committed(100), promoted(100), saved(200)),
        (*RESOLVE, "--max-loss", "99"),
        10,
        says=("100 steps, more than the 99 that --max-loss allows",),
        facts={"error.type": "TooMuchLost", "result.lost": lost(steps=100)},
    ),
    Case(
        "more time is lost than may be",
        each(committed(100), promoted(100), saved(200), written(7200, "step-200")),
        (*RESOLVE, "--max-loss", "90m"),
        10,
        says=("2 h, more than the 90 min",),
    ),
    Case(
        "it is not known how much is lost",
        each(committed(100), promoted(100), saved("best"), written(7200, "best")),
        (*RESOLVE, "--max-loss", "1000"),
        10,
        says=("an unknown number of steps",),
    ),
    Case(
        "a limit that makes no sense",
        TWO,
        (*RESOLVE, "--max-loss", "much"),
        2,
        says=("--max-loss takes steps such as 500",),
    ),
    takes(
        "what the pointer names was deleted",
        each(TWO, promoted(200), removes("step-200")),
        "step-100",
        {"step-200": "it is not there"},
        facts={"lost": lost(steps=100, count=1, newest="step-200")},
        says=("dangling",),
    ),
    takes(
        "the manifest of what the pointer names is cut",
        each(TWO, promoted(200), cuts("step-200/ckptctl.manifest.json")),
        "step-100",
        {"step-200": "its manifest"},
    ),
    Case(
        "the manifest of what the pointer names cannot be read",
        each(
            TWO,
            promoted(200),
            removes("step-200/ckptctl.manifest.json"),
            writes("step-200/ckptctl.manifest.json/x"),
        ),
        RESOLVE,
        4,
        facts={"error.type": "Undecided", "result.choices": choices("step-200", "step-100")},
    ),
    Case(
        "a flipped bit in the newest that nobody committed",
        each(FREE, flips("step-12/__1_0.distcp")),
        ANY,
        says=("{root}/step-8\n", "every CRC"),
        facts={"skipped": reason("step-12", "checksum")},
    ),
    Case(
        "the same, and nobody is to look",
        each(FREE, flips("step-12/__1_0.distcp")),
        (*ANY, "--quick"),
        says=("{root}/step-12\n", "its content was not looked at"),
    ),
    takes(
        "what promote refuses was committed later",
        each(committed(100, source=FULL), promoted(100), shrinks),
        "step-100",
        {"step-200": "promote would refuse it"},
    ),
    Case(
        "promote of what lacks what the promoted one has",
        each(committed(100, source=FULL), promoted(100), shrinks),
        ("promote", "{root}/step-200"),
        10,
        untouched=True,
    ),
    takes(
        "a later one of weights alone in a run of weights alone",
        each(TWO, promoted(100)),
        "step-200",
        {},
        says=("was committed since",),
    ),
    takes(
        "keys were lost when it was made",
        each(TWO, promoted(100), loses(200, "model.scale")),
        "step-100",
        {"step-200": "model.scale"},
    ),
    Case(
        "promote of one that has lost keys",
        each(TWO, promoted(100), loses(200, "model.scale")),
        ("promote", "{root}/step-200", "--require", "none"),
        10,
        says=("model.scale",),
        untouched=True,
    ),
    Case(
        "promote again of what was damaged since",
        each(TWO, promoted(200), flips("step-200/__0_0.distcp")),
        ("promote", "{root}/step-200", "--require", "none"),
        10,
        says=("altered-file",),
        untouched=True,
    ),
    Case(
        "promote again of what is still whole",
        each(TWO, promoted(200)),
        ("promote", "{root}/step-200", "--require", "none"),
        says=("already",),
        untouched=True,
    ),
]

NAMES = [
    Case("a copy under the name of a later step", each(FREE, saved("step-16", source=FULL)), ANY, says=("{root}/step-12\n",), facts={"name": "step-12", "skipped": reason("step-16", "suspect: duplicate-save")}),
    Case("a copy that has no step in its name", each(FREE, saved("best", source=FULL)), ANY, facts={"name": "step-12"}),
    Case("nothing but a copy under another name", saved("step-16", source=FULL), ANY, says=("note: step-16 is suspect: misnamed-checkpoint", "it is suspect"), facts={"name": "step-16"}),
    Case("best/ below a stray shard", each(committed("best"), fills("__0_0.distcp")), ("list", "{root}"), facts={"checkpoints.0.name": "best", "checkpoints.1": None}),
    *(Case(f"a pointer whose text is {text!r}", each(saved("step-100"), writes("latest", text)), ("list", "{root}"), says=("latest names",)) for text in ("// x\n{}", "//", "///a/", "//a/../..", ".", "./", "../..")),
    Case("a number that is the step of two", each(committed("step-100", "ckpt-100"), writes("latest", "100\n")), ("list", "{root}"), facts={"checkpoints.0.pointers": ["latest"], "checkpoints.1.pointers": ["latest"]}),
    Case("prune keeps both that a number may mean", each(committed("step-100", "ckpt-100", 200), writes("latest", "100\n")), ("prune", "{root}", "--keep-last", "1", "--yes"), left=("step-100", "ckpt-100", "step-200"), old=10),
    Case("resolve says that a number is ambiguous", each(committed("step-100", "ckpt-100"), writes("latest", "100\n")), RESOLVE, says=("latest is ambiguous: it says 100, the step of",)),
    Case("ROOT@NAME that is ambiguous", each(saved("step-100", "ckpt-100"), writes("LATEST", "100\n")), ("show", "{root}@LATEST"), 2, says=("the step of",)),
    Case("a pointer that is named and ambiguous", each(saved("step-100", "ckpt-100"), writes("latest", "100\n")), ("show", "{root}/latest"), 2, says=("the step of",)),
]  # fmt: skip

PROMOTE = ("promote", "{root}/step-200", "--require", "none")
MEANWHILE = [
    takes(
        "promoted for the first time while resolve asks for the pointer",
        TWO,
        "step-200",
        says=("names step-100, and step-200 was committed since",),
        meanwhile=Meanwhile("ckptctl.protocol.read_pointer", promoted(100)),
        untouched=True,
    ),
    Case(
        "quarantined while promote verifies",
        each(TWO, promoted(100)),
        PROMOTE,
        5,
        says=("quarantined",),
        meanwhile=Meanwhile(PROVEN, quarantined(200)),
        untouched=True,
    ),
    Case(
        "deleted while promote verifies",
        each(TWO, promoted(100)),
        PROMOTE,
        5,
        says=("not there any more",),
        meanwhile=Meanwhile(PROVEN, removes("step-200")),
        untouched=True,
    ),
    Case(
        "sealed again while promote verifies",
        each(TWO, promoted(100)),
        PROMOTE,
        5,
        says=("sealed again",),
        meanwhile=Meanwhile(PROVEN, seals_again(200)),
        untouched=True,
    ),
    Case(
        "the pointer is moved while promote verifies",
        each(committed(100, 150, 200), promoted(100)),
        PROMOTE,
        5,
        says=("moved meanwhile",),
        meanwhile=Meanwhile(PROVEN, promoted(150)),
        untouched=True,
    ),
    takes(
        "quarantined while resolve verifies",
        each(TWO, promoted(200)),
        "step-100",
        {"step-200": "quarantined by"},
        meanwhile=Meanwhile(VERIFIED, quarantined(200)),
        untouched=True,
    ),
    takes(
        "rolled back while resolve verifies",
        each(TWO, promoted(200)),
        "step-100",
        {"step-200": "rollback"},
        meanwhile=Meanwhile(VERIFIED, promoted(100, "--rollback")),
        untouched=True,
    ),
    takes(
        "deleted while resolve verifies",
        each(TWO, promoted(200)),
        "step-100",
        {"step-200": "it is not there"},
        meanwhile=Meanwhile(VERIFIED, removes("step-200")),
        untouched=True,
    ),
]

LAUNCHED = each(
    writes("logs/train.log", "step 1\n"),
    writes("config.yaml", "lr: 1\n"),
    writes("README"),
    writes("run.sh"),
    writes("tb/events.out.tfevents.1.host", b"\x18\x00\x00\x00\xff"),
    writes("wandb/run.wandb", b"\x00\x01"),
    writes("empty.bin", b""),
)

NOTHING = [
    new("a new root", nothing_at_all, 3, "listed: nothing"),
    new("a new root with what launchers put there", LAUNCHED, 3, "listed: README, config.yaml"),
    new("a list of a new root with what launchers put there", LAUNCHED, 3, "listed: README", "list"),
    Case("what was listed is in the result", LAUNCHED, RESOLVE, 3, facts={"error.type": "NothingThere", "result.listed": lambda names: "config.yaml" in names, "result.remains": []}),
    new("a link that leads nowhere", links("step-12", "/mnt/gone/step-12"), 10, "step-12 is a link"),
    new("a list of a link that leads nowhere", links("step-12", "/mnt/gone/step-12"), 10, "step-12 is a link", "list"),
    new("links of logs and editors that lead nowhere any more", each(links("wandb/debug.log", "run-1/logs/debug.log"), links(".#train.py", "me@host.1:2")), 3, "listed: .#train.py, wandb"),
    new("a log on a disk that is not mounted", links("train.log", "/mnt/gone/train.log"), 10, "train.log is a link"),
    new("a pointer that is a link to nowhere", links("latest.txt", "gone.txt"), 10, "latest.txt is a link"),
    new("a checkpoint of an odd ending that is a link to nowhere", links("step-12.json", "gone"), 10, "step-12.json is a link"),
    new("a loop of links", links("a", "a"), 10, "a is a link"),
    new("a link that leads back", links("a", "."), 10, "leads back"),
    new("an empty directory named like a checkpoint", lambda root: (root / "step-12").mkdir(), 10, "none is usable"),
    new("a temporary save", fills("step-12.tmp/__0_0.distcp"), 10, "none is usable"),
    new("a hidden temporary save", fills(".tmp_step-12/data"), 10, ".tmp_step-12"),
    new("a trash that is not empty", each(committed(100, 200), ran("prune", "{root}", "--keep-last", "1", "--min-age", "0m", "--yes"), removes("step-200")), 10, "ckptctl undelete"),
    new("a pointer and nothing else", each(BACK, removes("step-100", "step-200", "latest_committed")), 10, "ckptctl.pointers"),
    new("a framework's pointer and nothing else", writes("latest", "global_step12"), 10, "latest is a pointer"),
    new("a record and nothing else", writes("ckptctl.begun.json", "{}"), 10, "ckptctl.begun.json"),
    new("a file of an unknown name that holds bytes", fills("foo.bin"), 10, "foo.bin"),
    new("a file without an ending that holds bytes", fills("latest_state/part0"), 10, "part0"),
    new("a checkpoint far below", fills("a/b/c/d/e/f/__0_0.distcp"), 10, "__0_0.distcp"),
    Case("an empty path", nothing_at_all, ("resolve", ""), 2, says=("variable",)),
    Case("a blank path", nothing_at_all, ("resolve", " "), 2, says=("blank",)),
    Case("a URL with one slash", nothing_at_all, ("resolve", "s3:/bucket/run", "--allow-missing-root"), 2, says=("s3://bucket/run",)),
    Case("a URL without a bucket", nothing_at_all, ("resolve", "s3:///run", "--allow-missing-root"), 2, says=("names no bucket",)),
    Case("a file where a root should be", writes("train.log", "x\n"), ("resolve", "{root}/train.log"), 4, says=("is a file",)),
    Case("a root below a file", writes("train.log", "x\n"), ("resolve", "{root}/train.log/run", "--allow-missing-root"), 4),
    Case("a root that is a link to what is not mounted", links("run", "/mnt/gone/run"), ("resolve", "{root}/run", "--allow-missing-root"), 4),
    Case("a root that is not there", nothing_at_all, ("resolve", "{root}/new"), 4, says=("--allow-missing-root",)),
    Case("a root that is not there, and a first start", nothing_at_all, ("resolve", "{root}/new", "--allow-missing-root"), 3),
]  # fmt: skip

ROLLED_BACK = [
    Case(
        "a rollback where there was no pointer",
        each(committed(100, 200), promoted(100, "--rollback")),
        RESOLVE,
        facts={"name": "step-100"},
    ),
    Case(
        "a rollback to what the pointer names already",
        each(committed(100), promoted(100), committed(200), promoted(100, "--rollback")),
        RESOLVE,
        facts={"name": "step-100"},
    ),
    Case(
        "it is moved into the trash in the moment in which it is promoted",
        committed(100, 200),
        ("promote", "{root}/step-100", "--require", "none"),
        facts={"moved": True},
        meanwhile=Meanwhile(
            "ckptctl.operations.publish.promote._ask_again",
            ran("prune", "{root}", "--keep-last", "1", "--min-age", "0m", "--yes"),
        ),
        made=("step-100/ckptctl.manifest.json", "step-200"),
        gone=("ckptctl.trash/00000001",),
    ),
]

CASES: list[Case] = [*ROLLED_BACK, *SERIES_OF_RECORDS, *NEWER, *NAMES, *MEANWHILE, *NOTHING]
