"""What docs say of the code is so: fields of records, rooms, files to touch, templates."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from ckptctl.exit_codes import ExitCode
from ckptctl.formats.registry import LAYOUTS
from ckptctl.model.amendment import Amendment
from ckptctl.model.commit_state import State
from ckptctl.model.components import COMPONENTS
from ckptctl.model.manifest import (
    FileRecord,
    Manifest,
    PointerRevision,
    QuarantineRecord,
    Receipt,
    Record,
    TrashRecord,
)
from ckptctl.model.result.verdict import Verdict
from ckptctl.sharding.record import ConvertedRecord, ReshardRecord
from conftest import ROOT
from docs import examples as docs
from docs.examples import PAGES

DOCS = ROOT / "docs"
RECORDS = (
    FileRecord,
    Receipt,
    Manifest,
    Amendment,
    PointerRevision,
    QuarantineRecord,
    TrashRecord,
    ReshardRecord,
    ConvertedRecord,
)
TEMPLATES = sorted((ROOT / ".github").rglob("*.yml"))
MOST_STEPS = 10


def section(page: Path, heading: str) -> str:
    """Return what stands below a heading."""
    found = re.search(
        rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,3}} |\Z)", docs.text_of(page), re.M | re.S
    )
    assert found, f"{page.name} has no section {heading}"
    return found[2]


def first_column(text: str) -> list[str]:
    return re.findall(r"^\| `?([\w ]+?)`? \|", text, re.M)[1:]


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_each_field_of_each_record_is_specified(kind: type[Record]) -> None:
    schema = getattr(kind, "SCHEMA", "")
    text = section(DOCS / "records.md", schema.split("/")[1] if schema else "file")
    own = [field.name for field in dataclasses.fields(kind)]
    if schema:
        own.remove("digest")
        assert f"`{schema}`" in text
    assert first_column(text) == own


def test_all_kinds_of_records_are_specified() -> None:
    kinds: list[type[Record]] = [Record]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    schemas = {kind.SCHEMA for kind in kinds if kind.SCHEMA}
    assert schemas == {getattr(kind, "SCHEMA", "") for kind in RECORDS[1:]}


def test_each_state_is_explained() -> None:
    assert first_column(section(DOCS / "protocol.md", "States")) == [one.value for one in State]


def test_each_verdict_is_explained() -> None:
    rows = first_column(section(DOCS / "verify.md", "The verdict"))
    assert sorted(row.split()[-1] for row in rows) == sorted(
        one.value.upper().split()[-1] for one in Verdict if one is not Verdict.REFUSED
    )


def test_each_verdict_has_its_exit_code_on_the_page_about_json() -> None:
    rows = re.findall(r"^\| `([a-z ]+)` \| (\d+) \|", section(DOCS / "json.md", "Verdicts"), re.M)
    assert [(name, int(code)) for name, code in rows] == [
        (one.value, int(one.exit_code)) for one in Verdict
    ]


def test_the_words_of_errors_are_on_the_page_about_json() -> None:
    words = set(re.findall(r"`([a-z-]+)`", section(DOCS / "json.md", "Verdicts")))
    others = {ExitCode.DONE, ExitCode.PIPE_CLOSED}
    assert {one.verdict for one in ExitCode if one not in others} <= words


def test_each_component_is_named() -> None:
    text = section(DOCS / "verify.md", "What a resume needs")
    assert [name for name in COMPONENTS if name not in text] == []


def test_each_layout_is_explained() -> None:
    _, _, prose = docs.text_of(DOCS / "frameworks.md").partition("<!-- end of layouts -->")
    assert [one.name for one in LAYOUTS if f"`{one.name}`" not in prose] == []


def test_the_picture_of_the_rooms_has_all_of_them() -> None:
    picture = next(block.body for block in docs.blocks(DOCS / "architecture.md"))
    rooms = {
        path.name if path.is_dir() else path.stem
        for path in (ROOT / "ckptctl").iterdir()
        if not path.name.startswith("_") and path.suffix in ("", ".py")
    }
    rooms |= {path.parent.name for path in (ROOT / "ckptctl" / "operations").glob("*/__init__.py")}
    words = set(re.findall(r"\w+", picture))
    assert rooms - words == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    for named in docs.spans(page):
        if re.fullmatch(r"(?:ckptctl|tests|docs|fixtures|\.ci)/[\w/.-]+", named):
            placeholder = re.search(r"(?:\b|_)[A-Z]{2,}\b", named)
            schema = re.fullmatch(r"ckptctl/\w+/\d+", named)
            assert placeholder or schema or (ROOT / named).exists(), named


def test_what_to_add_takes_few_lines() -> None:
    headings = re.findall(r"^## (Add an? .+)$", docs.text_of(ROOT / "CONTRIBUTING.md"), re.M)
    assert len(headings) == 5
    for heading in headings:
        lines = section(ROOT / "CONTRIBUTING.md", heading).strip().splitlines()
        assert len([line for line in lines if line]) <= MOST_STEPS, heading


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_and_workflows_are_yaml(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["name"]
    if path.parent.name == "workflows":
        steps = [step for job in document["jobs"].values() for step in job["steps"]]
        assert ".ci/run" in [step.get("run") for step in steps]


def test_the_workflow_tests_folders_that_there_are() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    folders = re.findall(r"\btests/\w+", text)
    assert folders
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_hooks_run_what_ci_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert len(entries) == 4
    for entry in entries:
        assert entry.replace(" --fix", "") in script
