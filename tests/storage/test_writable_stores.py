"""Each store that publishes keeps the contract, whatever races, fails or fills up."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from ckptctl.errors import Conflict, OutcomeUnknown, Refused, StorageError
from ckptctl.storage import WritableStore, open_writable
from ckptctl.storage.fsspec_writer import ConditionalStore
from ckptctl.storage.posix import PosixStore
from ckptctl.storage.system import RealSystem
from conftest import FIXTURES
from contracts.writable_store import WritingContract, everything, read
from support.cli import run, run_process
from support.servers import (
    moto_server,
    rclone_server,
    s3_environment,
)

# ---------------------------------------------------------------------------------- POSIX


class TestPosix(WritingContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        root = tmp_path / "root"
        root.mkdir()
        return str(root)

    def test_a_root_that_is_not_there_is_made(self, tmp_path: Path) -> None:
        store = PosixStore(tmp_path / "not" / "yet")
        store.create("a", b"1")
        assert everything(store) == {"a": b"1"}

    def test_a_rename_refuses_any_target_that_exists(self, url: str, store: WritableStore) -> None:
        store.create("step-1.tmp/a", b"1")
        (Path(url) / "empty").mkdir()
        (Path(url) / "file").write_bytes(b"")
        (Path(url) / "dangling").symlink_to("nowhere")
        for name in ("empty", "file", "dangling"):
            with pytest.raises(Conflict):
                store.rename_directory("step-1.tmp", name)
        assert read(store, "step-1.tmp/a") == b"1"

    def test_a_rename_of_what_is_not_there_fails(self, store: WritableStore) -> None:
        with pytest.raises(StorageError):
            store.rename_directory("step-1.tmp", "step-1")

    def test_a_missing_object_cannot_be_made_durable(self, store: WritableStore) -> None:
        store.create("a", b"1")
        with pytest.raises(StorageError):
            store.make_durable(["a", "b"])

    def test_a_dangling_link_is_in_the_way_of_a_creation(
        self, url: str, store: WritableStore
    ) -> None:
        (Path(url) / "record").symlink_to("elsewhere")
        with pytest.raises(Conflict):
            store.create("record", b"1")
        assert sorted(os.listdir(url)) == ["record"]

    def test_readers_of_a_put_may_see_objects_of_any_size(self, store: WritableStore) -> None:
        versions = [bytes([65 + i]) * (1 + 1000 * i) for i in range(10)]
        store.put("object", versions[0])
        done = Event()

        def look() -> set[bytes]:
            seen = set()
            while not done.is_set():
                seen.add(read(store, "object"))
            return seen

        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(look)
            for version in versions * 3:
                store.put("object", version)
            done.set()
            assert reader.result() <= set(versions)


class Faulty(RealSystem):
    """The operating system, but some calls fail: ``before`` they do anything, or ``after``."""

    def __init__(
        self,
        call: str,
        code: int,
        *,
        after: bool = False,
        names: str = "",
        between: Callable[[Path], None] | None = None,
    ) -> None:
        self._call, self._code, self._after, self._names = call, code, after, names
        self._between = between

    def _fail(self, call: str, path: Path, do: Callable[[], None]) -> None:
        mine = call == self._call and self._names in str(path)
        if mine and self._between is not None:
            self._between(path)
        if not mine or self._after:
            do()
        if mine:
            raise OSError(self._code, os.strerror(self._code), str(path))

    def make_directory(self, path: Path) -> None:
        self._fail("make_directory", path, lambda: super(Faulty, self).make_directory(path))

    def write(self, path: Path, data: bytes) -> None:
        half = data if self._after else data[: len(data) // 2]
        mine = self._call == "write"
        super().write(path, half if mine else data)
        self._fail("write", path, lambda: None)

    def sync_file(self, path: Path) -> None:
        self._fail("sync_file", path, lambda: super(Faulty, self).sync_file(path))

    def sync_directory(self, path: Path) -> None:
        self._fail("sync_directory", path, lambda: super(Faulty, self).sync_directory(path))

    def link(self, source: Path, target: Path) -> None:
        self._fail("link", target, lambda: super(Faulty, self).link(source, target))

    def rename(self, source: Path, target: Path) -> None:
        self._fail("rename", target, lambda: super(Faulty, self).rename(source, target))

    def unlink(self, path: Path) -> None:
        self._fail("unlink", path, lambda: super(Faulty, self).unlink(path))


NO_LINKS = [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS]
FULL = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG]
FORBIDDEN = [errno.EROFS, errno.EACCES]


class TestFaults:
    """POSIX calls that fail, or that succeed and say that they failed."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "root"
        (root / "a").mkdir(parents=True)
        return root

    def test_a_link_that_was_made_and_denied_is_a_success(self, root: Path) -> None:
        """Over NFS the answer gets lost and the retry finds the link of its first attempt."""
        store = PosixStore(root, system=Faulty("link", errno.EEXIST, after=True))
        store.create("a/b", b"mine")
        assert everything(store) == {"a/b": b"mine"}
        store.prove()

    @pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
    def test_a_link_whose_answer_was_lost_is_a_success(self, root: Path, code: int) -> None:
        """It is there and it is ours: to say that it certainly is not would be false."""
        store = PosixStore(root, system=Faulty("link", code, after=True))
        store.create("a/b", b"mine")
        assert everything(store) == {"a/b": b"mine"}

    def test_a_link_of_another_is_a_conflict(self, root: Path) -> None:
        def overtake(path: Path) -> None:
            path.write_bytes(b"mine")

        store = PosixStore(root, system=Faulty("link", errno.EEXIST, between=overtake))
        with pytest.raises(Conflict):
            store.create("a/b", b"mine")
        assert everything(store) == {"a/b": b"mine"}

    @pytest.mark.parametrize("code", NO_LINKS)
    def test_without_hard_links_nothing_is_published(self, root: Path, code: int) -> None:
        store = PosixStore(root, system=Faulty("link", code))
        with pytest.raises(Refused, match="hard links") as caught:
            store.create("a/b", b"1")
        assert caught.value.exit_code == 5
        with pytest.raises(Refused, match="hard links"):
            store.prove()
        assert everything(store) == {}

    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
    def test_a_link_that_fails_is_a_storage_error(self, root: Path, code: int) -> None:
        store = PosixStore(root, system=Faulty("link", code))
        with pytest.raises(StorageError) as caught:
            store.create("a/b", b"1")
        assert caught.value.exit_code == 4
        assert everything(store) == {}

    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
    def test_a_name_that_cannot_be_made_durable_is_unknown(self, root: Path, code: int) -> None:
        store = PosixStore(root, system=Faulty("sync_directory", code))
        with pytest.raises(OutcomeUnknown) as caught:
            store.create("a/b", b"1")
        assert caught.value.exit_code == 6
        assert everything(store) == {"a/b": b"1"}

    def test_a_rename_that_cannot_be_made_durable_is_unknown(self, root: Path) -> None:
        store = PosixStore(root, system=Faulty("sync_directory", errno.EIO))
        with pytest.raises(OutcomeUnknown):
            store.rename_directory("a", "b")
        assert os.listdir(root) == ["b"]

    @pytest.mark.parametrize("call", ["write", "sync_file"])
    @pytest.mark.parametrize("code", FULL)
    def test_what_does_not_fit_leaves_nothing(self, root: Path, call: str, code: int) -> None:
        store = PosixStore(root, system=Faulty(call, code))
        for act in (store.create, store.put):
            with pytest.raises(StorageError) as caught:
                act("a/b", b"some data")
            assert caught.value.exit_code == 4
            assert everything(store) == {}

    @pytest.mark.parametrize("code", FORBIDDEN)
    @pytest.mark.parametrize("call", ["write", "link", "make_directory"])
    def test_what_is_forbidden_is_refused(self, root: Path, call: str, code: int) -> None:
        store = PosixStore(root, system=Faulty(call, code))
        with pytest.raises(Refused, match="nothing was changed") as caught:
            store.create("new/b", b"some data")
        assert caught.value.exit_code == 5
        assert everything(store) == {}

    @pytest.mark.parametrize("code", FORBIDDEN)
    def test_a_proof_is_refused_where_writing_is_forbidden(self, root: Path, code: int) -> None:
        with pytest.raises(Refused):
            PosixStore(root, system=Faulty("write", code)).prove()

    @pytest.mark.parametrize(("code", "kind"), [(errno.EIO, StorageError), (errno.EROFS, Refused)])
    def test_a_delete_that_fails_says_so(
        self, root: Path, code: int, kind: type[Exception]
    ) -> None:
        (root / "a" / "b").write_bytes(b"1")
        store = PosixStore(root, system=Faulty("unlink", code))
        with pytest.raises(kind):
            store.delete("a/b")
        store = PosixStore(root, system=Faulty("sync_directory", code))
        with pytest.raises(kind):
            store.delete("a/b", durable=True)

    def test_a_put_that_fails_leaves_the_old_object(self, root: Path) -> None:
        PosixStore(root).put("a/b", b"old")
        store = PosixStore(root, system=Faulty("rename", errno.EIO))
        with pytest.raises(StorageError):
            store.put("a/b", b"new")
        assert everything(store) == {"a/b": b"old"}

    def test_a_temporary_file_that_stays_is_no_failure(self, root: Path) -> None:
        store = PosixStore(root, system=Faulty("unlink", errno.EIO))
        store.create("a/b", b"1")
        found = everything(store)
        assert found.pop("a/b") == b"1"
        assert all(path.startswith("a/.ckptctl-") for path in found)

    def test_what_cannot_be_made_durable_is_not_committed(self, root: Path) -> None:
        (root / "a" / "b").write_bytes(b"1")
        for call in ("sync_file", "sync_directory"):
            with pytest.raises(StorageError):
                PosixStore(root, system=Faulty(call, errno.EIO)).make_durable(["a/b"])


# ---------------------------------------------------------------------------------- file systems


@contextmanager
def mounted(point: Path, options: str) -> Iterator[Callable[[str], None]]:
    """Mount a small file system in memory; yield what mounts it again with other options."""
    point.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")

    def remount(changed: str) -> None:
        again = ["mount", "-o", f"remount,{changed}", str(point)]
        subprocess.run(again, check=True, capture_output=True)

    try:
        yield remount
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True, capture_output=True)


def _fill(point: Path) -> Path:
    filler = point / "filler"
    with filler.open("wb", buffering=0) as stream:
        for size in (65536, 4096, 1):
            try:
                while stream.write(bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return filler


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "filler"
    }


def test_a_commit_on_a_full_file_system_fails_cleanly(tmp_path: Path) -> None:
    point = tmp_path / "small"
    with mounted(point, "size=1m"):
        checkpoint = point / "run" / "step-1"
        shutil.copytree(FIXTURES / "no_crc" / "step-1", checkpoint)
        filler, before = _fill(point), snapshot(point)
        ended = run("commit", checkpoint)
        assert (ended.code, "No space left" in ended.stderr) == (4, True), ended
        assert snapshot(point) == before
        assert run("verify", checkpoint).code == 0
        assert run("resolve", point / "run").code == 10
        filler.unlink()
        assert run("commit", checkpoint).code == 0
        _fill(point)
        before = snapshot(point)
        promotion = ["promote", checkpoint, "--require", "weights"]
        for words in (promotion, ["quarantine", checkpoint, "--reason", "x"]):
            ended = run(*words)
            assert (ended.code, "No space left" in ended.stderr) == (4, True), ended
            assert snapshot(point) == before
        assert run("resolve", point / "run").code == 0


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    point = tmp_path / "frozen"
    with mounted(point, "size=4m") as remount:
        root = point / "run"
        for name in ("step-1", "step-2", "step-3"):
            shutil.copytree(FIXTURES / "no_crc" / "step-1", root / name)
        for name in ("step-1", "step-2"):
            assert run("commit", root / name).code == 0
        remount("ro")
        before = snapshot(point)
        for words in (
            ["commit", root / "step-3"],
            ["promote", root / "step-2", "--require", "weights"],
            ["quarantine", root / "step-2", "--reason", "x"],
            ["prune", root, "--keep-last", "1", "--min-age", "0m", "--yes"],
        ):
            ended = run(*words)
            assert (ended.code, "Read-only file system" in ended.stderr) == (5, True), ended
        assert snapshot(point) == before
        assert run("resolve", root).code == 0


# ---------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    pytest.importorskip("s3fs")
    with moto_server() as endpoint:
        yield endpoint


def _use(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point all clients at a server; what fsspec remembers of another one is dropped."""
    s3fs = pytest.importorskip("s3fs")
    for key, value in s3_environment(endpoint).items():
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()


def _new_bucket(endpoint: str) -> str:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=endpoint)
    bucket = f"bucket-{uuid4()}"
    client.create_bucket(Bucket=bucket)
    client.close()
    return bucket


class TestS3(WritingContract):
    renames = False

    @pytest.fixture
    def url(self, moto: str, monkeypatch: pytest.MonkeyPatch) -> str:
        _use(moto, monkeypatch)
        return f"s3://{_new_bucket(moto)}/runs/one"

    @pytest.fixture
    def pipe(self, store: WritableStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Return what replaces the upload by a function that is given the real one."""
        assert isinstance(store, ConditionalStore)
        system = store._system
        real = system.pipe_file

        def change(upload: Callable[..., None]) -> None:
            monkeypatch.setattr(system, "pipe_file", lambda *a, **k: upload(real, *a, **k))

        return change

    def test_prune_deletes_at_once_where_nothing_can_be_moved(
        self, store: WritableStore, url: str
    ) -> None:
        for step in (1, 2):
            for path in (FIXTURES / "no_crc" / "step-1").iterdir():
                store.create(f"step-{step}/{path.name}", path.read_bytes())
            assert run("commit", f"{url}/step-{step}").code == 0
        store.create("latest", b"/elsewhere/one/step-1")
        words = ("prune", url, "--keep-last", "1", "--min-age", "0m", "--yes")
        assert "latest names it" in run(*words).stdout
        store.delete("latest")
        assert run("prune", url, "--keep-last", "1", "--yes").code == 0
        assert "step-1/.metadata" in everything(store)
        ended = run(*words)
        assert (ended.code, "deleted 1 checkpoint" in ended.stdout) == (0, True), ended
        assert "ckptctl.trash" not in ended.stdout
        left = everything(store)
        assert {path.partition("/")[0] for path in left} == {"step-2"}
        assert run("undelete", url, "step-1").code == 4
        assert run("verify", f"{url}/step-2", "--require", "manifest").code == 0

    @pytest.mark.parametrize("error", [TimeoutError, ConnectionResetError, OSError])
    def test_an_upload_whose_answer_was_lost_is_a_success(
        self, store: WritableStore, pipe: Any, error: type[Exception]
    ) -> None:
        def lose(real: Any, *args: Any, **words: Any) -> None:
            real(*args, **words)
            raise error("no answer")

        pipe(lose)
        store.create("a", b"mine")
        assert everything(store) == {"a": b"mine"}

    def test_an_upload_that_the_client_repeats_is_a_success(
        self, store: WritableStore, pipe: Any
    ) -> None:
        def twice(real: Any, *args: Any, **words: Any) -> None:
            real(*args, **words)
            real(*args, **words)

        pipe(twice)
        store.create("a", b"mine")
        assert everything(store) == {"a": b"mine"}

    def test_an_upload_that_fails_once_is_tried_again(
        self, store: WritableStore, pipe: Any
    ) -> None:
        failures = [TimeoutError("no answer")]

        def once(real: Any, *args: Any, **words: Any) -> None:
            if failures:
                raise failures.pop()
            real(*args, **words)

        pipe(once)
        store.create("a", b"mine")
        assert everything(store) == {"a": b"mine"}

    def test_somebody_who_came_first_meanwhile_is_a_conflict(
        self, store: WritableStore, pipe: Any
    ) -> None:
        def overtaken(real: Any, path: str, data: bytes, **words: Any) -> None:
            real(path, b"other", **words)
            raise TimeoutError("no answer")

        pipe(overtaken)
        with pytest.raises(Conflict):
            store.create("a", b"mine")
        assert everything(store) == {"a": b"other"}

    def test_no_answer_at_all_is_unknown(self, store: WritableStore, pipe: Any) -> None:
        def silent(real: Any, *args: Any, **words: Any) -> None:
            raise TimeoutError("no answer")

        pipe(silent)
        with pytest.raises(OutcomeUnknown) as caught:
            store.create("a", b"mine")
        assert caught.value.exit_code == 6

    def test_no_answer_to_the_question_either_is_unknown(
        self, store: WritableStore, pipe: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lose(real: Any, *args: Any, **words: Any) -> None:
            real(*args, **words)
            raise TimeoutError("no answer")

        def deaf(self: ConditionalStore, path: str) -> bytes:
            raise StorageError("no answer")

        pipe(lose)
        monkeypatch.setattr(ConditionalStore, "_get", deaf)
        with pytest.raises(OutcomeUnknown):
            store.create("a", b"mine")

    def test_a_denial_is_refused(self, store: WritableStore, pipe: Any) -> None:
        def deny(real: Any, *args: Any, **words: Any) -> None:
            raise PermissionError("access denied")

        pipe(deny)
        for act in (store.create, store.put):
            with pytest.raises(Refused):
                act("a", b"mine")
        with pytest.raises(Refused):
            store.prove()

    def test_a_bucket_that_is_not_there_is_no_success(
        self, moto: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _use(moto, monkeypatch)
        with pytest.raises((StorageError, Refused)):
            open_writable(f"s3://no-such-bucket-{uuid4()}/run").prove()


def test_a_server_that_ignores_the_condition_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with rclone_server(tmp_path) as endpoint:
        _use(endpoint, monkeypatch)
        store = open_writable("s3://bucket/runs")
        store.put("object", b"some data")
        assert read(store, "object") == b"some data"
        for _ in range(2):
            with pytest.raises(Refused, match="ignores the condition") as caught:
                store.prove()
            assert caught.value.exit_code == 5
        left = [path for path in bucket.rglob("*") if path.is_file()]
    assert [path.relative_to(bucket).as_posix() for path in left] == ["runs/object"]


def test_commands_refuse_a_server_that_ignores_the_condition(tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    run_root = tmp_path / "bucket" / "run"
    shutil.copytree(FIXTURES / "no_crc" / "step-1", run_root / "step-1")
    before = snapshot(run_root)
    with rclone_server(tmp_path) as endpoint:
        ended = run_process("commit", "s3://bucket/run/step-1", env=s3_environment(endpoint))
    assert (ended.code, "ignores the condition" in ended.stderr) == (5, True), ended
    assert snapshot(run_root) == before


@pytest.mark.parametrize("url", ["memory://run", "http://127.0.0.1:1/run", "zip://a::b.zip"])
def test_stores_without_conditional_creation_are_refused(url: str) -> None:
    with pytest.raises((Refused, StorageError)):
        open_writable(url)
