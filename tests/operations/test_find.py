"""What is one checkpoint in a root: links, strays, names that say no step, files with records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptctl.operations.find import find
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.cli import run

STEPS = ("step-8", "step-12")


def plant(root: Path, *names: str) -> Path:
    """Copy the fixture's steps, under other names where some are given."""
    for step, name in zip(STEPS, names or STEPS, strict=True):
        shutil.copytree(FIXTURES / "fsdp2" / step, root / name)
    return root


def paths(root: Path) -> list[str]:
    return [place.path for place in find(open_store(root))]


@pytest.mark.parametrize("linked", [STEPS, STEPS[1:]], ids=["all", "the newest"])
def test_steps_that_are_links_to_another_volume_are_found(
    tmp_path: Path, linked: tuple[str, ...]
) -> None:
    plant(tmp_path / "scratch")
    root = tmp_path / "run"
    root.mkdir()
    for step in STEPS:
        if step in linked:
            (root / step).symlink_to(tmp_path / "scratch" / step)
        else:
            shutil.copytree(tmp_path / "scratch" / step, root / step)
    assert paths(root) == ["step-8", "step-12"]
    assert run("verify", root).stdout.count("whole, content checked") == 2
    found = run("resolve", root, "--allow-uncommitted")
    assert (found.code, found.stdout.strip()) == (0, str(root / "step-12"))


def test_what_a_link_leads_to_is_never_pruned(tmp_path: Path) -> None:
    plant(tmp_path / "scratch")
    root = tmp_path / "run"
    root.mkdir()
    for step in STEPS:
        (root / step).symlink_to(tmp_path / "scratch" / step)
    for step in STEPS:
        assert run("commit", root / step).code == 0
    ended = run("prune", root, "--keep-last", "1", "--min-age", "0m", "--yes")
    assert (ended.code, ended.stdout) == (5, "")
    assert "it is a link" in ended.stderr
    assert (tmp_path / "scratch" / "step-8" / ".metadata").exists()
    assert (root / "step-8").is_symlink()


def test_a_link_to_a_place_in_the_root_is_a_pointer(tmp_path: Path) -> None:
    root = plant(tmp_path / "run")
    (root / "best").symlink_to("step-8")
    (root / "newest").symlink_to(root / "step-12")
    (root / "again").symlink_to("newest")
    assert paths(root) == ["step-8", "step-12"]
    listed = run("list", root, "--json").json()["checkpoints"]
    assert [row["pointers"] for row in listed] == [["best"], ["again", "newest"]]


def test_a_link_that_leads_up_is_no_checkpoint(tmp_path: Path) -> None:
    root = plant(tmp_path / "run")
    (root / "up").symlink_to("..")
    (root / "self").symlink_to(".")
    assert paths(root) == ["step-8", "step-12"]


def test_a_stray_shard_does_not_make_a_root_one_checkpoint(tmp_path: Path) -> None:
    root = plant(tmp_path / "run")
    shutil.copy(root / "step-8" / "__0_0.distcp", root / "__0_0.distcp")
    assert paths(root) == ["step-8", "step-12"]
    shutil.copy(root / "step-8" / ".metadata", root / ".metadata")
    assert paths(root) == ["step-8", "step-12"]
    ended = run("prune", root, "--keep-last", "5", "--yes")
    assert "deleted 0" in ended.stdout or "would delete 0" in ended.stdout
    assert paths(root) == ["step-8", "step-12"]


@pytest.mark.parametrize("form", ["train_step_{}", "model_{}", "{}_steps", "iter-{}-ckpt"])
def test_whatever_steps_are_called_a_stray_save_hides_none(tmp_path: Path, form: str) -> None:
    names = [form.format(900), form.format(1000)]
    root = plant(tmp_path / "run", *names)
    for name in (".metadata", "__0_0.distcp"):
        shutil.copy(root / names[0] / name, root / name)
    assert paths(root) == names


def test_the_parts_of_a_last_save_in_a_root_hide_no_checkpoint(tmp_path: Path) -> None:
    root = plant(tmp_path / "out", "checkpoint-4", "checkpoint-6")
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(FIXTURES / "fsdp2" / "step-12", root / part)
    (root / "trainer_state.json").write_text('{"global_step": 6}')
    assert {"checkpoint-4", "checkpoint-6"} <= set(paths(root))


def test_the_last_so_many_are_chosen_once_manifests_have_told_their_steps(tmp_path: Path) -> None:
    root = plant(tmp_path / "run", "zeta", "alpha")
    for name, step in (("zeta", "8"), ("alpha", "12")):
        assert run("commit", root / name, "--step", step).code == 0
    for words in ((), ("--committed",)):
        rows = run("list", root, "--limit", "1", *words, "--json").json()["checkpoints"]
        assert [row["name"] for row in rows] == ["alpha"]


def test_a_directory_with_a_manifest_below_is_no_checkpoint(tmp_path: Path) -> None:
    root = plant(tmp_path / "run", "one", "two")
    assert run("commit", root / "two", "--step", "12").code == 0
    shutil.copy(root / "one" / "__0_0.distcp", root / "__0_0.distcp")
    assert paths(root) == ["one", "two"]


def test_nothing_inside_a_checkpoint_is_another(tmp_path: Path) -> None:
    root = plant(tmp_path / "run")
    shutil.copytree(root / "step-8", root / "step-12" / "ema")
    assert paths(root) == ["step-8", "step-12"]


def test_without_a_step_in_its_name_the_manifest_tells_it(tmp_path: Path) -> None:
    root = plant(tmp_path / "run", "zeta", "alpha")
    for name, step in (("zeta", "8"), ("alpha", "12")):
        assert run("commit", root / name, "--step", step).code == 0
    rows = run("list", root, "--json").json()["checkpoints"]
    assert [(row["path"].rpartition("/")[2], row["step"]) for row in rows] == [
        ("zeta", 8),
        ("alpha", 12),
    ]


def test_without_any_record_what_all_files_state_is_the_step(tmp_path: Path) -> None:
    target = tmp_path / "run" / "model-final"
    shutil.copytree(FIXTURES / "no_dist" / "step-12", target)
    assert run("verify", target, "--json").json()["checkpoints"][0]["step"] == 12
    ended = run("commit", target)
    assert "step 12" in ended.stdout, ended.stdout + ended.stderr


def test_records_of_a_checkpoint_that_is_a_file_lie_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    for step in (100, 200):
        (root / f"model-step-{step}.pt").write_bytes(b"PK\x03\x04 cut short")
    ended = run("quarantine", root / "model-step-200.pt", "--reason", "loss spike")
    assert ended.code == 0, ended.stderr
    assert (root / "model-step-200.pt.ckptctl/ckptctl.quarantine/00000001.json").is_file()
    assert paths(root) == ["model-step-100.pt", "model-step-200.pt"]
    assert "loss spike" in run("list", root).stdout
    assert run("release", root / "model-step-200.pt", "--reason", "was fine").code == 0
    assert "quarantined" not in run("list", root, "--state", "quarantined").stdout.split("\n", 1)[1]
