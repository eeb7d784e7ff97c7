"""What holds for the repository as a whole: sizes, imports, no traces of a machine."""

from __future__ import annotations

import ast
import fnmatch
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from ckptctl.checks import CHECKS, by_id
from ckptctl.cli.main import _COMMANDS
from conftest import FIXTURES, ROOT
from support.cli import run_process

MODULES = sorted((ROOT / "ckptctl").rglob("*.py"))
MOST_LINES = 400
MOST_BYTES = 300_000
CHECKPOINTS = sorted({path.parent for path in FIXTURES.rglob("*.distcp")})
LOADED = """
import atexit, json, sys
atexit.register(lambda: sys.stderr.write("\\nLOADED " + json.dumps(sorted(sys.modules))))
"""
IDS = [check.id for check in CHECKS]
DISTRIBUTIONS = {"yaml": "pyyaml"}
"""What is installed under another name than it is imported by."""


def modules_of(*args: str | Path) -> set[str]:
    """Run a command and return the top-level modules that it imported."""
    ended = run_process(*args, before=LOADED)
    assert ended.code == 0, ended.stderr
    names = json.loads(ended.stderr.rpartition("LOADED ")[2])
    return {name.partition(".")[0] for name in names}


def repository_files() -> Iterator[Path]:
    """Yield every file of a checkout that git does not ignore."""
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    ignored = [line.strip("/") for line in lines if not line.startswith("#")]
    folders = [ROOT]
    while folders:
        for path in folders.pop().iterdir():
            if path.name == ".git" or any(fnmatch.fnmatch(path.name, name) for name in ignored):
                continue
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
            elif path.is_file():
                yield path


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def third_party(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the top-level names that import statements bring in from outside."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.partition(".")[0] for name in found} - {"ckptctl", *sys.stdlib_module_names}


def test_every_import_is_a_declared_dependency() -> None:
    requires = metadata.requires("ckptctl") or []
    names = {
        re.split(r"[^\w-]", line)[0].replace("-", "_"): "extra ==" in line for line in requires
    }
    always = {name for name, optional in names.items() if not optional}
    assert "numpy" in always
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert third_party(tree.body) <= always, f"{path.name} imports more than is installed"
        typing_only = [
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in node.body
        ]
        found = third_party(node for node in ast.walk(tree) if node not in typing_only)
        rest = {DISTRIBUTIONS.get(name, name) for name in found}
        assert rest <= names.keys(), f"{path.name} imports what no extra brings"


@pytest.mark.parametrize(
    "args",
    [
        ("list", FIXTURES),
        ("list", FIXTURES / "fsdp2", "--check", "--json"),
        ("show", FIXTURES / "dtype_zoo" / "step-1"),
        ("show", FIXTURES / "dtype_zoo" / "step-1", "--objects"),
        ("verify", FIXTURES / "fsdp2" / "step-12", FIXTURES / "zstd", FIXTURES / "rank_local"),
    ],
    ids=lambda args: " ".join(word for word in args if isinstance(word, str)),
)
def test_looking_never_imports_torch(args: tuple[str | Path, ...]) -> None:
    assert "torch" not in modules_of(*args)


@pytest.mark.parametrize("args", [("--help",), *((name, "--help") for name in _COMMANDS)])
def test_help_imports_nothing_heavy(args: tuple[str, ...]) -> None:
    assert modules_of(*args).isdisjoint({"torch", "numpy", "fsspec", "aiohttp", "zstandard"})


def test_a_listing_of_small_local_checkpoints_imports_no_object_store() -> None:
    assert "fsspec" not in modules_of("list", FIXTURES / "fsdp2")


def test_check_ids_are_unique_and_kebab_case() -> None:
    assert len(IDS) == len(set(IDS)) == len(by_id()) > 20
    assert [name for name in IDS if not re.fullmatch(r"[a-z]+(?:-[a-z]+)*", name)] == []


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_a_check_explains_itself(check: object) -> None:
    summary, remedy = str(getattr(check, "summary", "")), str(getattr(check, "remedy", ""))
    assert re.fullmatch(r"[A-Z].*\.", summary)
    assert len(remedy) > 10
    assert set(re.findall(r"\{[^}]*\}", remedy)) <= {"{checkpoint}", "{root}"}


def test_no_file_names_a_path_of_one_machine() -> None:
    pattern = re.compile(rb"(?<![\w.}*])/(?:%s|%s)/" % (b"work", b"root"))
    guilty = [
        str(path.relative_to(ROOT))
        for path in repository_files()
        if pattern.search(path.read_bytes())
    ]
    assert guilty == []


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_fixtures_stay_small(path: Path) -> None:
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < MOST_BYTES
