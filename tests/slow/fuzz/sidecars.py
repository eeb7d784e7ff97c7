"""What frameworks write beside tensors: small JSON files, pointers and values, in trees of theirs."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import zlib
from typing import Any

import torch

from slow.fuzz import pickling, zips
from slow.fuzz.cases import Difference, Target, looked_at, verified
from slow.fuzz.metadata import described, saved
from slow.fuzz.mutate import document, flipped, spelled, text

_TRAINER = {
    "best_global_step": None,
    "best_model_checkpoint": "out/checkpoint-4",
    "epoch": 0.375,
    "eval_steps": 500,
    "global_step": 6,
    "log_history": [{"epoch": 0.125, "loss": 4.1, "step": 2}, {"loss": 4.0, "step": 6}],
    "max_steps": 6,
    "num_input_tokens_seen": 0,
    "num_train_epochs": 1,
    "save_steps": 2,
    "stateful_callbacks": {"TrainerControl": {"args": {"should_save": True}, "attributes": {}}},
    "train_batch_size": 8,
}
_MEGATRON = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
_ORBAX = {
    "item_handlers": {"state": "orbax.checkpoint.StandardCheckpointHandler", "meta": "x"},
    "metrics": {},
    "performance_metrics": {},
    "init_timestamp_nsecs": 1764460000000000000,
    "commit_timestamp_nsecs": 1764460000100000000,
    "custom_metadata": {},
}
_SNAPSHOT = {
    "version": "0.1.0",
    "world_size": 2,
    "manifest": {
        "0/model": {"type": "dict", "keys": ["w"]},
        "0/model/w": {
            "type": "Tensor",
            "location": "batched/7615",
            "serializer": "buffer_protocol",
            "dtype": "torch.float32",
            "shape": [2, 3],
            "replicated": False,
            "byte_range": [0, 24],
        },
        "0/step": {"type": "int", "serialized_value": "6", "replicated": False, "readable": None},
        "1/model": {"type": "dict", "keys": ["w"]},
    },
}


def _dcp(folder: str, step: int = 6) -> dict[str, bytes]:
    found, shard = described({"model.w": torch.full((2, 3), float(step)), "step": step}, folder)
    return {f"{folder}/.metadata": pickle.dumps(found, 4), f"{folder}/__0_0.distcp": shard}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _integrity(files: dict[str, bytes]) -> bytes:
    names = {path.partition("/")[2]: data for path, data in files.items()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in names.items()}
    return _json({"algorithm": "sha256", "files": digests})


def _trees() -> dict[str, dict[str, bytes]]:
    arguments = {"iteration": 6, "args": {"seed": 1, "consumed_train_samples": 48}}
    loops = {"fit_loop": {"epoch_loop.batch_progress": {"total": {"processed": 6}}}}
    lightning = {"global_step": 6, "epoch": 0, "loops": loops, "pytorch-lightning_version": "2.5"}
    olmo = {
        "global_step": 6,
        "global_train_tokens_seen": 96,
        "max_steps": 8,
        "epoch": 1,
        "world_size": 1,
        "data_loader": {"batches_processed": 6, "seed": 0, "dataset_type": "x"},
    }
    small = saved({"step": 6, "epoch": 1})
    return {
        "trainer": {
            **_dcp("checkpoint-6/pytorch_model_fsdp_0"),
            **_dcp("checkpoint-6/optimizer_0"),
            "checkpoint-6/trainer_state.json": _json(_TRAINER),
            "checkpoint-6/scheduler.pt": small,
            "checkpoint-6/rng_state_0.pth": small,
            "checkpoint-6/training_args.bin": saved({"seed": 42, "save_steps": 2}),
            "checkpoint-6/config.json": _json({"model_type": "gpt2", "n_layer": 2, "x": [1, 2]}),
        },
        "megatron": {
            **_dcp("iter_0000006"),
            "iter_0000006/metadata.json": _json(_MEGATRON),
            "iter_0000006/common.pt": saved(arguments),
            "iter_0000006/integrity.json": _integrity(
                {**_dcp("iter_0000006"), "iter_0000006/metadata.json": _json(_MEGATRON)}
            ),
            "latest_checkpointed_iteration.txt": b"6",
        },
        "lightning": {
            **_dcp("step-6.ckpt"),
            "step-6.ckpt/meta.pt": saved(lightning),
        },
        "olmo": {
            **_dcp("step6/model_and_optim"),
            "step6/.metadata.json": _json({"ephemeral": True, "version": "3.0.0"}),
            "step6/config.json": _json({"model": {"d_model": 8}, "init_seed": 1}),
            "step6/train/rank0.pt": saved(olmo),
        },
        "verl": {
            **{
                f"global_step_6/actor/{kind}_world_size_1_rank_0.pt": small
                for kind in ("model", "optim", "extra_state")
            },
            "global_step_6/actor/fsdp_config.json": _json({"FSDP_version": 2, "world_size": 1}),
            "global_step_6/data.pt": small,
            "latest_checkpointed_iteration.txt": b"6",
        },
        "deepspeed": {
            "global_step6/mp_rank_00_model_states.pt": saved(
                {"dp_world_size": 1, "mp_world_size": 1, "global_steps": 6, "module": {}}
            ),
            "global_step6/zero_pp_rank_0_mp_rank_00_optim_states.pt": small,
            "latest": b"global_step6",
        },
        "accelerate": {
            **_dcp("checkpoint_1/pytorch_model_fsdp_0"),
            **_dcp("checkpoint_1/optimizer_0"),
            "checkpoint_1/random_states_0.pkl": small,
            "checkpoint_1/custom_checkpoint_0.pkl": small,
        },
        "orbax": {
            "6/_CHECKPOINT_METADATA": _json(_ORBAX),
            "6/state/_METADATA": b"{}",
            "6/state/manifest.ocdbt": b"\0",
            "6/meta/metadata": b"{}",
        },
        "torchsnapshot": {
            "step_6/.snapshot_metadata": _json(_SNAPSHOT),
            "step_6/batched/7615": b"\0" * 24,
        },
        "composer": {"ep0-ba6-rank0.pt": small, "latest-rank0.pt": b"ep0-ba6-rank0.pt"},
    }


class SidecarTarget(Target):
    """One small file of a tree whose other files stay as they are."""

    name = "sidecars"

    def __init__(self) -> None:
        self.trees = _trees()
        self.slots = [
            f"{tree}:{path}"
            for tree, files in self.trees.items()
            for path in files
            if not path.endswith((".distcp", "/.metadata", ".ocdbt", "7615"))
        ]
        self.zips: dict[str, tuple[tuple[zips.Record, ...], pickling.Pickle]] = {}
        for slot in self.slots:
            data = self._seed(slot)
            if data[:2] == b"PK":
                records = zips.take_apart(data)
                body = next(one.data for one in records if one.name.endswith(b"/data.pkl"))
                self.zips[slot] = records, pickling.take_apart(body)
        self.pool = pickling.Pool.of([seed for _, seed in self.zips.values()])

    def _seed(self, slot: str) -> bytes:
        tree, _, path = slot.partition(":")
        return self.trees[tree][path]

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        slot = rng.choice(self.slots)
        data = self._seed(slot)
        if slot in self.zips:
            records, seed = self.zips[slot]
            if rng.random() < 0.2:
                return slot, zips.changed(rng, records)
            body = pickling.changed(rng, seed, self.pool)
            return slot, zips.put_together(zips.with_record(records, b"/data.pkl", body))
        if data[:1] != b"{":
            words = text(rng, data.decode(), [s.partition(":")[2] for s in self.slots])
            return slot, words.encode("utf-8", "surrogatepass")
        if rng.random() < 0.1:
            return slot, flipped(rng, data)
        return slot, spelled(rng, document(rng, json.loads(data)))

    def judge(self, slot: str, data: bytes) -> str:
        tree, _, path = slot.partition(":")
        files = {**self.trees[tree], path: data}
        found = looked_at(files) if zlib.crc32(data) % 4 == 0 else verified(files)
        for one in found:
            self._step(path, data, one.step)
        return str(found[0].verdict) if found else "no checkpoint"

    def _step(self, path: str, data: bytes, step: Any) -> None:
        """What is told of a step must be in the names or, in just that spelling, in the file."""
        if step in (None, 6) or not path.endswith("trainer_state.json"):
            return
        said = json.loads(data)
        if not isinstance(said, dict) or said.get("global_step") != step:
            raise Difference("another step", f"{step} and {said!r}"[:300])
