"""What may go and what must stay: the table of states in which something good was deleted once.

Each row makes a root of committed checkpoints, all ten days old, what it says, and asks what
``prune --keep-last 1`` would give up. The same is asked again while the answer is waited for.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ckptctl as package
from ckptctl.errors import Refused
from ckptctl.results import Plan
from ckptctl.storage.system import RealSystem
from conftest import FIXTURES
from support import damage as damage
from support.cli import make_old
from support.publish import ckptctl, done, flip_payload, newest, planted, refused

STEPS = (100, 200, 300, 1000)
OLDER = {"step-100", "step-200", "step-300"}
SHARD = "__1_0.distcp"


@pytest.fixture
def only_set_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let change times be those that a test has set: nobody can set the real ones back."""
    monkeypatch.setattr("ckptctl.storage.posix._changed_at", lambda status: status.st_mtime)
    monkeypatch.setattr("ckptctl.operations.retention.plan.moment", lambda _: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that is not to be changed."""
    return planted(tmp_path_factory.mktemp("made") / "run", STEPS)


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    shutil.copytree(made, tmp_path / "exp" / "run", symlinks=True)
    return tmp_path / "exp" / "run"


def copy(root: Path, name: str) -> Path:
    """Add a checkpoint that is not committed."""
    shutil.copytree(FIXTURES / "fsdp2/step-12", root / name)
    return root / name


def tree(root: Path) -> list[tuple[str, bytes]]:
    """Return all files and what is in them."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted((path.relative_to(root).as_posix(), path.read_bytes()) for path in files)


# ---------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """A state, what is asked of ``prune`` beside ``--keep-last 1``, what goes, and why not all."""

    make: Callable[[Path], object]
    gone: set[str]
    why: dict[str, str]
    options: tuple[str, ...] = ()


def writes(name: str, text: str | bytes) -> Callable[[Path], object]:
    """Leave a file in the root; ``ROOT`` in it becomes the root's path."""

    def make(root: Path) -> None:
        data = text if isinstance(text, bytes) else text.replace("ROOT", str(root)).encode()
        (root / name).write_bytes(data)

    return make


def links(name: str, target: str) -> Callable[[Path], object]:
    """Leave a link."""

    def make(root: Path) -> None:
        place = root / name
        place.parent.mkdir(exist_ok=True, parents=True)
        place.symlink_to(target.replace("ROOT", str(root)))

    return make


def both(*makes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda root: [make(root) for make in makes]


def names_200(make: Callable[[Path], object], why: str) -> Row:
    return Row(make, OLDER - {"step-200"}, {"step-200": why})


def shards_link(root: Path, name: str, into: str) -> None:
    for shard in (root / name).glob("*.distcp"):
        shard.unlink()
        shard.symlink_to(f"../{into}/{shard.name}")


def hard_link(root: Path, name: str, other: Path) -> None:
    (root / name / SHARD).unlink()
    os.link(other, root / name / SHARD)


def copy_of_elsewhere(root: Path) -> None:
    (root.parent / "backup").mkdir()
    os.link(root / "step-200" / SHARD, root.parent / "backup" / SHARD)


def quarantine(*steps: int) -> Callable[[Path], object]:
    return lambda root: [
        done("quarantine", root / f"step-{step}", "--reason", "odd loss") for step in steps
    ]


def trainer(root: Path) -> None:
    """Two checkpoints of the HF Trainer with FSDP: a model and an optimizer of each."""
    for step in STEPS:
        shutil.rmtree(root / f"step-{step}")
    for step in (900, 1000):
        path = root / f"checkpoint-{step}"
        for part in ("pytorch_model_fsdp_0", "optimizer_0"):
            shutil.copytree(FIXTURES / "fsdp2/step-12", path / part)
        for name in ("scheduler.pt", "rng_state_0.pth"):
            (path / name).write_bytes(b"x")
        (path / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": None}))


def shrunk(root: Path) -> None:
    """The newest save holds less than those before it: another state went into its place."""
    shutil.rmtree(root / "step-1000")
    shutil.copytree(FIXTURES / "no_crc/step-1", root / "step-1000")
    done("commit", root / "step-1000")


SPELLINGS: dict[str, str | bytes] = {
    "plain": "step-200",
    "a slash": "step-200/\n",
    "a dot": "./step-200\n",
    "absolute": "ROOT/step-200\n",
    "another mount": "/elsewhere/run/step-200\n",
    "a URL": "s3://bucket/run/step-200",
    "quotes": '"step-200"\n',
    "CRLF": "step-200\r\n",
    "a byte order mark": "\ufeffstep-200\n",
    "UTF-16": "step-200\n".encode("utf-16"),
    "backslashes": "..\\run\\step-200",
    "a file in it": "step-200/.metadata",
    "its step": "200\n",
    "two lines": "step-200\nwritten by the trainer\n",
}

ROWS: dict[str, Row] = {
    # -- what was deleted once and must stay
    "a stray shard in the root": Row(writes("__0_0.distcp", b"x" * 100), OLDER, {}),
    "a stray leftover in the root": Row(writes(".metadata.tmp", b""), OLDER, {}),
    "the newest has a flipped bit": Row(
        lambda root: flip_payload(root / "step-1000"),
        {"step-100", "step-200"},
        {"step-300": "one of the last 1", "step-1000": "not proven: findings"},
    ),
    "the newest is cut": Row(
        lambda root: damage.truncate(root / "step-1000", file=SHARD, size=-10),
        {"step-100", "step-200"},
        {"step-300": "one of the last 1", "step-1000": "not proven"},
    ),
    "the newest lacks what others have": Row(
        shrunk, {"step-100", "step-200"}, {"step-1000": "it lacks", "step-300": "one of the last 1"}
    ),
    **{
        f"a pointer with {how}": names_200(writes("latest", text), "latest names it")
        for how, text in SPELLINGS.items()
    },
    "a pointer LATEST": names_200(writes("LATEST", "step-200"), "LATEST names it"),
    "a pointer latest.txt": names_200(writes("latest.txt", "200"), "latest.txt names it"),
    "a pointer LATEST.txt": names_200(writes("LATEST.txt", "step-200"), "LATEST.txt names it"),
    "a tracker of Megatron's": names_200(
        writes("latest_checkpointed_iteration.txt", "200"), "names it"
    ),
    "a file of any name": names_200(writes("resume_from", "./step-200\n"), "resume_from names it"),
    "a link": names_200(links("latest", "step-200"), "the link latest"),
    "a link by way of above": names_200(links("latest", "../run/step-200"), "the link latest"),
    "a link to a link": names_200(
        both(links("good", "step-200"), links("latest", "good")), "the link"
    ),
    "an absolute link": names_200(links("LATEST", "ROOT/step-200"), "the link LATEST"),
    "a link as seen from another mount": names_200(
        links("LATEST", "/elsewhere/run/step-200"), "LATEST names it"
    ),
    "a link further down": names_200(links("eval/now", "../step-200"), "the link eval/now"),
    "a link to a file of it": names_200(
        links("export/model.distcp", f"../step-200/{SHARD}"), "the link export/model.distcp"
    ),
    "a link beside the root": names_200(
        links("../latest", "run/step-200"), "the link latest beside this root"
    ),
    "links into an older one": Row(
        lambda root: shards_link(root, "step-1000", "step-200"),
        OLDER - {"step-200"},
        {"step-200": "is a link into it"},
    ),
    "links to links": Row(
        lambda root: [
            shards_link(root, "step-1000", "step-300"),
            shards_link(root, "step-300", "step-200"),
        ],
        {"step-100"},
        {"step-200": "is a link into it", "step-300": "is a link into it"},
    ),
    "hard links": Row(
        lambda root: hard_link(root, "step-1000", root / "step-200" / SHARD),
        OLDER - {"step-200"},
        {"step-200": "shares files with it"},
    ),
    "quarantined evidence": Row(
        quarantine(200), OLDER - {"step-200"}, {"step-200": "quarantined by"}
    ),
    "a checkpoint in two parts": Row(trainer, {"checkpoint-900"}, {"checkpoint-1000": "the last"}),
    "a save of others inside": Row(
        lambda root: copy(root / "step-200", "step-7"),
        OLDER - {"step-200"},
        {"step-200/step-7": "one of the last 1"},
    ),
    "a save of others further inside": Row(
        lambda root: copy(root / "step-200/more", "step-7"),
        OLDER - {"step-200"},
        {"step-200": "may be of another checkpoint"},
    ),
    # -- what may go
    "nothing special": Row(lambda _: None, OLDER, {"step-1000": "one of the last 1"}),
    "an old save that was cut off": Row(
        lambda root: (copy(root, "step-2000") / SHARD).unlink(), {*OLDER, "step-2000"}, {}
    ),
    "an old temporary name": Row(
        lambda root: copy(root, "step-2000.tmp"), {*OLDER, "step-2000.tmp"}, {}
    ),
    "one that is damaged and older": Row(lambda root: flip_payload(root / "step-200"), OLDER, {}),
    "quarantined evidence that is asked for": Row(
        quarantine(200), OLDER, {}, ("--include-quarantined",)
    ),
    "a pointer that leads nowhere and is named": Row(
        writes("latest", "step-999"), OLDER, {}, ("--ignore-pointer", "latest")
    ),
    "a link that leads nowhere and is no pointer": Row(links("data", "/mnt/gone"), OLDER, {}),
    "a link to somewhere else": Row(links("data", "/tmp"), OLDER, {}),
    "a number in a file of another name": Row(writes("world_size", "200"), OLDER, {}),
    "notes of several lines": Row(writes("notes.txt", "step-200\nwas\nfine\n"), OLDER, {}),
    "files with a name outside": Row(copy_of_elsewhere, OLDER, {}),
    "two that share files and both go": Row(
        lambda root: hard_link(root, "step-100", root / "step-200" / SHARD), OLDER, {}
    ),
    "one that goes and links into one that goes": Row(
        lambda root: shards_link(root, "step-200", "step-100"), OLDER, {}
    ),
    "a pointer to the newest": Row(writes("latest", "step-1000"), OLDER, {}),
}


@pytest.mark.usefixtures("only_set_times")
@pytest.mark.parametrize("name", ROWS)
def test_what_goes_and_what_stays(name: str, root: Path) -> None:
    row = ROWS[name]
    row.make(root)
    make_old(root.parent, days=10)
    before = tree(root)
    planned = done("prune", root, "--keep-last", "1", *row.options, "--json").json()
    assert {one["name"] for one in planned["fates"] if one["delete"]} == row.gone
    reasons = {one["name"]: one["reason"] for one in planned["fates"]}
    for checkpoint, why in row.why.items():
        assert why in reasons[checkpoint]
    assert tree(root) == before
    carried = done("prune", root, "--keep-last", "1", *row.options, "--yes", "--json").json()
    assert {one["name"] for one in carried["fates"] if one["delete"]} == row.gone
    left = [pair for pair in before if pair[0].partition("/")[0] not in row.gone]
    after = [pair for pair in tree(root) if not pair[0].startswith("ckptctl.trash/")]
    assert after == left


@pytest.mark.usefixtures("only_set_times")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (writes("latest", "step-999"), "latest names step-999, which is not here"),
        (writes("latest", ""), "latest names nothing"),
        (links("LATEST", "/mnt/gone/run"), "LATEST names /mnt/gone/run"),
        (quarantine(*STEPS), "no checkpoint here is proven to be good"),
        (
            lambda root: [flip_payload(root / f"step-{step}") for step in STEPS],
            "no checkpoint here is proven to be good; step-1000 is not: findings",
        ),
    ],
    ids=["a missing target", "an empty pointer", "a dangling link", "all marked", "all damaged"],
)
def test_where_nothing_may_be_decided(
    root: Path, make: Callable[[Path], object], said: str
) -> None:
    make(root)
    make_old(root.parent, days=10)
    before = tree(root)
    for options in (["--yes"], ["--dry-run"], ["--yes", "--include-quarantined"]):
        assert said in refused("prune", root, "--keep-last", "1", *options)
    assert tree(root) == before


@pytest.mark.usefixtures("only_set_times")
def test_pointers_of_a_root_inside_another(root: Path) -> None:
    done("promote", root / "step-1000")
    done("promote", root / "step-200", "--rollback")
    make_old(root.parent, days=10)
    found = done("prune", root.parent, "--keep-last", "1", "--json").json()["fates"]
    assert {one["name"] for one in found if one["delete"]} == {"run/step-100", "run/step-300"}


@pytest.mark.usefixtures("only_set_times")
def test_each_directory_of_checkpoints_keeps_its_own(root: Path) -> None:
    shutil.copytree(root, root.parent / "other")
    make_old(root.parent, days=10)
    found = done("prune", root.parent, "--keep-last", "1", "--json").json()["fates"]
    kept = {one["name"] for one in found if not one["delete"]}
    assert kept == {"run/step-1000", "other/step-1000"}


@pytest.mark.usefixtures("only_set_times")
def test_a_stray_shard_above_a_root(root: Path) -> None:
    (root.parent / "__0_0.distcp").write_bytes(b"x")
    make_old(root.parent, days=10)
    before = tree(root)
    for options in ([], ["--yes"]):
        ckptctl("prune", root.parent, "--keep-last", "5", *options)
    ckptctl("prune", root.parent.parent, "--keep-last", "5", "--yes")
    assert tree(root) == before


@pytest.mark.usefixtures("only_set_times")
@pytest.mark.parametrize(
    ("verify", "kept"),
    [("quick", {"step-1000", "step-300"}), ("full", {"step-1000", "step-300", "step-200"})],
)
def test_how_far_keepers_are_verified(root: Path, verify: str, kept: set[str]) -> None:
    shutil.rmtree(root / "step-300")
    copy(root, "step-300")
    flip_payload(root / "step-300")
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "2", "--verify", verify, "--json").json()["fates"]
    assert {one["name"] for one in found if not one["delete"]} == kept
    levels = {one["name"]: one["verified"] for one in found if one["verified"]}
    assert set(levels.values()) == {verify}


@pytest.mark.usefixtures("only_set_times")
def test_by_default_the_newest_is_read_in_full_and_others_quickly(root: Path) -> None:
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "2", "--json").json()["fates"]
    levels = {one["name"]: one["verified"] for one in found if one["verified"]}
    assert levels == {"step-1000": "full", "step-300": "quick"}


# ---------------------------------------------------------------------------------- age


def test_what_changed_today_stays_whatever_its_times_say(root: Path) -> None:
    """A restore that keeps times makes files that look old; the file system knows better."""
    (root / "step-300" / SHARD).unlink()
    (root / "step-300" / "ckptctl.manifest.json").unlink()
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "1", "--json", "--yes").json()["fates"]
    assert not any(one["delete"] for one in found)
    assert all("younger than a day" in one["reason"] for one in found if one["step"] != 1000)


def test_min_age_is_for_whole_ones_alone(root: Path) -> None:
    (copy(root, "step-50") / SHARD).unlink()
    done("quarantine", root / "step-200", "--reason", "odd loss")
    options = ("--keep-last", "1", "--min-age", "0m", "--include-quarantined", "--json")
    found = done("prune", root, *options).json()["fates"]
    assert {one["name"] for one in found if one["delete"]} == {"step-100", "step-300"}
    assert ckptctl("prune", root, "--keep-last", "1", "--min-age", "soon").code == 2


def test_what_our_records_say_counts_as_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptctl.storage.posix._changed_at", lambda status: status.st_mtime)
    make_old(root, days=10)
    found = done("prune", root, "--keep-last", "1", "--json").json()["fates"]
    assert not any(one["delete"] for one in found)


# ------------------------------------------------------------------- while the answer is waited for


def move_the_pointer(root: Path) -> None:
    done("promote", root / "step-200")


def leave_a_pointer(root: Path) -> None:
    (root / "latest").write_text("step-200")


def leave_a_link(root: Path) -> None:
    (root / "eval").mkdir()
    (root / "eval" / "now").symlink_to("../step-200")


def mark_it(root: Path) -> None:
    done("quarantine", root / "step-200", "--reason", "look at it first")


def mark_what_was_to_be_kept(root: Path) -> None:
    done("quarantine", root / "step-1000", "--reason", "NaN")


def damage_what_was_to_be_kept(root: Path) -> None:
    damage.truncate(root / "step-1000", file=SHARD, size=-10)


def add_a_file(root: Path) -> None:
    (root / "step-200" / "eval.json").write_text("{}")


def change_a_file(root: Path) -> None:
    (root / "step-200" / SHARD).write_bytes(b"x")


def link_from_a_new_one(root: Path) -> None:
    copy(root, "step-1100")
    shards_link(root, "step-1100", "step-200")


def lose_the_pointer(root: Path) -> None:
    (root / "latest").write_text("step-")


@pytest.mark.usefixtures("only_set_times")
@pytest.mark.parametrize(
    ("meanwhile", "stays", "why"),
    [
        (move_the_pointer, {"step-200"}, "pointer latest_committed names it by now"),
        (leave_a_pointer, {"step-200"}, "latest names it by now"),
        (leave_a_link, {"step-200"}, "the link eval/now leads to it by now"),
        (mark_it, {"step-200"}, "it is quarantined by now"),
        (mark_what_was_to_be_kept, OLDER, "which was to be kept instead, is quarantined by now"),
        (damage_what_was_to_be_kept, OLDER, "which was to be kept instead, has changed"),
        (add_a_file, {"step-200"}, "step-200/eval.json was not there when this was planned"),
        (change_a_file, {"step-200"}, f"step-200/{SHARD} was changed since"),
        (link_from_a_new_one, {"step-200"}, "is a link into it"),
        (lose_the_pointer, OLDER, "latest names step-, which is not here"),
    ],
)
def test_what_happens_while_it_waits_for_the_answer(
    root: Path, meanwhile: Callable[[Path], None], stays: set[str], why: str
) -> None:
    make_old(root, days=10)
    before = {path: tree(root / path) for path in OLDER}

    def confirm(plan: Plan) -> bool:
        assert {fate.name for fate in plan.doomed} == OLDER
        meanwhile(root)
        before.update({path: tree(root / path) for path in stays})
        return True

    found = package.prune(root, keep_last=1, confirm=confirm)
    assert {fate.name for fate in found.doomed} == OLDER - stays
    assert {fate.name for fate in found.fates if fate.keeper and not fate.delete} == stays
    assert all(why in fate.reason for fate in found.fates if fate.name in stays)
    assert int(found.exit_code) == (5 if stays == OLDER else 0)
    for name in stays:
        assert tree(root / name) == before[name]
    for name in OLDER - stays:
        assert not (root / name).exists()


@pytest.mark.usefixtures("only_set_times")
def test_an_answer_of_no_changes_nothing(root: Path) -> None:
    make_old(root, days=10)
    before = tree(root)
    with pytest.raises(Refused, match="not confirmed"):
        package.prune(root, keep_last=1, confirm=lambda _: False)
    assert tree(root) == before


# ---------------------------------------------------------------------------------- the trash


@pytest.fixture
def pruned(only_set_times: None, root: Path) -> Path:
    """A root of which two are in the trash."""
    done("promote", root / "step-1000")
    make_old(root, days=10)
    done("prune", root, "--keep-last", "2", "--yes")
    return root


def trashed(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "ckptctl.trash").glob("*/*") if p.is_dir())


def test_a_mistake_is_undone(pruned: Path, made: Path) -> None:
    assert trashed(pruned) == ["step-100", "step-200"]
    shown = done("list", pruned, "--json").json()["checkpoints"]
    assert [one["name"] for one in shown] == ["step-300", "step-1000"]
    rehearsed = done("undelete", pruned, "step-200", "--dry-run")
    assert "would be brought back" in rehearsed.stdout
    assert trashed(pruned) == ["step-100", "step-200"]
    told = done("undelete", pruned, "step-200", "--json").json()
    assert (told["name"], told["step"]) == ("step-200", 200)
    assert told["path"] == str(pruned / "step-200")
    assert tree(pruned / "step-200") == tree(made / "step-200")
    assert done("verify", pruned / "step-200", "--require", "manifest").code == 0
    assert f"{pruned}/step-100 is back" in done("undelete", pruned).stdout
    assert trashed(pruned) == []
    assert not any((pruned / "ckptctl.trash").iterdir())


@pytest.mark.parametrize("names", [(), ("step-7",), ("step-1000",)])
def test_what_is_not_in_the_trash_does_not_come_back(pruned: Path, names: tuple[str, ...]) -> None:
    before = tree(pruned)
    assert ckptctl("undelete", pruned, *names).code == (4 if names else 2)
    assert tree(pruned) == before


def test_nowhere_to_bring_it_back_from(tmp_path: Path) -> None:
    refused("undelete", tmp_path, code=4)
    refused("undelete", tmp_path / "nowhere", code=4)


def test_a_place_that_is_taken(pruned: Path) -> None:
    copy(pruned, "step-200")
    before = tree(pruned)
    assert "there already" in refused("undelete", pruned, "step-200")
    assert tree(pruned) == before


def test_of_two_of_one_name_the_last_comes_back(pruned: Path) -> None:
    again = copy(pruned, "step-200")
    (again / "mine").write_text("second")
    done("commit", again)
    make_old(again, days=10)
    done("prune", pruned, "--keep-last", "2", "--yes")
    assert trashed(pruned) == ["step-100", "step-200", "step-200"]
    done("undelete", pruned, "step-200")
    assert (pruned / "step-200" / "mine").read_text() == "second"


def test_emptying_deletes_what_was_moved_and_nothing_else(pruned: Path) -> None:
    (pruned / "ckptctl.trash" / "notes").write_text("mine")
    (pruned / "ckptctl.trash/00000002/step-200/mine").write_text("put there later")
    assert "would delete 1 checkpoint in the trash" in done("prune", pruned, "--empty-trash").stdout
    ended = done("prune", pruned, "--empty-trash", "--yes")
    assert "deleted 1 checkpoint in the trash for good" in ended.stdout
    assert "stays in the trash: step-200: step-200/mine was not there" in ended.stdout
    assert trashed(pruned) == ["step-200"]
    assert (pruned / "ckptctl.trash" / "notes").read_text() == "mine"
    assert newest(pruned, full=True)[0] == 1000


def test_the_trash_is_emptied_by_age(pruned: Path) -> None:
    assert done("prune", pruned, "--trash-days", "1", "--yes", "--json").json()["emptied"] == []
    assert trashed(pruned) == ["step-100", "step-200"]
    told = done("prune", pruned, "--trash-days", "0", "--yes", "--json").json()
    assert [one["name"] for one in told["emptied"]] == ["step-100", "step-200"]
    assert not any((pruned / "ckptctl.trash").iterdir())
    assert ckptctl("prune", pruned, "--trash-days", "1", "--empty-trash").code == 2


def test_what_goes_now_can_still_come_back(pruned: Path) -> None:
    done("prune", pruned, "--keep-last", "1", "--empty-trash", "--yes")
    assert trashed(pruned) == ["step-300"]


def test_what_was_being_emptied_does_not_come_back(pruned: Path) -> None:
    (pruned / "ckptctl.trash/00000002/step-200" / SHARD).unlink()
    before = tree(pruned)
    assert "is missing" in refused("undelete", pruned, "step-200")
    assert tree(pruned) == before


def test_a_record_that_is_torn_is_said_and_nothing_of_it_deleted(pruned: Path) -> None:
    record = pruned / "ckptctl.trash/00000001/ckptctl.trashed.json"
    record.write_bytes(record.read_bytes()[:40])
    told = done("prune", pruned, "--empty-trash", "--yes", "--json").json()["emptied"]
    assert ["torn" in one["problem"] for one in told] == [True, False]
    assert trashed(pruned) == ["step-100"]
    assert "no JSON" in refused("undelete", pruned, "step-100", code=4)


def kill_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine die after so many changes to names."""
    left = [calls]

    class Died(BaseException):
        """Nothing catches this."""

    def mortal(name: str) -> None:
        inner: Any = getattr(RealSystem, name)

        def call(self: object, *args: Any) -> None:
            if not left[0]:
                raise Died
            left[0] -= 1
            inner(self, *args)

        monkeypatch.setattr(RealSystem, name, call)

    for name in ("write", "link", "rename", "unlink", "remove_directory"):
        mortal(name)


@pytest.mark.parametrize("how", ["prune", "undelete"])
@pytest.mark.parametrize("calls", range(6))
def test_a_death_at_any_call_leaves_it_here_or_there(
    how: str, calls: int, pruned: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_after(calls, patch)
        try:
            if how == "undelete":
                package.undelete(pruned, "step-200")
            else:
                package.prune(pruned, keep_last=1)
        except BaseException as error:
            assert type(error).__name__ == "Died"
    name = "step-200" if how == "undelete" else "step-300"
    here = (pruned / name).exists()
    assert here != (name in trashed(pruned))
    if not here:
        done("undelete", pruned, name)
    assert tree(pruned / name) == tree(made / name)
    assert newest(pruned, full=True)[0] == 1000
