"""Words that are read without typer mean what they mean to typer; all others are left to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.cli.application import application
from ckptctl.cli.main import _COMMANDS, _command
from ckptctl.cli.parameters import Option, for_typer, read

VALUES = (
    "x", "a=b", "3", "0", "-1", "+1", "007", "1_0", "\u0663", "9999999999", "257", "1/4", "5%", "json", "text", "xml",
    "", "-", "--", " ", "12h", "committed", "nothing", "resume", "dp=2,tp=2", "5e3", "--json", "a b", "None",
)  # fmt: skip
ODD = (
    "--help",
    "-h",
    "--no-quick",
    "--quick=1",
    "-qy",
    "-q=1",
    "--wor",
    "--version",
    "--workers",
    "--format",
    "-x",
)


def flags(command: Any) -> list[str]:
    """Return every flag of a command as its help has it."""
    found = []
    for name, hint in command.__annotations__.items():
        note = getattr(hint, "__metadata__", (None,))[0]
        if isinstance(note, Option):
            found += note.flags or [f"--{name.replace('_', '-')}"]
    return found


def by_typer(command: Any, words: Sequence[str]) -> dict[str, Any] | None:
    """Return what typer would call the command with; None where it would not call it."""
    seen: list[dict[str, Any]] = []
    described = for_typer(command)

    def fake(**values: Any) -> int:
        seen.append(values)
        return 0

    hinted: Any = fake
    hinted.__signature__ = inspect.signature(described)
    hinted.__annotations__ = described.__annotations__
    app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
    app.command()(hinted)
    try:
        typer.main.get_command(app)(list(words), standalone_mode=False)
    except Exception:
        return None
    return seen[0] if seen else None


@st.composite
def calls(draw: Callable[..., Any], known: list[str]) -> list[str]:
    """Draw the words of a call: flags, values, and what is neither."""
    words: list[str] = []
    for _ in range(draw(st.integers(0, 5))):
        flag, value = draw(st.sampled_from([*known, *ODD])), draw(st.sampled_from(VALUES))
        words += draw(st.sampled_from([[flag], [flag, value], [f"{flag}={value}"], [value]]))
    return words


@pytest.mark.parametrize("name", _COMMANDS)
def test_what_is_read_is_what_typer_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = _command(name)
    for variable in ("CKPTCTL_FORMAT", "CKPTCTL_WORKERS"):
        monkeypatch.delenv(variable, raising=False)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(calls(flags(command)))
    def same(words: list[str]) -> None:
        found = read(command, words)
        if found is not None:
            assert found == by_typer(command, words)

    same()


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("verify", "", {"paths": None, "quick": False, "output_format": "text"}),
        ("verify", "a b --quick --json", {"paths": ["a", "b"], "quick": True, "json": True}),
        ("verify", "a --workers=2 --part 1/4", {"workers": 2, "part": "1/4"}),
        ("verify", "--select x --select=y -q", {"select": ["x", "y"], "quiet": True}),
        ("resolve", "run --format json", {"output_format": "json"}),
        ("list", "--limit 3", {"root": None, "limit": 3}),
        ("commit", "run/step-1 --as step-1 -y", {"publish_as": "step-1", "yes": True}),
        ("diff", "a b", {"a": "a", "b": "b"}),
        ("prune", "--keep-last 3 --dry-run", {"keep_last": 3, "dry_run": True}),
    ],
)
def test_plain_words_need_no_typer(name: str, words: str, expected: dict[str, Any]) -> None:
    found = read(_command(name), words.split())
    assert found is not None
    assert found == by_typer(_command(name), words.split())
    assert expected.items() <= found.items()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("verify", ["--help"]),
        ("verify", ["--workers", "0"]),
        ("verify", ["--workers", "many"]),
        ("verify", ["--format", "xml"]),
        ("verify", ["--nonsense"]),
        ("verify", ["--quick=yes"]),
        ("verify", ["--part"]),
        ("verify", ["--", "-a"]),
        ("history", ["a", "b"]),
        ("diff", ["a"]),
    ],
)
def test_what_is_not_plain_is_left_to_typer(name: str, words: list[str]) -> None:
    assert read(_command(name), words) is None


def test_a_variable_stands_for_an_option_that_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCTL_WORKERS", "3")
    assert read(_command("verify"), ["a"]) is None  # typer knows how
    found = read(_command("verify"), ["a", "--workers", "2"])
    assert found is not None
    assert found["workers"] == 2


def test_every_command_can_be_described_to_typer() -> None:
    group: Any = typer.main.get_command(application({name: _command(name) for name in _COMMANDS}))
    assert list(group.commands) == list(_COMMANDS)
    for name, command in group.commands.items():
        assert {flag for param in command.params for flag in param.opts} >= {*flags(_command(name))}


def test_a_command_whose_hints_are_written_as_text_is_read_by_typer() -> None:
    text = "from __future__ import annotations\nfrom ckptctl.cli.options import Json, Root\n"
    room: dict[str, Any] = {}
    exec(f"{text}def command(root: Root = None, json: Json = False) -> int: ...", room)
    assert read(room["command"], ["a", "--json"]) is None
    assert by_typer(room["command"], ["a", "--json"]) == {"root": "a", "json": True}
