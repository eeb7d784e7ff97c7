"""Accepting: what a person may accept in spite of a check, what stays of it, and what it must not hide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases.companions import both
from cases.frame import (
    SHARD,
    Build,
    Case,
    committed,
    cuts,
    each,
    flips,
    links,
    quarantined,
    ran,
    removes,
    saved,
    writes,
)
from cases.frame import promoted as names
from cases.sealing import AMENDMENT, OLMO, PLACE, alters, grows, rewrites
from ckptctl.formats.dcp import metadata
from ckptctl.model.acceptance import Acceptance, AcceptedFinding
from ckptctl.model.amendment import Amendment
from ckptctl.model.manifest import MANIFEST, Manifest, decode

OTHER = "__0_0.distcp"
WHY = ("--reason", "our packer pads files")
BYTES = "unreferenced-bytes"
COMMIT = ("commit", f"{{root}}/{PLACE}")
ACCEPTED = (*COMMIT, "--accept", BYTES, *WHY)
PROMOTE = ("promote", f"{{root}}/{PLACE}", "--require", "none")
VERIFY = ("verify", f"{{root}}/{PLACE}")
RESHARD = ("reshard", f"{{root}}/{PLACE}", "--world-size", "3", "--out", "{root}/out")
CONVERT = ("convert", f"{{root}}/{PLACE}", "--to", "safetensors", "--out", "{root}/out")
RESOLVE = ("resolve", "{root}")
AMEND = (*COMMIT, "--amend", "--accept", "unexpected-file", "--reason", "a note of ours")
SAVED, PADDED = saved(12), each(saved(12), grows(f"{PLACE}/{SHARD}"))
SEALED = each(PADDED, ran(*ACCEPTED))
WHOLE = committed(12)
BESIDE = each(WHOLE, writes(f"{PLACE}/__7_0.distcp", b"x"))
RENAMED = each(WHOLE, lambda root: (root / PLACE).rename(root / "step-13"))


def accepts(check: str, **where: Any) -> Build:
    """Have a manifest accept something, its digest right: by hand, as nobody can by a command."""
    row = AcceptedFinding("error", "", **where)
    one = Acceptance(check, "", "trust me", (row,), "2026-01-02T03:04:05+00:00", "eve@h")
    return rewrites(lambda _: {"accepted": (one,)})


def amends(check: str, **where: Any) -> Build:
    """Leave an amendment that nobody wrote by a command and that accepts something."""

    def build(root: Path) -> None:
        manifest = decode_manifest(root)
        row = AcceptedFinding("error", "", **where)
        record = Amendment(
            revision=1,
            manifest=manifest.digest,
            step=12,
            world_size=2,
            accepted=(Acceptance(check, "", "trust me", (row,)),),
        )
        path = root / AMENDMENT
        path.parent.mkdir()
        path.write_bytes(record.encode())

    return build


def decode_manifest(root: Path, name: str = PLACE) -> Manifest:
    """Read a manifest as it lies there."""
    return decode(Manifest, (root / name / MANIFEST).read_bytes())


def only(*checks: str) -> Callable[[Any], bool]:
    """Is asked of ``accepted``: are exactly these accepted, in this order?"""
    return lambda rows: [row["check"] for row in rows] == [*checks]


def found(check: str, severity: str, *, accepted: bool) -> Callable[[Any], bool]:
    """Is asked of findings: is there one of this check, so bad, and accepted or not?"""
    return lambda rows: any(
        (row["check"], row["severity"], row["accepted"] is not None) == (check, severity, accepted)
        for row in rows
    )


def origin_says(name: str, how: str, check: str) -> Build:
    """Look into the manifest of what was made: does it say what was accepted of its source?"""

    def look(root: Path) -> None:
        manifest = decode_manifest(root, name)
        (row,) = manifest.provenance[how]["accepted"]
        assert (row["check"], row["reason"], row["findings"]) == (check, "our packer pads files", 1)
        assert manifest.accepted == () and manifest.lost == {}

    return look


def writes_text(fqn: str) -> Build:
    """Write text where an object was saved, as a planner of one's own may do."""

    def build(root: Path) -> None:
        place = root / PLACE
        parsed = metadata.parse((place / ".metadata").read_bytes(), ".metadata")
        item = next(one for one in parsed.items if one.fqn == fqn)
        data = bytearray((place / item.path).read_bytes())
        data[item.offset : item.end] = (b"epoch 3 " * item.length)[: item.length]
        (place / item.path).write_bytes(data)

    return build


ALONE = "no_dist/step-12"
TEXT = each(saved(12, source=ALONE), writes_text("train_state.epoch"))
FINDINGS = "result.checkpoints.0.report.findings"

CASES: list[Case] = [
    # ------------------------------------------------------------------ what is accepted
    Case(
        "what nobody accepts is refused, and says how to",
        PADDED,
        COMMIT,
        10,
        untouched=True,
        says=("`--accept unreferenced-bytes` with a --reason",),
    ),
    Case(
        "what is accepted is recorded with who, when and why",
        PADDED,
        ACCEPTED,
        made=(f"{PLACE}/{MANIFEST}",),
        says=("accepted unreferenced-bytes (1 finding): our packer pads files (by ",),
        facts={
            "accepted": only(BYTES),
            "accepted.0.findings.0.file": SHARD,
            "accepted.0.reason": "our packer pads files",
            "unmatched": [],
            "checked.crc in part": 1,
        },
    ),
    Case(
        "a dry run records nothing",
        PADDED,
        (*ACCEPTED, "--dry-run"),
        untouched=True,
        says=("would commit", "accepted unreferenced-bytes"),
    ),
    Case(
        "by a pattern of files",
        PADDED,
        (*COMMIT, "--accept", f"{BYTES}:__1_*", *WHY),
        facts={"accepted.0.pattern": "__1_*"},
    ),
    Case(
        "by the name of a file, which may look like a pattern",
        PADDED,
        (*COMMIT, "--accept", f"{BYTES}:{SHARD}", *WHY),
        facts={"accepted": only(BYTES)},
    ),
    Case(
        "a pattern that fits another file accepts nothing",
        PADDED,
        (*COMMIT, "--accept", f"{BYTES}:__0_*", *WHY),
        10,
        untouched=True,
    ),
    Case(
        "one of two is not enough",
        each(PADDED, grows(f"{PLACE}/{OTHER}")),
        (*COMMIT, "--accept", f"{BYTES}:{SHARD}", *WHY),
        10,
        untouched=True,
        says=(OTHER,),
    ),
    Case(
        "two patterns are",
        each(PADDED, grows(f"{PLACE}/{OTHER}")),
        (*COMMIT, "--accept", f"{BYTES}:{SHARD}", "--accept", f"{BYTES}:{OTHER}", *WHY),
        facts={"accepted": only(BYTES, BYTES)},
    ),
    Case(
        "what was not there is said, and is no failure",
        SAVED,
        ACCEPTED,
        says=("warning: --accept unreferenced-bytes fits nothing",),
        facts={"accepted": [], "unmatched": [BYTES]},
    ),
    # ------------------------------------------------------------------ what it costs to ask wrongly
    Case(
        "a check that is not there",
        PADDED,
        (*COMMIT, "--accept", "unreferenced-byte", *WHY),
        2,
        untouched=True,
        says=("did you mean unreferenced-bytes?",),
    ),
    Case(
        "no reason",
        PADDED,
        (*COMMIT, "--accept", BYTES),
        2,
        untouched=True,
        says=("--accept needs a --reason",),
    ),
    Case(
        "an empty reason",
        PADDED,
        (*COMMIT, "--accept", BYTES, "--reason", " \t"),
        2,
        untouched=True,
        says=("--accept needs a --reason",),
    ),
    Case(
        "a reason that steers a terminal",
        PADDED,
        (*COMMIT, "--accept", BYTES, "--reason", "fine\x1b[2J"),
        2,
        untouched=True,
        silent=("\x1b",),
    ),
    Case(
        "a reason of two lines",
        PADDED,
        (*COMMIT, "--accept", BYTES, "--reason", "a\nb"),
        2,
        untouched=True,
    ),
    Case(
        "a reason without end",
        PADDED,
        (*COMMIT, "--accept", BYTES, "--reason", "x" * 1001),
        2,
        untouched=True,
    ),
    Case("an empty pattern", PADDED, (*COMMIT, "--accept", f"{BYTES}:", *WHY), 2, untouched=True),
    Case("a reason for nothing", SAVED, (*COMMIT, *WHY), 2, untouched=True),
    # ------------------------------------------------------------------ what proves damage
    *(
        Case(
            f"{check} cannot be accepted",
            each(SAVED, harm),
            (*COMMIT, "--accept", check, *WHY),
            5,
            untouched=True,
            says=("cannot be accepted, as ", "ckptctl quarantine {root}/" + PLACE),
        )
        for check, harm in (
            ("checksum", flips(f"{PLACE}/{SHARD}", 800)),
            ("truncated-file", cuts(f"{PLACE}/{SHARD}")),
            ("missing-file", removes(f"{PLACE}/{SHARD}")),
            ("unsafe-metadata", each()),
            ("mixed-step", each()),
            ("torn-step", each()),
            ("foreign-shard", each()),
        )
    ),
    Case(
        "nor can a note, which needs none",
        SAVED,
        (*COMMIT, "--accept", "odd-time", *WHY),
        5,
        untouched=True,
        says=("it is a note",),
    ),
    Case(
        "damage beside what is accepted is refused",
        each(PADDED, flips(f"{PLACE}/{OTHER}", 800)),
        ACCEPTED,
        10,
        untouched=True,
        silent=("with a --reason",),
    ),
    # ------------------------------------------------------------------ afterwards
    Case(
        "it stays in the report and is no failure",
        SEALED,
        VERIFY,
        says=(
            "note unreferenced-bytes",
            "accepted, else it is an error: our packer pads files (by",
            "OK:",
            "accepted in spite of unreferenced-bytes",
        ),
        facts={
            "verdict": "ok",
            FINDINGS.removeprefix("result."): found(BYTES, "note", accepted=True),
        },
    ),
    Case("also for those who fail on warnings", SEALED, (*VERIFY, "--fail-on", "warning")),
    Case("also quickly", SEALED, (*VERIFY, "--quick")),
    Case(
        "it is resolved, and said",
        SEALED,
        RESOLVE,
        says=("accepted unreferenced-bytes (1 finding): our packer pads files",),
        facts={"accepted": only(BYTES), "path": lambda path: path.endswith(PLACE)},
    ),
    Case("it is promoted as any other", SEALED, PROMOTE, facts={"accepted": [], "moved": True}),
    Case(
        "it is listed with that",
        SEALED,
        ("list", "{root}"),
        says=("accepted in spite of unreferenced-bytes",),
        facts={"checkpoints.0.accepted": [BYTES]},
    ),
    Case(
        "it is shown with that",
        SEALED,
        ("show", f"{{root}}/{PLACE}"),
        says=("accepted    unreferenced-bytes (1 finding): our packer pads files",),
    ),
    Case(
        "it is in the history",
        SEALED,
        ("history", "{root}"),
        facts={
            "events": lambda rows: (
                sorted(r["what"] for r in rows) == ["accepted unreferenced-bytes", "committed"]
            )
        },
    ),
    Case(
        "the same commit again changes nothing",
        SEALED,
        ACCEPTED,
        untouched=True,
        facts={"changed": False, "accepted": only(BYTES), "unmatched": []},
    ),
    Case(
        "nor does it without being accepted again",
        SEALED,
        COMMIT,
        untouched=True,
        facts={"changed": False},
    ),
    Case(
        "it counts as kept when others are deleted",
        each(committed(11), SEALED),
        ("prune", "{root}", "--keep-last", "1", "--min-age", "0m", "--yes"),
        gone=("step-11",),
        left=(PLACE,),
        old=3,
    ),
    # ------------------------------------------------------------------ what it does not cover
    Case(
        "bytes that come later are no part of it",
        each(SEALED, grows(f"{PLACE}/{SHARD}")),
        VERIFY,
        10,
        says=("error resized-file",),
    ),
    Case(
        "bytes of another file are no part of it",
        each(SEALED, grows(f"{PLACE}/{OTHER}")),
        VERIFY,
        10,
        says=("error unreferenced-bytes: __0_0.distcp", "note unreferenced-bytes"),
    ),
    Case(
        "other bytes at the same place are altered",
        each(SEALED, alters(at=-2)),
        VERIFY,
        10,
        says=("error altered-file",),
    ),
    Case("quarantine outranks it", each(SEALED, quarantined(12)), PROMOTE, 5),
    Case(
        "and is not accepted itself",
        each(SEALED, quarantined(12)),
        (*PROMOTE, "--accept", "quarantined", *WHY),
        5,
        untouched=True,
        says=("a release takes the mark back",),
    ),
    Case(
        "nor can what is quarantined be promoted by accepting something else",
        each(SEALED, quarantined(12)),
        (*PROMOTE, "--accept", BYTES, *WHY),
        5,
        untouched=True,
    ),
    # ------------------------------------------------------------------ after the commit
    Case(
        "a promotion records it as an amendment",
        WHOLE,
        ("promote", f"{{root}}/{PLACE}", "--accept", "missing-component", *WHY),
        made=(AMENDMENT,),
        left=(f"{PLACE}/{MANIFEST}",),
        says=("accepted missing-component", "moved latest_committed"),
        facts={"accepted": only("missing-component"), "amendment": 1, "moved": True},
    ),
    Case(
        "by component",
        WHOLE,
        ("promote", f"{{root}}/{PLACE}", "--accept", "missing-component:rng", *WHY),
        10,
        untouched=True,
        silent=("random generator",),
    ),
    Case(
        "not where it is a dry run",
        WHOLE,
        ("promote", f"{{root}}/{PLACE}", "--accept", "missing-component", *WHY, "--dry-run"),
        untouched=True,
        facts={"accepted": only("missing-component"), "dry_run": True},
    ),
    Case(
        "a refused promotion records nothing",
        each(WHOLE, alters()),
        ("promote", f"{{root}}/{PLACE}", "--accept", "missing-component", *WHY),
        10,
        untouched=True,
    ),
    Case(
        "the history has it once",
        each(WHOLE, ran("promote", f"{{root}}/{PLACE}", "--accept", "missing-component", *WHY)),
        ("history", "{root}"),
        facts={
            "events": lambda rows: (
                sorted(r["what"] for r in rows)
                == ["accepted missing-component", "amended", "committed", "promoted"]
            )
        },
    ),
    Case(
        "what was asked for less is asked for again",
        each(
            WHOLE,
            ran("promote", f"{{root}}/{PLACE}", "--require", "weights"),
            ran("promote", f"{{root}}/{PLACE}", "--accept", "missing-component", *WHY),
        ),
        (*VERIFY, "--require", "resume"),
        facts={"verdict": "ok"},
    ),
    Case(
        "a second amendment keeps the first acceptance",
        each(BESIDE, ran(*AMEND), ran(*COMMIT, "--amend", "--run-id", "r1", "--reason", "late")),
        (*VERIFY, "--fail-on", "warning"),
        facts={FINDINGS.removeprefix("result."): found("unexpected-file", "note", accepted=True)},
    ),
    Case(
        "two acceptances stand side by side",
        each(SEALED, writes(f"{PLACE}/__7_0.distcp", b"x"), ran(*AMEND)),
        ("show", f"{{root}}/{PLACE}"),
        facts={"description.sealed.accepted": only(BYTES, "unexpected-file")},
    ),
    Case(
        "the same amendment again changes nothing",
        each(BESIDE, ran(*AMEND)),
        AMEND,
        untouched=True,
        facts={"changed": False, "amendment": 1, "unmatched": []},
    ),
    Case(
        "the same file of another size is another finding",
        each(BESIDE, ran(*AMEND), grows(f"{PLACE}/__7_0.distcp")),
        (*VERIFY, "--fail-on", "warning"),
        10,
        says=("warning unexpected-file",),
    ),
    Case(
        "another file beside is another finding",
        each(BESIDE, ran(*AMEND), writes(f"{PLACE}/__8_0.distcp", b"x")),
        (*VERIFY, "--fail-on", "warning"),
        10,
        says=("warning unexpected-file: __8_0.distcp", "note unexpected-file: __7_0.distcp"),
    ),
    Case(
        "a name that was accepted is that name",
        each(
            RENAMED,
            ran(
                "commit",
                "{root}/step-13",
                "--amend",
                "--accept",
                "renamed-checkpoint",
                "--reason",
                "moved",
            ),
            lambda root: (root / "step-13").rename(root / "step-14"),
        ),
        ("verify", "{root}/step-14", "--fail-on", "warning"),
        10,
        says=("warning renamed-checkpoint",),
    ),
    Case(
        "a commit that is asked to accept more says how",
        BESIDE,
        (*COMMIT, "--accept", "unexpected-file", *WHY),
        5,
        untouched=True,
        says=("--amend",),
    ),
    Case(
        "an amendment of the acceptance that is gone is no silence",
        each(BESIDE, ran(*AMEND), removes(AMENDMENT)),
        VERIFY,
        10,
        says=("unreadable-manifest",),
    ),
    Case(
        "a link in its place is none",
        each(WHOLE, links(AMENDMENT, "nowhere")),
        VERIFY,
        10,
        says=("unreadable-manifest",),
    ),
    Case(
        "the pointer stays what it was where an acceptance comes later",
        each(
            WHOLE,
            names(12),
            ran("promote", f"{{root}}/{PLACE}", "--accept", "missing-component", *WHY),
        ),
        ("resolve", "{root}", "--full"),
        facts={"accepted": only("missing-component")},
    ),
    # ------------------------------------------------------------------ records that nobody wrote
    Case(
        "a manifest that accepts an altered file does not make it good",
        each(WHOLE, accepts("altered-file", file=SHARD, rank=1), alters()),
        VERIFY,
        10,
        says=("error altered-file", "which counts for nothing: it proves damage"),
    ),
    Case(
        "nor does it in an amendment",
        each(WHOLE, amends("altered-file", file=SHARD, rank=1), alters()),
        VERIFY,
        10,
        says=("error altered-file",),
    ),
    Case(
        "nor is it resolved",
        each(WHOLE, accepts("altered-file", file=SHARD, rank=1), alters()),
        ("resolve", "{root}", "--full"),
        10,
    ),
    Case(
        "nor is a missing file promoted",
        each(WHOLE, accepts("missing-file", file=SHARD, rank=1), removes(f"{PLACE}/{SHARD}")),
        PROMOTE,
        10,
        untouched=True,
    ),
    Case(
        "nor is a quarantine lifted",
        each(
            WHOLE, accepts("quarantined", file="ckptctl.quarantine/00000001.json"), quarantined(12)
        ),
        RESOLVE,
        10,
    ),
    Case("what a check does not know is nothing", each(WHOLE, accepts("no-such-check")), VERIFY),
    Case(
        "text in it is escaped",
        each(
            PADDED,
            ran(*ACCEPTED),
            rewrites(
                lambda one: {
                    "accepted": (
                        Acceptance(
                            "unreferenced-bytes",
                            "\x1b[2J",
                            "\x1b[31mfine",
                            one.accepted[0].findings,
                            "\x07",
                            "eve\u202e",
                        ),
                    )
                }
            ),
        ),
        VERIFY,
        says=("\\x1b[31mfine (by eve\\u202e at \\x07)",),
        silent=("\x1b", "\u202e"),
    ),
    Case(
        "also where it is listed",
        each(
            PADDED,
            ran(*ACCEPTED),
            rewrites(
                lambda one: {
                    "accepted": (Acceptance("\x1b[2J", "", "x", one.accepted[0].findings),)
                }
            ),
        ),
        ("list", "{root}"),
        says=("\\x1b[2J",),
        silent=("\x1b",),
    ),
    # ------------------------------------------------------------------ what is made from it
    Case(
        "a reshard takes a source that is accepted, and says of it what was",
        PADDED,
        (*RESHARD, "--accept", BYTES, *WHY),
        says=("  accepted of the source: unreferenced-bytes (1 finding): our packer pads files",),
        facts={"accepted": only(BYTES), "lost": []},
        then=origin_says("out", "resharded_from", BYTES),
    ),
    Case(
        "and one that nobody accepts is refused",
        PADDED,
        RESHARD,
        10,
        untouched=True,
        says=("--force takes", "`--accept unreferenced-bytes` with a --reason"),
    ),
    Case(
        "nor is damage beside it taken",
        each(PADDED, flips(f"{PLACE}/{OTHER}", 800)),
        (*RESHARD, "--accept", BYTES, *WHY),
        10,
        untouched=True,
    ),
    Case(
        "nor is damage accepted",
        each(SAVED, flips(f"{PLACE}/{OTHER}", 800)),
        (*RESHARD, "--accept", "checksum", *WHY),
        5,
        untouched=True,
    ),
    Case(
        "what the manifest of the source accepts is taken",
        SEALED,
        RESHARD,
        facts={"accepted": only(BYTES)},
        then=origin_says("out", "resharded_from", BYTES),
    ),
    Case(
        "what comes of it has nothing accepted itself",
        each(SEALED, ran(*RESHARD)),
        ("show", "{root}/out"),
        says=("resharded from one of which unreferenced-bytes was accepted",),
        facts={"description.sealed.accepted": []},
    ),
    Case(
        "a dry run of it writes nothing",
        PADDED,
        (*RESHARD, "--accept", BYTES, *WHY, "--dry-run"),
        untouched=True,
        facts={"accepted": only(BYTES)},
    ),
    Case("a reshard needs no reason for nothing", SAVED, (*RESHARD, *WHY), 2, untouched=True),
    Case(
        "a conversion takes it too",
        PADDED,
        (*CONVERT, "--accept", BYTES, *WHY),
        made=("out/ckptctl.converted.json",),
        says=("  accepted of the source: unreferenced-bytes",),
        facts={"accepted": only(BYTES)},
    ),
    Case(
        "and refuses it else",
        PADDED,
        CONVERT,
        10,
        untouched=True,
        says=("`--accept unreferenced-bytes` with a --reason",),
    ),
    Case(
        "a commit of what was converted says so",
        each(
            both("olmo"),
            grows(f"{OLMO}/model_and_optim/__1_0.distcp"),
            ran(
                "convert",
                f"{{root}}/{OLMO}",
                "--to",
                "dcp",
                "--out",
                "{root}/out",
                "--accept",
                f"{BYTES}:*__1_0.distcp",
                *WHY,
            ),
        ),
        ("commit", "{root}/out", "--step", "12"),
        facts={"accepted": [], "lost": []},
        then=origin_says("out", "converted_from", BYTES),
    ),
    # ------------------------------------------------------------------ an encoding of one's own
    Case(
        "text beside saved objects is said and no failure",
        TEXT,
        ("verify", "{root}/step-12"),
        says=("warning unknown-encoding", "it was not examined", "UNVERIFIED"),
        facts={"verdict": "unverified"},
    ),
    Case("a commit seals it", TEXT, COMMIT, made=(f"{PLACE}/{MANIFEST}",)),
    Case(
        "by key",
        TEXT,
        (*COMMIT, "--accept", "unknown-encoding:train_state.*", *WHY),
        facts={"accepted": only("unknown-encoding"), "accepted.0.findings.0.severity": "warning"},
    ),
    Case(
        "once accepted, it is none for those who fail on warnings",
        each(TEXT, ran(*COMMIT, "--accept", "unknown-encoding", *WHY)),
        (*VERIFY, "--fail-on", "warning", "--quick"),
        facts={"verdict": "ok"},
    ),
    Case(
        "a later save in another form does not take back what was sealed",
        each(
            TEXT,
            ran(*COMMIT, "--accept", "unknown-encoding", *WHY),
            saved(16, source=ALONE),
        ),
        (*VERIFY, "--quick"),
        facts={"verdict": "ok"},
    ),
    Case(
        "where other checkpoints have it saved it is damage before it is sealed",
        each(TEXT, saved(16, source=ALONE)),
        COMMIT,
        10,
        untouched=True,
        says=("text was written over what was saved", "with a --reason"),
    ),
    Case(
        "and a person may know better",
        each(TEXT, saved(16, source=ALONE)),
        (*COMMIT, "--accept", "unknown-encoding", *WHY),
        facts={"accepted.0.findings.0.severity": "error"},
    ),
]
