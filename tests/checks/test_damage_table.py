"""One kind of damage per row: which checks speak, where they point, and what the verdict is."""

from __future__ import annotations

import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ckptctl.model.finding import Gap, GapKind, Severity
from ckptctl.operations.verify.verify import Verdict, Verification
from conftest import FIXTURES, ROOT
from support.damage import (
    Damage,
    accusations,
    accused,
    append,
    change_chunk,
    change_tensor,
    drop_chunk,
    drop_keys,
    drop_storage,
    edited,
    exchange_storage,
    fill,
    fill_field,
    fill_half,
    flip_byte,
    flip_field,
    flip_number,
    flip_text,
    forget_origin,
    garble,
    load_with_torch,
    move_storage,
    redirect,
    remove,
    rename,
    rename_key,
    repeat_chunk,
    repeat_storage,
    replace_by_dangling_link,
    replace_by_directory,
    rewrite,
    run,
    save_with_torch,
    swap,
    truncate,
    without_empty_chunks,
    write_metadata,
)
from support.effort import PATIENCE

pytest.importorskip("torch")

BASE = "fsdp2/step-12"
EMBED = "model.embed.weight"
RNG = "rng.rank_1.torch"
ROWS_3_TO_5 = {"fqn": EMBED, "origin": (3, 0)}  # bytes 26094-27735 of __1_0.distcp
CASES = sorted(
    str(path.relative_to(FIXTURES))
    for path in FIXTURES.glob("*/step-*")
    if any(path.glob("*metadata")) or any(path.glob(".metadata"))
)


@dataclass(frozen=True)
class Row:
    """A fault and what must be said of it.

    ``checks`` is exactly the set of check ids above a note; the first is the one whose finding is
    at ``file``, ``rank`` and ``fqn``, and whose message or loss holds each of ``says``.
    """

    name: str
    damage: Damage
    checks: tuple[str, ...]
    file: str | None = None
    rank: int | None = None
    fqn: str | None = None
    says: tuple[str, ...] = ()
    base: str = BASE
    verdict: Verdict = Verdict.FINDINGS


def _twice(*damages: Damage) -> Damage:
    def damage(checkpoint: Path) -> None:
        for one in damages:
            one(checkpoint)

    return damage


class Touch:
    """Pickles as a command that leaves a file behind where it is run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._path}",)


def _hostile(checkpoint: Path) -> None:
    with edited(checkpoint) as metadata:
        metadata.planner_data["run me"] = Touch(checkpoint / "it-ran")


SHARD_FILES = [
    Row(
        "cut in the middle of an item",
        partial(truncate, file="__1_0.distcp", size=27000),
        ("truncated-file",),
        "__1_0.distcp",
        1,
        says=("27000 of 52035 bytes", "13 of 27 items", "rows 3-5 of model.embed.weight"),
    ),
    Row(
        "cut by one byte",
        partial(truncate, file="__1_0.distcp", size=-1),
        ("truncated-file",),
        "__1_0.distcp",
        1,
        says=("52034 of 52035 bytes", "1 of 27 items", RNG),
    ),
    Row(
        "cut between two items",
        partial(truncate, file="__1_0.distcp", size=27735),
        ("truncated-file",),
        "__1_0.distcp",
        1,
        says=("27735 of 52035 bytes", "12 of 27 items", "rows 2-3 of model.up.weight"),
    ),
    Row(
        "emptied",
        partial(truncate, file="__2_0.distcp", size=0),
        ("empty-file",),
        "__2_0.distcp",
        2,
        says=("53484 bytes with 28 items", "rows 6-8 of model.embed.weight", "betas"),
    ),
    Row(
        "removed",
        partial(remove, file="__3_0.distcp"),
        ("missing-file",),
        "__3_0.distcp",
        3,
        says=("51519 bytes with 27 items", "row 9 of model.embed.weight"),
    ),
    Row(
        "all zeros",
        partial(fill, file="__1_0.distcp"),
        ("item-structure",),
        "__1_0.distcp",
        1,
    ),
    Row(
        "the second half zeros",
        partial(fill_half, file="__1_0.distcp"),
        ("item-structure",),
        "__1_0.distcp",
        1,
        "model.batches_seen",
    ),
    Row(
        "other bytes altogether",
        partial(garble, file="__0_0.distcp"),
        ("item-structure",),
        "__0_0.distcp",
        0,
    ),
    Row(
        "bytes added behind the last item",
        partial(append, file="__1_0.distcp", data=bytes(100)),
        ("unreferenced-bytes",),
        "__1_0.distcp",
        1,
        says=("52035-52135", "100 bytes"),
    ),
    Row(
        "a directory in its place",
        partial(replace_by_directory, file="__1_0.distcp"),
        ("not-a-file",),
        "__1_0.distcp",
        1,
        says=("rows 3-5 of model.embed.weight",),
    ),
    Row(
        "a dangling link in its place",
        partial(replace_by_dangling_link, file="__1_0.distcp"),
        ("not-a-file",),
        "__1_0.distcp",
        1,
    ),
    Row(
        "two ranks' files exchanged",
        partial(swap, file="__1_0.distcp", other="__2_0.distcp"),
        ("truncated-file", "unreferenced-bytes", "item-structure"),
        "__2_0.distcp",
        2,
    ),
]

INSIDE_ITEMS = [
    Row(
        "a page of zeros in a payload",
        partial(fill_field, fqn=RNG, count=4096),
        ("checksum",),
        "__1_0.distcp",
        1,
        RNG,
        says=("record data/0",),
    ),
    Row(
        "a bit of a payload",
        partial(flip_field, **ROWS_3_TO_5, at=17, bit=6),
        ("checksum",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("record data/0", "rows 3-5 of model.embed.weight"),
    ),
    Row(
        "a bit of a pickled object",
        partial(flip_field, fqn="train_state.step", record="data.pkl", at=3),
        ("checksum",),
        "__3_0.distcp",
        3,
        "train_state.step",
        says=("record data.pkl",),
    ),
    Row(
        "a bit of a tensor's data.pkl",
        partial(flip_field, **ROWS_3_TO_5, record="data.pkl", at=120),
        ("checksum",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("record data.pkl",),
    ),
    Row(
        "a bit of the byte order",
        partial(flip_field, **ROWS_3_TO_5, record="byteorder"),
        ("checksum", "item-structure"),
        "__1_0.distcp",
        1,
        EMBED,
        says=("record byteorder",),
    ),
    Row(
        "a bit of the version",
        partial(flip_field, **ROWS_3_TO_5, record="version"),
        ("checksum",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("record version",),
    ),
    Row(
        "a bit of the serialization id",
        partial(flip_field, **ROWS_3_TO_5, record=".data/serialization_id", at=30),
        ("checksum",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("record .data/serialization_id",),
    ),
    Row(
        "a bit of a local header's signature",
        partial(flip_field, **ROWS_3_TO_5, part="local header", field="signature"),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("local header", "rows 3-5 of model.embed.weight"),
    ),
    Row(
        "a bit of a local header's name",
        partial(flip_field, **ROWS_3_TO_5, part="local header", field="name", at=5),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("name",),
    ),
    Row(
        "a bit of a padding's length",
        partial(flip_field, **ROWS_3_TO_5, part="local header", field="extra length"),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
    ),
    Row(
        "a bit of the directory's signature",
        partial(flip_field, **ROWS_3_TO_5, part="directory", field="signature"),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("directory",),
    ),
    Row(
        "a bit of a size in the directory",
        partial(flip_field, **ROWS_3_TO_5, part="directory", field="size"),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
    ),
    Row(
        "a bit of an offset in the directory",
        partial(flip_field, **ROWS_3_TO_5, part="directory", field="header offset", bit=6),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
    ),
    Row(
        "the mark of a folder on a payload",  # torch then reads nothing and returns stale memory
        partial(flip_field, **ROWS_3_TO_5, part="directory", field="attributes", bit=4),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("rows 3-5 of model.embed.weight",),
    ),
    Row(
        "the number of another disk on a payload",
        partial(flip_field, **ROWS_3_TO_5, part="directory", field="disk", bit=1),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
    ),
    Row(
        "a bit of the end record's signature",
        partial(flip_field, **ROWS_3_TO_5, record="", part="end record", field="signature"),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("end record",),
    ),
    Row(
        "a bit of the end record's directory start",
        partial(
            flip_field, **ROWS_3_TO_5, record="", part="end record", field="end directory start"
        ),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("end record",),
    ),
    Row(
        "a bit of a descriptor's signature",
        partial(flip_field, **ROWS_3_TO_5, part="descriptor", field="signature"),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("descriptor",),
    ),
    Row(
        "a bit of a descriptor's size",
        partial(flip_field, **ROWS_3_TO_5, part="descriptor", field="size", bit=3),
        ("item-structure",),
        "__1_0.distcp",
        1,
        EMBED,
        says=("descriptor",),
    ),
    Row(
        "a bit of the CRC in the descriptor",
        partial(flip_field, **ROWS_3_TO_5, part="descriptor", field="crc"),
        ("stored-checksum",),
        "__1_0.distcp",
        1,
        EMBED,
        verdict=Verdict.UNVERIFIED,
    ),
    Row(
        "a bit of the CRC in the directory",
        partial(flip_field, **ROWS_3_TO_5, part="directory", field="crc", at=3, bit=7),
        ("stored-checksum",),
        "__1_0.distcp",
        1,
        EMBED,
        verdict=Verdict.UNVERIFIED,
    ),
    Row(
        "both copies of a CRC",
        _twice(
            partial(flip_field, **ROWS_3_TO_5, part="directory", field="crc", bit=1),
            partial(flip_field, **ROWS_3_TO_5, part="descriptor", field="crc", bit=2),
        ),
        ("checksum",),
        "__1_0.distcp",
        1,
        EMBED,
    ),
]

METADATA_FILE = [
    Row(
        "removed",
        partial(remove, file=".metadata"),
        ("missing-metadata",),
        ".metadata",
        says=("4 shard files", "everything"),
    ),
    Row(
        "emptied",
        partial(truncate, file=".metadata", size=0),
        ("unreadable-metadata",),
        ".metadata",
        says=("empty",),
    ),
    Row(
        "cut in half",
        partial(truncate, file=".metadata", size=9000),
        ("unreadable-metadata",),
        ".metadata",
        says=("cut short",),
    ),
    Row(
        "cut by one byte",
        partial(truncate, file=".metadata", size=-1),
        ("unreadable-metadata",),
        ".metadata",
    ),
    Row("all zeros", partial(fill, file=".metadata"), ("unreadable-metadata",), ".metadata"),
    Row(
        "the second half zeros",
        partial(fill_half, file=".metadata"),
        ("unreadable-metadata",),
        ".metadata",
    ),
    Row(
        "only the temporary file",
        partial(rename, file=".metadata", to=".metadata.tmp"),
        ("uncommitted-metadata",),
        ".metadata.tmp",
    ),
    Row(
        "only the temporary file, cut",
        _twice(
            partial(rename, file=".metadata", to=".metadata.tmp"),
            partial(truncate, file=".metadata.tmp", size=9000),
        ),
        ("unreadable-metadata",),
        ".metadata.tmp",
    ),
    Row(
        "a directory in its place",
        partial(replace_by_directory, file=".metadata"),
        ("not-a-file",),
        ".metadata",
    ),
    Row(
        "a dangling link in its place",
        partial(replace_by_dangling_link, file=".metadata"),
        ("not-a-file",),
        ".metadata",
    ),
    Row(
        "another pickle",
        partial(rewrite, file=".metadata", data=pickle.dumps({"step": 12})),
        ("unreadable-metadata",),
        ".metadata",
        says=("dict",),
    ),
    Row(
        "bytes added at its end",
        partial(append, file=".metadata", data=b"more"),
        ("trailing-metadata",),
        ".metadata",
        says=("4 bytes",),
    ),
    Row(
        "a command inside",
        _hostile,
        ("unsafe-metadata",),
        ".metadata",
        says=("system", "nothing was run"),
    ),
    Row(
        "a bit of its first byte",
        partial(flip_byte, file=".metadata", at=0),
        ("unreadable-metadata",),
        ".metadata",
    ),
    Row(
        "a bit of its last byte",
        partial(flip_byte, file=".metadata", at=-1),
        ("unreadable-metadata",),
        ".metadata",
    ),
    Row(
        "a bit of a key's name",
        partial(flip_text, text=EMBED, at=8),
        ("path-mismatch", "missing-entry", "unknown-entry"),
        ".metadata",
        None,
        "model.emced.weight",
    ),
    Row(
        "a bit of a file's name",
        partial(flip_text, text="__1_0.distcp", at=6),
        ("missing-file",),
        "__1_0.eistcp",
        1,
        says=("rows 3-5 of model.embed.weight",),
    ),
    Row(
        "a bit of an offset",
        partial(flip_number, value=26094),
        ("item-overlap", "unreferenced-bytes", "item-structure"),
        "__1_0.distcp",
        1,
        says=("26095-27736",),
    ),
]

METADATA_CONTENT = [
    Row(
        "a chunk forgotten",
        partial(drop_chunk, **ROWS_3_TO_5),
        ("hole", "unknown-entry"),
        ".metadata",
        None,
        EMBED,
        says=("rows 3-5 of model.embed.weight", "[10, 8]"),
    ),
    Row(
        "a chunk and its place forgotten",
        _twice(partial(drop_chunk, **ROWS_3_TO_5), partial(drop_storage, **ROWS_3_TO_5)),
        ("hole", "unreferenced-bytes"),
        ".metadata",
        None,
        EMBED,
        says=("rows 3-5 of model.embed.weight",),
    ),
    Row(
        "a chunk moved over another",
        partial(change_chunk, **ROWS_3_TO_5, offsets=(2, 0)),
        ("overlap", "hole", "missing-entry", "unknown-entry"),
        ".metadata",
        None,
        EMBED,
        says=("row 2 are covered twice", "row 2 of model.embed.weight"),
    ),
    Row(
        "a chunk listed twice",
        partial(repeat_chunk, **ROWS_3_TO_5),
        ("overlap",),
        ".metadata",
        None,
        EMBED,
        says=("rows 3-5 are covered twice",),
    ),
    Row(
        "a chunk too small",
        partial(change_chunk, **ROWS_3_TO_5, sizes=(2, 8)),
        ("hole", "item-mismatch"),
        ".metadata",
        None,
        EMBED,
        says=("row 5 of model.embed.weight",),
    ),
    Row(
        "a chunk that reaches over the end",
        partial(change_chunk, fqn=EMBED, origin=(9, 0), sizes=(2, 8)),
        ("out-of-bounds", "item-mismatch"),
        ".metadata",
        None,
        EMBED,
        says=("[9, 0]", "[2, 8]", "[10, 8]"),
    ),
    Row(
        "a place forgotten",
        partial(drop_storage, **ROWS_3_TO_5),
        ("missing-entry", "unreferenced-bytes"),
        ".metadata",
        None,
        EMBED,
        says=("rows 3-5 of model.embed.weight",),
    ),
    Row(
        "an object's place forgotten",
        partial(drop_storage, fqn="train_state.step"),
        ("missing-entry", "unreferenced-bytes"),
        ".metadata",
        None,
        "train_state.step",
    ),
    *(
        Row(
            f"a {what} whose place is recorded without its origin",
            partial(forget_origin, fqn=fqn),
            ("missing-entry", "unknown-entry"),
            ".metadata",
            None,
            fqn,
        )
        for what, fqn in (
            ("number", "optimizer.state.up.bias.step"),
            ("whole tensor", "rng.rank_2.torch"),
        )
    ),
    Row(
        "a place recorded under a second key",
        partial(repeat_storage, **ROWS_3_TO_5, to="model.unheard.of"),
        ("unknown-entry", "item-overlap"),
        "__1_0.distcp",
        1,
        "model.unheard.of",
    ),
    Row(
        "a length too great",
        partial(move_storage, **ROWS_3_TO_5, length=64),
        ("item-overlap", "item-structure"),
        "__1_0.distcp",
        1,
        says=("26094-27799",),
    ),
    Row(
        "a length too small",
        partial(move_storage, **ROWS_3_TO_5, length=-64),
        ("unreferenced-bytes", "item-structure"),
        "__1_0.distcp",
        1,
        says=("27671-27735",),
    ),
    Row(
        "the last length too great",
        partial(move_storage, fqn=RNG, length=64),
        ("truncated-file",),
        "__1_0.distcp",
        1,
        says=("52035 of 52099 bytes",),
    ),
    Row(
        "an offset far away",
        partial(move_storage, **ROWS_3_TO_5, offset=10**6),
        ("item-outside-file", "unreferenced-bytes"),
        "__1_0.distcp",
        1,
        EMBED,
        says=("1026094-1027735", "52035 bytes", "rows 3-5 of model.embed.weight"),
    ),
    Row(
        "an offset a little too great",
        partial(move_storage, **ROWS_3_TO_5, offset=64),
        ("item-structure", "item-overlap", "unreferenced-bytes"),
        "__1_0.distcp",
        1,
        EMBED,
    ),
    Row(
        "an offset below zero",
        partial(move_storage, **ROWS_3_TO_5, offset=-(10**6)),
        ("malformed-entry", "missing-entry", "unreferenced-bytes"),
        ".metadata",
        None,
        EMBED,
    ),
    Row(
        "a path that climbs out",
        partial(redirect, file="__1_0.distcp", to="../x/__1_0.distcp"),
        ("escaping-path",),
        "../x/__1_0.distcp",
        rank=1,
        says=("'../x/__1_0.distcp'", "rows 3-5 of model.embed.weight"),
    ),
    Row(
        "an absolute path",
        partial(redirect, file="__1_0.distcp", to="/somewhere/__1_0.distcp"),
        ("escaping-path",),
        "/somewhere/__1_0.distcp",
        rank=1,
        says=("outside",),
    ),
    Row(
        "one path of many that climbs out",
        partial(move_storage, **ROWS_3_TO_5, path="sub/../../__1_0.distcp"),
        ("escaping-path", "unreferenced-bytes"),
        "sub/../../__1_0.distcp",
        rank=1,
        says=("rows 3-5 of model.embed.weight",),
    ),
    Row(
        "the places of two like chunks exchanged",
        partial(exchange_storage, first=(EMBED, (0, 0)), second=(EMBED, (3, 0))),
        ("exchanged-entries",),
        None,
        None,
        EMBED,
        says=("[0, 0]", "[3, 0]", "exchanged"),
    ),
    Row(
        "the places of two unlike chunks exchanged",
        partial(
            exchange_storage, first=("model.scale", (2,)), second=("model.down.weight", (4, 0))
        ),
        ("item-mismatch", "exchanged-entries"),
        says=("it holds",),
    ),
    Row(
        "a wrong dtype",
        partial(change_tensor, fqn=EMBED, dtype="float8_e4m3fn"),
        ("item-mismatch",),
        "__0_0.distcp",
        0,
        EMBED,
        says=("float32", "float8_e4m3fn", "rows 0-2 of model.embed.weight"),
    ),
    Row(
        "too great a shape",
        partial(change_tensor, fqn=EMBED, shape=(12, 8)),
        ("hole",),
        ".metadata",
        None,
        EMBED,
        says=("rows 10-11 of model.embed.weight",),
    ),
    Row(
        "too small a shape",
        partial(change_tensor, fqn=EMBED, shape=(8, 8)),
        ("out-of-bounds",),
        ".metadata",
        None,
        EMBED,
        says=("[8, 8]",),
    ),
    Row(
        "too small a shape for one chunk",
        partial(change_tensor, fqn=RNG, shape=(5000,)),
        ("out-of-bounds",),
        ".metadata",
        None,
        RNG,
        says=("[5056]", "[5000]"),
    ),
    Row(
        "a shape of other dimensions",
        partial(change_tensor, fqn=EMBED, shape=(80,)),
        ("malformed-entry", "hole", "unknown-entry"),
        ".metadata",
        None,
        EMBED,
    ),
    Row(
        "a key renamed in one of three places",
        partial(rename_key, fqn=EMBED, to="model.embedding.weight"),
        ("path-mismatch", "missing-entry", "unknown-entry"),
        ".metadata",
        None,
        EMBED,
    ),
    Row(
        "a component's keys forgotten",
        partial(drop_keys, prefix="lr_scheduler."),
        ("path-mismatch", "unreferenced-bytes"),
        ".metadata",
        None,
        "lr_scheduler.last_epoch",
    ),
]

OTHER_WRITERS = [
    Row(
        "one rank's metadata removed",
        partial(remove, file="__1.metadata"),
        ("missing-rank", "hole"),
        "__1.metadata",
        1,
        says=("rank 1",),
        base="rank_local/step-12",
    ),
    Row(
        "rank 0's metadata removed",
        partial(remove, file="__0.metadata"),
        ("missing-rank", "hole"),
        "__0.metadata",
        0,
        says=("rank 0",),
        base="rank_local/step-12",
    ),
    Row(
        "one rank's metadata and shard removed",
        _twice(partial(remove, file="__1.metadata"), partial(remove, file="__1_0.distcp")),
        ("hole",),
        None,
        None,
        EMBED,
        says=("rows 5-9 of model.embed.weight",),
        base="rank_local/step-12",
    ),
    Row(
        "one rank's metadata cut",
        partial(truncate, file="__1.metadata", size=4000),
        ("unreadable-metadata", "hole"),
        "__1.metadata",
        base="rank_local/step-12",
    ),
    Row(
        "one rank's shard removed",
        partial(remove, file="__1_0.distcp"),
        ("missing-file",),
        "__1_0.distcp",
        1,
        says=("60743 bytes with 43 items", "rows 5-9 of model.embed.weight"),
        base="rank_local/step-12",
    ),
    Row(
        "a compressed item's first bytes",
        partial(flip_byte, file="__0_0.distcp", at=643),
        ("item-structure",),
        "__0_0.distcp",
        0,
        EMBED,
        base="zstd/step-12",
    ),
    Row(
        "a compressed file cut",
        partial(truncate, file="__0_0.distcp", size=1000),
        ("truncated-file",),
        "__0_0.distcp",
        0,
        says=("1000 of 3586 bytes", "4 of 5 items", "rows 0-4 of model.embed.weight"),
        base="zstd/step-12",
    ),
    Row(
        "a compressed item's payload",
        partial(fill, file="__0_0.distcp", start=643 + 200, stop=643 + 232),
        ("item-structure",),
        "__0_0.distcp",
        0,
        EMBED,
        base="zstd/step-12",
    ),
    Row(
        "without CRC: a header",
        partial(flip_field, fqn=EMBED, part="local header", field="signature"),
        ("item-structure",),
        "__0_0.distcp",
        0,
        EMBED,
        base="no_crc/step-1",
    ),
    Row(
        "without CRC: cut",
        partial(truncate, file="__0_0.distcp", size=5000),
        ("truncated-file",),
        "__0_0.distcp",
        0,
        says=(EMBED,),
        base="no_crc/step-1",
    ),
    Row(
        "one of a rank's three files removed",
        partial(remove, file="__0_1.distcp"),
        ("missing-file",),
        "__0_1.distcp",
        0,
        says=("model.down.weight",),
        base="thread_count_3/step-12",
    ),
    Row(
        "one of a rank's three files emptied",
        partial(truncate, file="__1_0.distcp", size=0),
        ("empty-file",),
        "__1_0.distcp",
        1,
        says=(EMBED,),
        base="thread_count_3/step-12",
    ),
    Row(
        "a file of one item removed",
        partial(remove, file="__1_2.distcp"),
        ("missing-file",),
        "__1_2.distcp",
        1,
        says=("rows 5-9 of model.embed.weight",),
        base="file_per_item/step-12",
    ),
    Row(
        "two files of one item exchanged",
        partial(swap, file="__0_0.distcp", other="__0_3.distcp"),
        ("item-mismatch",),
        "__0_0.distcp",
        0,
        "model.scale",
        says=("it holds [3], the metadata says [4]",),
        base="file_per_item/step-12",
    ),
]

ROWS = {
    f"{group}: {row.name}": row
    for group, rows in {
        "shard": SHARD_FILES,
        "item": INSIDE_ITEMS,
        "metadata file": METADATA_FILE,
        "metadata": METADATA_CONTENT,
        "other writers": OTHER_WRITERS,
    }.items()
    for row in rows
}


def _damaged(copy: Callable[..., Path], row: Row) -> Path:
    if row.base.startswith("zstd"):
        pytest.importorskip("zstandard")
    checkpoint = copy(row.base)
    row.damage(checkpoint)
    return checkpoint


@pytest.mark.parametrize("name", ROWS)
def test_a_fault_is_found_and_named(copy: Callable[..., Path], name: str) -> None:
    row = ROWS[name]
    result = run(_damaged(copy, row))
    assert accused(result) == set(row.checks)
    assert result.verdict == row.verdict
    assert not result.problem
    found = [f for f in accusations(result) if f.check == row.checks[0]]
    if row.fqn is not None:
        found = [f for f in found if f.where.fqn == row.fqn]
    assert found, f"{row.checks[0]} says nothing of {row.fqn}"
    first = found[0]
    if row.file is not None:
        assert (first.where.file, first.where.rank) == (row.file, row.rank)
    for words in row.says:
        assert words in f"{first.message} | {first.loss}"


@pytest.mark.parametrize("name", ROWS)
def test_every_finding_says_where_and_what_to_do(copy: Callable[..., Path], name: str) -> None:
    checkpoint = _damaged(copy, ROWS[name])
    for finding in run(checkpoint).report.findings:
        assert finding.where.file
        assert finding.where.checkpoint == str(checkpoint)
        assert finding.message
        assert finding.remedy
        assert "{" not in finding.remedy


def test_a_command_in_the_metadata_is_not_run(copy: Callable[..., Path]) -> None:
    checkpoint = copy(BASE)
    _hostile(checkpoint)
    run(checkpoint)
    assert not (checkpoint / "it-ran").exists()
    pickle.loads((checkpoint / ".metadata").read_bytes())
    assert (checkpoint / "it-ran").exists(), "the trap of this test does not work"


UNPICKLABLE: dict[str, Damage] = {
    "the root's class": partial(flip_text, text="Metadata", at=7),
    "a tensor's class": partial(flip_text, text="TensorStorageMetadata", at=5),
    "a chunk's class": partial(flip_text, text="ChunkStorageMetadata", at=3),
    "the properties' class": partial(flip_text, text="TensorProperties", at=3),
    "an index's class": partial(flip_text, text="MetadataIndex", at=3),
    "a place's class": partial(flip_text, text="_StorageInfo", at=3),
    "the save's class": partial(flip_text, text="StorageMeta", at=3),
    "a memory format's class": partial(flip_text, text="_MEM_FORMAT_ENCODING", at=3),
    "a layout's function": partial(flip_text, text="_get_layout", at=3),
    "a layout's module": partial(flip_text, text="torch.serialization", at=12),
    "a layout's name": partial(flip_text, text="torch.strided", at=9),
    "a shape's class": partial(flip_text, text="Size", at=1),
    "a path's class": partial(flip_text, text="PosixPath", at=7),
    "a path's module": partial(flip_text, text="pathlib", at=4, bit=4),
    "a tensor's field": partial(flip_text, text="properties", at=4),
    "a chunk's field": partial(flip_text, text="offsets", at=4),
    "a place's field": partial(flip_text, text="relative_path", at=4),
}


@pytest.mark.parametrize("name", UNPICKLABLE)
def test_names_in_the_metadata_that_torch_cannot_resolve_are_found(
    copy: Callable[..., Path], name: str
) -> None:
    checkpoint = copy(BASE)
    UNPICKLABLE[name](checkpoint)
    with pytest.raises(BaseException):  # noqa: B017 - torch's wrapper is no Exception
        load_with_torch(checkpoint)
    result = run(checkpoint)
    assert result.verdict == Verdict.FINDINGS
    assert ".metadata" in {finding.where.file for finding in accusations(result)}


def test_each_damaged_item_is_named_once(copy: Callable[..., Path]) -> None:
    checkpoint = copy(BASE)
    fill(checkpoint, file="__1_0.distcp")
    named = [f.where.fqn for f in accusations(run(checkpoint))]
    assert len(named) == len(set(named)) == 27


# ---------------------------------------------------------------------------------- legal states


def _older_shards(checkpoint: Path) -> None:
    """Leave shards of an earlier save of more ranks beside the new ones."""
    for rank in (4, 5):
        shutil.copy(FIXTURES / "fsdp2/step-8/__2_0.distcp", checkpoint / f"__{rank}_0.distcp")


def _temporary_metadata(checkpoint: Path) -> None:
    shutil.copy(checkpoint / ".metadata", checkpoint / ".metadata.tmp")


def _cut_temporary_metadata(checkpoint: Path) -> None:
    _temporary_metadata(checkpoint)
    truncate(checkpoint, file=".metadata.tmp", size=5000)


def _late_shards(checkpoint: Path) -> None:
    """Give the shards a later time than the metadata, as a copy without times may."""
    written = (checkpoint / ".metadata").stat().st_mtime
    for path in checkpoint.glob("*.distcp"):
        os.utime(path, (written + 3600, written + 3600))


def _fresh_times(checkpoint: Path) -> None:
    """Touch everything, as a copy or a checkout without times does."""
    for path in checkpoint.iterdir():
        path.touch()


def _other_files(checkpoint: Path) -> None:
    (checkpoint / "README.md").write_text("notes\n")
    (checkpoint / "logs").mkdir()
    (checkpoint / "logs" / "rank0.txt").write_text("ready\n")
    (checkpoint / "common.pt").write_bytes(b"something of the framework")


def _linked_shard(checkpoint: Path) -> None:
    """Keep a shard elsewhere, as deduplicating stores do."""
    elsewhere = checkpoint.parent / "blob"
    (checkpoint / "__1_0.distcp").rename(elsewhere)
    (checkpoint / "__1_0.distcp").symlink_to(elsewhere)


def _fewer_ranks(checkpoint: Path) -> None:
    """Save the whole state from one process over the files of four."""
    save_with_torch(checkpoint, load_with_torch(checkpoint))


def _pickled_again(checkpoint: Path) -> None:
    with edited(checkpoint):
        pass


def _without_identity(checkpoint: Path) -> None:
    """Drop what releases before 2.4 do not write."""
    with edited(checkpoint) as metadata:
        metadata.storage_meta = None
        del metadata.version


def _chunks_in_another_order(checkpoint: Path) -> None:
    with edited(checkpoint) as metadata:
        metadata.state_dict_metadata[EMBED].chunks.reverse()


LEGAL: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "shards of an earlier save of more ranks": (_older_shards, ("unreferenced-file",)),
    "temporary metadata beside the real": (_temporary_metadata, ("leftover-file",)),
    "cut temporary metadata beside the real": (_cut_temporary_metadata, ("leftover-file",)),
    "an empty shard that nothing refers to": (
        partial(rewrite, file="__4_0.distcp", data=b""),
        (),
    ),
    "chunks of no elements left out": (without_empty_chunks, ()),
    "shards newer than the metadata": (_late_shards, ("newer-than-metadata",)),
    "fresh times everywhere and nothing else": (_fresh_times, ()),
    "files of others beside it": (_other_files, ()),
    "a shard behind a link": (_linked_shard, ()),
    "saved again by one rank over four": (_fewer_ranks, ("unreferenced-file",)),
    "metadata pickled again": (_pickled_again, ()),
    "metadata without identity": (_without_identity, ()),
    "chunks in another order": (_chunks_in_another_order, ()),
    "a bit of the padding": (
        partial(flip_field, **ROWS_3_TO_5, part="local header", field="padding", at=9),
        (),
    ),
    "a bit of a time in a header": (
        partial(flip_field, **ROWS_3_TO_5, part="local header", field="time"),
        (),
    ),
    "a bit of an attribute in the directory": (
        partial(flip_field, **ROWS_3_TO_5, part="directory", field="attributes", at=3),
        (),
    ),
}


def _assert_healthy(checkpoint: Path, notes: tuple[str, ...] = ()) -> Verification:
    result = run(checkpoint)
    assert accusations(result) == []
    assert {f.check for f in result.report.findings} == set(notes)
    assert result.good, result.verdict
    assert not result.problem
    return result


@pytest.mark.parametrize("case", CASES)
def test_a_real_checkpoint_is_healthy(case: str) -> None:
    if case.startswith("zstd"):
        pytest.importorskip("zstandard")
    result = _assert_healthy(FIXTURES / case)
    assert result.items >= result.keys > 0
    assert all(row.examined == row.total for row in result.report.coverage if row.unit == "items")


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_state_raises_no_alarm(copy: Callable[..., Path], name: str) -> None:
    change, notes = LEGAL[name]
    checkpoint = copy(BASE)
    _fresh_times(checkpoint)
    change(checkpoint)
    _assert_healthy(checkpoint, notes)


@pytest.mark.parametrize("name", LEGAL)
def test_torch_agrees_that_a_legal_state_loads(copy: Callable[..., Path], name: str) -> None:
    checkpoint = copy(BASE)
    LEGAL[name][0](checkpoint)
    loaded = load_with_torch(checkpoint)
    assert loaded["train_state.step"] == 12
    assert loaded[EMBED].shape == (10, 8)


@pytest.mark.parametrize("name", ["step-13", "backup of step-12", "final", "step-12.old", "12"])
def test_a_directory_may_be_moved(copy: Callable[..., Path], name: str) -> None:
    _assert_healthy(copy(BASE, name))


def test_a_directory_may_be_reached_by_a_link(copy: Callable[..., Path], tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(copy(BASE))
    _assert_healthy(link)


def test_without_recorded_crcs_a_flip_is_not_found_and_that_is_said(
    copy: Callable[..., Path],
) -> None:
    checkpoint = copy("no_crc/step-1")
    flip_field(checkpoint, fqn=EMBED, at=17, bit=6)
    result = _assert_healthy(checkpoint)
    (content,) = (row for row in result.report.coverage if row.unit == "records")
    assert (content.examined, content.total) == (0, 42)
    assert content.gaps == (Gap(GapKind.NO_CRC, "no CRC recorded", 42),)


def test_items_out_of_reach_are_counted(copy: Callable[..., Path]) -> None:
    checkpoint = copy(BASE)
    remove(checkpoint, file="__3_0.distcp")
    (items,) = (row for row in run(checkpoint).report.coverage if row.unit == "items")
    assert (items.examined, items.total) == (73, 100)
    assert items.gaps == (Gap(GapKind.ABSENT, "their bytes are not there", 27),)


def test_a_note_is_no_accusation(copy: Callable[..., Path]) -> None:
    checkpoint = copy(BASE)
    _older_shards(checkpoint)
    notes = run(checkpoint).report.findings
    assert [f.severity for f in notes] == [Severity.NOTE, Severity.NOTE]
    assert {f.where.rank for f in notes} == {4, 5}


def test_a_class_that_is_gone_hides_nothing(copy: Callable[..., Path]) -> None:
    checkpoint = copy(BASE)
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    metadata.planner_data["extra"] = _instance_of("company_trainer", "Plan")
    write_metadata(checkpoint, metadata)
    del sys.modules["company_trainer"]
    with pytest.raises(ModuleNotFoundError):
        pickle.loads((checkpoint / ".metadata").read_bytes())
    result = _assert_healthy(checkpoint, ("unknown-class",))
    assert result.keys == 61


def _instance_of(module: str, name: str) -> object:
    """Make an object of a class in a module of its own, both findable by pickle."""
    made = type(sys)(module)
    kind = type(name, (), {"__module__": module})
    setattr(made, name, kind)
    sys.modules[module] = made
    return kind()


# ---------------------------------------------------------------------------------- exit codes


def _exit_code(*arguments: str) -> int:
    command = [sys.executable, "-m", "ckptctl", "verify", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode


@pytest.mark.parametrize(
    "name",
    [
        "shard: removed",
        "item: a bit of a payload",
        "metadata file: removed",
        "metadata file: only the temporary file",
        "metadata: a chunk forgotten",
        "other writers: one rank's metadata removed",
    ],
)
def test_findings_end_with_10(copy: Callable[..., Path], name: str) -> None:
    assert _exit_code(str(_damaged(copy, ROWS[name]))) == 10


def test_a_healthy_checkpoint_ends_with_0() -> None:
    assert _exit_code(str(FIXTURES / BASE)) == 0


@pytest.mark.parametrize(
    ("name", "code"),
    [("a bit of the CRC in the descriptor", 0), ("a bit of a payload", 10)],
)
def test_a_warning_alone_ends_with_0(copy: Callable[..., Path], name: str, code: int) -> None:
    assert _exit_code(str(_damaged(copy, ROWS[f"item: {name}"]))) == code


def test_nothing_there_ends_with_3_and_no_such_place_with_4(tmp_path: Path) -> None:
    assert _exit_code(str(tmp_path)) == 3
    assert _exit_code(str(tmp_path / "nowhere")) == 4


def test_the_numbers_of_this_table_hold(copy: Callable[..., Path]) -> None:
    """Guard the constants above: a rebuilt fixture with another layout must not pass by luck."""
    checkpoint = copy(BASE)
    data = (checkpoint / ".metadata").read_bytes()
    assert data.count(b"M" + struct.pack("<H", 26094)) == 1
    assert len(ROWS) >= 40
    assert len(CASES) >= 14
