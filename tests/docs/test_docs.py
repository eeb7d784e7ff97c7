"""README and docs: every command runs as shown, every link leads somewhere, every name exists.

``CKPTCTL_UPDATE_GOLDENS=1`` rewrites what is shown and the generated parts. What differs from run to
run is compared by placeholders: times, ages, random ids and the digests of records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptctl
from ckptctl import api
from ckptctl.checks import CHECKS
from ckptctl.cli.main import _COMMANDS
from ckptctl.exit_codes import ExitCode
from conftest import ROOT
from docs import examples as docs
from docs import generated
from docs.examples import PAGES, Session, Step

KINDS = {"console", "python", "bash", "sh", "text", "json", "yaml"}
"""``sh`` is for the two lines of the set-up, which ``.ci/run`` runs."""
README = ROOT / "README.md"
SHOWN = [page for page in PAGES if any(block.kind == "console" for block in docs.blocks(page))]
OPTIONS = docs.options()
ALL_OPTIONS = {"--version", "--install-completion", "--show-completion"}.union(*OPTIONS.values())
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]+")
FOREIGN = {
    "--size",
    "--below",
    "--requeue",
    "--dist-ckpt-optim-fully-reshardable",
    "--verify-integrity",
}
"""Options of other programs."""
EVERYWHERE = {"--json", "--help"}


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=by_name)


@pytest.mark.parametrize("page", SHOWN, ids=by_name)
def test_commands_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    session = Session(tmp_path / "clone")
    text, wrong = docs.text_of(page), []
    shift = 0
    for block in docs.blocks(page):
        if block.kind != "console":
            continue
        session.begin()
        done = []
        for step in docs.steps(block):
            printed = session.type(step.command)
            if docs.fits(step.shown, printed):
                done.append(step)
                continue
            wrong.append(f"{by_name(page)}:{block.line}\n$ {step.command}\n{printed}")
            done.append(Step(step.command, printed))
        body = docs.written(done)
        text = text[: block.start + shift] + body + text[block.stop + shift :]
        shift += len(body) - len(block.body)
    if docs.UPDATE and wrong:
        docs.rewrite(page, text)
        return
    assert not wrong, "CKPTCTL_UPDATE_GOLDENS=1 shows what is printed\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", generated.PARTS)
def test_generated_parts_are_up_to_date(name: str) -> None:
    page, make = generated.PARTS[name]
    begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
    head, found, rest = docs.text_of(page).partition(begin)
    body, ended, tail = rest.partition(end)
    assert found and ended, f"{by_name(page)} has no part {name}"
    if docs.UPDATE and body != make():
        docs.rewrite(page, head + begin + make() + end + tail)
        return
    assert body == make(), f"{by_name(page)}: CKPTCTL_UPDATE_GOLDENS=1 writes it again"


@every_page
def test_blocks_are_of_a_kind_that_a_test_looks_at(page: Path) -> None:
    for block in docs.blocks(page):
        assert block.kind in KINDS, f"line {block.line}: {block.kind or 'no kind'}"
        if block.kind != "console":
            assert not re.search(r"^\$ ", block.body, re.M), f"line {block.line} is not run"
    assert docs.text_of(page).count("```") == 2 * len([*docs.blocks(page)])


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in docs.links(page):
        if re.match(r"[a-z]+://", target):
            continue
        path, _, anchor = target.partition("#")
        where = (page.parent / path).resolve() if path else page
        assert where.exists(), target
        assert where.is_relative_to(ROOT), target
        if anchor:
            assert anchor in docs.anchors(where), target


@every_page
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    code = [*docs.spans(page)]
    for block in docs.blocks(page):
        if block.kind == "console":
            code += [step.command for step in docs.steps(block)]
        elif block.kind in ("bash", "sh"):
            code += [line for line in block.body.splitlines() if not line.startswith("#")]
    for line in code:
        for name, rest in re.findall(r"\bckptctl ([a-z]+)\b([^|;&)\n]*)", line):
            assert name in _COMMANDS, line
            named = set(_OPTION.findall(rest))
            assert named <= OPTIONS[name], f"{line}: {named - OPTIONS[name]}"
        if line.startswith("--"):
            assert set(_OPTION.findall(line)) <= ALL_OPTIONS | FOREIGN, line


def test_every_command_is_in_the_readme() -> None:
    text = docs.text_of(README)
    assert [name for name in _COMMANDS if f"ckptctl {name}" not in text] == []


def test_every_option_is_explained_somewhere() -> None:
    text = "\n".join(map(docs.text_of, PAGES))
    known = set(re.findall(r"--[a-z][a-z-]+", text))
    assert sorted(set().union(*OPTIONS.values()) - EVERYWHERE - known) == []


def test_the_readme_has_every_exit_code_and_no_other() -> None:
    rows = re.findall(r"^\| (\d+) \|", docs.text_of(README), re.M)
    assert [*map(int, rows)] == [*ExitCode]


def test_check_ids_that_are_named_exist() -> None:
    ids = {check.id for check in CHECKS}
    assert ids <= docs.anchors(ROOT / "docs" / "checks.md")
    for page in PAGES:
        for anchor in re.findall(r"checks\.md#([a-z-]+)", docs.text_of(page)):
            assert anchor in docs.anchors(ROOT / "docs" / "checks.md")
    for path, text in ((page, docs.text_of(page)) for page in PAGES):
        for found in re.findall(r"\b(?:error|warning|note) ([a-z]+(?:-[a-z]+)+):", text):
            assert found in ids, f"{by_name(path)} names a check {found}"


def test_the_readme_is_short() -> None:
    assert 6_000 <= len(docs.text_of(README).encode()) <= 8_192


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    targets = {target.partition("#")[0] for target in docs.links(README)}
    pages = {by_name(page) for page in PAGES if page != README}
    assert sorted(pages - targets) == []


def test_the_set_up_lines_are_those_that_ci_runs() -> None:
    shown = "".join(block.body for block in docs.blocks(README) if block.kind == "sh")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("-qq ", "")
    parts = [part.strip() for part in re.split(r"&&|\n", shown) if part.strip()]
    assert len(parts) == 4
    assert [part for part in parts if part.removeprefix("pytest ") not in script] == []


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("", "a\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "b\nc\n", False),
        ("x  211.2 KiB  10 min\n", "x  211.2 KiB     5 s\n", True),
        ("x  211.2 KiB  10 min\n", "x  211.3 KiB  10 min\n", False),
        ("at 2026-11-30T00:40:00+00:00\n", "at 2027-01-01T12:00:00+00:00\n", True),
        ("4 d\n", "4 x\n", False),
    ],
)
def test_what_is_taken_for_the_same(shown: str, printed: str, same: bool) -> None:
    assert docs.fits(shown, printed) is same


def test_a_session_remembers_place_variables_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    type_: Callable[[str], str] = (session := Session(tmp_path / "clone")).type
    assert type_("ckptctl list nowhere") != ""
    assert int(type_("echo $?")) in (3, 4)
    type_("cd fixtures; A=b")
    assert type_("pwd; echo $A") == f"{docs.HOME}/fixtures\nb\n"
    session.begin()
    assert type_('pwd; echo "${A-none}"') == f"{docs.HOME}\nnone\n"


def test_every_public_name_is_documented() -> None:
    text = "\n".join(map(docs.text_of, PAGES))
    known = set(re.findall(r"\w+", text))
    assert [name for name in ckptctl.__all__ if name not in known] == []
    shown = re.findall(r"^### (\w+)$", docs.text_of(ROOT / "docs" / "python.md"), re.M)
    assert shown == [*api.__all__]


def test_every_variable_of_the_environment_is_in_the_readme() -> None:
    used = set()
    for path in (ROOT / "ckptctl").rglob("*.py"):
        used |= set(re.findall(r"\bCKPTCTL_[A-Z]+\b", path.read_text(encoding="utf-8")))
    assert set(re.findall(r"\bCKPTCTL_[A-Z]+\b", docs.text_of(README))) == used
