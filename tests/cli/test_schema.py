"""What commands print with --json is what their schemas say, and those are made from the results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ckptctl
from ckptctl.cli.main import _COMMANDS
from ckptctl.cli.output.schema import RESULTS, document_schema
from conftest import FIXTURES, ROOT
from support.cli import Ended, run, updating
from support.publish import done

SHIPPED = ROOT / "ckptctl" / "schemas"
Copy = Callable[..., Path]


def check(ended: Ended) -> Any:
    """Validate a document against the shipped schema of its command; return it."""
    found = ended.document()
    schema = json.loads((SHIPPED / f"{found['command']}.json").read_text())
    jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.FormatChecker(["date-time"])
    ).validate(found)
    return found


def test_every_command_has_a_result() -> None:
    assert list(RESULTS) == [*_COMMANDS]


@pytest.mark.parametrize("name", RESULTS)
def test_the_shipped_schema_is_the_one_that_is_made(name: str) -> None:
    path = SHIPPED / f"{name}.json"
    made = document_schema(name)
    jsonschema.Draft202012Validator.check_schema(made)
    text = json.dumps(made, indent=2, ensure_ascii=True) + "\n"
    if updating():
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "CKPTCTL_UPDATE_GOLDENS=1 rewrites"


def test_no_schema_is_left_over() -> None:
    assert {path.stem for path in SHIPPED.iterdir()} == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_the_command_prints_it(name: str) -> None:
    assert run("schema", name).stdout == (SHIPPED / f"{name}.json").read_text()


def test_without_a_name_all_are_named() -> None:
    assert run("schema").stdout.split() == sorted(RESULTS)
    assert run("schema", "nothing").code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("list",),
        ("list", "--committed"),
        ("show",),
        ("show", "--tensors"),
        ("show", "--objects"),
        ("show", "--files"),
        ("show", "--layout", "model.scale"),
        ("verify",),
        ("verify", "--values"),
        ("verify", "--require", "manifest"),
        ("verify", "nowhere", "."),
        ("digest",),
        ("resolve",),
        ("history",),
        ("schema",),
        ("schema", "verify"),
    ],
    ids=" ".join,
)
def test_what_is_printed_is_valid(args: tuple[str, ...]) -> None:
    document = check(run(*args, "--json", cwd=FIXTURES / "fsdp2/step-12"))
    assert document["error"] is None or args == ("resolve",)


def test_what_changes_something_is_valid_too(copy: Copy, tmp_path: Path) -> None:
    path = copy("fsdp2/step-12")
    for args in (
        ("commit", path, "--promote"),
        ("promote", path),
        ("quarantine", path, "--reason", "loss spike"),
        ("release", path, "--reason", "it was the data"),
        ("history", path.parent),
        ("resolve", path.parent),
        ("prune", path.parent, "--keep-last", "1"),
        ("convert", path, "--to", "safetensors", "--out", tmp_path / "out"),
        ("reshard", path, "--world-size", "2", "--out", tmp_path / "two/step-12", "--rng", "drop",
         "--data", "drop"),
        ("diff", path, path),
    ):  # fmt: skip
        document = check(done(*args, "--json"))
        assert document["verdict"] == "ok"


@pytest.mark.parametrize(
    ("args", "code", "verdict", "kind"),
    [
        (("list", ""), 2, "usage", "UsageError"),
        (("list", "--limit", "0"), 2, "usage", "BadParameter"),
        (("verify", "--sample", "much"), 2, "usage", "UsageError"),
        (("resolve", "nowhere"), 4, "storage-failed", "RootMissing"),
        (("resolve", "nowhere", "--allow-missing-root"), 3, "nothing-there", "NothingThere"),
        (("show", "fsdp2@7"), 4, "storage-failed", "NotFound"),
        (("promote", "fsdp2/step-12"), 5, "refused", "Refused"),
        (("resolve", "fsdp2"), 10, "findings", "NoneUsable"),
        (("reshard", "fsdp2/step-12", "--world-size", "8"), 5, "refused", "DecisionNeeded"),
    ],
)
def test_errors_have_the_same_form(
    args: tuple[str, ...], code: int, verdict: str, kind: str
) -> None:
    ended = run(*args, "--json", cwd=FIXTURES)
    document = check(ended)
    assert (ended.code, document["verdict"], document["error"]["type"]) == (code, verdict, kind)
    assert document["error"]["message"].split("\n")[0] in ended.stderr


def test_an_unknown_command_has_the_same_form() -> None:
    ended = run("nothing", "--json")
    found = json.loads(ended.stdout)
    assert (found["schema"], found["command"], found["result"]) == ("ckptctl/2", None, None)
    assert (ended.code, found["exit_code"], found["verdict"]) == (2, 2, "usage")


def test_what_is_passed_over_is_said_also_where_nothing_is_chosen() -> None:
    document = check(run("resolve", FIXTURES / "fsdp2", "--json"))
    assert [skip["name"] for skip in document["result"]["skipped"]] == ["step-12", "step-8"]
    assert document["error"]["type"] == "NoneUsable"


def test_a_failure_of_its_own_has_the_same_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptctl.api.history", lambda *_, **__: 1 / 0)
    document = check(run("history", FIXTURES / "fsdp2", "--json"))
    assert (document["exit_code"], document["verdict"]) == (1, "failed")
    assert document["error"]["type"] == "ZeroDivisionError"


def test_the_result_is_that_of_the_function(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "fsdp2", tmp_path / "run")
    found = ckptctl.verify(tmp_path / "run", workers=1)
    printed = check(run("verify", tmp_path / "run", "--json", "--workers", "1"))
    assert json.loads(json.dumps(found.to_dict())) == printed["result"]
    assert (found.exit_code, found.verdict) == (printed["exit_code"], printed["verdict"])
