"""What holds for every store that publishes, whatever races.

A suite to inherit: a subclass gives a ``url``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from ckptctl.errors import Conflict, NotFound, Refused
from ckptctl.storage import WritableStore, open_writable, walk
from support.servers import (
    Outcome,
    content,
    path_of,
    race_of_processes,
    race_of_threads,
)

RACERS, ROUNDS = 8, 20


def read(store: WritableStore, path: str) -> bytes:
    with store.open(path) as reader:
        return reader.read(0, reader.size)


def everything(store: WritableStore) -> dict[str, bytes]:
    """Return all files of a store, also such as no command looks at."""
    try:
        return {entry.path: read(store, entry.path) for entry in walk(store)}
    except NotFound:
        return {}


class WritingContract:
    """What holds for every writable store; each implementation inherits it and gives a ``url``."""

    renames = True
    """Whether directories can be renamed in one step."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> WritableStore:
        return open_writable(url)

    def test_a_proof_passes_and_leaves_nothing(self, store: WritableStore) -> None:
        store.prove()
        store.prove()
        assert everything(store) == {}

    @pytest.mark.parametrize("data", [b"", b"text\n", bytes(range(256)) * 4096])
    def test_what_is_created_is_there_at_once(self, store: WritableStore, data: bytes) -> None:
        store.create("a/b/c.json", data)
        assert everything(store) == {"a/b/c.json": data}
        assert store.stat("a/b/c.json").size == len(data)
        assert [entry.path for entry in store.entries("a/b")] == ["a/b/c.json"]

    @pytest.mark.parametrize("size", [0, 1, 40 << 20])
    def test_an_upload_appears_when_it_is_finished(self, store: WritableStore, size: int) -> None:
        block = bytes(range(256)) * 4096
        upload = store.upload("a/b/large.bin")
        for start in range(0, size, len(block)):
            upload.write(memoryview(block)[: size - start])
        with pytest.raises(NotFound):
            store.stat("a/b/large.bin")
        upload.finish()
        upload.abandon()
        assert store.stat("a/b/large.bin").size == size
        assert set(everything(store)) == {"a/b/large.bin"}
        with pytest.raises(Conflict):
            store.upload("a/b/large.bin")

    def test_an_upload_that_is_abandoned_was_never_there(self, store: WritableStore) -> None:
        upload = store.upload("a/b")
        upload.write(b"x" * (17 << 20))
        upload.abandon()
        upload.abandon()
        assert everything(store) == {}

    def test_what_exists_is_never_replaced(self, store: WritableStore) -> None:
        store.create("a/b", b"first")
        for data in (b"second", b"", b"first and more"):
            with pytest.raises(Conflict) as caught:
                store.create("a/b", data)
            assert caught.value.exit_code == 5
        store.put("a/c", b"put")
        with pytest.raises(Conflict):
            store.create("a/c", b"created")
        assert everything(store) == {"a/b": b"first", "a/c": b"put"}

    def test_what_was_deleted_can_be_created_again(self, store: WritableStore) -> None:
        store.create("a/b", b"first")
        store.delete("a/b", durable=True)
        store.create("a/b", b"second")
        assert read(store, "a/b") == b"second"

    @pytest.mark.parametrize(
        "race", [race_of_threads, pytest.param(race_of_processes, marks=pytest.mark.slow)]
    )
    def test_of_those_who_race_exactly_one_wins(
        self, url: str, race: Callable[..., list[Outcome]]
    ) -> None:
        outcomes = race(url, racers=RACERS, rounds=ROUNDS)
        assert Counter(how for _, _, how in outcomes) == {
            "won": ROUNDS,
            "lost": ROUNDS * (RACERS - 1),
        }
        winners = {round_number: n for round_number, n, how in outcomes if how == "won"}
        assert everything(open_writable(url)) == {
            path_of(round_number): content(round_number, winners[round_number])
            for round_number in range(ROUNDS)
        }

    @pytest.mark.slow
    def test_readers_see_the_old_object_or_the_new_one(self, store: WritableStore) -> None:
        versions = [bytes([65 + i]) * 100_000 for i in range(10)]
        store.put("object", versions[0])
        done = Event()

        def look() -> set[bytes]:
            seen = set()
            while not done.is_set():
                seen.add(read(store, "object"))
            return seen

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(look) for _ in range(3)]
            try:
                for _ in range(3):
                    for version in versions:
                        store.put("object", version)
            finally:
                done.set()
            seen = set().union(*(reader.result() for reader in readers))
        assert seen <= set(versions)
        assert len(seen) > 1
        assert everything(store) == {"object": versions[-1]}

    def test_a_put_replaces(self, store: WritableStore) -> None:
        for data in (b"first", b"", b"third, which is longer"):
            store.put("a/b", data)
            assert everything(store) == {"a/b": data}

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_delete_takes_one_object_away(self, store: WritableStore, durable: bool) -> None:
        store.create("a/b", b"1")
        store.create("a/c", b"2")
        store.delete("a/b", durable=durable)
        assert everything(store) == {"a/c": b"2"}
        assert [entry.path for entry in store.entries("a")] == ["a/c"]
        with pytest.raises(NotFound):
            store.stat("a/b")

    @pytest.mark.parametrize("durable", [True, False])
    def test_what_is_not_there_is_deleted_already(
        self, store: WritableStore, durable: bool
    ) -> None:
        store.create("a/b", b"1")
        store.delete("a/c", durable=durable)
        store.delete("a/c", durable=durable)
        assert everything(store) == {"a/b": b"1"}

    def test_only_empty_directories_are_removed(self, store: WritableStore) -> None:
        store.create("a/b", b"1")
        store.remove_directory("a")
        store.remove_directory("missing")
        assert everything(store) == {"a/b": b"1"}
        store.delete("a/b")
        store.remove_directory("a")
        with pytest.raises(NotFound):
            store.entries("a")

    def test_listings_are_fresh(self, url: str, store: WritableStore) -> None:
        other = open_writable(url)
        store.create("a/b", b"1")
        assert [entry.name for entry in other.entries("a")] == ["b"]
        other.create("a/c", b"2")
        assert [entry.name for entry in store.entries("a")] == ["b", "c"]
        store.put("a/b", b"333")
        assert [entry.size for entry in other.entries("a")] == [3, 1]
        other.delete("a/b")
        assert [entry.name for entry in store.entries("a")] == ["c"]

    def test_objects_of_others_are_made_durable(self, store: WritableStore) -> None:
        store.create("a/b/c", b"1")
        store.put("d", b"2")
        store.make_durable(["a/b/c", "d"])
        assert everything(store) == {"a/b/c": b"1", "d": b"2"}

    def test_a_directory_is_renamed_in_one_step_or_not_at_all(self, store: WritableStore) -> None:
        store.create("step-1.tmp/a/b", b"1")
        if self.renames:
            store.rename_directory("step-1.tmp", "step-1")
            assert everything(store) == {"step-1/a/b": b"1"}
            return
        with pytest.raises(Refused, match="cannot rename"):
            store.rename_directory("step-1.tmp", "step-1")
        assert everything(store) == {"step-1.tmp/a/b": b"1"}

    def test_a_directory_is_not_renamed_over_another(self, store: WritableStore) -> None:
        store.create("step-1.tmp/a", b"1")
        store.create("step-1/b", b"2")
        with pytest.raises(Refused):
            store.rename_directory("step-1.tmp", "step-1")
        assert everything(store) == {"step-1.tmp/a": b"1", "step-1/b": b"2"}
