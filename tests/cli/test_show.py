"""``ckptctl show`` as a user sees it: every view, for people and for machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import FIXTURES
from support.cli import (
    OWN_COLOURS,
    assert_golden,
    assert_golden_pair,
    normal,
    plant,
    run,
    run_on_terminal,
)
from support.damage import garble, remove, rename, truncate

EMBED = "model.embed.weight"
VIEWS = {
    "tensors": ["--tensors"],
    "objects": ["--objects"],
    "files": ["--files"],
    "layout": ["--layout", EMBED],
    "description": [],
}


@pytest.fixture
def planted(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a fixture to its own path below the working directory."""
    return lambda case: plant(FIXTURES / case, tmp_path / case)


@pytest.mark.parametrize(
    ("name", "case", "args"),
    [
        ("show/fsdp2/all", "fsdp2/step-12", ()),
        ("show/fsdp2/files", "fsdp2/step-12", ("--files",)),
        ("show/fsdp2/tensors", "fsdp2/step-12", ("--tensors",)),
        ("show/fsdp2/layout", "fsdp2/step-12", ("--layout", EMBED)),
        ("show/tp-fsdp/all", "tp_fsdp/step-12", ()),
        ("show/tp-fsdp/optimizer", "tp_fsdp/step-12", ("optimizer.*weight*", "--tensors")),
        ("show/tp-fsdp/layout", "tp_fsdp/step-12", ("--layout", "model.down.weight")),
        ("show/tp-fsdp/vector", "tp_fsdp/step-12", ("--layout", "model.up.bias")),
        ("show/tp-fsdp/scalar", "tp_fsdp/step-12", ("--layout", "model.batches_seen")),
        ("show/dtype-zoo/all", "dtype_zoo/step-1", ()),
        ("show/dtype-zoo/objects", "dtype_zoo/step-1", ("--objects",)),
        ("show/dtype-zoo/tensors", "dtype_zoo/step-1", ("--tensors",)),
        ("show/rank-local/all", "rank_local/step-12", ()),
        ("show/rank-local/objects", "rank_local/step-12", ("train_state.*", "--objects")),
        ("show/zstd/all", "zstd/step-12", ()),
        ("show/file-per-item/files", "file_per_item/step-12", ("--files",)),
    ],
)
def test_a_view(
    planted: Callable[[str], Path], tmp_path: Path, name: str, case: str, args: tuple[str, ...]
) -> None:
    planted(case)
    assert_golden_pair(name, ["show", case, *args], tmp_path)


@pytest.mark.parametrize("view", VIEWS)
def test_a_terminal_adds_nothing_but_colour(
    planted: Callable[[str], Path], tmp_path: Path, view: str
) -> None:
    planted("tp_fsdp/step-12")
    args = ["show", "tp_fsdp/step-12", *VIEWS[view]]
    piped, shown = run(*args, cwd=tmp_path), run_on_terminal(*args, cwd=tmp_path)
    assert "\x1b[1m" in shown.stdout
    assert OWN_COLOURS.sub("", shown.stdout) == piped.stdout
    assert run_on_terminal(*args, cwd=tmp_path, env={"NO_COLOR": "1"}).stdout == piped.stdout


@pytest.mark.parametrize("view", VIEWS)
def test_json_has_one_schema_and_one_result(view: str) -> None:
    ended = run("show", FIXTURES / "ddp" / "step-12", *VIEWS[view], "--json")
    assert (ended.code, ended.stderr) == (0, "")
    assert {name for name, value in ended.json().items() if value is not None} == {
        "checkpoint",
        view,
    }


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("model.up.*", {"model.up.weight", "model.up.bias"}),
        ("*bias", {"model.up.bias"}),
        ("model.scale", {"model.scale"}),
        ("MODEL.*", set()),
    ],
)
def test_a_pattern_chooses_tensors(pattern: str, found: set[str]) -> None:
    ended = run("show", FIXTURES / "zstd" / "step-12", pattern, "--tensors", "--json")
    names = {row["fqn"] for row in ended.json()["tensors"]}
    assert ended.code == 0
    assert names == found


@pytest.mark.parametrize(
    ("fqn", "said"),
    [("model.embed", "not in it"), ("train_state.step", "an object"), ("model.*", "not in it")],
)
def test_the_layout_of_what_has_none(fqn: str, said: str) -> None:
    ended = run("show", FIXTURES / "fsdp2" / "step-12", "--layout", fqn)
    assert (ended.code, ended.stdout) == (3, "")
    assert fqn in ended.stderr
    assert said in ended.stderr
    assert "--tensors` lists the tensors" in ended.stderr


@pytest.mark.parametrize(
    "args", [("--tensors", "--objects"), ("--files", "--layout", EMBED), ("--bogus",)]
)
def test_senseless_options(args: tuple[str, ...]) -> None:
    ended = run("show", FIXTURES / "fsdp2" / "step-12", *args)
    assert (ended.code, ended.stdout) == (2, "")
    assert args[0] in ended.stderr


def test_a_missing_path(tmp_path: Path) -> None:
    ended = run("show", tmp_path / "gone")
    assert (ended.code, ended.stdout) == (4, "")
    assert ended.stderr == f"ckptctl: {tmp_path / 'gone'}: no such directory\n"


def test_a_root_of_several_says_which_command_lists_it(tmp_path: Path) -> None:
    plant(FIXTURES / "fsdp2", tmp_path / "run")
    ended = run("show", "run", cwd=tmp_path)
    assert (ended.code, ended.stdout) == (2, "")
    assert "step-8, step-12" in ended.stderr
    assert "`ckptctl list run`" in ended.stderr


def test_shards_without_metadata(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    remove(path, file=".metadata")
    ended = run("show", path)
    assert (ended.code, ended.stdout) == (3, "")
    assert f"`ckptctl verify {path}`" in ended.stderr


def test_metadata_that_cannot_be_read(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    garble(path, file=".metadata")
    ended = run("show", path)
    assert ended.stdout == ""
    assert ended.code == 10, "that is damage, not a failure of ckptctl"
    assert f"`ckptctl verify {path}`" in ended.stderr
    assert "itself failed" not in ended.stderr


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_left_of_a_damaged_checkpoint_is_shown(
    copy: Callable[..., Path], view: str
) -> None:
    path = copy("fsdp2/step-12")
    truncate(path, file="__1_0.distcp", size=20000)
    remove(path, file="__2_0.distcp")
    rename(path, file="__3_0.distcp", to="__9_0.distcp")
    ended = run("show", path, *VIEWS[view])
    assert (ended.code, ended.stderr) == (0, "")
    if view == "description":
        assert "problem: " in ended.stdout
    if view == "objects":
        assert "unreadable: its bytes are not there" in ended.stdout
    if view == "files":
        assert "__9_0.distcp     9      -" in ended.stdout


def test_without_a_command_help_is_shown() -> None:
    ended = run()
    assert ended.code == 2
    for word in ("list", "show", "verify", "Exit codes:"):
        assert word in ended.stdout + ended.stderr


@pytest.mark.parametrize("args", [("--help",), ("show", "-h"), ("list", "-h"), ("verify", "-h")])
def test_help(args: tuple[str, ...]) -> None:
    ended = run(*args, env={"COLUMNS": "80"})
    assert (ended.code, ended.stderr) == (0, "")
    assert "Usage:" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_the_version() -> None:
    from ckptctl import __version__

    assert run("--version").stdout == f"ckptctl {__version__}\n"


def test_the_description_on_a_terminal(planted: Callable[[str], Path], tmp_path: Path) -> None:
    planted("hsdp/step-12")
    ended = run_on_terminal("show", "hsdp/step-12", cwd=tmp_path)
    assert ended.code == 0
    assert_golden("show/hsdp/terminal.txt", normal(ended.stdout))
