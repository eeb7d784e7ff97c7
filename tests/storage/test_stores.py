"""Each store keeps the contract of stores; and what is particular to one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from ckptctl.errors import NotFound, RootMissing, StorageError
from ckptctl.operations.find import find
from ckptctl.storage import open_store
from ckptctl.storage.fsspec import ObjectStore
from ckptctl.storage.posix import PosixStore
from contracts.store import StoreContract
from support.stores import BucketPlace, DirectoryPlace, MemoryPlace, Place, web_server


class TestPosix(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        root = tmp_path / "root"
        root.mkdir()
        return DirectoryPlace(PosixStore(root), root)

    def test_kinds_of_what_is_no_plain_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"1234")
        (tmp_path / "dir").mkdir()
        (tmp_path / "to_file").symlink_to("file")
        (tmp_path / "to_dir").symlink_to("dir")
        (tmp_path / "dangling").symlink_to("nowhere")
        (tmp_path / "loop").symlink_to("loop")
        os.mkfifo(tmp_path / "pipe")
        store = PosixStore(tmp_path)
        seen = {e.name: (e.kind, e.target) for e in store.entries()}
        assert seen == {
            "file": ("file", None),
            "dir": ("directory", None),
            "to_file": ("file", "file"),
            "to_dir": ("directory", "dir"),
            "dangling": ("other", "nowhere"),
            "loop": ("other", "loop"),
            "pipe": ("other", None),
        }
        assert store.stat("to_file").size == 4
        for name in ("pipe", "dir", "loop"):
            with pytest.raises(StorageError):
                store.open(name)
        with pytest.raises(NotFound):
            store.open("dangling")

    def test_a_name_that_no_file_can_have_is_not_found(self, tmp_path: Path) -> None:
        store = PosixStore(tmp_path)
        for name in ("nul\0byte", "lone\ud800surrogate"):
            with pytest.raises(NotFound):
                store.open(name)
        with pytest.raises(StorageError):
            store.open("x" * 300)

    def test_a_name_that_is_no_text_can_still_be_opened(self, tmp_path: Path) -> None:
        (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(b"latin1")
        store = PosixStore(tmp_path)
        (entry,) = store.entries()
        with store.open(entry.path) as reader:
            assert reader.read(0, 6) == b"latin1"

    def test_an_open_file_is_the_one_that_was_opened(self, tmp_path: Path) -> None:
        (tmp_path / "object").write_bytes(b"old")
        with PosixStore(tmp_path).open("object") as reader:
            (tmp_path / "new").write_bytes(b"NEW")
            (tmp_path / "new").rename(tmp_path / "object")
            assert reader.read(0, 3) == b"old"

    def test_closing_lets_go_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "object").write_bytes(b"old")
        before = len(os.listdir("/dev/fd"))
        reader = PosixStore(tmp_path).open("object")
        assert len(os.listdir("/dev/fd")) == before + 1
        reader.close()
        reader.close()
        assert len(os.listdir("/dev/fd")) == before
        with pytest.raises(StorageError):
            PosixStore(tmp_path).open(".")
        assert len(os.listdir("/dev/fd")) == before


class TestMemory(StoreContract):
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        root = f"/{uuid4()}"
        system = fsspec.filesystem("memory")
        system.makedirs(root)
        yield MemoryPlace(ObjectStore(f"memory:/{root}"), system, root)
        system.rm(root, recursive=True)


class TestFileThroughFsspec(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        root = tmp_path / "root"
        root.mkdir()
        return DirectoryPlace(ObjectStore(root.as_uri()), root)


class TestHttp(StoreContract):
    tells_directories = False

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        pytest.importorskip("aiohttp")
        root = tmp_path / "root"
        root.mkdir()
        with web_server(tmp_path) as address:
            yield DirectoryPlace(ObjectStore(f"{address}/root"), root)


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class TestS3(StoreContract):
    unsupported = frozenset(["line\nbreak", "\x1b[31mred"])  # XML 1.0 has no such characters

    @pytest.fixture
    def place(self, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
        boto3 = pytest.importorskip("boto3")
        s3fs = pytest.importorskip("s3fs")
        for key, value in {
            "AWS_ENDPOINT_URL": s3_endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(key, value)
        s3fs.S3FileSystem.clear_instance_cache()
        client = boto3.client("s3", endpoint_url=s3_endpoint)
        bucket = f"bucket-{uuid4()}"
        client.create_bucket(Bucket=bucket)
        # a prefix exists only while something lies below it
        client.put_object(Bucket=bucket, Key="runs/other/object", Body=b"")
        yield BucketPlace(ObjectStore(f"s3://{bucket}/runs/one"), client, bucket, "runs/one")
        client.close()


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("some/path", PosixStore),
        ("/some/path", PosixStore),
        ("file:///some/path", PosixStore),
        ("weird:name", PosixStore),
        ("memory://some/path", ObjectStore),
    ],
)
def test_what_a_user_types_names_a_store(location: str, kind: type) -> None:
    store = open_store(location)
    assert type(store) is kind
    assert open_store(Path("some/path")).url == "some/path"


def test_an_unknown_scheme_is_a_storage_error() -> None:
    with pytest.raises(StorageError):
        open_store("no-such-scheme://bucket/run")


def test_a_root_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    for location in (str(tmp_path / "missing"), f"memory://{uuid4()}/missing"):
        with pytest.raises(RootMissing):
            find(open_store(location))
