"""Which checkpoint to resume from: options, exit codes, and the two streams a launcher reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl.errors import StorageError
from ckptctl.model.manifest import LATEST, MANIFEST, pointer_path
from ckptctl.operations.catalog.resolve import resolve
from ckptctl.storage import Entry
from ckptctl.storage.posix import PosixReader, PosixStore
from conftest import FIXTURES
from support import damage as damage
from support.cli import run
from support.publish import Watched, ckptctl, done, flip_payload, planted, refused, stage_all

Copy = Callable[..., Path]
SHARD = "__1_0.distcp"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with three committed checkpoints and a pointer to the newest; not to be changed."""
    root = planted(tmp_path_factory.mktemp("resolve") / "run", (90, 100, 1000))
    done("promote", root / "step-1000")
    return root


@pytest.fixture
def root(old: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    shutil.copytree(old, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two committed checkpoints with a file above a megabyte, made by torch."""
    torch = pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("large") / "run"
    for step in (1, 2):
        state = {"model": {"weight": torch.arange(1 << 19, dtype=torch.float32) * step}}
        damage.save_with_torch(root / f"step-{step}", state)
        done("commit", root / f"step-{step}", "--promote", "--require", "weights")
    assert any(path.stat().st_size > 1 << 20 for path in (root / "step-2").iterdir())
    return root


def answer(root: Path, *options: str) -> tuple[str, str]:
    """Resolve; return the name of the checkpoint and what was said about it."""
    ended = done("resolve", root, *options)
    assert ended.stdout.count("\n") == 1
    assert ended.stdout.endswith("\n")
    path = Path(ended.stdout[:-1])
    assert path.parent == root
    return path.name, ended.stderr


# ---------------------------------------------------------------------------------- the two streams


def test_stdout_is_the_path_and_a_newline(old: Path) -> None:
    ended = run("resolve", old)
    assert (ended.code, ended.stdout) == (0, f"{old}/step-1000\n")
    assert "step-1000 (step 1000)" in ended.stderr
    assert "named by pointer latest_committed, revision 1" in ended.stderr
    assert run("resolve", f"{old}/").stdout == f"{old}/step-1000\n"
    assert run("resolve", ".", cwd=old).stdout == "step-1000\n"
    assert run("resolve", old.name, cwd=old.parent).stdout == f"{old.name}/step-1000\n"


def test_a_path_with_spaces_and_line_breaks_comes_unchanged(old: Path, tmp_path: Path) -> None:
    odd = tmp_path / "my run\twith ünicode"
    shutil.copytree(old, odd)
    assert run("resolve", odd).stdout == f"{odd}/step-1000\n"


def test_quiet_prints_the_path_alone(old: Path) -> None:
    ended = done("resolve", old, "--quiet")
    assert (ended.stdout, ended.stderr) == (f"{old}/step-1000\n", "")


def test_json_says_the_same(root: Path) -> None:
    done("quarantine", root / "step-1000", "--reason", "loss spike")
    ended = done("resolve", root, "--json")
    found = ended.json()
    assert (found["name"], found["step"], found["committed"]) == ("step-100", 100, True)
    assert found["path"] == f"{root}/step-100"
    (skip,) = found["skipped"]
    assert skip["name"] == "step-1000"
    assert "loss spike" in skip["reason"]


def test_stderr_tells_what_was_passed_over(root: Path) -> None:
    damage.truncate(root / "step-1000", file=SHARD, size=-1)
    damage.remove(root / "step-100", file=SHARD)
    name, said = answer(root)
    assert name == "step-90"
    assert "passed over step-1000" in said
    assert "passed over step-100:" in said
    assert said.count(SHARD) >= 2


def test_the_run_itself_is_never_changed(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for options in ([], ["--full"], ["--allow-uncommitted"], ["--json"], ["--min-step", "5000"]):
        ckptctl("resolve", root, *options)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


# ---------------------------------------------------------------------------------- exit codes


def test_nothing_there_is_3(tmp_path: Path) -> None:
    refused("resolve", tmp_path, code=3)
    refused("resolve", tmp_path / "nowhere", code=4)
    refused("resolve", tmp_path / "nowhere", "--allow-missing-root", code=3)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.log").write_text("step 12\n")
    refused("resolve", tmp_path, code=3)
    assert run("resolve", tmp_path).code == 3


@pytest.mark.parametrize(
    "leave", [[], ["ckptctl.pointers"], ["latest_committed", "ckptctl.pointers"]]
)
def test_a_run_whose_checkpoints_were_deleted_is_no_fresh_start(
    root: Path, leave: list[str]
) -> None:
    """Records without checkpoints: somebody deleted the run's state, or a disk is not mounted."""
    for path in root.iterdir():
        if path.name not in leave:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    refused("resolve", root, code=10 if leave else 3)


def test_some_and_none_good_is_10(root: Path) -> None:
    for step in (90, 100, 1000):
        damage.remove(root / f"step-{step}", file=SHARD)
    said = refused("resolve", root, code=10)
    assert all(f"passed over step-{step}" in said for step in (90, 100, 1000))
    assert "none is usable" in said


def test_remains_of_a_checkpoint_are_10_and_not_3(tmp_path: Path) -> None:
    (tmp_path / "step-100").mkdir()
    refused("resolve", tmp_path, code=10)
    (tmp_path / "step-100" / SHARD).write_bytes(b"x")
    refused("resolve", tmp_path, code=10)


def test_another_format_is_10_and_not_3(tmp_path: Path) -> None:
    (tmp_path / "step-100").mkdir()
    (tmp_path / "step-100" / "model.safetensors").write_bytes(b"x")
    assert "safetensors" in refused("resolve", tmp_path, code=10)


def test_a_whole_one_that_nobody_committed_is_10_with_a_hint(copy: Copy) -> None:
    root = copy("fsdp2/step-12").parent
    assert "--allow-uncommitted" in refused("resolve", root, code=10)


def test_a_storage_that_fails_is_4(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, path: str) -> None:
        raise StorageError(f"{path}: Input/output error")

    monkeypatch.setattr("ckptctl.storage.posix.PosixStore.open", fail)
    assert "Input/output" in refused("resolve", root, code=4)


@pytest.fixture
def unlistable(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root where the checkpoint that the pointer names cannot be listed today."""
    real = PosixStore.entries

    def fail(self: PosixStore, path: str = "") -> list[Entry]:
        if path == "step-1000":
            raise StorageError(f"{path}: Input/output error")
        return real(self, path)

    monkeypatch.setattr(PosixStore, "entries", fail)
    return root


def test_a_directory_that_cannot_be_listed_is_4(unlistable: Path) -> None:
    """One flaky directory is not a checkpoint that is gone."""
    for step in (90, 100):
        shutil.rmtree(unlistable / f"step-{step}")
    assert "Input/output" in refused("resolve", unlistable, code=4)


def test_a_directory_that_cannot_be_listed_is_not_called_gone(unlistable: Path) -> None:
    ended = ckptctl("resolve", unlistable)
    assert ended.code in (0, 4), ended
    assert "Input/output" in ended.stderr
    assert "not there" not in ended.stderr
    assert "dangling" not in ended.stderr


def test_a_pointer_that_cannot_be_read_never_undoes_a_rollback(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that fails for a moment must not resume from what was turned away from."""
    done("promote", root / "step-100", "--rollback")
    assert answer(root)[0] == "step-100"
    real = PosixStore.open

    def fail(self: PosixStore, path: str) -> PosixReader:
        if path == pointer_path(LATEST, 2):
            raise StorageError(f"{path}: Input/output error")
        return real(self, path)

    monkeypatch.setattr(PosixStore, "open", fail)
    assert "Input/output" in refused("resolve", root, code=4)


@pytest.mark.parametrize("options", [["--require-world-size", "0"], ["--min-step", "-1"]])
def test_options_that_make_no_sense_are_2(old: Path, options: list[str]) -> None:
    assert ckptctl("resolve", old, *options).code == 2


# ---------------------------------------------------------------------------------- what is asked for


def test_min_step(root: Path) -> None:
    assert answer(root, "--min-step", "1000")[0] == "step-1000"
    said = refused("resolve", root, "--min-step", "1001", code=10)
    assert "step 1000 is before 1001" in said
    done("quarantine", root / "step-1000", "--reason", "bad")
    assert answer(root, "--min-step", "100")[0] == "step-100"
    refused("resolve", root, "--min-step", "101", code=10)


def test_run_id(copy: Copy) -> None:
    root = copy("fsdp2/step-12", "step-10").parent
    for step, run_id in ((10, "run-a"), (11, "run-b"), (12, None)):
        path = root / f"step-{step}"
        if not path.exists():
            shutil.copytree(FIXTURES / "fsdp2/step-12", path)
        done("commit", path, "--promote", *(["--run-id", run_id] if run_id else []))
    assert answer(root)[0] == "step-12"
    name, said = answer(root, "--run-id", "run-a")
    assert name == "step-10"
    assert "run-b" in said
    assert answer(root, "--run-id", "run-b")[0] == "step-11"
    assert "not run-c" in refused("resolve", root, "--run-id", "run-c", code=10)


def test_world_size(copy: Copy) -> None:
    root = copy("fsdp2/step-12", "step-11").parent
    copy("async_save/step-12", "step-13")
    for path in (root / "step-11", root / "step-13"):
        done("commit", path)
    assert answer(root)[0] == "step-13"
    name, said = answer(root, "--require-world-size", "4")
    assert name == "step-11"
    assert "saved by 2 ranks" in said
    assert answer(root, "--require-world-size", "2")[0] == "step-13"
    refused("resolve", root, "--require-world-size", "8", code=10)


def test_world_size_of_receipts(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    stage_all(path)
    done("commit", path)
    assert answer(path.parent, "--require-world-size", "4")[0] == "step-12"


def test_all_at_once(root: Path) -> None:
    options = ["--min-step", "100", "--require-world-size", "4", "--full", "--workers", "1"]
    assert answer(root, *options)[0] == "step-1000"


def test_a_checkpoint_named_itself(root: Path) -> None:
    """A launcher may be given a checkpoint instead of a root."""
    ended = ckptctl("resolve", root / "step-100")
    assert (ended.code, ended.stdout) == (0, f"{root / 'step-100'}\n")


# ---------------------------------------------------------------------------------- uncommitted ones


def test_uncommitted_ones_only_if_allowed_and_with_a_warning(copy: Copy) -> None:
    root = copy("fsdp2/step-8").parent
    copy("fsdp2/step-12")
    refused("resolve", root, code=10)
    name, said = answer(root, "--allow-uncommitted")
    assert name == "step-12"
    assert "never committed" in said
    quiet = done("resolve", root, "--allow-uncommitted", "--quiet")
    assert "never committed" in quiet.stderr  # not even --quiet hides it


def test_a_committed_one_goes_before_a_newer_uncommitted_one(root: Path) -> None:
    shutil.copytree(FIXTURES / "fsdp2/step-12", root / "step-2000")
    assert answer(root)[0] == "step-1000"
    assert answer(root, "--allow-uncommitted")[0] == "step-1000"


def test_uncommitted_ones_are_looked_into(copy: Copy) -> None:
    root = copy("fsdp2/step-8").parent
    damage.truncate(copy("fsdp2/step-12"), file=SHARD, size=-1)
    copy("fsdp2/step-12", "step-20.tmp")
    damage.rename(copy("fsdp2/step-12", "step-30"), file=".metadata", to=".metadata.tmp")
    name, said = answer(root, "--allow-uncommitted")
    assert name == "step-8"
    assert "passed over step-12" in said
    assert "passed over step-20.tmp" in said
    assert "passed over step-30" in said
    assert answer(root, "--allow-uncommitted", "--min-step", "8")[0] == "step-8"
    refused("resolve", root, "--allow-uncommitted", "--min-step", "9", code=10)
    refused("resolve", root, "--allow-uncommitted", "--run-id", "run-a", code=10)
    refused("resolve", root, "--allow-uncommitted", "--require-world-size", "4", code=10)


def test_rot_in_an_uncommitted_one_is_found_unless_nobody_is_to_look(copy: Copy) -> None:
    root = copy("fsdp2/step-8").parent
    path = copy("fsdp2/step-12")
    flip_payload(path)
    name, said = answer(root, "--allow-uncommitted", "--quick")
    assert "its content was not looked at (--quick)" in said
    assert name == "step-12"
    for options in ([], ["--full"]):
        name, said = answer(root, "--allow-uncommitted", *options)
        assert name == "step-8"
        assert "structure checked, and every CRC that it has" in said
        assert "passed over step-12: checksum: __1_0.distcp" in said
        assert "LOST by resuming from step-8: 4 steps" in said
    assert ckptctl("resolve", root, "--quick", "--full").code == 2


def test_a_torn_manifest_is_not_taken_for_an_uncommitted_checkpoint(root: Path) -> None:
    for step in (90, 100, 1000):
        damage.truncate(root / f"step-{step}", file=MANIFEST, size=-20)
    refused("resolve", root, "--allow-uncommitted", code=10)


# ---------------------------------------------------------------------------------- how deep it looks


def test_the_default_says_what_it_has_not_read_and_full_reads_it(
    large: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    shutil.copytree(large, root)
    shard = max((root / "step-2").iterdir(), key=lambda path: path.stat().st_size)
    assert shard.stat().st_size > 1 << 20
    damage.flip(shard, 1 << 20, bit=3)
    name, said = answer(root)
    assert name == "step-2"
    assert "sizes of all files and digests of small ones checked" in said
    assert "--full checks every byte" in said
    name, said = answer(root, "--full")
    assert name == "step-1"
    assert "every byte checked" in said
    assert f"altered-file: {shard.name}" in said
    assert ckptctl("verify", root / "step-2").code == 10


def test_the_default_reads_small_files(root: Path) -> None:
    damage.flip_byte(root / "step-1000", file=SHARD, at=20000)
    damage.flip_byte(root / "step-100", file=".metadata", at=5000)
    name, said = answer(root)
    assert name == "step-90"
    assert said.count("altered-file") + said.count("passed over") >= 3


def test_the_default_does_not_read_large_files(large: Path) -> None:
    store = Watched(str(large))
    assert resolve(store).name == "step-2"
    shards = {path: count for path, count in store.read.items() if path.endswith(".distcp")}
    assert sum(shards.values()) < 1 << 20


def test_a_large_file_that_was_cut_is_found_by_the_default(large: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(large, root)
    shard = max((root / "step-2").iterdir(), key=lambda path: path.stat().st_size)
    damage.truncate(root / "step-2", file=shard.name, size=-1)
    assert answer(root)[0] == "step-1"


# ---------------------------------------------------------------------------------- real frameworks

REAL = (
    "torchtitan",
    "megatron",
    "torch/dcp_async_w2",
    "torch/dcp_ddp_w2",
    "torch/dcp_fsdp1_flat_w2",
    "torch/dcp_fsdp1_orig_w2",
    "torch/dcp_fsdp2_w4",
    "torch/dcp_hsdp_2x2",
)


def roots_of(top: Path) -> list[Path]:
    """Find the directories that hold checkpoints: those of one run lie beside one another."""
    parents = {path.parent.parent for path in top.rglob(".metadata")}
    return sorted(parents)


def newest_complete(root: Path) -> str | None:
    """Return what a listing calls the newest whole one."""
    rows = done("list", root, "--json", "--check").json()["checkpoints"]
    whole = [row["name"] for row in rows if row["state"] == "complete"]
    return whole[-1] if whole else None


@pytest.mark.parametrize("name", REAL)
def test_checkpoints_of_real_frameworks(samples: Path, name: str) -> None:
    roots = roots_of(samples / name)
    assert roots
    for root in roots:
        refused("resolve", root, code=10)
        expected = newest_complete(root)
        for options in (["--allow-uncommitted"], ["--allow-uncommitted", "--full"]):
            if expected is None:
                refused("resolve", root, *options, code=10)
            else:
                ended = done("resolve", root, *options)
                assert ended.stdout == f"{root}/{expected}\n"


def test_a_rank_that_died_in_an_asynchronous_save(samples: Path) -> None:
    for root in {
        path.parent.parent for path in (samples / "torch/dcp_async_w2_rank1_died").rglob("*.distcp")
    }:
        ended = ckptctl("resolve", root, "--allow-uncommitted")
        assert ended.code in (0, 10), ended
        if ended.code == 0:
            assert ckptctl("verify", ended.stdout.rstrip("\n")).code == 0


def test_other_formats_are_never_a_fresh_start(samples: Path) -> None:
    for name in ("deepspeed", "hf", "lightning"):
        ended = ckptctl("resolve", samples / name)
        assert ended.code == 10, (name, ended)
