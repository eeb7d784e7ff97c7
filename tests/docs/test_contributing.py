"""What CONTRIBUTING says is done in a copy of the package, and works: a check, a store and more.

The files that are touched are those that it names. A layout is added in the contract of formats.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest

from conftest import FIXTURES, ROOT
from support.cli import Ended, environment

CHECK = """

def _odd_number(context: Context, _: None) -> Iterator[Hit]:
    if len(context.checkpoint.files) % 2:
        yield Hit(f"it has {len(context.checkpoint.files)} files")


CHECKS = (
    *CHECKS,
    Check(
        "odd-number",
        Stage.FILES,
        Severity.WARNING,
        "The number of files is odd.",
        "add one to {checkpoint}",
        _odd_number,
    ),
)
"""
STORE = '''"""Zip files as stores, for reading."""

from __future__ import annotations

import zipfile

from ckptctl.errors import NotFound, ShortRead
from ckptctl.storage.base import Entry, Reader, Store


class _Bytes(Reader):
    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, stop: int) -> bytes:
        if stop > len(self._data):
            raise ShortRead("past the end")
        return self._data[start:stop]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None:
        pass


class ZipStore(Store):
    """One zip file."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def url(self) -> str:
        return f"zipped://{self._path}"

    def entries(self, path: str = "") -> list[Entry]:
        found = {}
        top = f"{path}/" if path else ""
        with zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                name, deeper, _ = info.filename.removeprefix(top).partition("/")
                if info.filename.startswith(top) and name:
                    kind = "directory" if deeper else "file"
                    found[name] = Entry(top + name, kind, 0 if deeper else info.file_size)
        if path and not found:
            raise NotFound(path)
        return [found[name] for name in sorted(found)]

    def stat(self, path: str = "") -> Entry:
        above, _, name = path.rpartition("/")
        for entry in self.entries(above):
            if entry.name == name:
                return entry
        raise NotFound(path)

    def open(self, path: str) -> Reader:
        with zipfile.ZipFile(self._path) as archive:
            try:
                return _Bytes(archive.read(path))
            except KeyError:
                raise NotFound(path) from None
'''

FORMAT = '''"""One line for each ending, for logs."""

import sys


def write(ending):
    line = f"{ending.command} {int(ending.exit_code)} {ending.verdict}"
    sys.stdout.write(line + "\\n")
'''
OPERATION = '''"""Count checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from ckptctl.dataclass import dataclass
from ckptctl.model.result.answer import Answer
from ckptctl.operations.find import Place


@dataclass(frozen=True, slots=True)
class Counted(Answer):
    """How many checkpoints there are."""

    number: int


def count(places: Sequence[Place]) -> Counted:
    """Count them."""
    return Counted(len(places))
'''
FUNCTION = '''

def count(path: Path = None) -> results.Counted:
    """Count the checkpoints of a root."""
    from ckptctl.operations.catalog.count import count as counting
    from ckptctl.operations.target import open_root

    return counting(open_root(path)[1])
'''
COMMAND = '''"""``ckptctl count``."""

from __future__ import annotations

from ckptctl import api
from ckptctl.cli.options import Format, Json, Root, chosen
from ckptctl.cli.output.as_text import render
from ckptctl.cli.output.emit import emit
from ckptctl.cli.output.text import Screen
from ckptctl.results import Counted


def count_command(
    root: Root = None, output_format: Format = "text", json: Json = False
) -> int:
    """Count the checkpoints of a root."""
    return emit(api.count(root), chosen(output_format, json=json), command="count")


@render.register
def render_count(found: Counted, screen: Screen) -> None:
    """Print the number."""
    screen.line(str(found.number))
'''


class Grown:
    """A copy of the package in which files are changed and counted."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.touched: set[str] = set()
        shutil.copytree(
            ROOT / "ckptctl", top / "ckptctl", ignore=shutil.ignore_patterns("__pycache__")
        )

    def create(self, name: str, text: str) -> None:
        assert not (self._top / name).exists()
        (self._top / name).write_text(text)
        self.touched.add(name)

    def insert(self, name: str, before: str, text: str) -> None:
        path = self._top / name
        old = path.read_text()
        assert old.count(before) == 1
        path.write_text(old.replace(before, text + before))
        self.touched.add(name)

    def append(self, name: str, text: str) -> None:
        path = self._top / name
        path.write_text(path.read_text() + text)
        self.touched.add(name)

    def python(self, code: str) -> str:
        ended = self._start("-c", code)
        assert ended.code == 0, ended.stderr
        return ended.stdout

    def run(self, *words: str | Path) -> Ended:
        return self._start("-m", "ckptctl", *map(str, words))

    def _start(self, *words: str) -> Ended:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self._top,
            env=environment({"PYTHONPATH": str(self._top), "PATH": os.environ["PATH"]}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def grown(tmp_path: Path) -> Grown:
    return Grown(tmp_path)


def test_a_check_is_one_file_of_the_package(grown: Grown) -> None:
    grown.append("ckptctl/checks/files.py", CHECK)
    assert len(grown.touched) == 1
    ended = grown.run("verify", FIXTURES / "fsdp2" / "step-12", "--select", "odd-number")
    assert "warning odd-number" in ended.stdout, ended.stdout + ended.stderr
    assert "next: add one to " in ended.stdout
    strict = grown.run("verify", FIXTURES / "fsdp2" / "step-12", "--fail-on", "warning", "--quiet")
    assert strict.code == 10
    assert grown.run("commit", "--dry-run", FIXTURES / "fsdp2" / "step-12").code == 0


def test_a_store_is_two_files_of_the_package(grown: Grown, tmp_path: Path) -> None:
    grown.create("ckptctl/storage/zipped.py", STORE)
    grown.insert(
        "ckptctl/storage/registry.py",
        "    from ckptctl.storage.fsspec import ObjectStore\n",
        '    if match[1] == "zipped":\n'
        "        from ckptctl.storage.zipped import ZipStore\n\n"
        "        return ZipStore(text[match.end() :])\n",
    )
    assert len(grown.touched) == 2
    source = FIXTURES / "fsdp2" / "step-12"
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        for path in source.iterdir():
            archive.write(path, path.name)
    listed = grown.run("list", "zipped://run.zip")
    assert "complete" in listed.stdout, listed.stderr
    one = grown.run("digest", source, "--summary")
    other = grown.run("digest", "zipped://run.zip", "--summary")
    assert one.code == other.code == 0, other.stderr
    assert one.stdout == other.stdout
    assert grown.run("verify", "zipped://run.zip").code == 0


def test_an_output_format_is_two_files_of_the_package(grown: Grown) -> None:
    grown.create("ckptctl/cli/output/as_line.py", FORMAT)
    grown.insert(
        "ckptctl/cli/output/emit.py",
        '    "json": "ckptctl.cli.output.as_json",\n',
        '    "line": "ckptctl.cli.output.as_line",\n',
    )
    assert len(grown.touched) == 2
    good = grown.run("digest", FIXTURES / "fsdp2" / "step-12", "--format", "line")
    assert (good.code, good.stdout) == (0, "digest 0 ok\n"), good.stderr
    bad = grown.run("list", "nowhere", "--format", "line")
    assert bad.code != 0
    assert bad.stdout.startswith(f"list {bad.code} ")


def test_a_command_is_eight_files_of_the_package(grown: Grown) -> None:
    grown.create("ckptctl/operations/catalog/count.py", OPERATION)
    grown.insert(
        "ckptctl/results.py", '    "Listing": ', '    "Counted": "operations.catalog.count",\n'
    )
    grown.append("ckptctl/api/looking.py", FUNCTION)
    grown.insert("ckptctl/api/__init__.py", "    diff,\n", "    count,\n")
    grown.create("ckptctl/cli/commands/looking/count.py", COMMAND)
    grown.insert("ckptctl/cli/main.py", '    "schema": "looking",\n', '    "count": "looking",\n')
    grown.insert(
        "ckptctl/cli/output/schema.py", '    "schema": "Schema",\n', '    "count": "Counted",\n'
    )
    grown.python(
        "import json; from ckptctl.cli.output.schema import document_schema;"
        "json.dump(document_schema('count'), open('ckptctl/schemas/count.json', 'w'))"
    )
    assert len(grown.touched | {"ckptctl/schemas/count.json"}) == 8
    text = grown.run("count", FIXTURES / "fsdp2")
    assert (text.code, text.stdout) == (0, "2\n"), text.stderr
    document = json.loads(grown.run("count", FIXTURES / "fsdp2", "--json").stdout)
    assert document["schema"] == "ckptctl/count/2"
    assert document["result"] == {"number": 2}
    schema = json.loads(grown.run("schema", "count").stdout)
    jsonschema.validate(document, schema)
    assert "count" in grown.run("--help").stdout
    assert grown.python("from ckptctl import api; print(api.count('.').number)") == "0\n"
