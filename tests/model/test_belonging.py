"""Names of files in a checkpoint's directory: what belongs there, and who left the rest."""

from __future__ import annotations

import pytest

from ckptctl.model.belonging import belongs, deleted, foreign

FOREIGN = {
    "._.metadata": "AppleDouble",
    ".___0_0.distcp": "AppleDouble",
    "._common.pt": "AppleDouble",
    ".DS_Store": "Finder",
    "Thumbs.db": "Windows",
    ".nfs000000000a4c9d0000005011": "NFS",
    ".nfs0000001": "NFS",
    ".fuse_hidden0000001200000001": "FUSE",
    ".__0_0.distcp.Xa3fQz": "rsync",
    ".__0_0.distcp.Xa3f": "rsync",
    "..metadata.k2LmQ9": "rsync",
    "._model.safetensors.index.json": "AppleDouble",
    ".common.pt.a1B2c3": "rsync",
    "__0_0.distcp.6eF2a9B1": "download",
    "__0_0.distcp_.gstmp": "copy",
    "__0_0.distcp.part": "copy",
    "model.safetensors.incomplete": "copy",
    "optimizer.pt.tmp": "copy",
    ".config.json.swp": "editor",
    "config.json~": "editor",
    "#config.json#": "editor",
    "events.out.tfevents.1700000000.host.123.0": "TensorBoard",
    "train.log": "log",
    "train.log.1.gz": "log",
    "slurm-123.out": "log",
    "core.4711": "process",
    "wandb/run-1/files/config.yaml": "wandb",
    "__pycache__/model.bin": "__pycache__",
    "a/b/.git/config.json": ".git",
    "@eaDir/__0_0.distcp": "@eaDir",
}
BELONGING = [
    ".shard.0.distcp",
    ".metadata",
    "__3.metadata",
    "__0_0.distcp",
    "common.pt",
    "metadata.json",
    ".metadata.json",
    "integrity.json",
    "meta.pt",
    "trainer_state.json",
    "training_args.bin",
    "rng_state_0.pth",
    "random_states_3.pkl",
    "scheduler.pt",
    "train/rank0.pt",
    "config.json",
    "adapter_config.json",
    "config.yaml",
    "a/b/c/tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "model.safetensors.index.json",
    "dataloader_state_dict.json",
    "state_rank_0.json",
]
UNKNOWN = ["notes.txt", "README.md", "eval.csv", "late", "metrics.json", "data.tar", "plot.png"]


@pytest.mark.parametrize("path", FOREIGN)
def test_what_programs_leave_is_named_and_belongs_to_no_checkpoint(path: str) -> None:
    assert FOREIGN[path] in foreign(path)
    assert not belongs(path)


@pytest.mark.parametrize("path", BELONGING)
def test_what_frameworks_keep_belongs(path: str) -> None:
    assert belongs(path)
    assert foreign(path) == ""


@pytest.mark.parametrize("path", UNKNOWN)
def test_other_files_are_neither(path: str) -> None:
    assert not belongs(path)
    assert foreign(path) == ""


@pytest.mark.parametrize("name", FOREIGN)
def test_what_was_deleted_and_is_still_open(name: str) -> None:
    assert deleted(name) == (FOREIGN[name] in ("NFS", "FUSE"))
