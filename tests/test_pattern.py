"""A pattern that is compiled late does what one compiled at once does."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import walk_packages

import pytest

import ckptctl
from ckptctl.pattern import pattern

TEXT = "step-12 and STEP-7"


def test_it_does_what_a_compiled_one_does() -> None:
    ours, theirs = pattern(r"step-(\d+)", re.IGNORECASE), re.compile(r"step-(\d+)", re.IGNORECASE)
    assert ours.findall(TEXT) == theirs.findall(TEXT) == ["12", "7"]
    assert [m.span() for m in ours.finditer(TEXT)] == [m.span() for m in theirs.finditer(TEXT)]
    assert ours.sub("x", TEXT) == theirs.sub("x", TEXT)
    assert ours.split(TEXT) == theirs.split(TEXT)
    assert ours.fullmatch(TEXT) is None
    assert ours.match(TEXT) is not None
    assert (ours.pattern, ours.flags) == (theirs.pattern, theirs.flags)


def test_it_is_compiled_once_and_late() -> None:
    wrong = pattern("(")
    with pytest.raises(re.error):
        wrong.search("x")
    used = pattern("x")
    assert "search" not in vars(used)
    assert used.search("x")
    assert vars(used)["search"] is used.search
    assert not hasattr(used, "nonsense")


def test_every_pattern_of_the_package_can_be_compiled() -> None:
    names = [module.name for module in walk_packages(ckptctl.__path__, "ckptctl.")]
    modules = [import_module(name) for name in names if name != "ckptctl.__main__"]
    late = [
        value
        for module in modules
        for value in vars(module).values()
        if type(value) is type(pattern(""))
    ]
    assert len(late) > 50
    for one in late:
        assert re.compile(one.pattern, one.flags)
