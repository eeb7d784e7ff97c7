"""The table of cases: states in which a command once deleted, chose or sealed the wrong thing.

Each module beside this one holds the rows of one section; ``frame`` says what a row has. To look
at one of them: ``pytest tests/cases -k 'deleting and stray'``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cases import accepting, choosing, companions, deleting, evidence, reshaping, restarts, sealing
from cases.frame import Case, below, fact, names_of, snapshot, target
from support.cli import Ended, make_old, run

SECTIONS = {
    "accepting": accepting.CASES,
    "deleting": deleting.CASES,
    "choosing": choosing.CASES,
    "sealing": sealing.CASES,
    "reshaping": reshaping.CASES,
    "companions": companions.CASES,
    "evidence": evidence.CASES,
    "restarts": restarts.CASES,
}
ROWS = [
    pytest.param(case, id=f"{section}: {name}")
    for section, cases in SECTIONS.items()
    for case, name in zip(cases, names_of(cases), strict=True)
]


@pytest.mark.parametrize("case", ROWS)
def test_case(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.says or case.silent or not case.facts:
        ended = _carried_out(case, tmp_path / "text", monkeypatch)
        printed = ended.stdout + ended.stderr
        for words in case.says:
            assert words.replace("{root}", str(tmp_path / "text/a/run")) in printed
        for words in case.silent:
            assert words not in printed
    if not case.facts:
        return
    document = _carried_out(case, tmp_path / "json", monkeypatch, "--json").document()
    source = document if document["error"] else {**document, **(document["result"] or {})}
    for path, expected in case.facts.items():
        _compare(path, fact(source, path), expected)


def _carried_out(case: Case, top: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Ended:
    """Build the state, run the command, and compare what it left with what it should."""
    root = top / "a" / "run"
    root.mkdir(parents=True)
    with monkeypatch.context() as patch:
        case.build(root)
        if case.old is not None:
            _age(root, case.old, patch)
        before = snapshot(top)
        if case.meanwhile is not None:
            _interrupt(case, root, before, patch)
        ended = run(*case.words(root), *more)
        assert ended.code == case.code, ended
        after = snapshot(top)
        assert not case.untouched or after == before
        for path in case.left:
            assert below(before, f"a/run/{path}"), f"{path} was never there"
            assert below(after, f"a/run/{path}") == below(before, f"a/run/{path}")
        assert [path for path in case.gone if below(after, f"a/run/{path}")] == []
        assert [path for path in case.made if not below(after, f"a/run/{path}")] == []
        if case.then is not None:
            case.then(root)
    return ended


def _age(root: Path, days: float, patch: pytest.MonkeyPatch) -> None:
    """Make everything old; change times and times in records count as those that were set."""
    make_old(root.parent.parent, days=days)
    patch.setattr("ckptctl.storage.posix._changed_at", lambda status: status.st_mtime)
    patch.setattr("ckptctl.operations.retention.plan.moment", lambda _: None)


def _interrupt(
    case: Case, root: Path, before: dict[str, object], patch: pytest.MonkeyPatch
) -> None:
    """Let somebody else come while the command is busy; what they do is no work of the command."""
    assert case.meanwhile is not None
    owner, name = target(case.meanwhile.after)
    inner, left, act = getattr(owner, name), [case.meanwhile.nth], case.meanwhile.do

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = inner(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            act(root)
            before.clear()
            before.update(snapshot(root.parent.parent))
        return answer

    patch.setattr(owner, name, call)


def _compare(path: str, found: Any, expected: Any) -> None:
    if callable(expected):
        assert expected(found), f"{path} is {found!r}"
    else:
        assert found == expected, path


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(ROWS) >= 60


@pytest.mark.parametrize("wrong", ["ckptctl.operations.nowhere.plan", "ckptctl.errors.Nothing"])
def test_a_function_that_is_not_there_is_an_error(wrong: str) -> None:
    with pytest.raises(AttributeError):
        target(wrong)


@pytest.fixture(autouse=True)
def no_leftovers(tmp_path: Path) -> Any:
    """Roots are small, and there are many."""
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)
