"""A command imports what it uses and nothing else: by names, as seconds differ between machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from support.cli import run_process
from support.publish import done

LOADED = """
import atexit, json, sys
atexit.register(lambda: sys.stderr.write("\\nLOADED " + json.dumps(sorted(sys.modules))))
"""
HEAVY = (
    "aiohttp", "asyncio", "concurrent.futures", "dataclasses", "difflib", "email", "fsspec", "http", "inspect",
    "logging", "multiprocessing", "numpy", "platform", "random", "rich", "shutil", "socket", "ssl", "subprocess",
    "tempfile", "textwrap", "torch", "unittest", "uuid", "zstandard",
)  # fmt: skip
PARSERS = ("click", "typer")
HASHES = ("_hashlib", "hashlib", "xxhash")
WRITES = (
    "ckptctl.operations.convert",
    "ckptctl.operations.diff",
    "ckptctl.operations.publish",
    "ckptctl.operations.reshard",
    "ckptctl.operations.retention",
    "ckptctl.formats.safetensors.writer",
)
LOOKS_INSIDE = ("ckptctl.checks", "ckptctl.formats.items", "ckptctl.operations.verify")

Copy = Callable[..., Path]


@pytest.fixture
def here(copy: Copy) -> Path:
    """A run of two small checkpoints, the newer one committed; apart from it the older one."""
    copy("fsdp2/step-8")
    checkpoint = copy("fsdp2/step-12")
    done("commit", checkpoint)
    copytree(checkpoint.with_name("step-8"), checkpoint.parents[1] / "alone" / "step-8")
    return checkpoint.parent


def imported(where: Path, *args: str) -> set[str]:
    """Run a command in a directory and return every module that it imported."""
    ended = run_process(*args, cwd=where, before=LOADED)
    assert ended.code == 0, ended.stderr
    return set(json.loads(ended.stderr.rpartition("LOADED ")[2]))


@pytest.mark.parametrize(
    ("args", "unused"),
    [
        (("--version",), (*HEAVY, *HASHES, *LOOKS_INSIDE, "ckptctl.api", "ckptctl.operations")),
        (("list",), (*HEAVY, *WRITES, *LOOKS_INSIDE, "xxhash")),
        (("verify", "../alone"), (*HEAVY, *HASHES, *WRITES)),
        (("verify", "../alone", "--quick"), (*HEAVY, *HASHES, *WRITES)),
        (("verify", "../alone", "--json"), (*HEAVY, *HASHES, *WRITES)),
        (("verify", "step-12"), (*HEAVY, *WRITES)),
        (("resolve", "--allow-uncommitted"), HEAVY),
        (("show", "step-8"), (*HEAVY, *WRITES)),
        (("history",), (*HEAVY, *LOOKS_INSIDE, "xxhash")),
        (("verify", "--help"), (*HASHES, *WRITES, "fsspec", "numpy", "rich", "torch")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value[0][0] != "a" else "",
)
def test_what_is_not_used_is_not_imported(
    here: Path, args: tuple[str, ...], unused: tuple[str, ...]
) -> None:
    parsers = () if "--help" in args else PARSERS
    assert sorted(imported(here, *args) & {*unused, *parsers}) == []


@pytest.mark.parametrize("command", ["list", "verify"])
def test_only_the_command_that_is_called_is_imported(here: Path, command: str) -> None:
    rooms = "ckptctl.cli.commands."
    found = {name for name in imported(here, command, "--help") if name.startswith(rooms)}
    assert found == {f"{rooms}looking", f"{rooms}looking.{command}"}
