"""The public functions: what a launcher written in Python sees of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import ckptctl
from ckptctl import ExitCode, Verdict, api, results
from ckptctl.cli.main import _COMMANDS
from ckptctl.cli.output.spelling import flag, spelled
from ckptctl.model.result.answer import Answer
from conftest import FIXTURES, ROOT
from docs.examples import blocks

Copy = Callable[..., Path]
LAUNCHER = Path(__file__).with_name("sample_launcher.py")
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def launcher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample_launcher", LAUNCHER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_line_verifies_without_torch() -> None:
    code = "import ckptctl; print(ckptctl.verify('fixtures/fsdp2/step-12').verdict)"
    assert python(WITHOUT_TORCH + code) == "unverified\n"


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, ckptctl; print(sorted(n for n in sys.modules if n.startswith('ckptctl')))"
    assert python(code) == "['ckptctl', 'ckptctl.version']\n"


@pytest.mark.parametrize("order", ["digest", "commit", "diff", "convert", "reshard", "verify"])
def test_no_module_takes_the_place_of_a_verb(order: str) -> None:
    modules = "import ckptctl.hashing, ckptctl.protocol, ckptctl.cli.main, ckptctl.operations\n"
    code = f"import ckptctl; print(callable(ckptctl.{order}), callable(ckptctl.api.{order}))"
    assert python(f"{modules}{code}") == "True True\n"


def test_there_is_a_function_for_every_command() -> None:
    assert {"list_checkpoints" if name == "list" else name for name in _COMMANDS} == set(
        api.__all__
    )


@pytest.mark.parametrize("name", api.__all__)
def test_a_verb_keeps_the_convention(name: str) -> None:
    verb = getattr(ckptctl, name)
    parameters = [*inspect.signature(verb).parameters.values()]
    positional = [one for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert len(positional) <= 2
    kind = inspect.signature(verb).return_annotation
    result = getattr(results, kind.removeprefix("results."))
    assert issubclass(result, Answer)
    assert dataclasses.is_dataclass(result)
    assert result.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert len(inspect.getdoc(verb) or "") > 40


@pytest.mark.parametrize("name", ckptctl.__all__)
def test_everything_that_is_exported_is_there_and_explained(name: str) -> None:
    assert inspect.getdoc(getattr(ckptctl, name))
    assert name in dir(ckptctl)


def test_a_name_that_is_not_exported() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ckptctl.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_help_reads_well() -> None:
    text = pydoc.plain(pydoc.render_doc(ckptctl))
    assert text.index("verify(") and text.index("Prove that a checkpoint is whole")
    for name in api.__all__:
        assert re.search(rf"^    {name}\(", text, re.M), name


def test_mypy_accepts_the_launcher_and_that_of_the_docs(tmp_path: Path) -> None:
    shown = tmp_path / "shown.py"
    page = ROOT / "docs" / "launcher.md"
    shown.write_text(next(block.body for block in blocks(page) if block.kind == "python"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file",
            "pyproject.toml",
            str(LAUNCHER),
            str(shown),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_launcher_launches(
    launcher: ModuleType, copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    launcher.main(str(tmp_path / "new"))
    copy("fsdp2/step-8")
    path = copy("fsdp2/step-12")
    with pytest.raises(SystemExit) as ended:
        launcher.main(str(path.parent))
    assert ended.value.code == ExitCode.FINDINGS
    assert launcher.publish(str(path), step=12, run_id="r1").startswith("sha256:")
    launcher.main(str(path.parent))
    said = capsys.readouterr()
    assert said.out == f"start\nresume {path} at step 12\n"
    assert "step-8: not committed" in said.err
    assert launcher.sound(str(path.parent))
    assert launcher.cheapest(str(path.parent)) == []


def test_results_tell_their_verdict() -> None:
    path = FIXTURES / "fsdp2"
    listing = ckptctl.list_checkpoints(path, states=["complete"])
    assert (listing.verdict, listing.exit_code, listing.findings) == (Verdict.OK, 0, ())
    assert [row.step for row in listing.checkpoints] == [8, 12]
    differing = ckptctl.diff(path / "step-8", f"{path}@12", quick=True)
    assert (differing.verdict, differing.exit_code) == (Verdict.FINDINGS, 10)
    harmless = ckptctl.diff(path / "step-8", f"{path}@12", quick=True, fail_on="breaks-load")
    assert (harmless.verdict, harmless.exit_code) == (Verdict.OK, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        listing.root = ""  # type: ignore[misc]


def test_errors_name_options_by_what_they_mean() -> None:
    with pytest.raises(
        ckptctl.UsageError, match=r"`values` has to read .* which `quick` leaves out"
    ):
        ckptctl.verify(FIXTURES / "fsdp2", values=True, quick=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`allow_uncommitted` takes such", "--allow-uncommitted takes such"),
        ("`publish_as=NAME` publishes it", "`--as NAME` publishes it"),
        ("`mapping='KEY=COMPONENT'` says", "`--map 'KEY=COMPONENT'` says"),
        ("`ckptctl verify x --quick` says", "`ckptctl verify x --quick` says"),
        ("`something` else", "`something` else"),
    ],
)
def test_the_command_line_spells_the_flags(text: str, expected: str) -> None:
    assert spelled(text) == expected


def test_the_library_spells_no_flag_but_in_whole_commands() -> None:
    guilty = []
    for path in sorted((ROOT / "ckptctl").rglob("*.py")):
        if "cli" in path.relative_to(ROOT / "ckptctl").parts:
            continue
        text = re.sub(r'"\n\s*f?"', "", path.read_text(encoding="utf-8"))
        text = re.sub(r"`ckptctl [^`]*`", "", re.sub(r'""".*?"""', "", text, flags=re.S))
        guilty += [f"{path.name}: {found}" for found in re.findall(r"--[a-z][a-z-]+", text)]
    assert guilty == []


def test_every_option_that_a_message_names_is_one() -> None:
    named: set[str] = set()
    for path in sorted((ROOT / "ckptctl" / "operations").rglob("*.py")):
        strings = re.findall(r'f?"((?:[^"\\]|\\.)*)"', path.read_text(encoding="utf-8"))
        named |= {
            one
            for text in strings
            for one in re.findall(r"(?<!`)`([a-z_]+)(?:=[^`]*)?`(?!`)", text)
        }
    assert {"force", "publish_as", "quick", "older_than"} <= named
    assert [name for name in sorted(named) if not flag(name)] == []
