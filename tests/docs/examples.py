"""README and docs as data: pages, blocks, links, what is shown, and how it is compared and rewritten.

A block marked ``console`` is a session in bash. It starts at the top of a fresh clone; what earlier
blocks of the page did is still there. Lines after ``$ `` are typed, ``> `` continues one, and
the rest is what is printed, of both streams. A line ``...`` stands for any lines.
"""

from __future__ import annotations

import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import typer.main

from ckptctl.cli import main
from ckptctl.operations.publish import actor
from conftest import FIXTURES, ROOT
from support.cli import environment, make_old, run

UPDATE = os.environ.get("CKPTCTL_UPDATE_GOLDENS") == "1"
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
HOME = "/home/you/ckptctl"
"""What is shown for the directory of the clone."""
ACTOR, WIDTH = "ops@n1", "100"

_FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<kind>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.M | re.S
)
_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.M)
_AGE = re.compile(r"(?<![\w.])\d+ (?:s|min|h|d)(?!\w)|\bAGE\b")
_RANDOM = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\bsha256:[0-9a-f]{64}\b"), "<digest>"),
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its kind, its text, and where the text begins and ends."""

    page: Path
    kind: str
    body: str
    start: int
    stop: int

    @property
    def line(self) -> int:
        """Line of the page on which the text begins."""
        return text_of(self.page).count("\n", 0, self.start) + 1


@dataclass(frozen=True)
class Step:
    """One command of a block and what is printed beneath it."""

    command: str
    shown: str


@dataclass
class Session:
    """A shell in a copy of the fixtures, as a fresh clone has them."""

    top: Path
    where: Path = field(init=False)
    variables: dict[str, str] = field(default_factory=dict)
    code: int = 0
    typed: int = 0

    def __post_init__(self) -> None:
        """Make the clone: real fixtures, and ``ckptctl`` and ``python`` on the path."""
        shutil.copytree(FIXTURES, self.top / "fixtures", copy_function=shutil.copyfile)
        make_old(self.top / "fixtures", days=0)
        programs = self.top.parent / "bin"
        programs.mkdir()
        for name, words in {"ckptctl": "-m ckptctl", "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (programs / name).chmod(0o755)
        self.variables = environment(
            {
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "CKPTCTL_ACTOR": ACTOR,
                "COLUMNS": WIDTH,
            }
        )
        self._first = dict(self.variables)
        self.begin()

    def begin(self) -> None:
        """Start a block: at the top, with no variables of earlier blocks."""
        self.where, self.code, self.variables = self.top, 0, dict(self._first)

    def type(self, command: str) -> str:
        """Run one command and return what it prints; plain ckptctl runs in this process.

        Records of two commands are never of one second, so that their order is that of the page.
        """
        words = _plain_words(command)
        self.typed += 1
        if words[:1] == ["ckptctl"]:
            with mock.patch.object(actor, "datetime", _later(self.typed)):
                ended = run(*words[1:], cwd=self.where, env=self.variables)
            self.code = ended.code
            return self.tidy(ended.stdout + ended.stderr)
        return self.tidy(self._bash(command))

    def tidy(self, text: str) -> str:
        """Write the directory of the clone as it is shown."""
        return text.replace(str(self.top), HOME).replace(str(self.top.resolve()), HOME)

    def _bash(self, command: str) -> str:
        after = self.top.parent / "after"
        script = (
            f"set -a\n(exit {self.code})\n{command}\n"
            f'_code=$?; {{ printf "%s\\0" "$PWD"; env -0; }} > "{after}"; exit $_code'
        )
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.where,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        place, *pairs = after.read_text().rstrip("\0").split("\0")
        self.where, self.code = Path(place), done.returncode
        self.variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        return done.stdout


def _later(seconds: int) -> SimpleNamespace:
    """Return the module ``datetime`` with a clock that is ahead."""

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Ahead:
            return super().now(tz) + datetime.timedelta(seconds=seconds)

    return SimpleNamespace(datetime=Ahead, timezone=datetime.timezone)


def _plain_words(command: str) -> list[str]:
    """Return the words of a command that needs no shell, or none."""
    bare = re.sub(r"'[^']*'|\"[^\"$`\\]*\"", "", command)
    return [] if re.search(r"[|&;<>$*?`~(){}\\#\n\"]", bare) else shlex.split(command)


@cache
def text_of(page: Path) -> str:
    """Return the text of a page."""
    return page.read_text(encoding="utf-8")


def rewrite(page: Path, text: str) -> None:
    """Write a page again."""
    page.write_text(text, encoding="utf-8")
    text_of.cache_clear()


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in _FENCE.finditer(text_of(page)):
        yield Block(page, found["kind"], found["body"], *found.span("body"))


def steps(block: Block) -> list[Step]:
    """Return what a console block types and shows."""
    found: list[Step] = []
    continued = False
    for line in block.body.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append(Step(line[2:].rstrip("\n"), ""))
        elif continued and line.startswith(">"):
            found[-1] = replace(found[-1], command=f"{found[-1].command}\n{line[2:].rstrip()}")
        else:
            assert found, f"{block.page.name}:{block.line} begins with what no command printed"
            found[-1] = replace(found[-1], shown=found[-1].shown + line)
        continued = line.startswith("$ ") or (continued and line.startswith(">"))
    return found


def written(found: list[Step]) -> str:
    """Write steps as the body of a block."""
    text = "".join("$ " + one.command.replace("\n", "\n> ") + "\n" + one.shown for one in found)
    return text.replace("\n> \n", "\n>\n")


def normal(text: str) -> str:
    """Take out what differs from one run to the next: times, ages, random ids, their digests."""
    for pattern, placeholder in _RANDOM:
        text = pattern.sub(placeholder, text)
    lines = []
    for line in text.splitlines():
        aged = _AGE.sub("<age>", line)
        lines.append(re.sub(r" {2,}", "  ", aged) if aged != line else line)
    return "\n".join(lines) + "\n" * bool(lines)


def fits(shown: str, printed: str) -> bool:
    """Tell whether what is shown is what was printed."""
    parts = normal(shown).split("...\n")
    pattern = "(?:.*\n)*".join(map(re.escape, parts))
    return re.fullmatch(pattern, normal(printed)) is not None


def without_blocks(page: Path) -> str:
    """Return the prose of a page."""
    return _FENCE.sub("", text_of(page))


def spans(page: Path) -> list[str]:
    """Return what a page says in code spans."""
    return [one.replace("\n", " ") for one in _SPAN.findall(without_blocks(page))]


def links(page: Path) -> list[str]:
    """Return the targets of all links of a page."""
    return _LINK.findall(without_blocks(page))


def anchors(page: Path) -> set[str]:
    """Return what a link to a page may name, by GitHub's rule."""
    found: dict[str, int] = {}
    names = set(re.findall(r'<a id="([^"]+)"', text_of(page)))
    for heading in _HEADING.findall(without_blocks(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names


def options() -> dict[str, set[str]]:
    """Return the long options of each command."""
    group = typer.main.get_command(main._application(""))
    found = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        known = {one for param in command.params for one in (*param.opts, *param.secondary_opts)}
        found[name] = {one for one in known if one.startswith("--")} | {"--help"}
    return found
