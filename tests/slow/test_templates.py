"""Many changed items, taught and tried, and every single byte also by the careful look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.alike import Tensor, exchanged, tried, written


@pytest.mark.parametrize("seed", range(4))
def test_what_is_passed_is_never_what_the_careful_look_refuses(seed: int) -> None:
    taught, passed = tried(3000, seed)
    assert taught > 1200
    assert passed > 500


def test_of_every_byte_both_looks_are_compared() -> None:
    """The careful look is silent where no reader looks; where it speaks, nothing was passed."""
    tensor = Tensor([written(number) for number in range(4)])
    lanes = {content: tensor.taught(content=content) for content in (True, False)}
    good = written(7)
    item = replace(tensor.items[0], length=len(good))
    silent, refused = set(), 0
    for number, (at, data) in enumerate(exchanged(good)):
        assert not lanes[True].passes(item, data, 0), at
        if number % 4:  # the careful look takes fifty times as long
            pass
        elif tensor.refused(data):
            refused += 1
        else:
            silent.add(at)
        assert not (lanes[False].passes(item, data, 0) and tensor.refused(data, content=False)), at
    assert len(silent) < 700
    assert refused > 50_000
