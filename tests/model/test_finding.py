"""Reports: merging them in any order and any grouping gives the same answer."""

from __future__ import annotations

import functools
import random

from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.finding import Coverage, Finding, Gap, GapKind, Location, Report, Severity, Stage
from ckptctl.model.geometry import Box

FEW_WORDS = st.sampled_from(["", "a", "b"])
FEW_NUMBERS = st.none() | st.integers(0, 2)

LOCATIONS = st.builds(
    Location,
    checkpoint=FEW_WORDS,
    file=st.none() | FEW_WORDS,
    rank=FEW_NUMBERS,
    fqn=st.none() | FEW_WORDS,
    box=st.sampled_from([None, Box((0,), (1,)), Box((1,), (1,))]),
    start=FEW_NUMBERS,
    stop=FEW_NUMBERS,
)
FINDINGS = st.builds(
    Finding,
    check=FEW_WORDS,
    severity=st.sampled_from(Severity),
    message=FEW_WORDS,
    where=LOCATIONS,
    loss=FEW_WORDS,
    remedy=FEW_WORDS,
)
COVERAGES = st.builds(
    Coverage,
    stage=st.sampled_from(Stage),
    unit=st.sampled_from(["items", "files"]),
    examined=st.integers(0, 9),
    total=st.integers(0, 9),
    bytes_read=st.integers(0, 9),
    gaps=st.lists(
        st.builds(Gap, st.sampled_from(GapKind), FEW_WORDS, st.integers(1, 5)), max_size=3
    ).map(tuple),
)
REPORTS = st.builds(Report.of, st.lists(FINDINGS, max_size=4), st.lists(COVERAGES, max_size=4))


@given(REPORTS, REPORTS)
def test_merging_is_commutative(one: Report, two: Report) -> None:
    assert one.merge(two) == two.merge(one)


@given(REPORTS, REPORTS, REPORTS)
def test_merging_is_associative(one: Report, two: Report, three: Report) -> None:
    assert one.merge(two).merge(three) == one.merge(two.merge(three))


@given(st.lists(FINDINGS, max_size=6), st.lists(COVERAGES, max_size=6), st.randoms())
def test_parts_in_any_order_give_the_report_of_the_whole(
    findings: list[Finding], coverage: list[Coverage], rng: random.Random
) -> None:
    whole = Report.of(findings, coverage)
    parts = [Report.of([one]) for one in findings] + [Report.of((), [one]) for one in coverage]
    rng.shuffle(parts)
    assert functools.reduce(Report.merge, parts, Report()) == whole


@given(REPORTS)
def test_an_empty_report_changes_nothing(report: Report) -> None:
    assert report.merge(Report()) == report == Report().merge(report)


@given(REPORTS, REPORTS)
def test_nothing_is_lost_or_invented(one: Report, two: Report) -> None:
    merged = one.merge(two)
    key = repr
    assert sorted(merged.findings, key=key) == sorted((*one.findings, *two.findings), key=key)
    for field in ("examined", "total", "bytes_read"):
        before = sum(getattr(row, field) for row in (*one.coverage, *two.coverage))
        assert sum(getattr(row, field) for row in merged.coverage) == before
    gaps = [gap for row in (*one.coverage, *two.coverage) for gap in row.gaps]
    left = [gap for row in merged.coverage for gap in row.gaps]
    for kind in GapKind:
        before = sum(gap.count for gap in gaps if gap.kind is kind)
        assert sum(gap.count for gap in left if gap.kind is kind) == before
    rows = [(row.stage, row.unit) for row in merged.coverage]
    assert rows == sorted(set(rows))


def test_worst_comes_first_and_decides() -> None:
    note = Finding("one", Severity.NOTE, "m", Location(file="a"))
    error = Finding("two", Severity.ERROR, "m", Location(file="z"))
    report = Report.of([note, error])
    assert report.findings == (error, note)
    assert report.worst() is Severity.ERROR
    assert Report().worst() is None


def test_coverage_is_complete_only_when_nothing_is_left_out() -> None:
    whole = Coverage(Stage.ITEMS, "items", 3, 3)
    gap = Gap(GapKind.LEFT_OUT, "not asked")
    part = Coverage(Stage.ITEMS, "items", 2, 3, gaps=(gap,))
    assert whole.complete
    assert not part.complete
    both = whole.merge(part)
    assert (both.examined, both.total, both.gaps) == (5, 6, (gap,))
    assert not both.complete
    odd = Gap(GapKind.NOT_INTERPRETED, "layout unknown")
    assert not Coverage(Stage.ITEMS, "items", 3, 3, gaps=(odd,)).complete


def test_gaps_of_one_reason_and_of_two_kinds_stay_apart() -> None:
    unread, left_out = Gap(GapKind.UNREAD, "a", 2), Gap(GapKind.LEFT_OUT, "a", 3)
    row = Coverage(Stage.ITEMS, "items", 0, 5, gaps=(unread, left_out))
    both = row.merge(row)
    assert set(both.gaps) == {Gap(GapKind.UNREAD, "a", 4), Gap(GapKind.LEFT_OUT, "a", 6)}


def test_only_what_the_storage_did_not_give_makes_a_verification_unfinished() -> None:
    assert [kind for kind in GapKind if kind.unfinished] == [GapKind.UNREAD]
