"""The contract of layouts, kept by DCP and by a toy whose framework nobody has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptctl.formats import registry
from ckptctl.hashing import Hasher
from ckptctl.operations.content.digest import digest_content
from ckptctl.operations.content.open import open_tensors
from conftest import FIXTURES
from contracts.layout import LayoutContract
from contracts.toy import Toy
from contracts.toy_files import tensors_at, write_toy


class TestDcp(LayoutContract):
    layout = registry.layout("dcp")

    def write(self, path: Path, step: int) -> None:
        shutil.copytree(FIXTURES / "fsdp2" / f"step-{step}", path)


class TestToy(LayoutContract):
    layout = Toy()

    def write(self, path: Path, step: int) -> None:
        write_toy(path, step)

    def test_its_digests_are_those_of_the_arrays(self, root: Path) -> None:
        content = digest_content(open_tensors(str(root / "step-12")))
        for row in content.tensors:
            hasher = Hasher()
            hasher.update(tensors_at(12)[row.fqn].tobytes())
            assert row.digest == hasher.text()

    def test_it_is_small(self) -> None:
        import contracts.toy as toy

        assert len(Path(toy.__file__).read_text().splitlines()) <= 60


class TestToyWithoutCrcs(TestToy):
    needs_crcs = False

    def write(self, path: Path, step: int) -> None:
        write_toy(path, step, crcs=False)

    def test_what_nobody_can_check_is_said(self, root: Path) -> None:
        ended = self.run("verify", root / "step-12")
        assert "no CRC recorded" in ended.stdout
        assert "content not checkable" in ended.stdout


@pytest.mark.parametrize("name", ["two", "layouts"])
def test_two_equally_sure_claims_name_both(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twin(Toy):
        pass

    twin = Twin()
    twin.name = name
    monkeypatch.setattr(registry, "LAYOUTS", (*registry.LAYOUTS, Toy(), twin))
    write_toy(tmp_path / "run" / "step-1", 1)
    contract = TestToy()
    listed = contract.run("list", tmp_path / "run").stdout
    assert "toy" in listed and name in listed and "framework" in listed
    assert contract.run("verify", tmp_path / "run" / "step-1").code == 4
    forced = contract.run("verify", tmp_path / "run" / "step-1", "--framework", "toy")
    assert forced.code == 0, forced.stdout + forced.stderr
