"""Checkpoints in parts are read as one: every key, file and fault has its place in the whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptctl.completeness.auditor import audit
from ckptctl.formats.dcp import reader as dcp
from ckptctl.formats.registry import layout
from ckptctl.model.checkpoint import Checkpoint, FaultKind, ObjectEntry, TensorEntry, rank_of
from ckptctl.model.commit_state import State
from ckptctl.storage import open_store
from conftest import FIXTURES
from support import companions

STEP = FIXTURES / "fsdp2" / "step-12"


def load(name: str, path: Path) -> Checkpoint:
    store, one = open_store(str(path.parent)), layout(name)
    return one.read(store, path.name, one.files(store, path.name))


def state(name: str, path: Path) -> tuple[State, str]:
    store, one = open_store(str(path)), layout(name)
    seen = one.state(store, "", one.files(store, ""), {}, check=True)
    return seen.state, seen.reason


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """A Trainer's checkpoint whose two parts have the same keys."""
    root = tmp_path / "checkpoint-12"
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(STEP, root / part)
    companions.trainer(root, 12, ranks=4)
    return root


def whole(one: Checkpoint) -> Checkpoint:
    """Assert what holds of every checkpoint that was united."""
    for index, fqn in enumerate(one.items.fqns):
        entry = one.entries[fqn]
        assert entry.fqn == fqn
        assert isinstance(entry, TensorEntry) == (one.items.origins[index] is not None)
        assert one.items.paths[index] in one.files
    assert all(path == file.path for path, file in one.files.items())
    assert set(one.sources) <= set(one.files)
    assert set(one.paths_in_state) == (set(one.entries) if one.paths_in_state else set())
    for fqn, path in one.paths_in_state.items():
        assert ".".join(map(str, path)) == fqn
    return one


def test_keys_that_both_parts_have_get_their_part_in_front(trainer: Path) -> None:
    part = dcp.read(open_store(str(STEP)), "")
    one = whole(load("huggingface-fsdp", trainer))
    assert set(one.entries) == {
        f"{role}.{k}" for role in ("model", "optimizer") for k in part.entries
    }
    assert len(one.items) == 2 * len(part.items)
    assert one.sources == ("pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata")
    assert one.ranks == part.ranks
    assert one.identity.save_id is None
    assert one.identity.torch_versions == part.identity.torch_versions
    assert not one.faults
    assert {path.partition("/")[0] for path in one.items.paths} == {
        "pytorch_model_fsdp_0",
        "optimizer_0",
    }
    for index in range(len(part.items)):
        mine, theirs = one.items[index], part.items[index]
        assert mine.fqn == f"model.{theirs.fqn}"
        assert mine.path == f"pytorch_model_fsdp_0/{theirs.path}"
        assert (mine.offset, mine.length, mine.offsets) == (
            theirs.offset,
            theirs.length,
            theirs.offsets,
        )
        assert rank_of(mine.path) == rank_of(theirs.path)


def test_more_parts_of_a_kind_are_told_apart_by_their_number(trainer: Path) -> None:
    shutil.copytree(STEP, trainer / "pytorch_model_fsdp_1")
    one = whole(load("huggingface-fsdp", trainer))
    roles = {fqn.partition(".")[0] for fqn in one.entries}
    assert roles == {"model", "model_1", "optimizer"}


@pytest.mark.parametrize("part", ["pytorch_model_fsdp_0", "optimizer_0"])
def test_a_part_that_is_not_there_is_a_fault_and_incomplete(trainer: Path, part: str) -> None:
    assert state("huggingface-fsdp", trainer) == (State.COMPLETE, "")
    shutil.rmtree(trainer / part)
    one = whole(load("huggingface-fsdp", trainer))
    assert [(fault.kind, fault.where.file) for fault in one.faults] == [
        (FaultKind.MISSING_FILE, part)
    ]
    assert one.faults[0].loss in ("the model", "the optimizer's state")
    assert state("huggingface-fsdp", trainer) == (State.INCOMPLETE, f"{part} is not there")


def test_faults_of_a_part_name_its_files(trainer: Path) -> None:
    (trainer / "optimizer_0" / ".metadata").unlink()
    (trainer / "pytorch_model_fsdp_0" / ".metadata.tmp").write_bytes(b"")
    one = whole(load("huggingface-fsdp", trainer))
    assert {(fault.kind, fault.where.file) for fault in one.faults} == {
        (FaultKind.MISSING_METADATA, "optimizer_0/.metadata"),
        (FaultKind.LEFTOVER_FILE, "pytorch_model_fsdp_0/.metadata.tmp"),
    }
    assert state("huggingface-fsdp", trainer) == (State.INCOMPLETE, "optimizer_0: no metadata")


def test_a_shard_of_a_part_is_missed_or_too_short(trainer: Path) -> None:
    shard = trainer / "optimizer_0" / "__1_0.distcp"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert state("huggingface-fsdp", trainer) == (
        State.INCOMPLETE,
        f"optimizer_0: __1_0.distcp has {len(data) - 1} of {len(data)} bytes",
    )
    shard.unlink()
    assert state("huggingface-fsdp", trainer)[1] == "optimizer_0: __1_0.distcp is not there"


def test_a_model_that_was_saved_alone_lacks_nothing(trainer: Path) -> None:
    shutil.rmtree(trainer / "optimizer_0")
    for one in (trainer / "scheduler.pt", *trainer.glob("rng_state_*.pth")):
        one.unlink()
    assert state("huggingface-fsdp", trainer) == (State.COMPLETE, "")
    assert not load("huggingface-fsdp", trainer).faults


def test_the_metadata_of_all_parts(trainer: Path) -> None:
    one, store = layout("huggingface-fsdp"), open_store(str(trainer))
    assert one.metadata(one.files(store, "")) == [
        "pytorch_model_fsdp_0/.metadata",
        "optimizer_0/.metadata",
    ]


def test_olmo_needs_a_file_of_each_rank_that_wrote_shards(tmp_path: Path) -> None:
    root = tmp_path / "step12"
    shutil.copytree(STEP, root / "model_and_optim")
    ranks = len(dcp.read(open_store(str(STEP)), "").ranks)
    companions.olmo(root, 12, ranks=ranks)
    assert state("olmo-core", root) == (State.COMPLETE, "")
    one = whole(load("olmo-core", root))
    assert set(one.entries) == set(dcp.read(open_store(str(STEP)), "").entries)
    assert one.identity.save_id is not None
    last = f"train/rank{ranks - 1}.pt"
    assert without("olmo-core", root, last) == ([last], f"{last} is not there")


def without(name: str, path: Path, lost: str) -> tuple[list[str | None], str]:
    """Remove a file; return the files that faults name, and the reason of the state."""
    (path / lost).unlink()
    one = load(name, path)
    assert {fault.kind for fault in one.faults} == {FaultKind.MISSING_FILE}
    assert all(fault.loss for fault in one.faults)
    seen, reason = state(name, path)
    assert seen is State.INCOMPLETE
    return [fault.where.file for fault in one.faults], reason


BESIDE = {
    # layout, files beside the shards, the one that goes
    "megatron 0.16": ("megatron", ("metadata.json", "common.pt"), "common.pt"),
    "megatron": ("megatron", ("metadata.json", "common.pt"), "metadata.json"),
    "lightning": ("lightning-dcp", ("meta.pt",), "meta.pt"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_a_trainer_needs_beside_the_shards(case: str, tmp_path: Path) -> None:
    name, beside, lost = BESIDE[case]
    root = tmp_path / "iter_0000012"
    shutil.copytree(STEP, root)
    for file in beside:
        (root / file).write_text('{"sharded_backend": "torch_dist", "common_backend": "torch"}')
    assert state(name, root) == (State.COMPLETE, "")
    assert not load(name, root).faults
    assert without(name, root, lost) == ([lost], f"{lost} is not there")


def test_megatron_of_today_has_no_common_file(tmp_path: Path) -> None:
    root = tmp_path / "iter_0000012"
    shutil.copytree(STEP, root)
    (root / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    assert state("megatron", root) == (State.COMPLETE, "")
    assert not load("megatron", root).faults


@pytest.mark.parametrize("lost", ["trainer_state.json", "scheduler.pt", "rng_state_3.pth"])
def test_what_a_trainer_needs_beside_the_parts(trainer: Path, lost: str) -> None:
    assert without("huggingface-fsdp", trainer, lost) == ([lost], f"{lost} is not there")


def test_what_lies_beside_the_parts_counts_in_an_audit(samples: Path) -> None:
    def present(name: str, path: str) -> dict[str, tuple[str, ...]]:
        found = audit(load(name, samples / path))
        return {part.name: part.sources for part in found.parts if part.sources}

    ranks = ("train/rank0.pt", "train/rank1.pt")
    assert present("olmo-core", "olmo_core/fsdp2_w2/step6") == {
        "progress": ranks,
        "rng": ranks,
        "data": ranks,
    }
    assert present("huggingface-fsdp", "hf/trainer_fsdp2_sharded/checkpoint-6") == {
        "rng": ("rng_state_0.pth", "rng_state_1.pth"),
        "scheduler": ("scheduler.pt",),
        "progress": ("trainer_state.json",),
    }


HEALTHY = {
    "hf/trainer_fsdp1_sharded/checkpoint-6": "huggingface-fsdp",
    "hf/trainer_fsdp2_sharded/checkpoint-6": "huggingface-fsdp",
    "olmo_core/fsdp2_w2/step6": "olmo-core",
    "megatron/v0.16.1_torch_dist_dp2_distopt/iter_0000006": "megatron",
    "megatron/v0.19_torch_dist_dp2_distopt/iter_0000006": "megatron",
    "lightning/fsdp1_sharded/checkpoints/last.ckpt": "lightning-dcp",
    "lightning/fsdp2_modelparallel/checkpoints/step=6.ckpt": "lightning-dcp",
}


@pytest.mark.parametrize("path", HEALTHY)
def test_real_checkpoints_in_parts_are_whole(path: str, samples: Path) -> None:
    one = load(HEALTHY[path], samples / path)
    if HEALTHY[path] != "megatron":  # whose planner keeps no paths
        whole(one)
    assert one.format == dcp.NAME
    assert not one.faults
    assert state(HEALTHY[path], samples / path) == (State.COMPLETE, "")
    assert {name for name, file in one.files.items() if file.is_file} == {
        str(file.relative_to(samples / path))
        for file in (samples / path).rglob("*")
        if file.is_file()
    }


def test_the_parts_of_a_real_checkpoint_share_no_key(samples: Path) -> None:
    path = samples / "hf/trainer_fsdp2_sharded/checkpoint-6"
    one = load("huggingface-fsdp", path)
    parts = [
        dcp.read(open_store(str(path / name)), "")
        for name in ("pytorch_model_fsdp_0", "optimizer_0")
    ]
    assert list(one.entries) == [fqn for part in parts for fqn in part.entries]


def test_torch_files_of_a_directory_are_united_by_their_names(samples: Path) -> None:
    one = load("torch", samples / "torch/ddp_torchsave_w2/step-6")
    tensors = {fqn for fqn, entry in one.entries.items() if isinstance(entry, TensorEntry)}
    assert {"rng_0", "rng_1"} <= {fqn.partition(".")[0] for fqn in one.entries}
    assert tensors and not one.faults
    assert set(one.items.paths) <= {"checkpoint.pt", "rng_0.pt", "rng_1.pt"}
    for index, fqn in enumerate(one.items.fqns):
        assert one.items.stored[index].shape == one.entries[fqn].shape  # type: ignore[union-attr]
    assert all(isinstance(one.entries[fqn], ObjectEntry) for fqn in one.values)


def test_one_file_keeps_its_keys(samples: Path) -> None:
    root = samples / "lightning/ddp2/checkpoints"
    store, lightning = open_store(str(root)), layout("lightning")
    one = lightning.read(store, "", lightning.files(store, "", ["step=6.ckpt"]))
    assert one.values["global_step"] == 6
    assert any(fqn.startswith("state_dict.") for fqn in one.entries)
    assert list(one.files) == ["step=6.ckpt"]
