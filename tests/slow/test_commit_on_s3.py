"""A commit on an object store: who writes an object while it is read is seen by its version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from ckptctl.errors import Refused
from ckptctl.operations.publish import commit
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.storage import open_writable
from conftest import FIXTURES
from support.publish import Bucket, bucket, place_of, s3_environment, s3_server

SOURCE, SHARD = "thread_count_3/step-12", "__1_0.distcp"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with s3_server() as endpoint:
        for name, value in s3_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        with bucket(endpoint, f"commit-{uuid4()}") as found:
            yield found


def test_an_object_that_is_written_meanwhile(made: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    url = made.upload(FIXTURES / SOURCE, "run/step-12")
    store, place = place_of(url, open_writable)
    data = bytearray((FIXTURES / SOURCE / SHARD).read_bytes())
    data[len(data) // 2] ^= 1
    asked = commit.refuse_changes

    def late(*args: Any) -> None:
        store.put(f"step-12/{SHARD}", bytes(data))
        asked(*args)

    with monkeypatch.context() as patch:
        patch.setattr(commit, "refuse_changes", late)
        with pytest.raises(Refused, match=f"{SHARD} changed"):
            commit_checkpoint(store, place, options=CommitOptions(workers=1))
    store.put(f"step-12/{SHARD}", (FIXTURES / SOURCE / SHARD).read_bytes())
    store, place = place_of(url, open_writable)
    done = commit_checkpoint(store, place, options=CommitOptions(workers=1))
    assert done.changed
    store, place = place_of(url, open_writable)
    assert not commit_checkpoint(store, place, options=CommitOptions(workers=1)).changed
