"""How often each command asks an object store, counted by the server: bounds by number, not by time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import FIXTURES
from support.cli import run
from support.counting import BUCKET, CountingServer, Counts, counting_server

CHECKPOINTS = 4
SHAPES = ("file_per_item", "fsdp2", "no_crc", "rank_local", "thread_count_3", "zstd")


@pytest.fixture(scope="module")
def server() -> Iterator[CountingServer]:
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    with counting_server() as found:
        yield found
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(server: CountingServer, monkeypatch: pytest.MonkeyPatch) -> CountingServer:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def root(bucket: CountingServer, request: pytest.FixtureRequest) -> str:
    """A run of several checkpoints alike, none of them committed."""
    prefix = f"run-{abs(hash(request.node.nodeid))}"
    for step in range(1, CHECKPOINTS + 1):
        bucket.fill(f"{prefix}/step-{step}", FIXTURES / "fsdp2/step-12")
    return f"s3://{BUCKET}/{prefix}"


def asked(bucket: CountingServer, *words: str, codes: tuple[int, ...] = (0,)) -> Counts:
    """Run a command and return what the server counted."""
    bucket.counts()
    ended = run(*words)
    assert ended.code in codes, ended
    return bucket.counts()


def test_the_server_is_one_that_counts(bucket: CountingServer) -> None:
    bucket.put("counted/one", b"12345")
    assert bucket.counts().requests == 0
    assert bucket.get("counted/one") == b"12345"
    ended = run("list", f"s3://{BUCKET}/counted")
    assert ended.code == 3, ended
    found = bucket.counts()
    assert found.requests == sum(found.by_kind.values()) > 0
    assert found.of("LIST") > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_quick_look_never_asks_more_than_a_whole_one(bucket: CountingServer, shape: str) -> None:
    source = max(path for path in (FIXTURES / shape).iterdir() if path.is_dir())
    sizes = [path.stat().st_size for path in source.rglob("*") if path.is_file()]
    url = bucket.fill(f"shapes/{shape}/{source.name}", source)
    for committed in (False, True):
        if committed and run("commit", url).code != 0:
            return
        whole = asked(bucket, "verify", url, codes=(0, 10))
        quick = asked(bucket, "verify", url, "--quick", codes=(0, 10))
        assert quick.requests <= whole.requests, (quick, whole)
        assert whole.of("GET") <= len(sizes) + 6
        assert whole.of("HEAD") <= 1 + sizes.count(0)


def test_a_checkpoint_is_read_by_one_request_per_small_file(
    bucket: CountingServer, tmp_path: Path
) -> None:
    shutil.copytree(FIXTURES / "fsdp2/step-12", tmp_path / "step-12")
    url = bucket.fill("alone/step-12", tmp_path / "step-12")
    files = len(list((tmp_path / "step-12").iterdir()))
    for words, most in (("verify", files + 1), ("digest", 2 * files), ("show", files + 16)):
        found = asked(bucket, words, url)
        assert found.of("GET") <= most, (words, found)
        assert found.requests <= most + 11, (words, found)


def test_many_small_files_are_asked_for_at_once(bucket: CountingServer, tmp_path: Path) -> None:
    source, made = FIXTURES / "fsdp2/step-12", tmp_path / "step-12"
    words = ("--world-size", "48", "--rng", "drop", "--data", "drop", "--yes")
    assert run("reshard", source, "--out", made, *words).code == 0
    (made / "ckptctl.manifest.json").unlink()
    url = bucket.fill("many/step-12", made)
    bucket.delay(1.5, only="distcp")  # long enough for all to be on their way
    try:
        found = asked(bucket, "verify", url)
        assert 32 <= found.most <= 64, found
        bucket.delay(0.02)
        few = asked(bucket, "verify", url, "--workers", "2")
        assert few.most <= 4, few
    finally:
        bucket.delay(0)


@pytest.mark.parametrize(
    ("words", "each", "beside"),
    [
        (("list",), 2, 8),
        (("resolve", "--allow-uncommitted"), 80, 60),
        (("history",), 1, 12),
    ],
)
def test_a_root_is_asked_little_for_each_checkpoint(
    bucket: CountingServer, root: str, words: tuple[str, ...], each: int, beside: int
) -> None:
    found = asked(bucket, words[0], root, *words[1:], codes=(0, 3, 10))
    assert found.requests <= each * CHECKPOINTS + beside, found
    assert found.of("HEAD") <= 1


def test_publishing_asks_a_bounded_number_of_times(bucket: CountingServer, root: str) -> None:
    commit = asked(bucket, "commit", f"{root}/step-3")
    assert commit.requests <= 110, commit
    promote = asked(bucket, "promote", f"{root}/step-3")
    assert promote.requests <= 110, promote
    assert promote.of("PUT") <= 6
    resolve = asked(bucket, "resolve", root)
    assert resolve.requests <= 110, resolve
    listed = asked(bucket, "list", root)
    assert listed.requests <= 2 * CHECKPOINTS + 12, listed


def test_a_reshard_asks_a_bounded_number_of_times(bucket: CountingServer, root: str) -> None:
    words = ("reshard", f"{root}/step-4", "--world-size", "8", "--yes")
    policies = ("--rng", "drop", "--data", "drop")
    out = f"{root}-out/step-4"
    found = asked(bucket, *words, "--out", out, *policies)
    assert found.requests <= 300, found
