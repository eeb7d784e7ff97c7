"""What holds for every layout whose contents are read whole, whatever framework writes it.

A suite to inherit: a subclass says how its checkpoints are written and which file holds tensors.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ckptctl.formats import registry
from ckptctl.formats.base import Encoding, Layout, Reads
from ckptctl.formats.encodings import encoding_of
from ckptctl.model.checkpoint import Item, TensorEntry
from ckptctl.model.paths import join
from ckptctl.operations.content.digest import digest_content
from ckptctl.operations.content.open import open_tensors
from ckptctl.operations.find import find
from ckptctl.storage import open_store
from support.cli import Ended, run

TORCH = (".pt", ".pth", ".bin", ".ckpt")


class LayoutContract:
    """Inherit, set ``layout`` and say how to ``write`` a checkpoint of one step."""

    layout: ClassVar[Layout]
    needs_crcs: ClassVar[bool] = True
    """False for a layout that records no CRC, where only a manifest proves content."""

    without_it: ClassVar[int] = 10
    """The exit code where the file that holds most is not there."""

    template: ClassVar[str] = "step-{}"
    """What its checkpoints are called: directories, or files where it is one for each."""

    def write(self, path: Path, step: int) -> None:
        """Write a healthy checkpoint."""
        raise NotImplementedError

    def name(self, step: int) -> str:
        """Return the name of a checkpoint."""
        return self.template.format(step)

    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        if self.layout not in registry.LAYOUTS:
            monkeypatch.setattr(registry, "LAYOUTS", (*registry.LAYOUTS, self.layout))
        root = tmp_path / "run"
        for step in (8, 12):
            self.write(root / self.name(step), step)
        return root

    def payload(self, path: Path) -> tuple[Path, int]:
        """Return a file of a checkpoint and a position in the largest tensor's bytes in it."""
        store = open_store(str(path.parent))
        (place,) = [p for p in find(store) if p.path == path.name]
        found: list[tuple[int, Path, int]] = []
        files = place.files(store)
        for name, items in self.items(path).items():
            with store.open(join(place.base, name)) as reader:
                for region in self.encoding(name, items).regions(reader, name):
                    if region.kind == "payload":
                        size = region.stop - region.start
                        file = path.parent / place.base / name
                        found.append((size, file, region.start + size // 2))
        assert files and found
        _, file, position = max(found)
        return file, position

    def encoding(self, name: str, items: list[Item]) -> Encoding:
        """Return how a file is written: by its name, or by what the metadata says of it."""
        return encoding_of(name, [] if name.endswith(TORCH) else items)

    def items(self, path: Path) -> dict[str, list[Item]]:
        opened = open_tensors(str(path))
        found: dict[str, list[Item]] = {}
        for item in opened.checkpoint.items:
            found.setdefault(item.path, []).append(item)
        return found

    def run(self, *args: str | Path) -> Ended:
        return run(*args)

    # -- what is there

    def test_it_is_registered_once_and_reads_all(self, root: Path) -> None:
        assert [one.name for one in registry.LAYOUTS].count(self.layout.name) == 1
        assert self.layout.reads is Reads.WHOLE

    def test_one_row_per_checkpoint_in_numeric_order(self, root: Path) -> None:
        rows = find(open_store(str(root)))
        assert [(one.path, one.name.step) for one in rows] == [
            (self.name(8), 8),
            (self.name(12), 12),
        ]
        assert {one.format for one in rows} == {self.layout.name}
        assert self.run("list", root).stdout.count("complete") == 2

    def test_show_lists_what_is_inside(self, root: Path) -> None:
        ended = self.run("show", root / self.name(12))
        assert ended.code == 0
        assert self.layout.title in ended.stdout
        assert self.run("show", root / self.name(12), "--tensors").code == 0
        assert self.run("show", root / self.name(12), "--objects").code == 0

    def test_every_byte_has_one_region(self, root: Path) -> None:
        path = root / self.name(12)
        base = path if path.is_dir() else root
        for name, items in self.items(path).items():
            with open_store(str(base)).open(name) as reader:
                data = reader.read(0, reader.size)
                end = 0
                for region in self.encoding(name, items).regions(reader, name):
                    assert (region.path, region.start) == (name, end)
                    assert region.stop > region.start
                    end = region.stop
                    if region.crc is not None:
                        assert zlib.crc32(data[region.start : region.stop]) == region.crc
                assert end == len(data)

    # -- verify, audit

    def test_a_healthy_one_verifies(self, root: Path) -> None:
        ended = self.run("verify", root / self.name(12))
        assert ended.code == 0, ended.stdout
        assert "error" not in ended.stdout
        assert "model" in ended.stdout  # the audit's line

    def test_a_flipped_bit_is_found(self, root: Path) -> None:
        file, position = self.payload(root / self.name(12))
        flip(file, position)
        ended = self.run("verify", root / self.name(12))
        if self.needs_crcs:
            assert ended.code == 10, ended.stdout
            assert "checksum" in ended.stdout
        assert self.run("verify", root / self.name(8)).code == 0

    def test_a_file_that_is_cut_or_gone_is_found(self, root: Path) -> None:
        file, _ = self.payload(root / self.name(12))
        with file.open("r+b") as stream:
            stream.truncate(file.stat().st_size - 1)
        assert self.run("verify", root / self.name(12)).code == 10
        assert "incomplete" in self.run("list", root).stdout
        file.unlink()
        assert self.run("verify", root / self.name(12)).code == self.without_it

    def test_values_are_looked_at(self, root: Path) -> None:
        ended = self.run("verify", root / self.name(12), "--values")
        assert ended.code == 0, ended.stdout

    # -- content

    def test_a_digest_is_that_of_the_content(self, root: Path, tmp_path: Path) -> None:
        content = digest_content(open_tensors(str(root / self.name(12))))
        assert content.tensors and not content.problems
        again = digest_content(open_tensors(str(copied(root / self.name(12), tmp_path))))
        assert again.tensors_digest == content.tensors_digest
        other = digest_content(open_tensors(str(root / self.name(8))))
        assert other.tensors_digest != content.tensors_digest

    def test_diff_tells_the_same_from_another(self, root: Path, tmp_path: Path) -> None:
        same = self.run("diff", root / self.name(12), copied(root / self.name(12), tmp_path))
        assert same.code == 0, same.stdout
        assert self.run("diff", root / self.name(12), root / self.name(8)).code == 10

    def test_convert_writes_what_is_read(self, root: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        ended = self.run("convert", root / self.name(12), "--to", "safetensors", "--out", out)
        assert ended.code == 0, ended.stderr
        opened = open_tensors(str(root / self.name(12)))
        written = digest_content(open_tensors(str(out)))
        ours = {row.fqn: row.digest for row in digest_content(opened).tensors}
        assert {row.fqn: row.digest for row in written.tensors} == ours
        tensors = [e for e in opened.checkpoint.entries.values() if isinstance(e, TensorEntry)]
        assert len(tensors) == len(ours)

    # -- records

    def test_commit_promote_resolve_prune(self, root: Path) -> None:
        for step in (8, 12):
            ended = self.run("commit", root / self.name(step))
            assert ended.code == 0, ended.stderr
        assert "committed as step 12" in self.run("verify", root / self.name(12)).stdout
        assert self.run("promote", root / self.name(12), "--require", "none").code == 0
        found = self.run("resolve", root, "--full")
        assert (found.code, found.stdout.strip()) == (0, str(root / self.name(12)))
        file, position = self.payload(root / self.name(12))
        flip(file, position)
        found = self.run("resolve", root, "--full")
        assert (found.code, found.stdout.strip()) == (0, str(root / self.name(8)))
        flip(file, position)
        pruned = self.run("prune", root, "--keep-last", "1", "--min-age", "0m", "--yes")
        assert pruned.code == 0, pruned.stderr
        left = {one.path for one in find(open_store(str(root)))}
        assert left == {self.name(12)}
        assert self.run("verify", root / self.name(12)).code == 0

    def test_a_damaged_one_is_not_committed(self, root: Path) -> None:
        if not self.needs_crcs:
            pytest.skip("the layout records no CRC")
        file, position = self.payload(root / self.name(12))
        flip(file, position)
        assert self.run("commit", root / self.name(12)).code == 10

    # -- half wired

    def test_half_wired_it_is_not_examined_and_never_damaged(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        half = HalfWired(self.layout)
        others = tuple(one for one in registry.LAYOUTS if one.name != self.layout.name)
        monkeypatch.setattr(registry, "LAYOUTS", (*others, half))
        listed = self.run("list", root).stdout
        assert listed.count("not examined") == 2
        ended = self.run("verify", root / self.name(12))
        assert ended.code == 4
        assert "error" not in ended.stdout
        assert "contents not read yet" in ended.stdout + ended.stderr
        for command in ("digest", "commit"):
            ended = self.run(command, root / self.name(12))
            assert ended.code == 5, command
            assert "contents not read yet" in ended.stderr


class HalfWired(Layout):
    """A layout that claims what another one does and reads nothing."""

    def __init__(self, whole: Layout) -> None:
        self.name, self.title, self._whole = whole.name, whole.title, whole
        self.reads = Reads.NAMES

    def claim(self, folder: Any) -> Iterator[Any]:
        yield from self._whole.claim(folder)


def copied(path: Path, tmp_path: Path) -> Path:
    """Copy a checkpoint, a directory or a file, to another place under its name."""
    to = tmp_path / "elsewhere" / path.name
    to.parent.mkdir()
    shutil.copytree(path, to) if path.is_dir() else shutil.copy2(path, to)
    return to


def flip(file: Path, position: int) -> None:
    """Flip one bit, and keep the times."""
    data = bytearray(file.read_bytes())
    data[position] ^= 0x10
    file.write_bytes(data)
