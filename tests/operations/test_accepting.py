"""Accepting what a check finds: what may be, what is covered later, and races with others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import ckptctl
from ckptctl import protocol
from ckptctl.checks import CHECKS
from ckptctl.errors import Conflict, Findings, Refused, UsageError
from ckptctl.model.acceptance import MOST, Acceptance, AcceptedFinding
from ckptctl.model.amendment import AMENDMENTS
from ckptctl.model.finding import Finding, Location, Report, Severity
from ckptctl.operations.verify.accepting import Acceptances, Accepting, Wish, way_round
from ckptctl.storage.posix import PosixStore
from support.publish import done
from support.values import fill, spoil

Copy = Callable[..., Path]
WHERE = Location(file="__1_0.distcp", rank=1, fqn="model.w", start=5, stop=9)

ACCEPTABLE = {
    "duplicate-save",
    "empty-component",
    "exchanged-entries",
    "exchanged-shards",
    "huge-value",
    "misnamed-checkpoint",
    "misplaced-file",
    "missing-component",
    "mixed-run",
    "mixed-torch",
    "nan-value",
    "partial-component",
    "path-mismatch",
    "renamed-checkpoint",
    "stale-metadata",
    "stateless-parameters",
    "stored-checksum",
    "suspected-shard",
    "trailing-metadata",
    "undecided-cover",
    "unexpected-file",
    "unknown-encoding",
    "unknown-entry",
    "unreferenced-bytes",
}
"""Whoever adds to these says in the check itself why it proves nothing."""


def finding(
    check: str = "unreferenced-bytes",
    severity: Severity = Severity.ERROR,
    message: str = "said",
    where: Location = WHERE,
    about: str = "",
) -> Finding:
    """Make a finding."""
    return Finding(check, severity, message, where, about=about)


def recorded(one: Finding, check: str = "") -> Acceptances:
    """Have a record accept a finding."""
    row = AcceptedFinding.of(one)
    return Acceptances((Acceptance(check or one.check, "", "why", (row,), "t", "who"),))


def accepted(known: Acceptances, one: Finding) -> bool:
    """Tell whether a finding is accepted: then it is a note that says why."""
    (found,) = known.weigh(Report.of([one])).findings
    if found.accepted is None:
        assert found.severity is one.severity
        return False
    assert (found.severity, found.accepted.severity) == (Severity.NOTE, one.severity)
    return True


def test_each_check_says_whether_it_may_be_accepted() -> None:
    undecided = [check.id for check in CHECKS if "nobody has decided" in check.acceptable.why]
    assert undecided == []
    assert all(check.acceptable.why for check in CHECKS)


def test_what_may_be_accepted_is_a_list_of_what_is_allowed() -> None:
    errors = {check.id for check in CHECKS if check.acceptable.allowed}
    assert errors >= ACCEPTABLE
    proof = {"checksum", "altered-file", "truncated-file", "missing-file", "unsafe-item"}
    proof |= {"unsafe-metadata", "mixed-step", "torn-step", "foreign-shard", "hole", "lost-keys"}
    assert not errors & proof


@pytest.mark.parametrize("check", sorted(c.id for c in CHECKS if not c.acceptable.allowed))
def test_no_record_and_no_wish_makes_proof_of_damage_a_note(check: str) -> None:
    one = finding(check)
    assert not accepted(recorded(one), one)
    assert not accepted(Acceptances(now=Accepting((Wish(check),), "why")), one)


# ---------------------------------------------------------------------------------- what is covered


def test_what_was_accepted_is_covered() -> None:
    assert accepted(recorded(finding()), finding())


@pytest.mark.parametrize(
    "other",
    [
        finding("unknown-entry"),
        finding(where=Location(file="__0_0.distcp", rank=1, fqn="model.w", start=5, stop=9)),
        finding(where=Location(file="__1_0.distcp", rank=0, fqn="model.w", start=5, stop=9)),
        finding(where=Location(file="__1_0.distcp", rank=1, fqn="model.v", start=5, stop=9)),
        finding(where=Location(file="__1_0.distcp", rank=1, fqn="model.w", start=4, stop=9)),
        finding(where=Location(file="__1_0.distcp", rank=1, fqn="model.w", start=5, stop=10)),
        finding(about="rng"),
    ],
)
def test_another_place_or_check_is_not(other: Finding) -> None:
    assert not accepted(recorded(finding()), other)


def test_nor_is_what_is_worse_than_it_was() -> None:
    warning = finding("unknown-encoding", Severity.WARNING)
    assert accepted(recorded(warning), warning)
    assert not accepted(recorded(warning), finding("unknown-encoding", Severity.ERROR))


def test_what_no_manifest_pins_has_to_say_the_same() -> None:
    one = finding("stale-metadata", Severity.WARNING, "step-8 has it too")
    assert accepted(recorded(one), one)
    assert not accepted(recorded(one), finding("stale-metadata", Severity.WARNING, "step-16 has"))
    # the bytes of a file are pinned, and a later release may find other words
    assert accepted(recorded(finding()), finding(message="other words"))


def test_the_option_that_a_finding_names_is_no_part_of_what_it_says() -> None:
    one = finding("partial-component", Severity.ERROR, "rng: so (`allow_missing=rng` accepts that)")
    assert accepted(recorded(one), finding("partial-component", Severity.WARNING, "rng: so"))


def test_some_are_accepted_as_warnings_only() -> None:
    known = Acceptances(now=Accepting((Wish("exchanged-shards"),), "why"))
    assert accepted(known, finding("exchanged-shards", Severity.WARNING))
    assert not accepted(known, finding("exchanged-shards", Severity.ERROR))


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("", True),
        ("__1_*", True),
        ("__1_0.distcp", True),
        ("model.w", True),
        ("model.*", True),
        ("rng", True),
        ("__0_*", False),
        ("*.W", False),
        ("[", False),
    ],
)
def test_a_pattern_is_of_files_keys_and_components(pattern: str, fits: bool) -> None:
    assert Wish("unreferenced-bytes", pattern).fits(finding(about="rng")) is fits


def test_a_name_that_looks_like_a_pattern_is_that_name() -> None:
    odd = finding(where=Location(file="a[0]"))
    assert Wish("unreferenced-bytes", "a[0]").fits(odd)


def test_more_than_anybody_looked_at_is_not_accepted() -> None:
    now = Accepting((Wish("unknown-entry"),), "why")
    rows = [finding("unknown-entry", where=Location(start=n)) for n in range(MOST + 1)]
    findings = Acceptances(now=now).weigh(Report.of(rows)).findings
    with pytest.raises(Refused, match="10,001 findings"):
        now.acceptances(findings)
    (one,) = now.acceptances(findings[:-1])
    assert len(one.findings) == MOST


def test_a_way_round_is_told_only_where_it_leads_there() -> None:
    assert "`accept=unreferenced-bytes`" in way_round([finding()])
    assert way_round([finding(), finding("checksum")]) == ""
    assert way_round([finding("exchanged-shards")]) == ""


# ---------------------------------------------------------------------------------- others meanwhile


@pytest.fixture
def whole(copy: Copy) -> Path:
    """A committed checkpoint of weights alone."""
    place = copy("thread_count_3/step-12")
    done("commit", place)
    return place


def numbers(place: Path) -> list[str]:
    """Name the amendments of a checkpoint."""
    return sorted(path.name for path in (place / AMENDMENTS).glob("*.json"))


def test_an_amendment_in_the_same_moment_is_a_conflict_and_the_pointer_stays(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = protocol.amend

    def late(store: PosixStore, checkpoint: str, record: object) -> None:
        monkeypatch.setattr(protocol, "amend", inner)
        done("commit", whole, "--amend", "--run-id", "theirs")
        inner(store, checkpoint, record)  # type: ignore[arg-type]

    monkeypatch.setattr(protocol, "amend", late)
    with pytest.raises(Conflict, match="somebody else amended it"):
        ckptctl.promote(whole, accept=["missing-component"], reason="weights are enough")
    assert numbers(whole) == ["00000001.json"]
    assert not (whole.parent / "ckptctl.pointers").exists()


def test_a_pointer_that_is_moved_in_the_same_moment_leaves_the_acceptance(
    whole: Path, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("commit", copy("thread_count_3/step-12", "step-8"))
    inner = protocol.point

    def late(store: PosixStore, revision: object) -> object:
        monkeypatch.setattr(protocol, "point", inner)
        done("promote", whole.parent / "step-8", "--require", "none")
        return inner(store, revision)  # type: ignore[arg-type]

    monkeypatch.setattr(protocol, "point", late)
    with pytest.raises(Conflict, match="it was not moved; what was accepted is recorded"):
        ckptctl.promote(whole, accept=["missing-component"], reason="weights are enough")
    assert numbers(whole) == ["00000001.json"]
    assert protocol.read_pointer(PosixStore(str(whole.parent))).last == 1


def test_a_component_that_is_accepted_to_be_missing_is_not_shrunk(copy: Copy) -> None:
    root = copy("fsdp2/step-8").parent
    done("commit", root / "step-8")
    done("promote", root / "step-8")
    small = copy("thread_count_3/step-12")
    done("commit", small)
    asked = ["shrunken-checkpoint", "missing-component"]
    with pytest.raises(Findings, match="there is no training progress"):
        ckptctl.promote(small, accept=[asked[0], f"{asked[1]}:optimizer"], reason="weights")
    found = ckptctl.promote(small, accept=asked, reason="weights")
    assert (found.moved, found.amendment) == (True, 1)
    assert ckptctl.resolve(root).name == "step-12"


# ---------------------------------------------------------------------------------- as a library


def test_the_library_takes_the_same(copy: Copy) -> None:
    place = copy("thread_count_3/step-12")
    with (place / "__1_0.distcp").open("ab") as file:
        file.write(b"padding")
    with pytest.raises(UsageError, match="needs a `reason`"):
        ckptctl.commit(place, accept="unreferenced-bytes")
    found = ckptctl.commit(place, accept=["unreferenced-bytes:*.distcp"], reason="padded")
    assert [one.check for one in found.accepted] == ["unreferenced-bytes"]
    (one,) = ckptctl.verify(place).checkpoints[0].accepted
    assert one.accepted is not None
    assert (one.accepted.reason, one.accepted.severity) == ("padded", Severity.ERROR)
    assert ckptctl.resolve(place.parent).accepted == found.accepted


def test_nan_is_accepted_by_key(copy: Copy) -> None:
    place = copy("thread_count_3/step-12")
    spoil(place, fill(struct.pack("<f", float("nan"))), fqn="model.scale", origin=(0,))
    done("commit", place)
    promote = partial(ckptctl.promote, place, values=True, require="none", reason="scratch")
    with pytest.raises(Findings, match="nan-value"):
        promote(accept=["nan-value:model.up.*"])
    found = promote(accept=["nan-value:model.sc*"])
    assert [row.key for one in found.accepted for row in one.findings] == ["model.scale"]
    (again,) = ckptctl.verify(place, values=True).checkpoints
    assert str(again.verdict) == "ok"
