"""What holds for every store, and the same report whatever store a checkpoint lies in.

A suite to inherit: a subclass gives a ``place``.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ckptctl.errors import NotFound, ShortRead, StorageError
from ckptctl.model.finding import Finding
from ckptctl.operations.find import find
from ckptctl.operations.verify.verify import Verdict, Verification, verify
from ckptctl.storage import Store, open_listed, walk
from ckptctl.storage.posix import PosixStore
from conftest import FIXTURES
from support.stores import Place, fill

DATA = bytes(range(256)) * 40

ODD_NAMES = (
    "with space",
    " leading and trailing ",
    "grüße-日本",
    "a#b",
    "a%20b",
    "100%",
    "[red]bold",
    "*?[a-z]",
    "back\\slash",
    "quote'\"<b>&amp;",
    "a+b=c&d;e",
    "semi:colon",
    "..hidden",
    "-rf",
    "\x1b[31mred",
    "line\nbreak",
)


class StoreContract:
    """What holds for every store; each implementation inherits it and gives a ``place``."""

    unsupported: frozenset[str] = frozenset()
    """Odd names that the service behind the store cannot hold."""

    tells_directories = True
    """Whether the service can say that a name is a directory without a listing of it."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    def test_a_read_returns_exactly_its_range(self, place: Place) -> None:
        place.put("dir/object", DATA)
        with place.store.open("dir/object") as reader:
            assert reader.size == len(DATA)
            for start, stop in ((0, len(DATA)), (0, 1), (17, 17), (5, 300), (len(DATA) - 1, None)):
                stop = len(DATA) if stop is None else stop
                assert reader.read(start, stop) == DATA[start:stop]
                buffer = bytearray(stop - start)
                reader.read_into(start, memoryview(buffer))
                assert buffer == DATA[start:stop]
            assert type(reader.read(3, 9)) is bytes

    def test_a_part_of_a_larger_buffer_is_filled(self, place: Place) -> None:
        place.put("object", DATA)
        buffer = bytearray(b"." * 30)
        with place.store.open("object") as reader:
            reader.read_into(100, memoryview(buffer)[10:20])
        assert buffer == b"." * 10 + DATA[100:110] + b"." * 10

    def test_an_empty_object(self, place: Place) -> None:
        place.put("empty", b"")
        assert place.store.stat("empty").size == 0
        with place.store.open("empty") as reader:
            assert reader.size == 0
            assert reader.read(0, 0) == b""
            with pytest.raises(ShortRead):
                reader.read(0, 1)

    def test_what_lies_past_the_end_is_a_short_read(self, place: Place) -> None:
        place.put("object", b"0123456789")
        with place.store.open("object") as reader:
            for start, stop in ((5, 11), (10, 11), (50, 60)):
                with pytest.raises(ShortRead):
                    reader.read(start, stop)
                with pytest.raises(ShortRead):
                    reader.read_into(start, memoryview(bytearray(stop - start)))

    @pytest.mark.parametrize("left", [0, 5, 9])
    def test_an_object_that_shrinks_is_a_short_read(self, place: Place, left: int) -> None:
        """A reader may also have fetched a small object whole: never anything in between."""
        place.put("object", b"0123456789")
        with place.store.open("object") as reader:
            assert reader.read(0, 10) == b"0123456789"
            place.put("object", b"0123456789"[:left])
            with suppress(ShortRead):
                assert reader.read(0, 10) == b"0123456789"
        with place.store.open("object") as reader, pytest.raises(ShortRead):
            reader.read(0, 10)

    @pytest.mark.parametrize("now", [b"", b"01234", b"0123456789abc"])
    def test_an_object_that_has_changed_since_it_was_listed(self, place: Place, now: bytes) -> None:
        place.put("object", b"0123456789")
        (entry,) = place.store.entries()
        place.put("object", now)
        with pytest.raises(StorageError), open_listed(place.store, "object", entry.size) as reader:
            if reader.size != entry.size:
                raise StorageError("told when it is opened")
            reader.read(0, reader.size)

    def test_an_empty_object_that_has_grown_since_it_was_listed(self, place: Place) -> None:
        place.put("object", b"")
        (entry,) = place.store.entries()
        with open_listed(place.store, "object", entry.size) as reader:
            assert reader.size == 0
        place.put("object", b"0123456789")
        with open_listed(place.store, "object", entry.size) as reader:
            assert reader.size == 10

    def test_an_object_that_was_listed_and_is_gone(self, place: Place) -> None:
        place.put("object", b"0123456789")
        place.put("other", b"")
        place.remove("object")
        with pytest.raises(NotFound), open_listed(place.store, "object", 10) as reader:
            reader.read(0, 10)

    def test_opening_again_reads_afresh(self, place: Place) -> None:
        place.put("object", b"0123456789")
        for data in (b"0123456789", b"9876543210"):
            place.put("object", data)
            with open_listed(place.store, "object", 10) as reader:
                assert reader.read(2, 5) == data[2:5]
            with place.store.open("object") as reader:
                assert reader.read(2, 5) == data[2:5]

    def test_many_small_reads_of_a_large_object(self, place: Place) -> None:
        data = bytes(range(256)) * (6 << 12)
        place.put("object", data)
        places = [*range(0, len(data) - 5000, 70_001), *range(len(data) - 9000, 0, -1_000_003)]
        with open_listed(place.store, "object", len(data)) as reader:
            for start in places:
                for size in (1, 4096, 5000):
                    assert reader.read(start, start + size) == data[start : start + size]
            buffer = memoryview(bytearray(1 << 20))
            for start in range(0, len(data) - len(buffer) + 1, len(buffer)):
                reader.read_into(start, buffer)
                assert buffer == data[start : start + len(buffer)]

    def test_what_is_not_there_is_not_found(self, place: Place) -> None:
        place.put("dir/object", DATA)
        for path in ("missing", "dir/missing", "missing/object", "dir/object/below", "dir/obj"):
            with pytest.raises(NotFound):
                place.store.open(path)
            with pytest.raises(NotFound):
                place.store.stat(path)
        for path in ("missing", "missing/deeper", "di"):
            with pytest.raises(NotFound):
                place.store.entries(path)

    def test_a_directory_is_no_object(self, place: Place) -> None:
        place.put("dir/object", DATA)
        if not self.tells_directories:
            pytest.skip("the service answers for a directory as for an object")
        with pytest.raises(StorageError):
            place.store.open("dir")

    def test_a_listing_holds_the_direct_children_in_order(self, place: Place) -> None:
        for path in ("b/y", "b/x/deep", "a", "B", "a.b", "b.c", ".metadata"):
            place.put(path, path.encode())
        top = place.store.entries()
        assert [(entry.path, entry.kind) for entry in top] == [
            (".metadata", "file"),
            ("B", "file"),
            ("a", "file"),
            ("a.b", "file"),
            ("b", "directory"),
            ("b.c", "file"),
        ]
        below = place.store.entries("b")
        assert [(entry.path, entry.name, entry.kind) for entry in below] == [
            ("b/x", "x", "directory"),
            ("b/y", "y", "file"),
        ]
        assert {entry.size for entry in top if entry.kind == "file"} == {1, 3, 9}
        assert [entry.path for entry in walk(place.store)] == [
            ".metadata",
            "B",
            "a",
            "a.b",
            "b/x/deep",
            "b/y",
            "b.c",
        ]

    def test_stat_and_listing_agree(self, place: Place) -> None:
        place.put("dir/object", DATA)
        (entry,) = place.store.entries("dir")
        assert entry.size == len(DATA)
        stat = place.store.stat("dir/object")
        assert (stat.path, stat.kind, stat.size) == (entry.path, entry.kind, entry.size)
        if self.tells_directories:
            assert place.store.stat("dir").kind == "directory"
            assert place.store.stat().kind == "directory"

    def test_listings_are_fresh(self, place: Place) -> None:
        place.put("dir/one", b"1")
        assert [entry.name for entry in place.store.entries("dir")] == ["one"]
        place.put("dir/two", b"22")
        place.put("other/three", b"333")
        assert [entry.name for entry in place.store.entries("dir")] == ["one", "two"]
        assert [entry.name for entry in place.store.entries()] == ["dir", "other"]
        place.remove("dir/one")
        assert [entry.name for entry in place.store.entries("dir")] == ["two"]
        with pytest.raises(NotFound):
            place.store.stat("dir/one")

    def test_sizes_are_fresh(self, place: Place) -> None:
        place.put("object", b"1")
        assert place.store.stat("object").size == 1
        place.put("object", b"4444")
        assert place.store.stat("object").size == 4
        assert [entry.size for entry in place.store.entries()] == [4]
        with place.store.open("object") as reader:
            assert reader.read(0, 4) == b"4444"

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names(self, place: Place, name: str) -> None:
        if name in self.unsupported:
            pytest.skip("the service cannot hold such a name")
        place.put(f"dir/{name}", DATA)
        place.put(f"{name}/inner", b"inside")
        (entry,) = place.store.entries("dir")
        assert (entry.path, entry.name, entry.kind) == (f"dir/{name}", name, "file")
        assert entry.size == len(DATA)
        with place.store.open(entry.path) as reader:
            assert reader.read(1, 99) == DATA[1:99]
        assert [e.path for e in place.store.entries() if e.name != "dir"] == [name]
        assert [e.path for e in place.store.entries(name)] == [f"{name}/inner"]
        assert place.store.stat(f"{name}/inner").size == 6

    def test_several_threads_read_at_once(self, place: Place) -> None:
        place.put("one", DATA)
        place.put("two", DATA[::-1])
        barrier = threading.Barrier(6)

        with place.store.open("one") as one, place.store.open("two") as two:

            def look(number: int) -> bool:
                barrier.wait()
                for start in range(number, 3000, 601):
                    stop = start + 777
                    if one.read(start, stop) != DATA[start:stop]:
                        return False
                    if two.read(start, stop) != DATA[::-1][start:stop]:
                        return False
                return {e.name for e in place.store.entries()} == {"one", "two"}

            with ThreadPoolExecutor(6) as pool:
                assert all(pool.map(look, range(6)))

    def test_a_checkpoint_verifies_as_it_does_on_disk(self, place: Place) -> None:
        source = FIXTURES / "fsdp2"
        fill(place, source)
        expected = [_essence(v) for v in _verify_all(PosixStore(source))]
        assert [_essence(v) for v in _verify_all(place.store)] == expected
        assert len(expected) == 2
        assert {verdict for _, verdict, _, _ in expected} == {Verdict.UNVERIFIED}

    def test_damage_gives_the_report_that_it_gives_on_disk(
        self, place: Place, tmp_path: Path
    ) -> None:
        source = tmp_path / "damaged" / "step-12"
        source.mkdir(parents=True)
        for path in (FIXTURES / "fsdp2/step-12").iterdir():
            data = bytearray(path.read_bytes())
            if path.name == "__1_0.distcp":
                del data[-1:]
            elif path.name == "__2_0.distcp":
                data[200] ^= 1
            elif path.name == "__3_0.distcp":
                continue
            (source / path.name).write_bytes(data)
        fill(place, source.parent)
        (expected,) = (_essence(v) for v in _verify_all(PosixStore(source.parent)))
        (seen,) = (_essence(v) for v in _verify_all(place.store))
        assert seen == expected
        assert expected[1] is Verdict.FINDINGS
        assert {f.check for f in expected[2]} >= {"missing-file", "truncated-file"}


def _verify_all(store: Store) -> list[Verification]:
    return [verify(store, one) for one in find(store)]


def _essence(
    one: Verification,
) -> tuple[int | None, Verdict, tuple[Finding, ...], tuple[object, ...]]:
    """A verification without the name of the place, and without what modification times tell."""
    findings = tuple(
        replace(f, where=replace(f.where, checkpoint=""), remedy="")
        for f in one.report.findings
        if f.check != "newer-than-metadata"
    )
    rest = (one.keys, one.items, one.ranks, one.size, one.problem, one.report.coverage)
    return one.step, one.verdict, findings, rest
