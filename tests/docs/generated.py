"""The parts of docs that are written from the code: what each check asks, what each layout reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import ckptctl
from ckptctl import api
from ckptctl.checks import CHECKS
from ckptctl.checks.base import Override
from ckptctl.errors import CkptctlError
from ckptctl.formats.base import Layout, Reads
from ckptctl.formats.registry import LAYOUTS
from ckptctl.model.finding import Stage
from conftest import ROOT

DOCS = ROOT / "docs"
READS = {
    Reads.NAMES: "listed only",
    Reads.TENSORS: "tensors and values",
    Reads.WHOLE: "whole",
}


def checks() -> str:
    """Write one heading for each check, by stage, in the order in which they are asked."""
    lines = []
    for stage in Stage:
        lines += [f"## Stage: {stage.word}", ""]
        for check in CHECKS:
            if check.stage is stage:
                remedy = check.remedy.replace("{checkpoint}", "CHECKPOINT").replace(
                    "{root}", "ROOT"
                )
                lines += [
                    f"### {check.id}",
                    "",
                    f"**{check.severity.word}**. {check.summary}",
                    "",
                    f"Next: {remedy}.",
                    "",
                    f"Can be accepted: {_acceptable(check.acceptable)}.",
                    "",
                ]
    return "\n".join(lines)


def _acceptable(override: Override) -> str:
    return f"{'yes' if override.allowed else 'no'}: {override.why}"


def layouts() -> str:
    """Write one row for each layout of the registry."""
    lines = ["| `name` | what it is | read |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {one.title} | {READS[_reads(one)]} |" for one in LAYOUTS]
    return "\n".join(lines) + "\n"


def _reads(one: Layout) -> Reads:
    return one.reads


def errors() -> str:
    """Write one row for each error, with the exit code that it ends in."""
    kinds = [CkptctlError, *(one for one in _public().values() if isinstance(one, type))]
    kinds = [kind for kind in kinds if issubclass(kind, CkptctlError)]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    rows = sorted({(int(kind.exit_code), kind.__name__, _first(kind)) for kind in kinds})
    lines = ["| error | exit code | means |", "|---|---|---|"]
    lines += [f"| `{name}` | {code} | {text} |" for code, name, text in rows]
    return "\n".join(lines) + "\n"


def types() -> str:
    """Write one row for each public type that is no error."""
    lines = ["| type | is |", "|---|---|"]
    for name, one in sorted(_public().items()):
        if isinstance(one, type) and not issubclass(one, CkptctlError):
            lines.append(f"| `{name}` | {_first(one)} |")
    return "\n".join(lines) + "\n"


def _public() -> dict[str, object]:
    return {name: getattr(ckptctl, name) for name in ckptctl.__all__}


def functions() -> str:
    """Write one heading for each public function: how it is called, and what it says of itself."""
    lines = []
    for name in api.__all__:
        function = getattr(api, name)
        signature = inspect.signature(function)
        words = _parameters([*signature.parameters.values()])
        returned = str(signature.return_annotation).rpartition(".")[2]
        doc = inspect.cleandoc(function.__doc__ or "").replace("``", "`")
        lines += [f"### {name}", "", f"`ckptctl.{name}({words}) -> {returned}`", "", doc, ""]
    return "\n".join(lines)


def _parameters(found: list[inspect.Parameter]) -> str:
    words = [_parameter(one) for one in found]
    kinds = [one.kind for one in found]
    if inspect.Parameter.VAR_POSITIONAL not in kinds and inspect.Parameter.KEYWORD_ONLY in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return ", ".join(words)


def _parameter(one: inspect.Parameter) -> str:
    star = "*" if one.kind is one.VAR_POSITIONAL else ""
    return f"{star}{one.name}" if one.default is one.empty else f"{one.name}={one.default!r}"


def _first(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n")[0].replace("``", "`")


PARTS: dict[str, tuple[Path, Callable[[], str]]] = {
    "checks": (DOCS / "checks.md", checks),
    "layouts": (DOCS / "frameworks.md", layouts),
    "errors": (DOCS / "python.md", errors),
    "types": (DOCS / "python.md", types),
    "functions": (DOCS / "python.md", functions),
}
