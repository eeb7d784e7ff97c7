"""Names and values of a checkpoint cannot steer the terminal of whoever looks at them.

Checkpoints are written by torch, under names that try: ANSI escapes, window titles, line breaks,
carriage returns, marks that turn the direction of text, NUL, lone surrogates, rich's own markup.
"""

from __future__ import annotations

import copy as copies
import json
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import FIXTURES
from support.cli import OWN_COLOURS, Ended, plant, run, run_on_terminal
from support.damage import edited, rewrite, save_with_torch

pytest.importorskip("torch")

EVIL = {
    "escapes": (
        "\x1b[31mEVIL\x1b[35m\x1b[2J\x1b[H\x1b]0;title\x07\x9b35m\x9d0;title\x9cGOOD\b\b\b\b\x7f\x85-"
    ),
    "breaks": "EVIL\nOK: all is whole\rOK: all is whole\x0b\x0c\u2028\u2029\x1c\x1e-",
    "letters": "EVIL\u202egood\u202c\u2066x\u2069\u200f\u061c\u200b\ufeff [red]x[bold] {0}%s%n{name!r}",
    "halves": "EVIL\x00hidden\udcff\ud83d",
}
"""Texts of many tricks; each holds EVIL, which must still be seen, and ends visibly."""

IN_FILE_NAMES = [name for name in EVIL if name != "halves"]
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
BAR = """
import sys
from ckptctl.cli.output.progress import Bar
bar = Bar()
bar.start(sys.argv[1], 1 << 40)
bar.advance(1 << 20)
bar.finish()
"""


def assert_harmless(ended: Ended, *, terminal: bool) -> None:
    """Nothing of what was printed is a control, a mark of direction, or half a character."""
    assert "Traceback" not in ended.stderr
    assert "itself failed" not in ended.stdout + ended.stderr
    for text in (ended.stdout, ended.stderr):
        assert "\x1b[31mEVIL" not in text
        plain = OWN_COLOURS.sub("", text) if terminal else text
        found = BAD.search(plain)
        assert found is None, repr(plain[max(0, found.start() - 60) : found.end() + 20])
        assert not {"Cs", "Zl", "Zp"} & {unicodedata.category(letter) for letter in plain}
        assert "\nOK: all is whole" not in plain


def both(*args: str | Path, cwd: Path) -> Iterator[Ended]:
    """Run piped and on a terminal, and check both."""
    for terminal, go in ((False, run), (True, run_on_terminal)):
        ended = go(*args, cwd=cwd)
        assert_harmless(ended, terminal=terminal)
        yield ended


def save(path: Path, text: str) -> None:
    """Save a state dict whose keys and values hold the text, and put it into the metadata too."""
    import torch

    state: dict[str, Any] = {
        f"model.{text}.weight": torch.arange(6.0).reshape(2, 3),
        f"train_state.{text}": text,
        "train_state.name": [text, {text: text}],
        "train_state.bytes": text.encode("utf-8", "surrogatepass"),
        text: 7,
    }
    save_with_torch(path, state)
    with edited(path) as metadata:
        metadata.storage_meta.checkpoint_id = text
        metadata.storage_meta.save_id = text
        metadata.storage_meta.modules = [text]


@pytest.fixture(params=EVIL)
def evil(request: pytest.FixtureRequest) -> str:
    return EVIL[request.param]


@pytest.fixture
def saved(tmp_path: Path, evil: str) -> Path:
    """A healthy checkpoint that is full of the hostile text; its directory has a plain name."""
    path = tmp_path / "step-12"
    save(path, evil)
    return path


@pytest.mark.parametrize("view", ["", "--tensors", "--objects", "--files", "--layout"])
def test_showing(saved: Path, evil: str, view: str) -> None:
    args = [view, "model.*"] if view == "--tensors" else [view] if view else []
    if view == "--layout":
        if "\x00" in evil:
            pytest.skip("no command line can hold this name")
        args.append(f"model.{evil}.weight")
    for ended in both("show", "step-12", *args, cwd=saved.parent):
        assert ended.code == 0
        assert view == "--files" or "EVIL" in ended.stdout
    machine = run("show", "step-12", *args, "--json", cwd=saved.parent)
    assert machine.stdout.isascii()
    found = machine.json()
    if view == "":
        assert found["description"]["save_id"] == found["description"]["saved_as"] == evil
        assert [f"train_state.{evil}", evil] in found["description"]["progress"]
    if view == "--tensors":
        assert [row["fqn"] for row in found["tensors"]] == [f"model.{evil}.weight"]
    if view == "--objects":
        values = {row["fqn"]: row["value"] for row in found["objects"]}
        assert values[f"train_state.{evil}"] == evil
        assert values[evil] == 7
    if view == "--layout":
        assert found["layout"]["tensor"]["fqn"] == f"model.{evil}.weight"


def test_verifying_what_is_whole(saved: Path) -> None:
    for ended in both("verify", "step-12", cwd=saved.parent):
        assert ended.code == 0
    for ended in both("list", ".", cwd=saved.parent):
        assert "complete" in ended.stdout


def test_verifying_what_is_not(saved: Path, evil: str) -> None:
    """Keys that lost their bytes, keys nobody knows, files under hostile names, foreign classes."""
    with edited(saved) as metadata:
        fqns = [*metadata.state_dict_metadata]
        for key, place in metadata.storage_data.items():
            if key.fqn == fqns[0]:
                place.relative_path = f"../{evil}"
            elif key.fqn == fqns[1]:
                place.relative_path = f"{evil}.distcp"
            elif key.fqn == fqns[2]:
                place.transform_descriptors = [evil]
        metadata.state_dict_metadata[f"lost.{evil}"] = metadata.state_dict_metadata[fqns[0]]
        metadata.planner_data[f"gone.{evil}"] = ("elsewhere", evil)
        entry = copies.deepcopy(metadata.state_dict_metadata[fqns[0]])
        metadata.state_dict_metadata[fqns[0]] = entry
        entry.properties.dtype = evil
        entry.chunks = []
    for ended in both("verify", "step-12", cwd=saved.parent):
        assert ended.code == 10
        assert ended.stdout.count("EVIL") > 5
    for ended in both("verify", "step-12", "--quiet", cwd=saved.parent):
        assert ended.code == 10
    for ended in both("list", ".", cwd=saved.parent):
        assert "unreadable" in ended.stdout
    machine = run("verify", "step-12", "--json", cwd=saved.parent)
    (found,) = machine.json()["checkpoints"]
    assert machine.stdout.isascii()
    wheres = [finding["where"] for finding in found["report"]["findings"]]
    assert f"lost.{evil}" in [where["fqn"] for where in wheres]
    assert f"../{evil}" in [where["file"] for where in wheres]


@pytest.mark.parametrize("name", IN_FILE_NAMES)
def test_names_of_directories_files_and_pointers(tmp_path: Path, name: str) -> None:
    text = EVIL[name]
    path = plant(FIXTURES / "no_crc" / "step-1", tmp_path / "run" / text)
    rewrite(path, file=f"__9_0{text}.distcp", data=b"x")
    (path.parent / f"link {text}").symlink_to(text)
    (path.parent / "latest").write_text(text)
    (path.parent / "nowhere").symlink_to(f"gone {text}")
    for ended in both("list", "run", cwd=tmp_path):
        assert (ended.code, ended.stderr) == (0, "")
        assert "complete" in ended.stdout
        assert ended.stdout.count("EVIL") >= 3
    for args in (["show"], ["show", "--files"], ["verify"]):
        for ended in both(args[0], Path("run", text), *args[1:], cwd=tmp_path):
            assert ended.code == 0
            assert "EVIL" in ended.stdout
    found = run("list", "run", "--json", cwd=tmp_path).json()
    assert found["checkpoints"][0]["name"] == text
    assert found["checkpoints"][0]["pointers"] == ["latest", f"link {text}"]
    assert found["dangling"] == [
        {"name": "nowhere", "text": f"gone {text}", "target": None, "others": []}
    ]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"step-12-\xff\xfe")
    plant(FIXTURES / "no_crc" / "step-1", tmp_path / name)
    for command in ("list", "verify"):
        for ended in both(command, ".", cwd=tmp_path):
            assert ended.code == 0
            assert "step-12-\\udcff\\udcfe" in ended.stdout
        found = run(command, ".", "--json", cwd=tmp_path).json()["checkpoints"]
        assert name in json.dumps(found, ensure_ascii=False)


@pytest.mark.parametrize("name", IN_FILE_NAMES)
def test_errors(tmp_path: Path, name: str) -> None:
    text = EVIL[name]
    cases = [
        ("list", text),
        ("show", text),
        ("verify", text),
        ("verify", FIXTURES / "ddp", "--select", text),
        ("verify", FIXTURES / "ddp", "--sample", text),
        ("show", FIXTURES / "ddp" / "step-12", "--layout", text),
        ("list", FIXTURES, "--state", text),
        ("list", f"nosuch://{text}"),
        (f"--{text}",),
        (text,),
    ]
    for args in cases:
        ended = run(*args, cwd=tmp_path)
        assert_harmless(ended, terminal=False)
        assert ended.code in (2, 3, 4)
        assert "EVIL" in ended.stderr


@pytest.mark.parametrize("name", IN_FILE_NAMES)
def test_the_progress_bar(name: str) -> None:
    """The bar's own library moves the cursor, so here only what came from the text is looked for."""
    for letters in (EVIL[name][:14], EVIL[name][14:36], EVIL[name][-14:]):
        ended = run_on_terminal(f"step-{letters}", program=BAR)
        assert ended.code == 0
        own = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)", "", ended.stdout)
        lines = [line for line in re.split(r"[\r\n]+", own) if line]
        assert lines
        assert all("TiB" in line for line in lines), "a line that is not the bar's own"
        assert BAD.search("".join(lines)) is None
        assert "\x1b[31mEVIL" not in ended.stdout
        assert "\x1b[35m" not in ended.stdout


def test_markup_is_text(tmp_path: Path) -> None:
    name = "step-[red]x[bold]y"
    assert f"{name} " in run_on_terminal(name, program=BAR).stdout
    plant(FIXTURES / "no_crc" / "step-1", tmp_path / name)
    for command in ("list", "verify"):
        for ended in both(command, ".", cwd=tmp_path):
            assert name in ended.stdout
