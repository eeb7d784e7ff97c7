"""Another output format is one module and one line, and works for every command and every ending."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from ckptctl.cli.output import emit
from ckptctl.cli.output.emit import Ending
from conftest import FIXTURES
from support.cli import run


def write(ending: Ending) -> None:
    """Write findings as JUnit has them."""
    suite = ElementTree.Element("testsuite", name=ending.command)
    findings = ending.result.findings if ending.result is not None else ()
    for finding in findings:
        case = ElementTree.SubElement(suite, "testcase", name=finding.check)
        ElementTree.SubElement(case, "failure", message=finding.message)
    if ending.error is not None:
        ElementTree.SubElement(suite, "error", message=ending.message)
    sys.stdout.write(ElementTree.tostring(suite, encoding="unicode") + "\n")


@pytest.fixture(autouse=True)
def junit(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("as_junit")
    module.write = write  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "as_junit", module)
    monkeypatch.setitem(emit.FORMATS, "junit", "as_junit")


def test_a_result() -> None:
    ended = run("verify", FIXTURES / "fsdp2/step-12", "--require", "manifest", "--format", "junit")
    suite = ElementTree.fromstring(ended.stdout)
    assert (ended.code, suite.get("name")) == (10, "verify")
    assert "no-manifest" in [case.get("name") for case in suite]


@pytest.mark.parametrize(
    ("args", "code"), [(("list", ""), 2), (("show", "nowhere"), 4), (("list", "--nonsense"), 2)]
)
def test_an_error(args: tuple[str, ...], code: int) -> None:
    ended = run(*args, "--format", "junit")
    (error,) = ElementTree.fromstring(ended.stdout)
    assert (ended.code, error.tag) == (code, "error")


def test_a_format_that_there_is_not(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    for words, env in (
        (("--format", "punchcard"), {}),
        ((), {"CKPTCTL_FORMAT": "punchcard"}),
    ):
        ended = run("commit", path, *words, env=env)
        assert (ended.code, ended.stdout) == (2, "")
        assert "'punchcard' is not one of text, json, junit" in ended.stderr
        assert not (path / "ckptctl.manifest.json").exists()
