"""Publishing as users do it: what may be committed and promoted, and what a manifest then proves."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl import protocol
from ckptctl.errors import Conflict, OutcomeUnknown, Refused, StorageError
from ckptctl.formats.dcp import reader as dcp
from ckptctl.model.manifest import (
    LATEST,
    MANIFEST,
    Manifest,
    PointerRevision,
    decode,
    pointer_path,
)
from ckptctl.operations.provenance.facts import facts_of
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.operations.publish.promote import promote
from ckptctl.operations.verify.options import Options
from ckptctl.operations.verify.verify import Verdict, verify
from ckptctl.storage.posix import PosixStore
from ckptctl.storage.system import RealSystem
from conftest import FIXTURES
from support import damage as damage
from support.cli import run
from support.publish import (
    RANKS,
    Silent,
    Watched,
    ckptctl,
    digest_of,
    done,
    errors,
    findings,
    flip_payload,
    newest,
    place_of,
    planted,
    receipt_of,
    refused,
    stage_all,
)

Copy = Callable[..., Path]
FILES = (".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp")
SHARD = "__1_0.distcp"


@pytest.fixture
def sealed(copy: Copy) -> Path:
    """A committed checkpoint."""
    path = copy("fsdp2/step-12")
    done("commit", path)
    return path


@pytest.fixture
def two(copy: Copy) -> Path:
    """A root with steps 8 and 12, both committed and promoted in turn."""
    root = copy("fsdp2/step-8").parent
    copy("fsdp2/step-12")
    for name in ("step-8", "step-12"):
        done("commit", root / name, "--promote")
    return root


def manifest_of(checkpoint: Path) -> Manifest:
    return decode(Manifest, (checkpoint / MANIFEST).read_bytes())


def rewrite_manifest(checkpoint: Path, **changes: Any) -> None:
    """Change a manifest and make its digest fit again, as an attacker or a bug would."""
    document = json.loads((checkpoint / MANIFEST).read_bytes())
    del document["schema"], document["digest"]
    document["files"] = manifest_of(checkpoint).files
    (checkpoint / MANIFEST).write_bytes(Manifest(**{**document, **changes}).encode())


def resolved(root: Path, *options: str) -> tuple[str, str]:
    """Resolve; return the name that was printed and what was said."""
    ended = done("resolve", root, *options)
    assert ended.stdout.endswith("\n")
    return Path(ended.stdout[:-1]).name, ended.stderr


def moves(root: Path) -> list[str]:
    """Return the targets of the pointer's revisions."""
    found = list(protocol.revisions(PosixStore(root)))
    return [one.target for one in found if isinstance(one, PointerRevision)]


# ---------------------------------------------------------------------------------- what is sealed


def test_a_manifest_promises_every_file_and_says_what_it_is(sealed: Path) -> None:
    manifest = manifest_of(sealed)
    expected = {name: (sealed / name).read_bytes() for name in FILES}
    assert {f.path: (f.size, f.digest) for f in manifest.files} == {
        name: (len(data), digest_of(data)) for name, data in expected.items()
    }
    assert {f.path: f.rank for f in manifest.files} == dict(
        zip(FILES, (None, 0, 1, 2, 3), strict=True)
    )
    assert (manifest.name, manifest.step, manifest.world_size) == ("step-12", 12, RANKS)
    assert {"model", "optimizer", "scheduler", "data", "rng", "progress"} <= set(
        manifest.components
    )
    assert sorted(path.name for path in sealed.iterdir()) == sorted([*FILES, MANIFEST])
    assert findings(sealed, "--require", "manifest") == {}


def test_torch_loads_a_committed_checkpoint_as_before(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    before = damage.fingerprint(damage.load_with_torch(path))
    done("commit", path, "--promote")
    assert damage.fingerprint(damage.load_with_torch(path)) == before


def test_the_next_manifest_names_the_one_before(two: Path) -> None:
    assert manifest_of(two / "step-8").previous is None
    assert manifest_of(two / "step-12").previous == "step-8"


def test_sha256_if_asked_for(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path, "--digest", "sha256", "--promote")
    assert {file.digest.partition(":")[0] for file in manifest_of(path).files} == {"sha256"}
    assert findings(path, "--require", "manifest") == {}
    damage.flip_byte(path, file=SHARD, at=20000)
    assert "altered-file" in findings(path)


def test_an_unknown_digest_is_a_usage_error(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    assert ckptctl("commit", path, "--digest", "md5").code == 2
    assert not (path / MANIFEST).exists()


def test_facts_about_the_run_are_kept(copy: Copy, tmp_path: Path) -> None:
    path, facts = copy("fsdp2/step-12"), tmp_path / "facts.json"
    facts.write_text('{"git": "abc", "config": {"lr": 0.1}}')
    done("commit", path, "--run-id", "run-a", "--identity", facts)
    manifest = manifest_of(path)
    assert manifest.run_id == "run-a"
    digest = "sha256:9cb9c44d172c3eee04342f8b261e102ecffe225d2a7687a2d9de5096c9cdc869"
    assert manifest.identity == {"git": "abc", "config.lr": 0.1, "config_digest": digest}


@pytest.mark.parametrize("text", ["", "[1]", '"x"', "{"])
def test_facts_that_are_no_object_are_a_usage_error(copy: Copy, tmp_path: Path, text: str) -> None:
    path, facts = copy("fsdp2/step-12"), tmp_path / "facts.json"
    facts.write_text(text)
    assert ckptctl("commit", path, "--identity", facts).code == 2
    assert not (path / MANIFEST).exists()


@pytest.mark.parametrize(
    "case",
    [
        "async_save/step-12",
        "ddp/step-12",
        "dedup_lowest_rank/step-12",
        "dtype_zoo/step-1",
        "file_per_item/step-12",
        "hsdp/step-12",
        "no_crc/step-1",
        "no_dist/step-12",
        "rank_local/step-12",
        "thread_count_3/step-12",
        "tp_fsdp/step-12",
        "zstd/step-12",
    ],
)
def test_every_layout_can_be_published(copy: Copy, case: str) -> None:
    path = copy(case)
    done("commit", path, "--promote", "--require", "none")
    assert errors(findings(path, "--require", "manifest")) == set()
    assert resolved(path.parent, "--full")[0] == path.name


def test_a_rehearsal_of_a_commit_changes_nothing(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    assert "would commit" in done("commit", path, "--dry-run").stdout
    assert sorted(one.name for one in path.iterdir()) == sorted(FILES)
    assert ckptctl("commit", path, "--dry-run", "--promote").code == 2


def test_json_is_one_document(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    document = done("commit", path, "--json").json()
    assert document["manifest"] == manifest_of(path).digest
    document = done("promote", path, "--json").json()
    assert document["revision"] == 1


def test_commit_and_promote_together_print_one_json_document(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    document = done("commit", path, "--promote", "--json").json()
    assert document["promoted"]["target"] == path.name


def test_quiet_prints_nothing(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    ended = done("commit", path, "--promote", "--quiet")
    assert (ended.stdout, ended.stderr) == ("", "")


# ---------------------------------------------------------------------------------- what is refused


def test_only_a_temporary_metadata_file_cannot_be_committed(copy: Copy) -> None:
    """Case S05."""
    path = copy("fsdp2/step-12")
    damage.rename(path, file=".metadata", to=".metadata.tmp")
    assert "uncommitted-metadata" in refused("commit", path, code=10)
    assert sorted(one.name for one in path.iterdir()) == [".metadata.tmp", *FILES[1:]]
    damage.rename(path, file=".metadata.tmp", to=".metadata")
    done("commit", path)


def _cut(path: Path) -> None:
    damage.truncate(path, file=SHARD, size=-100)


def _lose(path: Path) -> None:
    damage.remove(path, file=SHARD)


def _lose_metadata(path: Path) -> None:
    damage.remove(path, file=".metadata")


def _cut_metadata(path: Path) -> None:
    damage.truncate(path, file=".metadata", size=-100)


@pytest.mark.parametrize("harm", [_cut, _lose, _lose_metadata, _cut_metadata])
def test_what_is_not_whole_is_not_committed(copy: Copy, harm: damage.Damage) -> None:
    path = copy("fsdp2/step-12")
    harm(path)
    before = sorted(one.name for one in path.iterdir())
    refused("commit", path, code=10)
    assert sorted(one.name for one in path.iterdir()) == before


def test_what_has_rotted_before_the_commit_is_not_committed(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    flip_payload(path)
    assert "checksum" in refused("commit", path, code=10)
    assert not (path / MANIFEST).exists()


def test_committing_twice_names_who_was_first(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path, env={"CKPTCTL_ACTOR": "the-first"})
    first = (path / MANIFEST).read_bytes()
    assert "the-first" in done("commit", path).stdout
    flip_payload(path)
    assert "the-first" in refused("commit", path)
    assert (path / MANIFEST).read_bytes() == first


def test_a_commit_that_loses_to_the_same_bytes_is_done(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    other = shutil.copytree(path, path.parent.parent / "elsewhere" / path.name)
    done("commit", other, env={"CKPTCTL_ACTOR": "the-other"})

    def disturb(name: str, number: int, data: bytes) -> bytes:
        if name.endswith("__3_0.distcp") and not (path / MANIFEST).exists():
            shutil.copy(other / MANIFEST, path / MANIFEST)
        return data

    store, place = place_of(path, lambda root: Watched(root, disturb))
    result = commit_checkpoint(store, place)
    assert (result.changed, result.by) == (False, "the-other")
    assert result.manifest == manifest_of(other).digest


def test_a_commit_that_loses_at_the_last_moment_names_who_won(copy: Copy) -> None:
    """Two commits verify at the same time; the other creates its manifest first."""
    path = copy("fsdp2/step-12")
    other = Manifest(name="step-12", step=12, files=(), commit_id="x", actor="the-other")

    def disturb(name: str, number: int, data: bytes) -> bytes:
        if name.endswith("__3_0.distcp") and not (path / MANIFEST).exists():
            (path / MANIFEST).write_bytes(other.encode())
        return data

    store, place = place_of(path, lambda root: Watched(root, disturb))
    with pytest.raises(Conflict, match="the-other"):
        commit_checkpoint(store, place)
    assert (path / MANIFEST).read_bytes() == other.encode()


def test_files_that_change_while_they_are_read_are_not_sealed(copy: Copy) -> None:
    path = copy("fsdp2/step-12")

    def disturb(name: str, number: int, data: bytes) -> bytes:
        if name.endswith("__3_0.distcp"):
            (path / "late").write_bytes(b"a save is still running")
        return data

    store, place = place_of(path, lambda root: Watched(root, disturb))
    with pytest.raises(Refused, match="late"):
        commit_checkpoint(store, place)
    assert not (path / MANIFEST).exists()


def test_a_staging_name_needs_a_final_one(copy: Copy) -> None:
    path = copy("fsdp2/step-12", "step-12.tmp")
    assert "--as" in refused("commit", path)
    done("commit", path, "--as", "step-12")
    assert not path.exists()
    final = path.parent / "step-12"
    assert manifest_of(final).name == "step-12"
    assert findings(final, "--require", "manifest") == {}


def test_an_existing_name_is_never_published_over(copy: Copy) -> None:
    path = copy("fsdp2/step-12", "step-12.tmp")
    (path.parent / "step-12").mkdir()
    assert "exists already" in refused("commit", path, "--as", "step-12")
    assert sorted(one.name for one in path.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "ckptctl.pointers"])
def test_odd_names_are_not_published(copy: Copy, name: str) -> None:
    path = copy("fsdp2/step-12", "step-12.tmp")
    refused("commit", path, "--as", name)
    assert path.is_dir()


def test_publishing_under_another_staging_name_is_no_publication(copy: Copy) -> None:
    path = copy("fsdp2/step-12", "step-12.tmp")
    refused("commit", path, "--as", "step-12.partial")


def test_a_step_that_contradicts_the_name(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    message = refused("commit", path, "--step", "13")
    assert "13 by --step" in message
    assert "12 by its name" in message
    done("commit", path, "--step", "12")


def test_a_step_where_the_name_says_none(copy: Copy) -> None:
    path = copy("fsdp2/step-12", "final")
    done("commit", path, "--step", "12")
    assert manifest_of(path).step == 12


def test_a_root_is_no_checkpoint(two: Path) -> None:
    assert ckptctl("commit", two).code == 2
    assert ckptctl("promote", two).code == 2
    assert ckptctl("commit", two / "nothing").code == 4
    assert ckptctl("promote", two / "nothing").code == 4


def test_the_probe_leaves_nothing_behind(sealed: Path) -> None:
    assert sorted(one.name for one in sealed.parent.iterdir()) == ["step-12"]


# ---------------------------------------------------------------------------------- receipts


def test_receipts_are_kept_and_give_step_run_and_ranks(copy: Copy) -> None:
    path = copy("fsdp2/step-12", "final")
    stage_all(path)
    done("commit", path)
    manifest = manifest_of(path)
    assert (manifest.step, manifest.run_id, manifest.world_size) == (12, "run-a", RANKS)
    assert findings(path, "--require", "manifest") == {}


def test_receipts_with_other_digests_are_compared_by_size(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    record = receipt_of(path, 2).files[0]
    data = (path / record.path).read_bytes()
    other = type(record)(record.path, record.size, digest_of(data, "sha256"), 2)
    stage_all(path, {2: {"files": (other,)}})
    done("commit", path)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"step": 8}, "steps"),
        ({"save_id": "save-b"}, "save ids"),
        ({"run_id": "run-b"}, "runs"),
        ({"run_id": None}, "runs"),
        ({"world_size": 8}, "world sizes"),
    ],
)
def test_receipts_that_disagree(copy: Copy, changes: dict[str, Any], word: str) -> None:
    path = copy("fsdp2/step-12")
    stage_all(path, {2: changes})
    assert word in refused("commit", path, code=10)
    assert not (path / MANIFEST).exists()


def test_a_rank_without_a_receipt(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    stage_all(path)
    (path / receipt_of(path, 2).path).unlink()
    assert "1 of 4 ranks have left no receipt: 2" in refused("commit", path, code=10)


def test_a_receipt_whose_digest_does_not_fit(copy: Copy) -> None:
    """The rank wrote something else than what lies there now."""
    path = copy("fsdp2/step-12")
    stage_all(path)
    shutil.copy(FIXTURES / "fsdp2/step-8" / SHARD, path / SHARD)
    message = refused("commit", path, code=10)
    assert SHARD in message
    assert "rank 1" in message
    assert not (path / MANIFEST).exists()


def test_a_receipt_of_a_file_that_is_not_there(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    record = receipt_of(path, 2).files[0]
    more = type(record)("extra.pt", 9, record.digest, 2)
    stage_all(path, {2: {"files": (record, more)}})
    assert "extra.pt" in refused("commit", path, code=10)


def test_a_torn_receipt(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    stage_all(path)
    damage.truncate(path, file=receipt_of(path, 2).path, size=-20)
    assert "rank-00002" in refused("commit", path, code=10)


def test_a_step_that_contradicts_the_receipts(copy: Copy) -> None:
    path = copy("fsdp2/step-12", "step-13")
    stage_all(path)
    assert "12 by its receipts" in refused("commit", path)


def test_a_run_that_contradicts_the_receipts(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    stage_all(path)
    assert "run-a" in refused("commit", path, "--run-id", "run-b")


# ---------------------------------------------------------------------------------- what is proven


def test_a_shard_of_another_step_is_found(two: Path) -> None:
    """Case S07: sizes are equal and torch loads the mixture without a word."""
    shutil.copy2(two / "step-8" / SHARD, two / "step-12" / SHARD)
    found = findings(two / "step-12")
    (one,) = found["altered-file"]
    assert (one["where"]["file"], one["where"]["rank"]) == (SHARD, 1)
    assert errors(found) == {"altered-file"}
    assert resolved(two)[0] == "step-8"


def test_the_metadata_of_the_neighbour_is_found(two: Path) -> None:
    """Case S12: the values would be right, the identity is not."""
    shutil.copy2(two / "step-8/.metadata", two / "step-12/.metadata")
    found = findings(two / "step-12")
    assert errors(found) & {"altered-file", "resized-file", "foreign-manifest"}
    assert "foreign-manifest" in found
    assert resolved(two)[0] == "step-8"


def test_a_flipped_bit_names_file_tensor_and_rows(sealed: Path) -> None:
    flip_payload(sealed)
    found = findings(sealed)
    assert errors(found) == {"altered-file", "checksum"}
    assert [one["where"]["file"] for one in found["altered-file"]] == [SHARD]
    (one,) = found["checksum"]
    assert one["where"]["fqn"].startswith("model.")
    assert one["where"]["file"] == SHARD
    text = ckptctl("verify", sealed).stdout
    assert one["where"]["fqn"] in text
    assert "rows" in text


def test_a_file_of_equal_size_and_no_meaning(sealed: Path) -> None:
    damage.garble(sealed, file=SHARD)
    found = findings(sealed)
    assert "altered-file" in found
    assert {one["where"]["file"] for one in found["altered-file"]} == {SHARD}


def test_a_missing_file(sealed: Path) -> None:
    damage.remove(sealed, file=SHARD)
    found = findings(sealed)
    assert errors(found) == {"missing-file"}
    assert found["missing-file"][0]["where"]["file"] == SHARD


@pytest.mark.parametrize("deep", ["a", "a/b/c", "a/b/c/d/e/f"])
def test_files_in_directories_are_sealed_too(copy: Copy, deep: str) -> None:
    """However deep they lie: what a commit does not look at it must not call whole."""
    path = copy("fsdp2/step-12")
    inner = path / deep
    inner.mkdir(parents=True)
    (inner / "tokenizer.json").write_text("{}")
    done("commit", path)
    assert f"{deep}/tokenizer.json" in {file.path for file in manifest_of(path).files}
    (inner / "tokenizer.json").write_text("[]")
    assert "altered-file" in errors(findings(path))


def test_a_missing_companion_that_no_item_lies_in(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    (path / "tokenizer.json").write_text("{}")
    done("commit", path)
    assert findings(path) == {}
    damage.remove(path, file="tokenizer.json")
    assert errors(findings(path)) == {"missing-promised-file"}


def test_a_file_that_was_added_is_a_warning(sealed: Path) -> None:
    (sealed / "notes.txt").write_text("mine")
    found = findings(sealed)
    assert set(found) == {"unexpected-file"}
    assert found["unexpected-file"][0]["severity"] == "warning"
    assert ckptctl("verify", sealed).code == 0
    assert resolved(sealed.parent)[0] == "step-12"


def test_a_cut_file(sealed: Path) -> None:
    _cut(sealed)
    found = findings(sealed)
    assert errors(found) == {"truncated-file", "resized-file"}
    assert refused("promote", sealed, code=10)


def test_a_file_that_has_grown(sealed: Path) -> None:
    damage.append(sealed, file=SHARD, data=b"x")
    assert "resized-file" in errors(findings(sealed))


def test_the_manifest_of_another_checkpoint(two: Path) -> None:
    shutil.copy(two / "step-8" / MANIFEST, two / "step-12" / MANIFEST)
    found = findings(two / "step-12")
    assert {"foreign-manifest", "pointer-mismatch", "altered-file"} <= errors(found)
    assert "renamed-checkpoint" in found
    assert resolved(two)[0] == "step-8"


@pytest.mark.parametrize("size", [0, 1, 500, -2])
def test_a_torn_manifest(sealed: Path, size: int) -> None:
    done("promote", sealed)
    damage.truncate(sealed, file=MANIFEST, size=size)
    found = findings(sealed)
    assert "unreadable-manifest" in errors(found)
    assert refused("promote", sealed, code=10)
    assert "manifest" in refused("resolve", sealed.parent, code=10)
    assert refused("commit", sealed)


def test_a_manifest_whose_promise_was_rewritten(sealed: Path) -> None:
    data = (sealed / MANIFEST).read_bytes().replace(b'"step":12', b'"step":13')
    (sealed / MANIFEST).write_bytes(data)
    found = findings(sealed)
    assert errors(found) == {"unreadable-manifest"}
    assert "altered" in found["unreadable-manifest"][0]["message"]


def test_a_manifest_of_a_newer_release(sealed: Path) -> None:
    data = (sealed / MANIFEST).read_bytes().replace(b"ckptctl/manifest/3", b"ckptctl/manifest/9")
    (sealed / MANIFEST).write_bytes(data)
    assert "newer release" in findings(sealed)["unreadable-manifest"][0]["message"]
    assert "newer release" in refused("resolve", sealed.parent, code=10)


def test_a_renamed_checkpoint_is_a_warning(sealed: Path) -> None:
    moved = sealed.rename(sealed.parent / "step-13")
    found = findings(moved)
    assert set(found) == {"renamed-checkpoint"}
    assert found["renamed-checkpoint"][0]["severity"] == "warning"
    assert ckptctl("verify", moved).code == 0
    assert newest(moved.parent)[0] == 12  # the manifest says so, whatever the name


def test_an_uncommitted_checkpoint_where_a_manifest_is_required(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    assert findings(path) == {}
    assert errors(findings(path, "--require", "manifest")) == {"no-manifest"}


# ---------------------------------------------------------------------------------- two readings


def _restless(path: str, number: int, data: bytes) -> bytes:
    """Another byte at each opening of one file."""
    if not path.endswith(SHARD):
        return data
    return bytes([data[0] ^ (number + 1) & 255]) + data[1:] if data else data


def checks_of(path: Path, disturb: Callable[[str, int, bytes], bytes]) -> set[str]:
    store, place = place_of(path, lambda root: Watched(root, disturb))
    result = verify(store, place, options=Options(workers=1))
    assert result.verdict is Verdict.FINDINGS
    return {finding.check for finding in result.report.findings}


def test_two_readings_that_differ_accuse_nobody(sealed: Path) -> None:
    assert checks_of(sealed, _restless) == {"unstable-file"}


def test_one_wrong_reading_is_unstable_too(sealed: Path) -> None:
    def first_wrong(path: str, number: int, data: bytes) -> bytes:
        return _restless(path, 0, data) if number == 0 else data

    assert checks_of(sealed, first_wrong) == {"unstable-file"}


def test_the_same_wrong_reading_twice_is_alteration(sealed: Path) -> None:
    def always_wrong(path: str, number: int, data: bytes) -> bytes:
        return _restless(path, 0, data)

    assert "altered-file" in checks_of(sealed, always_wrong)


# ---------------------------------------------------------------------------------- one pass


def sizes_of(path: Path, names: tuple[str, ...]) -> dict[str, int]:
    return {f"{path.name}/{name}": (path / name).stat().st_size for name in names}


@pytest.mark.parametrize("workers", [1, 4])
def test_a_commit_reads_each_byte_once(copy: Copy, workers: int) -> None:
    path = copy("fsdp2/step-12")
    store, place = place_of(path, Watched)
    assert isinstance(store, Watched)
    commit_checkpoint(store, place, options=CommitOptions(workers=workers))
    facts, _ = place_of(path, Watched)
    assert isinstance(facts, Watched)
    facts_of(facts, place.path, dcp.read(facts, place.path))
    shards = sizes_of(path, FILES[1:])
    # a few counters are read once more, to be written down
    assert {name: store.read[name] - facts.read.get(name, 0) for name in shards} == shards
    assert 0 < sum(facts.read.get(name, 0) for name in shards) < 12 * 2048
    # the metadata is read to understand it and to hash it
    assert store.read["step-12/.metadata"] <= 2 * (path / ".metadata").stat().st_size


def test_a_verification_with_a_manifest_reads_each_byte_once(sealed: Path) -> None:
    store, place = place_of(sealed, Watched)
    assert isinstance(store, Watched)
    assert verify(store, place, options=Options(workers=1)).verdict is Verdict.OK
    shards = sizes_of(sealed, FILES[1:])
    assert {name: store.read[name] for name in shards} == shards


# ---------------------------------------------------------------------------------- the pointer


def test_promotion_makes_a_revision_and_a_courtesy_copy(sealed: Path) -> None:
    root = sealed.parent
    done("promote", sealed, "--reason", "it is good", env={"CKPTCTL_ACTOR": "me"})
    revision = decode(PointerRevision, (root / pointer_path(LATEST, 1)).read_bytes())
    assert (revision.target, revision.step, revision.actor) == ("step-12", 12, "me")
    assert (revision.manifest, revision.reason) == (manifest_of(sealed).digest, "it is good")
    assert (root / LATEST).read_text() == "step-12\n"
    assert "already" in done("promote", sealed).stdout
    assert moves(root) == ["step-12"]


def test_a_rehearsal_of_a_promotion_changes_nothing(sealed: Path) -> None:
    assert "would move" in done("promote", sealed, "--dry-run").stdout
    assert sorted(one.name for one in sealed.parent.iterdir()) == ["step-12"]


def test_back_only_by_a_rollback_which_resolve_obeys(two: Path) -> None:
    assert "--rollback" in refused("promote", two / "step-8")
    assert moves(two) == ["step-8", "step-12"]
    done("promote", two / "step-8", "--rollback", "--yes")
    name, said = resolved(two)
    assert name == "step-8"
    assert "rollback at revision 3" in said
    assert "step-12" in said
    assert resolved(two, "--full")[0] == "step-8"
    done("promote", two / "step-12")
    assert resolved(two)[0] == "step-12"
    assert moves(two) == ["step-8", "step-12", "step-8", "step-12"]


def test_a_commit_after_a_rollback_is_newer_news(two: Path) -> None:
    done("promote", two / "step-8", "--rollback")
    shutil.copytree(FIXTURES / "fsdp2/step-8", two / "step-9")
    done("commit", two / "step-9")
    assert resolved(two)[0] == "step-9"


def test_a_save_that_replaces_a_passed_over_one_is_newer_news(two: Path) -> None:
    """Back to 8, and the run comes to step 12 once more."""
    done("promote", two / "step-8", "--rollback")
    shutil.rmtree(two / "step-12")
    shutil.copytree(FIXTURES / "fsdp2/step-12", two / "step-12")
    done("commit", two / "step-12")
    assert resolved(two)[0] == "step-12"


def test_expect(two: Path) -> None:
    planted(two, [20])
    for wrong in ("0", "1", "3"):
        said = refused("promote", two / "step-20", "--expect", wrong)
        assert "revision 2" in said
        assert f"not {wrong}" in said
        assert "nothing was changed" in said
    done("promote", two / "step-20", "--expect", "2")
    assert moves(two) == ["step-8", "step-12", "step-20"]


def test_an_expectation_that_fails_says_who_moved_the_pointer(two: Path) -> None:
    planted(two, [20])
    assert "step-12" in refused("promote", two / "step-20", "--expect", "1")


def test_what_is_not_committed_is_not_promoted(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    assert "ckptctl commit" in refused("promote", path)
    assert sorted(one.name for one in path.parent.iterdir()) == ["step-12"]


def test_what_is_quarantined_is_not_promoted(two: Path) -> None:
    done("promote", two / "step-8", "--rollback")
    done("quarantine", two / "step-12", "--reason", "loss spike")
    assert "loss spike" in refused("promote", two / "step-12")
    assert moves(two)[-1] == "step-8"


def test_what_does_not_verify_is_not_promoted(two: Path) -> None:
    planted(two, [20])
    flip_payload(two / "step-20")
    assert "altered-file" in refused("promote", two / "step-20", code=10)
    assert moves(two) == ["step-8", "step-12"]


def test_a_quarantined_target_is_passed_over(two: Path) -> None:
    done("quarantine", two / "step-12", "--reason", "loss spike")
    name, said = resolved(two)
    assert name == "step-8"
    assert "step-12" in said
    assert "loss spike" in said
    done("quarantine", two / "step-8", "--reason", "bad as well")
    said = refused("resolve", two, code=10)
    assert "loss spike" in said
    assert "bad as well" in said


def test_a_target_that_was_deleted(two: Path) -> None:
    shutil.rmtree(two / "step-12")
    name, said = resolved(two)
    assert name == "step-8"
    assert "dangling" in said
    assert "step-12" in said


def test_a_target_that_was_replaced(two: Path) -> None:
    (two / "step-12" / MANIFEST).unlink()
    done("commit", two / "step-12", "--run-id", "somebody else's")
    assert errors(findings(two / "step-12")) == {"pointer-mismatch"}
    name, said = resolved(two)
    assert name == "step-8"
    assert "pointer-mismatch" in said
    done("promote", two / "step-12")
    assert findings(two / "step-12") == {}
    assert resolved(two)[0] == "step-12"


@pytest.mark.parametrize("size", [0, 10, -2])
def test_a_torn_revision_is_a_choice_of_two(two: Path, size: int) -> None:
    damage.truncate(two, file=pointer_path(LATEST, 2), size=size)
    said = refused("resolve", two, code=4)
    assert "00000002.json" in said
    assert "step-8 (revision 1 names it, which --pointer-fallback takes)" in said
    assert "step-12 (the newest revision may have named it)" in said
    name, said = resolved(two, "--pointer-fallback")
    assert name == "step-12"
    assert "00000002.json" in said
    planted(two, [20])
    done("promote", two / "step-20")
    assert (two / pointer_path(LATEST, 3)).is_file()
    assert resolved(two)[0] == "step-20"


def test_the_courtesy_copy_is_not_trusted(two: Path) -> None:
    (two / LATEST).write_text("step-8\n")
    assert resolved(two)[0] == "step-12"
    (two / LATEST).unlink()
    assert resolved(two)[0] == "step-12"


# ---------------------------------------------------------------------------------- other pointers


def test_a_pointer_of_a_framework_to_an_absent_step(two: Path) -> None:
    """Case S14."""
    (two / "latest").write_text("step-1100")
    name, said = resolved(two)
    assert name == "step-12"
    assert "latest is dangling" in said
    assert "step-1100" in said


def test_a_link_to_an_absent_step(two: Path) -> None:
    (two / "latest").symlink_to("step-1100")
    name, said = resolved(two)
    assert name == "step-12"
    assert "latest is dangling" in said


def test_a_link_that_names_itself(two: Path) -> None:
    (two / "latest").symlink_to("latest")
    name, said = resolved(two)
    assert name == "step-12"
    assert "latest is dangling" in said


def test_a_pointer_ahead_of_the_commit(two: Path) -> None:
    ahead = two / "step-1100"
    ahead.mkdir()
    shutil.copy(two / "step-12" / SHARD, ahead)
    (two / "latest").write_text("step-1100")
    name, said = resolved(two)
    assert name == "step-12"
    assert "latest names step-1100, which is not committed" in said


def test_a_stale_pointer_of_a_framework(two: Path) -> None:
    """Case S15."""
    (two / "latest").write_text("step-8")
    name, said = resolved(two)
    assert name == "step-12"
    assert "latest is stale" in said


def test_order_is_by_number(tmp_path: Path) -> None:
    root = planted(tmp_path / "run", [900, 1000, 99])
    assert resolved(root)[0] == "step-1000"
    for age, name in enumerate(["step-1000", "step-99", "step-900"]):
        os.utime(root / name, (10**9 + age, 10**9 + age))
    assert resolved(root)[0] == "step-1000"
    done("promote", root / "step-900")
    name, said = resolved(root)
    assert name == "step-1000"
    assert "is stale" in said
    done("promote", root / "step-1000")
    assert "--rollback" in refused("promote", root / "step-900")


# ---------------------------------------------------------------------------------- marks and history


def test_quarantine_and_release(sealed: Path) -> None:
    done("quarantine", sealed, "--reason", "loss spike", env={"CKPTCTL_ACTOR": "on-call"})
    found = findings(sealed)
    assert errors(found) == {"quarantined"}
    assert "on-call" in found["quarantined"][0]["message"]
    assert "already" in done("quarantine", sealed, "--reason", "again").stdout
    assert refused("resolve", sealed.parent, code=10)
    done("release", sealed, "--reason", "it was the data")
    assert findings(sealed) == {}
    assert resolved(sealed.parent)[0] == "step-12"
    assert "not quarantined" in refused("release", sealed, "--reason", "again")
    done("quarantine", sealed, "--reason", "after all")
    assert refused("resolve", sealed.parent, code=10)


def test_a_mark_needs_a_reason(sealed: Path) -> None:
    assert ckptctl("quarantine", sealed).code == 2
    assert "reason" in refused("quarantine", sealed, "--reason", "  ")


def test_a_rehearsal_of_a_mark_changes_nothing(sealed: Path) -> None:
    assert "would be" in done("quarantine", sealed, "--reason", "x", "--dry-run").stdout
    assert findings(sealed) == {}


def test_a_mark_that_cannot_be_read_counts(sealed: Path) -> None:
    done("quarantine", sealed, "--reason", "loss spike")
    (record,) = (sealed / "ckptctl.quarantine").glob("*.json")
    record.write_bytes(record.read_bytes()[:20])
    assert errors(findings(sealed)) == {"quarantined"}
    assert "quarantined" in refused("promote", sealed)
    assert "quarantined" in refused("resolve", sealed.parent, code=10)
    done("release", sealed, "--reason", "looked at it")
    assert resolved(sealed.parent)[0] == "step-12"


def test_an_uncommitted_checkpoint_can_be_quarantined(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("quarantine", path, "--reason", "bad")
    assert "bad" in refused("resolve", path.parent, "--allow-uncommitted", code=10)


def test_history_tells_all(two: Path) -> None:
    done("quarantine", two / "step-12", "--reason", "loss spike")
    done("release", two / "step-12", "--reason", "it was the data")
    done("promote", two / "step-8", "--rollback", "--reason", "to be safe")
    document = done("history", two, "--json").json()
    events = sorted(
        (one["name"], one["what"], one["revision"], one["reason"]) for one in document["events"]
    )
    assert events == [
        ("step-12", "committed", None, ""),
        ("step-12", "promoted", 2, "committed"),
        ("step-12", "quarantined", None, "loss spike"),
        ("step-12", "released", None, "it was the data"),
        ("step-8", "committed", None, ""),
        ("step-8", "promoted", 1, "committed"),
        ("step-8", "rolled back", 3, "to be safe"),
    ]
    assert [one["time"] for one in document["events"]] == sorted(
        one["time"] for one in document["events"]
    )
    text = done("history", two).stdout
    assert len(text.splitlines()) == 8
    assert "rolled back (revision 3)" in text


def test_history_outlives_what_was_deleted(two: Path) -> None:
    shutil.rmtree(two / "step-8")
    shutil.rmtree(two / "step-12")
    whats = [one["what"] for one in done("history", two, "--json").json()["events"]]
    assert whats == ["promoted", "promoted"]


def test_history_names_damaged_records(two: Path) -> None:
    damage.truncate(two, file=pointer_path(LATEST, 1), size=10)
    damage.truncate(two / "step-8", file=MANIFEST, size=10)
    whats = [one["what"] for one in done("history", two, "--json").json()["events"]]
    assert sorted(whats) == ["committed", "damaged", "damaged", "promoted"]


def test_history_of_nothing(tmp_path: Path) -> None:
    assert ckptctl("history", tmp_path).code == 3


# ---------------------------------------------------------------------------------- storage


def in_a_read_only_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the right to write: root has it whatever the mode says, so root's calls fail."""
    if os.geteuid() != 0:
        path.chmod(0o555)
        return

    def refuse(self: RealSystem, path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RealSystem, "write", refuse)


def test_nothing_is_published_where_writing_is_not_allowed(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIXTURES / "fsdp2/step-12", two / "step-20")
    planted(two, [30])
    with monkeypatch.context() as patch:
        for path in (two, *two.iterdir()):
            if path.is_dir():
                in_a_read_only_place(path, patch)
        try:
            for words in (
                ("commit", two / "step-20"),
                ("promote", two / "step-30"),
                ("quarantine", two / "step-8", "--reason", "x"),
            ):
                assert "ermission denied" in refused(*words)
            assert resolved(two)[0] == "step-30"
        finally:
            for path in (two, *(one for one in two.iterdir() if one.is_dir())):
                path.chmod(0o755)
    assert moves(two) == ["step-8", "step-12"]


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy("fsdp2/step-12")

    def full(self: RealSystem, path: Path, data: bytes) -> None:
        path.write_bytes(data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RealSystem, "write", full)
    assert "No space left" in refused("commit", path, code=4)
    assert sorted(one.name for one in path.iterdir()) == sorted(FILES)
    assert sorted(one.name for one in path.parent.iterdir()) == ["step-12"]


def test_a_file_system_without_links_is_refused(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy("fsdp2/step-12")

    def unable(self: RealSystem, source: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(RealSystem, "link", unable)
    assert "hard links" in refused("commit", path)
    assert sorted(one.name for one in path.iterdir()) == sorted(FILES)


def test_a_manifest_that_may_not_be_durable_is_an_unknown_outcome(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy("fsdp2/step-12")
    real = RealSystem.sync_directory

    def fail_late(self: RealSystem, directory: Path) -> None:
        if (path / MANIFEST).exists():
            raise OSError(5, "Input/output error")
        real(self, directory)

    monkeypatch.setattr(RealSystem, "sync_directory", fail_late)
    assert "durable" in refused("commit", path, code=6)
    assert (path / MANIFEST).exists()
    store, place = place_of(path)
    with pytest.raises(OutcomeUnknown):
        store.create("step-12/other", b"x")
    assert place.path == "step-12"


def test_a_storage_that_does_not_answer_gives_no_verdict(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptctl.storage.posix.PosixStore.open", Silent.open)
    for words in (
        ("resolve", two),
        ("commit", two / "step-8"),
        ("promote", two / "step-8"),
        ("verify", two / "step-12"),
    ):
        ended = ckptctl(*words)
        assert ended.code == 4, (words, ended)
        assert not any(w in ended.stdout + ended.stderr for w in ("altered", "checksum"))


def test_shards_that_cannot_be_read_are_not_committed(copy: Copy) -> None:
    path = copy("fsdp2/step-12")

    def disturb(name: str, number: int, data: bytes) -> bytes:
        if name.endswith(SHARD):
            raise StorageError(f"{name}: Input/output error")
        return data

    store, place = place_of(path, lambda root: Watched(root, disturb))
    with pytest.raises(StorageError, match="Input/output"):
        commit_checkpoint(store, place)
    assert not (path / MANIFEST).exists()


def test_a_promotion_that_cannot_read_what_it_moves_to_fails(two: Path) -> None:
    planted(two, [20])

    def disturb(name: str, number: int, data: bytes) -> bytes:
        if name == f"step-20/{SHARD}":
            raise StorageError(f"{name}: Input/output error")
        return data

    store, place = place_of(two / "step-20", lambda root: Watched(root, disturb))
    with pytest.raises(StorageError, match="Input/output"):
        promote(store, place)
    assert moves(two) == ["step-8", "step-12"]


def test_a_courtesy_copy_that_fails_changes_nothing(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lock = RealSystem.rename, threading.Lock()

    def fail(self: RealSystem, source: Path, target: Path) -> None:
        with lock:
            if target.name == LATEST:
                raise OSError(28, "No space left on device")
        real(self, source, target)

    monkeypatch.setattr(RealSystem, "rename", fail)
    ended = done("promote", sealed)
    assert "plain text copy" in ended.stderr
    assert moves(sealed.parent) == ["step-12"]


# ---------------------------------------------------------------------------------- as a process


def test_the_whole_story_as_processes(copy: Copy) -> None:
    """The same through real processes, with paths as users give them."""
    root = copy("fsdp2/step-12").parent
    assert run("resolve", ".", cwd=root).code == 10
    assert run("commit", "step-12", "--promote", cwd=root).code == 0
    ended = run("resolve", ".", cwd=root)
    assert (ended.code, ended.stdout) == (0, "step-12\n")
    ended = run("resolve", root)
    assert (ended.code, ended.stdout) == (0, f"{root}/step-12\n")
    assert run("commit", f"{root}/step-12/", cwd=root).code == 0
    assert run("commit", f"{root}/step-12/", "--step", "13", cwd=root).code == 5
    assert run("promote", "../step-12", cwd=root / "step-12").code == 0
