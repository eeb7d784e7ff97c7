"""Records: one encoding, self-evident damage, and what the commands make of a damaged one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl import protocol
from ckptctl.completeness.audit import Wanted
from ckptctl.errors import Findings, MalformedData, Refused, StorageError
from ckptctl.model.acceptance import Acceptance, AcceptedFinding
from ckptctl.model.amendment import Amendment
from ckptctl.model.commit_state import State
from ckptctl.model.manifest import (
    LATEST,
    MANIFEST,
    MAX_RECORD,
    RECEIPTS,
    FileRecord,
    Manifest,
    PointerRevision,
    QuarantineRecord,
    Receipt,
    Record,
    TrashRecord,
    Unpromised,
    canonical,
    decode,
    pointer_path,
    quarantine_path,
)
from ckptctl.model.paths import is_contained
from ckptctl.operations.catalog.list import list_checkpoints
from ckptctl.operations.catalog.resolution import (
    NoneUsable,
    Resolution,
    ResolveOptions,
    Undecided,
)
from ckptctl.operations.catalog.resolve import resolve
from ckptctl.operations.find import find
from ckptctl.operations.place import Place
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.operations.publish.promote import promote
from ckptctl.operations.publish.quarantine import set_mark
from ckptctl.operations.retention.plan import plan
from ckptctl.operations.retention.policy import Policy
from ckptctl.operations.verify.verify import Options, Verdict, verify
from ckptctl.storage import Entry
from ckptctl.storage.posix import PosixStore
from support.cli import GOLDEN, assert_golden
from support.effort import PATIENCE

XXH, SHA = "xxh3-128:" + "0a" * 16, "sha256:" + "1b" * 32

ACCEPTED = Acceptance(
    "unreferenced-bytes",
    "*.distcp",
    "padding, \u65e5",
    (
        AcceptedFinding("error", "bytes 5-9", "__0_0.distcp", 0, None, 5, 9),
        AcceptedFinding("warning", "é", key="a.b", about="rng"),
    ),
    "2026-01-02T03:04:05+00:00",
    "someone@somewhere",
    "ckptctl 1.2.3",
)
EXAMPLES: dict[str, Record] = {
    "receipt": Receipt(
        rank=3,
        world_size=8,
        step=5000,
        files=(FileRecord("__3_0.distcp", 1234, XXH, 3, 5000), FileRecord("a/é\n", 0, SHA)),
        run_id="run-17",
        save_id="c5e1",
        time="2026-01-02T03:04:05+00:00",
    ),
    "manifest": Manifest(
        name="step-5000",
        step=5000,
        files=(FileRecord(".metadata", 99, SHA), FileRecord("__0_0.distcp", 1 << 40, XXH, 0, 5000)),
        commit_id="d1ce",
        format="dcp",
        run_id="run-17",
        save_id="c5e1",
        world_size=8,
        torch="2.9 or later",
        time="2026-01-02T03:04:05+00:00",
        actor="someone@somewhere",
        tool="ckptctl 1.2.3",
        identity={"config": {"lr": 0.5, "名": ["ü", None, True]}},
        progress={"epoch": 2, "samples": 1 << 60},
        components={"model": [0, 1], "rng": []},
        previous="step-4000",
        provenance={"resharded_from": {"name": "step-4000", "ranks": 4}},
        unpromised=(Unpromised("wandb/", 5, "in wandb"), Unpromised("é.txt", 0)),
        unchecked=(".metadata",),
        links={"__0_0.distcp": "../step-4000/__0_0.distcp"},
        accepted=(ACCEPTED,),
    ),
    "pointer": PointerRevision(
        name=LATEST,
        revision=42,
        target="step-5000",
        step=5000,
        manifest=SHA,
        rollback=True,
        passed_over=(SHA, XXH),
        time="2026-01-02T03:04:05+00:00",
        actor="someone@somewhere",
        reason="loss spike at 5,400",
    ),
    "quarantine": QuarantineRecord(
        revision=1,
        quarantined=True,
        reason="NaN in layer 3: \u201cgone\u201d, \u65e5",
        time="2026-01-02T03:04:05+00:00",
        actor="someone@somewhere",
    ),
    "amendment": Amendment(
        revision=2,
        manifest=SHA,
        step=5000,
        run_id="run-17",
        world_size=8,
        identity={"git": "abc"},
        progress={"epoch": 2},
        accepted=(ACCEPTED,),
        time="2026-01-02T03:04:05+00:00",
        actor="someone@somewhere",
        reason="the run was not said",
    ),
    "trashed": TrashRecord(
        number=7,
        path="runs/step-5000",
        step=5000,
        state="committed",
        contents={"step-5000/.metadata": 99, "step-5000/é\n": 0},
        reason="not one of the last 3",
        time="2026-01-02T03:04:05+00:00",
        actor="someone@somewhere",
    ),
}


def _body(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXAMPLES[name].encode())
    del document["digest"]
    return document


def resealed(body: dict[str, Any]) -> bytes:
    """Write a document as a record with a digest that fits: a lie, not damage."""
    rest = {name: value for name, value in body.items() if name != "digest"}
    digest = "sha256:" + hashlib.sha256(canonical(rest)).hexdigest()
    return canonical({**rest, "digest": digest})


def refuses(name: str, data: bytes) -> str:
    """Return why a record is not accepted; any other exception goes through."""
    with pytest.raises(MalformedData) as caught:
        decode(type(EXAMPLES[name]), data)
    return str(caught.value)


# ---------------------------------------------------------------------------------- round trips

TEXT = st.text(st.characters(), max_size=12)
MAYBE_TEXT = st.none() | TEXT
NUMBER = st.integers(0, 1 << 62)
MAYBE_NUMBER = st.none() | NUMBER
DIGEST = st.sampled_from([XXH, SHA])
PATH = st.lists(TEXT, min_size=1, max_size=3).map("/".join).filter(is_contained)
FILES = st.lists(
    st.builds(FileRecord, PATH, NUMBER, DIGEST, MAYBE_NUMBER, MAYBE_NUMBER), max_size=3
).map(tuple)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FACTS = st.dictionaries(TEXT, JSON, max_size=3)

ACCEPTANCES = st.lists(
    st.builds(
        Acceptance,
        TEXT,
        TEXT,
        TEXT.filter(str.strip),
        st.lists(
            st.builds(
                AcceptedFinding,
                st.sampled_from(["note", "warning", "error"]),
                TEXT,
                MAYBE_TEXT,
                MAYBE_NUMBER,
                MAYBE_TEXT,
                MAYBE_NUMBER,
                MAYBE_NUMBER,
                TEXT,
            ),
            min_size=1,
            max_size=2,
        ).map(tuple),
        TEXT,
        TEXT,
        TEXT,
    ),
    max_size=2,
).map(tuple)
RECORDS: dict[str, st.SearchStrategy[Record]] = {
    "receipt": st.builds(
        Receipt,
        rank=NUMBER,
        world_size=NUMBER,
        step=MAYBE_NUMBER,
        files=FILES,
        run_id=MAYBE_TEXT,
        save_id=MAYBE_TEXT,
        time=TEXT,
    ),
    "manifest": st.builds(
        Manifest,
        name=TEXT,
        step=MAYBE_NUMBER,
        files=FILES,
        commit_id=TEXT,
        format=TEXT,
        run_id=MAYBE_TEXT,
        save_id=MAYBE_TEXT,
        world_size=MAYBE_NUMBER,
        torch=MAYBE_TEXT,
        time=TEXT,
        actor=TEXT,
        tool=TEXT,
        identity=FACTS,
        progress=FACTS,
        components=FACTS,
        previous=MAYBE_TEXT,
        provenance=FACTS,
        unpromised=st.lists(st.builds(Unpromised, TEXT, NUMBER, TEXT), max_size=3).map(tuple),
        unchecked=st.lists(TEXT, max_size=3).map(tuple),
        links=st.dictionaries(TEXT, TEXT, max_size=3),
        accepted=ACCEPTANCES,
    ),
    "pointer": st.builds(
        PointerRevision,
        name=TEXT,
        revision=NUMBER,
        target=TEXT,
        step=MAYBE_NUMBER,
        manifest=DIGEST,
        rollback=st.booleans(),
        passed_over=st.lists(DIGEST, max_size=3).map(tuple),
        time=TEXT,
        actor=TEXT,
        reason=TEXT,
    ),
    "trashed": st.builds(
        TrashRecord,
        number=NUMBER,
        path=TEXT,
        step=MAYBE_NUMBER,
        state=TEXT,
        contents=st.dictionaries(TEXT, NUMBER, max_size=3),
        time=TEXT,
        actor=TEXT,
        reason=TEXT,
    ),
    "amendment": st.builds(
        Amendment,
        revision=NUMBER,
        manifest=DIGEST,
        step=MAYBE_NUMBER,
        run_id=MAYBE_TEXT,
        world_size=MAYBE_NUMBER,
        identity=FACTS,
        progress=FACTS,
        accepted=ACCEPTANCES,
        time=TEXT,
        actor=TEXT,
        reason=TEXT,
    ),
    "quarantine": st.builds(
        QuarantineRecord,
        revision=NUMBER,
        quarantined=st.booleans(),
        reason=TEXT,
        time=TEXT,
        actor=TEXT,
    ),
}


@given(st.one_of(*RECORDS.values()))
def test_what_was_written_is_read(record: Record) -> None:
    data = record.encode()
    back = decode(type(record), data)
    assert back == record.sealed()
    assert back.encode() == data
    assert data.isascii()
    assert data.count(b"\n") == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_encoding_never_changes(name: str) -> None:
    """Manifests of years ago must be read, and two releases must give one digest."""
    data = EXAMPLES[name].encode()
    assert_golden(f"records/{name}.json", data.decode("ascii"))
    assert decode(type(EXAMPLES[name]), data) == EXAMPLES[name].sealed()


def test_a_manifest_of_the_first_schema_is_read() -> None:
    """Its digest, by which pointers name it, is the one that it was written with."""
    data = (GOLDEN / "records/manifest-1.json").read_bytes()
    old, new = decode(Manifest, data), EXAMPLES["manifest"]
    assert isinstance(new, Manifest)
    assert old.digest == json.loads(data)["digest"]
    assert replace(old, digest="") == replace(
        new, unpromised=(), unchecked=(), links={}, accepted=()
    )


def test_a_manifest_of_the_second_schema_is_read() -> None:
    data = (GOLDEN / "records/manifest-2.json").read_bytes()
    old, new = decode(Manifest, data), EXAMPLES["manifest"]
    assert isinstance(new, Manifest)
    assert old.digest == json.loads(data)["digest"]
    assert replace(old, digest="") == replace(new, accepted=())


def test_what_a_manifest_accepts_stays_so_by_an_amendment_of_the_first_schema() -> None:
    data = (GOLDEN / "records/amendment-1.json").read_bytes()
    old, new = decode(Amendment, data), EXAMPLES["amendment"]
    manifest = EXAMPLES["manifest"]
    assert isinstance(new, Amendment) and isinstance(manifest, Manifest)
    assert replace(old, digest="") == replace(new, accepted=())
    assert old.applied(manifest).accepted == manifest.accepted != ()


@pytest.mark.parametrize(
    "change",
    [
        {"reason": " "},
        {"reason": None},
        {"findings": []},
        {"findings": [{"severity": "fatal", "message": ""}]},
        {"findings": [{"severity": "error", "message": "", "start": True}]},
        {"findings": [{"severity": "error", "message": "", "file": 3}]},
        {"findings": [{"severity": "error", "message": "", "more": ""}]},
        {"findings": ["error"]},
        {"check": 7},
        {"more": 1},
    ],
    ids=str,
)
def test_an_acceptance_that_nobody_could_give_makes_a_manifest_unreadable(
    change: dict[str, Any],
) -> None:
    body = json.loads(EXAMPLES["manifest"].encode())
    body["accepted"] = [{**body["accepted"][0], **change}]
    with pytest.raises(MalformedData, match="what it accepts"):
        decode(Manifest, resealed(body))


def test_what_an_older_release_sealed_by_chance_is_no_promise_any_more() -> None:
    names = ("__0_0.distcp", ".nfs000000000a4c9d0000005011", ".DS_Store", "train.log", "a.tmp")
    body = json.loads((GOLDEN / "records/manifest-1.json").read_bytes())
    body["files"] = [{**body["files"][0], "path": name} for name in names]
    found = decode(Manifest, resealed(body))
    assert [file.path for file in found.files] == ["__0_0.distcp", "a.tmp"]
    assert [row.path for row in found.unpromised] == [*names[1:4]]


def test_the_order_of_facts_does_not_matter() -> None:
    one, other = {"a": {"x": 1, "y": 2}, "b": 3}, {"b": 3, "a": {"y": 2, "x": 1}}
    manifest = EXAMPLES["manifest"]
    assert isinstance(manifest, Manifest)
    assert replace(manifest, identity=one).encode() == replace(manifest, identity=other).encode()


# ---------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_torn_record_is_refused(name: str) -> None:
    data = EXAMPLES[name].encode()
    for size in range(len(data)):
        refuses(name, data[:size])
        refuses(name, data[:size] + bytes(len(data) - size))
    refuses(name, data[1:])
    refuses(name, data + data)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_changed_byte_is_refused(name: str) -> None:
    data = EXAMPLES[name].encode()
    for position in range(len(data)):
        for change in (1, 2, 4, 8, 16, 32, 64, 128, 0x2A):
            damaged = bytearray(data)
            damaged[position] ^= change
            refuses(name, bytes(damaged))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("space", [b" ", b"\r", b"\t"])
def test_another_encoding_of_the_same_content_is_refused(name: str, space: bytes) -> None:
    data = EXAMPLES[name].encode()
    refuses(name, data[:-1] + space)
    refuses(name, data + space)
    refuses(name, space + data)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_another_character_set_is_refused(name: str, encoding: str) -> None:
    refuses(name, EXAMPLES[name].encode().decode().encode(encoding))


JUNK = {
    "nothing": b"",
    "zeros": bytes(10_000_000),
    "spaces": b" " * 10_000_000,
    "lists": b"[" * 10_000_000,
    "closed lists": b"[" * 5_000_000 + b"]" * 5_000_000,
    "objects": b'{"a":' * 2_000_000,
    "digits": b"9" * 10_000_000,
    "text": b'"' + b"a" * 10_000_000 + b'"',
    "escapes": b'"' + b"\\u0000" * 1_600_000 + b'"',
    "no utf-8": b'"' + b"\xff" * 10_000_000 + b'"',
    "number": b"17",
    "null": b"null",
    "list": b'["schema"]',
    "empty object": b"{}",
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("junk", JUNK)
def test_junk_is_refused(name: str, junk: str) -> None:
    refuses(name, JUNK[junk])


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_refused(data: bytes) -> None:
    for name in EXAMPLES:
        refuses(name, data)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("depth", [100, 400, 900, 990, 2_000, 100_000])
def test_deep_nesting_is_refused_or_read(name: str, depth: int) -> None:
    text = EXAMPLES[name].encode().decode()
    nested = text.replace("{", '{"a":' + "[" * depth + "]" * depth + ",", 1)
    refuses(name, nested.encode())


# ---------------------------------------------------------------------------------- lies


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_resealed_record_is_read(name: str) -> None:
    """The lies below differ from the truth in nothing but what they name."""
    assert decode(type(EXAMPLES[name]), resealed(_body(name))) == EXAMPLES[name].sealed()


@pytest.mark.parametrize("name", EXAMPLES)
def test_other_schemas_are_refused(name: str) -> None:
    body = _body(name)
    newer = refuses(name, resealed({**body, "schema": f"ckptctl/{name}/9"}))
    assert "newer" in newer
    for schema in ("ckptctl/other/1", name, "", "/1", None, 1, [], {"a": 1}):
        assert "schema" in refuses(name, resealed({**body, "schema": schema}))
    del body["schema"]
    assert "schema" in refuses(name, resealed(body))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("other", EXAMPLES)
def test_no_record_is_taken_for_another_kind(name: str, other: str) -> None:
    if name != other:
        assert "schema" in refuses(name, EXAMPLES[other].encode())


@pytest.mark.parametrize("name", EXAMPLES)
def test_fields_that_the_schema_does_not_have_are_refused(name: str) -> None:
    assert "colour" in refuses(name, resealed({**_body(name), "colour": "red"}))


REQUIRED = {
    "receipt": ("rank", "world_size", "step", "files"),
    "manifest": ("name", "step", "files", "commit_id"),
    "pointer": ("name", "revision", "target", "step", "manifest"),
    "quarantine": ("revision", "quarantined", "reason"),
}
WHERE = [(name, field) for name in EXAMPLES for field in _body(name) if field != "schema"]
SIZES = {("manifest", "world_size"), ("amendment", "world_size")}
NULLABLE = {"run_id", "save_id", "torch", "previous", "step"}


@pytest.mark.parametrize(("name", "field"), [(n, f) for n in REQUIRED for f in REQUIRED[n]])
def test_missing_fields_are_refused(name: str, field: str) -> None:
    body = _body(name)
    del body[field]
    assert "missing" in refuses(name, resealed(body))


@pytest.mark.parametrize(("name", "field"), WHERE)
def test_fields_of_other_types_are_refused(name: str, field: str) -> None:
    body = _body(name)
    good = body[field]
    wrong: list[object] = [0.5, [17], [None], [[]]]
    wrong += [] if isinstance(good, dict) else [{"a": 1}]
    wrong += [] if isinstance(good, str) else ["text"]
    wrong += [] if isinstance(good, bool) else [True]
    wrong += [] if type(good) is int else [1]
    wrong += [] if field in NULLABLE or (name, field) in SIZES else [None]
    accepted = [value for value in wrong if _accepts(name, {**body, field: value})]
    assert accepted == []


def _accepts(name: str, body: dict[str, Any]) -> bool:
    try:
        decode(type(EXAMPLES[name]), resealed(body))
    except MalformedData:
        return False
    return True


GOOD_FILE = {"path": "a", "size": 1, "digest": XXH, "rank": None, "step": None}
PATHS = ["", "/a", "..", "../a", "a/../../b", ".", "a/./b", "a//b", "a/", "C:\\a", "a\0", "s3://a"]


@pytest.mark.parametrize("name", ["receipt", "manifest"])
@pytest.mark.parametrize(
    "change",
    [
        *({"path": path} for path in [*PATHS, None, 1, ["a"]]),
        *({"size": size} for size in [-1, 1.0, "1", None, True]),
        *({"digest": d} for d in ["", "md5:00", "xxh3-128:0A", SHA[:-1], SHA + "0", None, 7]),
        *({"rank": rank} for rank in ["0", 0.0, [], True]),
        *({"step": step} for step in ["0", 0.0, [], True]),
        {"colour": "red"},
    ],
)
def test_files_that_make_no_sense_are_refused(name: str, change: dict[str, Any]) -> None:
    assert _accepts(name, {**_body(name), "files": [GOOD_FILE]})
    assert "files" in refuses(name, resealed({**_body(name), "files": [{**GOOD_FILE, **change}]}))


@pytest.mark.parametrize("entry", [None, 1, "a", [], {}, {"path": "a"}])
def test_an_entry_that_is_no_file_is_refused(entry: object) -> None:
    assert "files" in refuses("manifest", resealed({**_body("manifest"), "files": [entry]}))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("digest", ["", "null", "sha256:00"])
def test_numbers_that_json_does_not_have_do_not_disarm_the_digest(value: str, digest: str) -> None:
    """What cannot be encoded has no digest, so that none can be the right one."""
    body = {**_body("manifest"), "identity": {"x": "VALUE"}, "digest": digest}
    text = json.dumps(body).replace('"VALUE"', value).replace('"null"', "null")
    assert refuses("manifest", text.encode())


# ---------------------------------------------------------------------------------- in commands


@pytest.fixture
def root(tmp_path: Path, copy: Callable[..., Path]) -> Path:
    """A run with steps 1 and 2 committed and promoted in turn."""
    for step in (1, 2):
        copy("no_crc/step-1", f"step-{step}")
        publish(tmp_path / "run", f"step-{step}")
    return tmp_path / "run"


def publish(root: Path, name: str, *, rollback: bool = False) -> None:
    store = PosixStore(root)
    if not (root / name / MANIFEST).exists():
        commit_checkpoint(store, place(root, name), options=CommitOptions(workers=1))
    promote(store, place(root, name), rollback=rollback, workers=1, wanted=Wanted("weights"))


def place(root: Path, name: str) -> Place:
    (found,) = [one for one in find(PosixStore(root)) if one.path == name]
    return found


def resolved(root: Path) -> Resolution:
    return resolve(PosixStore(root), options=ResolveOptions(full=True, workers=1))


def _torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _lying(data: bytes) -> bytes:
    return data.replace(b'"time":"', b'"time":"1')


def _future(data: bytes) -> bytes:
    body = json.loads(data)
    return resealed({**body, "schema": body["schema"][:-1] + "9"})


def _pathless(data: bytes) -> bytes:
    return b"[" * 1_000_000


BREAK = {
    "torn": _torn,
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "lying": _lying,
    "future": _future,
    "nested": _pathless,
}


def damage(path: Path, how: str) -> None:
    before = path.read_bytes()
    path.unlink()
    path.write_bytes(BREAK[how](before))
    assert path.read_bytes() != before


@pytest.mark.parametrize("how", BREAK)
def test_a_manifest_that_cannot_be_used_is_a_finding(root: Path, how: str) -> None:
    damage(root / "step-2" / MANIFEST, how)
    outcome = verify(PosixStore(root), place(root, "step-2"), options=Options(workers=1))
    assert outcome.verdict is Verdict.FINDINGS
    (found,) = [f for f in outcome.report.findings if f.check == "unreadable-manifest"]
    assert ("newer release" in found.message) == (how == "future")
    assert list_checkpoints(PosixStore(root)).checkpoints[-1].state is State.UNREADABLE


@pytest.mark.parametrize("how", BREAK)
def test_a_checkpoint_whose_manifest_cannot_be_used_is_passed_over(root: Path, how: str) -> None:
    damage(root / "step-2" / MANIFEST, how)
    found = resolved(root)
    assert found.name == "step-1"
    (skipped,) = found.skipped
    assert (skipped.name, skipped.step) == ("step-2", 2)
    assert MANIFEST in skipped.reason
    assert any("dangling" in note for note in found.notes)


@pytest.mark.parametrize("how", BREAK)
def test_nobody_commits_or_promotes_over_a_manifest_that_cannot_be_used(
    root: Path, how: str
) -> None:
    damage(root / "step-2" / MANIFEST, how)
    before = _everything(root)
    with pytest.raises(Findings) as caught:
        promote(PosixStore(root), place(root, "step-2"), workers=1)
    assert (caught.value.exit_code, MANIFEST in str(caught.value)) == (10, True)
    with pytest.raises(Refused, match="manifest that cannot be used"):
        commit_checkpoint(PosixStore(root), place(root, "step-2"))
    assert _everything(root) == before


def _everything(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_a_manifest_of_another_file_set_is_found_out(root: Path) -> None:
    """A manifest that is true to itself and not to the checkpoint."""
    path = root / "step-2" / MANIFEST
    body = json.loads(path.read_bytes())
    body["files"][0]["digest"] = SHA
    path.unlink()
    path.write_bytes(resealed(body))
    assert resolved(root).name == "step-1"


def test_a_file_too_large_for_a_record_is_not_read(root: Path) -> None:
    with (root / "step-2" / MANIFEST).open("r+b") as stream:
        stream.truncate(MAX_RECORD + 1)
    found = resolved(root)
    assert found.name == "step-1"
    assert "too many" in found.skipped[0].reason


class _Failing(PosixStore):
    """A store whose medium fails at one file."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(root)
        self._broken = path

    def open(self, path: str) -> Any:
        if path == self._broken:
            raise StorageError(f"{path}: Input/output error")
        return super().open(path)


def test_a_promoted_manifest_on_a_bad_sector_is_a_choice_of_two(root: Path) -> None:
    store = _Failing(root, f"step-2/{MANIFEST}")
    with pytest.raises(Undecided, match="Input/output error") as caught:
        resolve(store, options=ResolveOptions(workers=1))
    assert [one.name for one in caught.value.result.choices] == ["step-2", "step-1"]
    found = resolve(store, options=ResolveOptions(workers=1, pointer_fallback=True))
    assert found.name == "step-1"
    assert "Input/output error" in found.skipped[0].reason
    assert (found.lost.steps, found.lost.newest) == (1, "step-2")


def test_a_pointer_on_a_bad_sector_is_no_verdict_until_it_is_moved_again(root: Path) -> None:
    """It may be a rollback, so an older revision must not be taken in its place."""
    store = _Failing(root, pointer_path(LATEST, 2))
    with pytest.raises(StorageError, match="Input/output error"):
        resolve(store, options=ResolveOptions(workers=1))
    place = next(place for place in find(store) if place.path == "step-2")
    assert promote(store, place, wanted=Wanted("weights")).revision == 3
    assert resolve(store, options=ResolveOptions(workers=1)).name == "step-2"


def test_a_manifest_on_a_bad_sector_is_no_fresh_start(root: Path) -> None:
    """Where nothing else is left, it is the storage that failed."""
    damage(root / "step-1" / MANIFEST, "torn")
    with pytest.raises(StorageError):
        resolve(_Failing(root, f"step-2/{MANIFEST}"), options=ResolveOptions(workers=1))


# ---------------------------------------------------------------------------------- pointers


@pytest.mark.parametrize("how", BREAK)
def test_a_damaged_pointer_is_a_choice_of_two(root: Path, how: str) -> None:
    damage(root / pointer_path(LATEST, 2), how)
    pointer = protocol.read_pointer(PosixStore(root))
    assert pointer.revision is not None
    assert (pointer.revision.revision, pointer.last, pointer.decided) == (1, 2, None)
    with pytest.raises(Undecided, match=r"00000002\.json") as caught:
        resolved(root)
    assert [one.name for one in caught.value.result.choices] == ["step-1", "step-2"]
    found = resolve(PosixStore(root), options=ResolveOptions(workers=1, pointer_fallback=True))
    assert found.name == "step-2"  # committed since the revision that is left
    assert any(pointer_path(LATEST, 2) in note for note in found.notes)


@pytest.mark.parametrize("how", BREAK)
def test_without_any_readable_pointer_nothing_is_taken_in_silence(root: Path, how: str) -> None:
    for revision in (1, 2):
        damage(root / pointer_path(LATEST, revision), how)
    with pytest.raises(Undecided, match=r"00000002\.json"):
        resolved(root)
    found = resolve(PosixStore(root), options=ResolveOptions(workers=1, pointer_fallback=True))
    assert (found.name, "no pointer" in found.how) == ("step-2", True)


def test_a_copied_pointer_is_not_believed(root: Path) -> None:
    first, second = (root / pointer_path(LATEST, n) for n in (1, 2))
    second.unlink()
    second.write_bytes(first.read_bytes())
    pointer = protocol.read_pointer(PosixStore(root))
    assert pointer.revision is not None
    assert (pointer.revision.revision, len(pointer.problems)) == (1, 1)


def test_the_pointer_moves_on_from_a_damaged_revision(root: Path, copy: Any) -> None:
    damage(root / pointer_path(LATEST, 2), "torn")
    before = (root / pointer_path(LATEST, 2)).read_bytes()
    copy("no_crc/step-1", "step-3")
    publish(root, "step-3")
    assert (root / pointer_path(LATEST, 2)).read_bytes() == before
    pointer = protocol.read_pointer(PosixStore(root))
    assert (pointer.last, pointer.problems) == (3, ())
    assert resolved(root).name == "step-3"


def test_a_damaged_rollback_is_not_undone(root: Path) -> None:
    publish(root, "step-1", rollback=True)
    assert resolved(root).name == "step-1"
    damage(root / pointer_path(LATEST, 3), "torn")
    with pytest.raises(Undecided, match=r"00000003\.json") as caught:
        resolved(root)
    assert [one.name for one in caught.value.result.choices] == ["step-2", "step-1"]


def test_a_rollback_is_remembered_when_the_pointer_moves_on(root: Path, copy: Any) -> None:
    """What was passed over once is not what to fall back to later."""
    publish(root, "step-1", rollback=True)
    copy("no_crc/step-1", "step-3")
    publish(root, "step-3")
    damage(root / "step-3" / "__0_0.distcp", "zeros")
    assert resolved(root).name == "step-1"


# ---------------------------------------------------------------------------------- marks


@pytest.mark.parametrize("how", BREAK)
def test_a_damaged_quarantine_record_counts_as_quarantined(root: Path, how: str) -> None:
    store = PosixStore(root)
    set_mark(store, place(root, "step-2"), quarantined=True, reason="loss spike")
    damage(root / "step-2" / quarantine_path(1), how)
    found = resolved(root)
    assert found.name == "step-1"
    assert "quarantined" in found.skipped[0].reason
    with pytest.raises(Refused, match="quarantined"):
        promote(store, place(root, "step-2"), workers=1)
    outcome = verify(store, place(root, "step-2"), options=Options(workers=1))
    assert "quarantined" in {finding.check for finding in outcome.report.findings}
    assert list_checkpoints(store).checkpoints[-1].state is State.QUARANTINED


def test_a_damaged_release_counts_as_quarantined_and_can_be_repeated(root: Path) -> None:
    store = PosixStore(root)
    for quarantined in (True, False):
        set_mark(store, place(root, "step-2"), quarantined=quarantined, reason="look")
    assert resolved(root).name == "step-2"
    damage(root / "step-2" / quarantine_path(2), "torn")
    assert resolved(root).name == "step-1"
    again = set_mark(store, place(root, "step-2"), quarantined=False, reason="look")
    assert (again.revision, again.changed) == (3, True)
    assert resolved(root).name == "step-2"


def test_all_quarantined_is_a_finding_and_no_fresh_start(root: Path) -> None:
    for name in ("step-1", "step-2"):
        set_mark(PosixStore(root), place(root, name), quarantined=True, reason="all bad")
    with pytest.raises(NoneUsable) as caught:
        resolved(root)
    assert caught.value.exit_code == 10
    assert {skip.name for skip in caught.value.skipped} == {"step-1", "step-2"}


def test_prune_keeps_what_it_cannot_judge(root: Path, copy: Any) -> None:
    """A manifest that a newer release wrote is nothing to delete by."""
    damage(root / "step-1" / MANIFEST, "future")
    copy("no_crc/step-1", "step-3")
    publish(root, "step-3")
    chosen = plan(PosixStore(root), Policy(keep_last=1, min_age=0))
    assert [fate.name for fate in chosen.doomed] == ["step-2"]


# ---------------------------------------------------------------------------------- receipts


def _staged(tmp_path: Path, copy: Any, changes: dict[str, Any]) -> Path:
    path: Path = copy("no_crc/step-1", "step-7")
    receipt = Receipt(rank=0, world_size=1, step=7, files=())
    protocol.stage(PosixStore(path.parent), "step-7", receipt)
    (stored,) = (path / RECEIPTS).glob("*.json")
    body = json.loads(stored.read_bytes())
    stored.unlink()
    stored.write_bytes(resealed({**body, **changes}))
    return path


@pytest.mark.parametrize("how", BREAK)
def test_a_damaged_receipt_stops_a_commit(tmp_path: Path, copy: Any, how: str) -> None:
    path = _staged(tmp_path, copy, {})
    damage(next((path / RECEIPTS).glob("*.json")), how)
    with pytest.raises(Findings, match="receipt"):
        commit_checkpoint(PosixStore(path.parent), place(path.parent, "step-7"))
    assert not (path / MANIFEST).exists()


@pytest.mark.parametrize("size", [None, 0, -1, 2, 1 << 20])
def test_a_receipt_with_an_impossible_world_stops_a_commit(
    tmp_path: Path, copy: Any, size: int | None
) -> None:
    path = _staged(tmp_path, copy, {"world_size": size})
    with pytest.raises(Findings):
        commit_checkpoint(PosixStore(path.parent), place(path.parent, "step-7"))


COMMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from ckptctl.cli.main import main
sys.argv = ["ckptctl", "commit", {path!r}]
main()
"""


def test_a_receipt_with_an_endless_world_takes_no_endless_memory(tmp_path: Path, copy: Any) -> None:
    path = _staged(tmp_path, copy, {"world_size": sys.maxsize})
    program = COMMIT.format(limit=2 << 30, path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        text=True,
    )
    assert (done.returncode, "receipt" in done.stderr) == (10, True), done.stderr[-500:]


# ---------------------------------------------------------------------------------- series


class _Counting(PosixStore):
    """Counts what is asked of the storage."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def entries(self, path: str = "") -> list[Entry]:
        self.asked.append(f"list {path}")
        return super().entries(path)

    def open(self, path: str) -> Any:
        self.asked.append(f"open {path}")
        return super().open(path)


def test_a_series_is_one_listing_and_its_newest_record(root: Path) -> None:
    store = _Counting(root)
    pointer = protocol.read_pointer(store)
    assert (pointer.last, pointer.problems) == (2, ())
    folder = pointer_path(LATEST, 2).rpartition("/")[0]
    assert store.asked == [f"list {folder}", f"open {pointer_path(LATEST, 2)}"]


def test_the_copy_of_a_record_holds_the_same(root: Path) -> None:
    record = root / pointer_path(LATEST, 2)
    copy = record.with_suffix(".copy")
    assert copy.read_bytes() == record.read_bytes()
    record.unlink()
    pointer = protocol.read_pointer(PosixStore(root))
    assert pointer.copy is not None
    assert (pointer.copy.target, pointer.copy.revision, pointer.decided) == ("step-2", 2, None)


def test_a_copy_that_cannot_be_written_changes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PosixStore.put

    def fail(self: PosixStore, path: str, data: bytes) -> None:
        if path.endswith(".copy"):
            raise StorageError(f"{path}: no room")
        real(self, path, data)

    monkeypatch.setattr(PosixStore, "put", fail)
    set_mark(PosixStore(root), place(root, "step-2"), quarantined=True, reason="odd")
    assert [path.name for path in (root / "step-2/ckptctl.quarantine").iterdir()] == [
        "00000001.json"
    ]
    assert resolved(root).name == "step-1"
