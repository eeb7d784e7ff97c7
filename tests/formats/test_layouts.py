"""What layouts claim: one row per checkpoint, with its step, of real trees and of built ones."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.errors import NotFound
from ckptctl.formats.base import Folder, Reads
from ckptctl.formats.registry import LAYOUTS
from ckptctl.model.names import steps_of
from ckptctl.operations.find import find, locate
from ckptctl.operations.place import Place
from ckptctl.operations.pointers import pointers, recorded
from ckptctl.storage import Entry, Reader, Store, open_store
from conftest import FIXTURES


def places(path: Path | Store) -> list[Place]:
    """Find what lies below a root; no two layouts may be equally sure of a place."""
    found = find(open_store(str(path)) if isinstance(path, Path) else path)
    assert not [one.problem for one in found if one.problem]
    assert len({one.path for one in found}) == len(found), "a path is found twice"
    return found


def rows(path: Path) -> dict[str, tuple[str, int | None]]:
    return {one.path: (one.format, one.name.step) for one in places(path)}


def only(path: Path) -> Place:
    (found,) = places(path)
    return found


def put(root: Path, *names: str, data: bytes = b"") -> Path:
    for name in names:
        target = root / name
        if name.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return root


def steps(layout: str, form: str, *numbers: int) -> dict[str, tuple[str, int | None]]:
    return {form.format(number): (layout, number) for number in numbers}


LIGHTNING = {
    **steps("lightning", "checkpoints/step={}.ckpt", 2, 4, 6),
    "checkpoints/last.ckpt": ("lightning", 6),
}
LIGHTNING_DCP = {path: ("lightning-dcp", step) for path, (_, step) in LIGHTNING.items()}
TITAN = steps("dcp", "checkpoint/step-{}", 2, 4, 6)
DCP = {"": ("dcp", None)}
SAFETENSORS = {"": ("safetensors", None)}

SAMPLES: dict[str, dict[str, tuple[str, int | None]]] = {
    "accelerate/save_state_ddp2": {
        "checkpoints/checkpoint_1": ("huggingface", 4),
        "checkpoints/checkpoint_2": ("huggingface", 6),
    },
    "composer/single": steps("composer", "checkpoints/ep0-ba{}-rank0.pt", 4, 6),
    "dcp/async_save": DCP,
    "dcp/dtype_zoo": DCP,
    "dcp/fsdp1_local_lossy": DCP,
    "dcp/fsdp1_sharded": DCP,
    "dcp/fsdp2_mixed_rank1_from_step3": DCP,
    "dcp/fsdp2_step3": DCP,
    "dcp/fsdp2_step5": DCP,
    "dcp/fsspec_writer_threads2": DCP,
    "dcp/hf_safetensors_consolidated": SAFETENSORS,
    "dcp/hf_safetensors_sharded": SAFETENSORS,
    "dcp/hsdp": DCP,
    "dcp/legacy_metadata": {},  # files of metadata under names of versions of torch
    "dcp/megatron_like_synthetic": {"": ("megatron", None)},
    "dcp/no_dist": DCP,
    "dcp/odd_values": steps("dcp", "step-{}", 3),
    "dcp/python_3.11.2": steps("dcp", "step-{}", 3, 6),
    "dcp/rank_local_no_collectives": DCP,
    "dcp/replicated_ddp": DCP,
    "dcp/resharded_offline_w3": DCP,
    "dcp/safetensors_format_filesystemwriter": DCP,
    "dcp/single_file_per_item": DCP,
    "dcp/torchtitan_flat_keys": DCP,
    "dcp/torn_overwrite": DCP,
    "dcp/zstd_extension": DCP,
    "deepspeed/pipe_pp2_dp1_bf16_zero1": steps("deepspeed", "global_step{}", 2, 4, 6),
    **{
        f"deepspeed/universal_{kind}_bf16{more}": steps("deepspeed", "global_step{}_universal", 6)
        for kind, more in (
            ("pipe_pp2_dp2", "_zero1"),
            ("zero1_dp2", ""),
            ("zero2_dp2", ""),
            ("zero3_dp2", ""),
        )
    },
    **{
        f"deepspeed/{kind}": steps("deepspeed", "global_step{}", 2, 4, 6)
        for kind in (
            "zero0_dp2_bf16",
            "zero1_dp2_bf16",
            "zero1_dp2_fp16",
            "zero2_dp2_bf16",
            "zero3_dp2_bf16",
            "zero3_dp4_bf16",
        )
    },
    "hf/trainer_ddp2": steps("huggingface", "checkpoint-{}", 4, 6),
    "hf/trainer_fsdp1_local": steps("huggingface", "checkpoint-{}", 4, 6),
    "hf/trainer_fsdp1_sharded": steps("huggingface-fsdp", "checkpoint-{}", 4, 6),
    "hf/trainer_fsdp2_sharded": steps("huggingface-fsdp", "checkpoint-{}", 4, 6),
    "hf/trainer_single": steps("huggingface", "checkpoint-{}", 4, 6),
    "lightning/ddp2": LIGHTNING,
    "lightning/fsdp1_sharded": LIGHTNING_DCP,
    "lightning/fsdp2_modelparallel": LIGHTNING_DCP,
    "lightning/single": LIGHTNING,
    "megatron/v0.16.1_torch_dist_dp2_distopt": steps("megatron", "iter_{:07d}", 2, 4, 6),
    "megatron/v0.19_retain4_HALF_DELETED_iter6": steps("megatron", "iter_{:07d}", 4, 6, 8),
    "megatron/v0.19_torch_dist_dp2_distopt": steps("megatron", "iter_{:07d}", 2, 4, 6),
    "megatron/v0.19_torch_dist_dp2_fullyreshard_retain4": steps("megatron", "iter_{:07d}", 4, 8),
    "megatron/v0.19_torch_dist_dp2_verify_integrity": steps("megatron", "iter_{:07d}", 2, 4, 6),
    "megatron/v0.19_torch_dist_tp2dp2_distopt_bf16": steps("megatron", "iter_{:07d}", 2, 4, 6),
    "megatron/v0.19_torch_legacy_tp2dp2_distopt": steps("megatron-legacy", "iter_{:07d}", 2, 4, 6),
    "nvrx/local_w2": steps("nvrx-local", "run1/iter_{:07d}", 6),
    "olmo_core/fsdp2_w2": steps("olmo-core", "step{}", 2, 4, 6),
    "orbax/ckptmanager_async": steps("orbax", "{}", 4, 6),
    "orbax/ckptmanager_big": steps("orbax", "{}", 4, 6),
    "orbax/ckptmanager_sync_dev8": steps("orbax", "{}", 4, 6),
    **{
        f"torch/{kind}": steps("dcp", "step-{}", 2, 4, 6)
        for kind in (
            "dcp_async_w2",
            "dcp_async_w2_rank1_died",
            "dcp_ddp_w2",
            "dcp_fsdp1_flat_w2",
            "dcp_fsdp1_orig_w2",
            "dcp_fsdp2_w4",
            "dcp_hsdp_2x2",
        )
    },
    "torch/ddp_torchsave_w2": steps("torch", "step-{}", 2, 4, 6),
    "torch/torch_save_single": {
        path: row
        for form in (
            "ckpt_{}.pt",
            "ckpt_{}_legacy.pt",
            "compiled_prefix_{}.pt",
            "whole_module_{}.pt",
        )
        for path, row in steps("torch", form, 2, 4, 6).items()
    },
    "torch_checkpointing/failed_save_tmp_dir": {"tmp_step-2": ("torch-checkpointing", 2)},
    "torch_checkpointing/manager_sync_fsdp2_w2": steps("torch-checkpointing", "step-{}", 2, 4, 6),
    "torchsnapshot/ddp_w2": steps("torchsnapshot", "step_{}", 2, 4, 6),
    "torchtitan/async_dp2": TITAN,
    "torchtitan/fsdp_dp2_model_only_last": TITAN,
    "torchtitan/fsdp_dp4": {**TITAN, "checkpoint/step-8": ("dcp", 8)},
    "torchtitan/hf_last_dp2": {**TITAN, "checkpoint/step-6": ("safetensors", 6)},
    "torchtitan/tp2_dp2": TITAN,
    "verl/fsdp2_w2": steps("verl", "global_step_{}", 2, 4, 6),
}

LACKING = {
    "megatron/v0.19_retain4_HALF_DELETED_iter6/iter_0000006": (".metadata",),
    "verl/fsdp2_w2/global_step_2": ("actor/",),
}
STAGING = {"torch_checkpointing/failed_save_tmp_dir/tmp_step-2"}


def test_each_sample_is_named_here(samples: Path) -> None:
    there = {f"{one.parent.name}/{one.name}" for one in samples.glob("[a-z]*/*") if one.is_dir()}
    assert there == set(SAMPLES)


@pytest.mark.parametrize("sample", SAMPLES)
def test_real_roots_have_one_row_per_checkpoint(sample: str, samples: Path) -> None:
    assert rows(samples / sample) == SAMPLES[sample]
    for one in places(samples / sample):
        assert one.lacks == LACKING.get(f"{sample}/{one.path}", ()), one
        assert bool(one.staging) == (f"{sample}/{one.path}" in STAGING), one


BUILT: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, int | None]]]] = {
    "trainer with its run's own state": (
        (
            "trainer_state.json",
            "training_args.bin",
            "model.safetensors",
            *(
                f"checkpoint-{step}/{name}"
                for step in (9, 10)
                for name in ("trainer_state.json", "model.safetensors", "optimizer.pt")
            ),
        ),
        steps("huggingface", "checkpoint-{}", 9, 10),
    ),
    "adapter": (
        ("checkpoint-5/adapter_model.safetensors", "checkpoint-5/trainer_state.json"),
        steps("huggingface", "checkpoint-{}", 5),
    ),
    "trainer with deepspeed": (
        (
            "checkpoint-5/trainer_state.json",
            "checkpoint-5/latest",
            "checkpoint-5/global_step5/mp_rank_00_model_states.pt",
            "checkpoint-5/global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ),
        steps("huggingface", "checkpoint-{}", 5),
    ),
    "a model that was trained": (
        ("model.safetensors", "config.json", "tokenizer.json", "training_args.bin"),
        SAFETENSORS,
    ),
    "a model in torch's own form": (
        ("pytorch_model.bin", "config.json", "training_args.bin"),
        {"": ("torch", None)},
    ),
    "lightning with a link": (
        ("epoch=0-step=5.ckpt", "epoch=1-step=10.ckpt", "epoch=1-step=10-v1.ckpt", "hparams.yaml"),
        {
            "epoch=0-step=5.ckpt": ("lightning", 5),
            "epoch=1-step=10.ckpt": ("lightning", 10),
            "epoch=1-step=10-v1.ckpt": ("lightning", 10),
        },
    ),
    "lightning with deepspeed": (
        ("step=5.ckpt/latest", "step=5.ckpt/checkpoint/mp_rank_00_model_states.pt"),
        {"step=5.ckpt": ("lightning-deepspeed", 5)},
    ),
    "composer on two ranks": (
        tuple(f"ep{e}-ba{b}-rank{r}.pt" for e, b in ((0, 900), (1, 1000)) for r in (0, 1)),
        {"ep0-ba900": ("composer", 900), "ep1-ba1000": ("composer", 1000)},
    ),
    "nvrx of one node": (
        ("iter_0000006_3_local.pt", "iter_0000008_3_local.pt"),
        {
            "iter_0000006_3_local.pt": ("nvrx-local", 6),
            "iter_0000008_3_local.pt": ("nvrx-local", 8),
        },
    ),
    "megatron release": (
        ("release/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"),
        {"release": ("megatron-legacy", None)},
    ),
    "nemo": (
        ("m--step=5-last/weights/.metadata", "m--step=5-last/context/io.json"),
        {"m--step=5-last": ("nemo", 5)},
    ),
    "verl with a critic": (
        (
            "global_step_9/data.pt",
            "global_step_9/actor/model_world_size_1_rank_0.pt",
            "global_step_9/critic/model_world_size_1_rank_0.pt",
        ),
        steps("verl", "global_step_{}", 9),
    ),
    "orbax without a manager": (
        ("params/manifest.ocdbt", "params/_METADATA", "params/d/0123"),
        {"params": ("orbax", None)},
    ),
    "files of steps": (
        ("train_step_900.pt", "train_step_1000.pt", "optimizer_step_900.pt", "train_0.pt"),
        {"train_step_900.pt": ("torch", 900), "train_step_1000.pt": ("torch", 1000)},
    ),
    "a pipeline of diffusers": (
        (
            "checkpoint-500/unet/diffusion_pytorch_model.safetensors",
            "checkpoint-500/optimizer.bin",
            "checkpoint-500/scheduler.bin",
            "checkpoint-500/random_states_0.pkl",
        ),
        steps("huggingface", "checkpoint-{}", 500),
    ),
    "somebody's own states": (
        ("step-3/.metadata", "old_optim_states.pt"),
        steps("dcp", "step-{}", 3),
    ),
    "a file in another form beside": (
        ("step-6/model.safetensors", "step-6/ckpt_6.pt"),
        steps("safetensors", "step-{}", 6),
    ),
    "a DCP directory with files of the Trainer": (
        ("checkpoint-6/.metadata", "checkpoint-6/trainer_state.json", "checkpoint-6/rng_state.pth"),
        steps("dcp", "checkpoint-{}", 6),
    ),
    "shards under a name of Lightning's": (
        ("step=6.ckpt/.metadata", "mine.ckpt/.metadata"),
        {"step=6.ckpt": ("lightning-dcp", 6), "mine.ckpt": ("dcp", None)},
    ),
    "shards with a common file of one's own": (
        (
            "step-6/.metadata",
            "step-6/common.pt",
            "iter_0000007/.metadata",
            "iter_0000007/common.pt",
        ),
        {"step-6": ("dcp", 6), "iter_0000007": ("megatron", 7)},
    ),
    "numbered models": (
        ("model000900.pt", "model001000.pt", "opt000900.pt", "opt001000.pt", "ema_0.99_001000.pt"),
        {"model000900.pt": ("torch", 900), "model001000.pt": ("torch", 1000)},
    ),
    "fairseq": (
        ("checkpoint_1_500.pt", "checkpoint_2_1000.pt", "checkpoint_last.pt", "checkpoint_best.pt"),
        {
            "checkpoint_1_500.pt": ("torch", 500),
            "checkpoint_2_1000.pt": ("torch", 1000),
            "checkpoint_last.pt": ("torch", None),
            "checkpoint_best.pt": ("torch", None),
        },
    ),
    "adapters by step": (
        ("lora-step00000900.safetensors", "lora-step00001000.safetensors"),
        {
            "lora-step00000900.safetensors": ("safetensors", 900),
            "lora-step00001000.safetensors": ("safetensors", 1000),
        },
    ),
}


@pytest.mark.parametrize("case", BUILT)
def test_built_roots_have_one_row_per_checkpoint(case: str, tmp_path: Path) -> None:
    names, expected = BUILT[case]
    put(tmp_path / "run", *names)
    assert rows(tmp_path / "run") == expected


NO_CHECKPOINTS = {
    "logs and code": (
        "train.py",
        "logs/events.out.tfevents.1",
        "config.yaml",
        "wandb/run-1/x.json",
    ),
    "a data set": tuple(f"data/train_{n:05d}.pt" for n in range(4)),
    "parts of one thing": tuple(f"x_{n}.pt" for n in range(4)),
    "features": ("features/cache.pt", "features/labels_2.pt", "features/embeddings.bin"),
    "a tokenizer": ("tokenizer.json", "tokenizer_config.json", "vocab.json", "special.bin"),
    "halves": ("optimizer.pt", "scheduler.pt", "rng_state.pt"),
    "json named as metadata": ("metadata.json", "x/metadata.json"),
    "empty": ("a/b/",),
}


@pytest.mark.parametrize("case", NO_CHECKPOINTS)
def test_what_is_no_checkpoint_is_not_claimed(case: str, tmp_path: Path) -> None:
    put(tmp_path / "run", *NO_CHECKPOINTS[case], data=b"{}")
    assert rows(tmp_path / "run") == {}


LACKS = {
    "zero 1": (
        (
            "global_step2/mp_rank_00_model_states.pt",
            "global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "global_step2/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
        ),
        ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",),
    ),
    "zero 3": (
        (
            "global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt",
            "global_step2/zero_pp_rank_1_mp_rank_00_model_states.pt",
            "global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ),
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt",),
    ),
    "zero without a model": (
        ("global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt",),
        ("mp_rank_00_model_states.pt",),
    ),
    "pipeline": (
        (
            "global_step2/mp_rank_00_model_states.pt",
            "global_step2/layer_00-model_states.pt",
            "global_step2/layer_02-model_states.pt",
        ),
        ("layer_01-model_states.pt",),
    ),
    "universal": (
        ("global_step2_universal/mp_rank_00_model_states.pt",),
        ("zero",),
    ),
    "trainer without a scheduler": (
        (
            "checkpoint-2/trainer_state.json",
            "checkpoint-2/model.safetensors",
            "checkpoint-2/optimizer.pt",
            "checkpoint-2/rng_state_1.pth",
        ),
        ("scheduler.pt", "rng_state_0.pth"),
    ),
    "trainer with the model alone": (
        ("checkpoint-2/trainer_state.json", "checkpoint-2/model.safetensors"),
        (),
    ),
    "trainer without a model": (
        (
            "checkpoint-2/trainer_state.json",
            "checkpoint-2/optimizer.pt",
            "checkpoint-2/scheduler.pt",
            "checkpoint-2/rng_state.pth",
        ),
        ("model.safetensors",),
    ),
    "trainer with a part of the model": (
        (
            "checkpoint-2/trainer_state.json",
            "checkpoint-2/model-00001-of-00003.safetensors",
            "checkpoint-2/model-00003-of-00003.safetensors",
        ),
        ("model-00002-of-00003.safetensors",),
    ),
    "fsdp without the model": (
        (
            "checkpoint-2/trainer_state.json",
            "checkpoint-2/optimizer_0/.metadata",
            "checkpoint-2/scheduler.pt",
            "checkpoint-2/rng_state_0.pth",
        ),
        ("pytorch_model_fsdp_0", "rng_state_1.pth"),
    ),
    "accelerate": (
        (
            "checkpoint_2/model.safetensors",
            "checkpoint_2/random_states_0.pkl",
            "checkpoint_2/random_states_2.pkl",
        ),
        ("optimizer.bin", "random_states_1.pkl"),
    ),
    "megatron legacy": (
        (
            "iter_0000002/mp_rank_00/model_optim_rng.pt",
            "iter_0000002/mp_rank_00/distrib_optim.pt",
            "iter_0000002/mp_rank_02/model_optim_rng.pt",
        ),
        ("mp_rank_01/", "mp_rank_02/distrib_optim.pt"),
    ),
    "verl": (
        (
            "global_step_2/data.pt",
            "global_step_2/actor/model_world_size_2_rank_0.pt",
            "global_step_2/actor/optim_world_size_2_rank_0.pt",
            "global_step_2/actor/optim_world_size_2_rank_1.pt",
            "global_step_2/actor/extra_state_world_size_2_rank_0.pt",
            "global_step_2/actor/extra_state_world_size_2_rank_1.pt",
        ),
        ("actor/model_world_size_2_rank_1.pt",),
    ),
    "torch_checkpointing": (
        ("step-2/model_0.pt", "step-2/model_1.pt", "step-2/optimizer_1.pt"),
        ("optimizer_0.pt",),
    ),
    "olmo-core": (
        ("step2/.metadata.json", "step2/train/rank0.pt"),
        ("model_and_optim",),
    ),
    "torchsnapshot": (("step_2/batched/x", "step_2/0/y"), (".snapshot_metadata",)),
    "nvrx": (
        ("0/iter_0000002_0_local.pt", "2/iter_0000002_2_local.pt"),
        ("1/iter_0000002_1_local.pt",),
    ),
    "lightning": (("step=2.ckpt/meta.pt",), (".metadata",)),
}


@pytest.mark.parametrize("case", LACKS)
def test_what_names_promise_and_is_not_there(case: str, tmp_path: Path) -> None:
    names, expected = LACKS[case]
    claim = only(put(tmp_path / "run", *names))
    assert (claim.lacks, claim.name.step or claim.number) == (expected, 2)


LOST = (
    "deepspeed/zero1_dp2_bf16/global_step6/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "deepspeed/zero3_dp4_bf16/global_step6/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt",
    "deepspeed/zero3_dp4_bf16/global_step6/zero_pp_rank_3_mp_rank_00_model_states.pt",
    "deepspeed/pipe_pp2_dp1_bf16_zero1/global_step6/mp_rank_01_model_states.pt",
    "megatron/v0.19_torch_legacy_tp2dp2_distopt/iter_0000006/mp_rank_01/",
    "megatron/v0.16.1_torch_dist_dp2_distopt/iter_0000006/common.pt",
    "hf/trainer_single/checkpoint-6/scheduler.pt",
    "accelerate/save_state_ddp2/checkpoints/checkpoint_2/optimizer.bin",
)
"""Also the last of several: sizes recorded inside tell what names do not."""


@pytest.mark.parametrize("lost", LOST)
def test_what_real_checkpoints_have_lost(lost: str, samples: Path, tmp_path: Path) -> None:
    group, sample, *inner = lost.split("/")
    shutil.copytree(samples / group / sample, tmp_path / "run")
    target = tmp_path / "run" / "/".join(inner)
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    lacking = {one.path: one.lacks for one in places(tmp_path / "run") if one.lacks}
    (found,) = lacking.values()
    assert found == (inner[-1] or f"{inner[-2]}/",)


def test_orbax_lacks_an_item_that_its_metadata_names(tmp_path: Path) -> None:
    data = b'{"item_handlers": {"state": "a", "data_iter": "b"}}'
    put(tmp_path / "run", "6/_CHECKPOINT_METADATA", data=data)
    put(tmp_path / "run", "6/state/_METADATA")
    assert only(tmp_path / "run").lacks == ("data_iter",)


STAGED = {
    "orbax": ("6.orbax-checkpoint-tmp-1/state.orbax-checkpoint-tmp-2/x",),
    "olmo-core": ("step6-tmp/model_and_optim/__0_0.distcp", "step6-tmp/train/rank0.pt"),
    "torch-checkpointing": ("tmp_step-6/model_0.pt", "tmp_step-6/optimizer_0.pt"),
    "nvrx-local": ("0/iter_0000006_0_local.pt", "1/iter_0000006_1_local.pt.dirty"),
    "lightning": ("step=6.ckpt", "step=6.ckpt-unfinished"),
    "nemo": ("m-step=6/weights/.metadata", "m-step=6/context/x", "m-step=6-unfinished"),
    "dcp": ("step-6.tmp/.metadata",),
}


@pytest.mark.parametrize("name", STAGED)
def test_what_is_not_final_says_so(name: str, tmp_path: Path) -> None:
    put(tmp_path / "run", *STAGED[name])
    found = [one for one in places(tmp_path / "run") if one.name.step == 6]
    assert found and {one.format for one in found} == {name}
    assert all(one.staging for one in found)


def test_a_root_with_four_frameworks(tmp_path: Path) -> None:
    put(
        tmp_path / "run",
        "step-1/.metadata",
        "checkpoint-2/trainer_state.json",
        "checkpoint-2/model.safetensors",
        "global_step3/mp_rank_00_model_states.pt",
        "iter_0000004/mp_rank_00/model_optim_rng.pt",
        "epoch=0-step=5.ckpt",
    )
    assert rows(tmp_path / "run") == {
        "step-1": ("dcp", 1),
        "checkpoint-2": ("huggingface", 2),
        "global_step3": ("deepspeed", 3),
        "iter_0000004": ("megatron-legacy", 4),
        "epoch=0-step=5.ckpt": ("lightning", 5),
    }


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store: Store) -> None:
        self.store, self.url, self.asked = store, store.url, Counter[str]()

    def entries(self, path: str = "") -> list[Entry]:
        self.asked["entries"] += 1
        return self.store.entries(path)

    def stat(self, path: str = "") -> Entry:
        self.asked["stat"] += 1
        return self.store.stat(path)

    def open(self, path: str) -> Reader:
        self.asked["open"] += 1
        return self.store.open(path)


def test_a_thousand_trainer_checkpoints_cost_one_listing_each(tmp_path: Path) -> None:
    for step in range(1, 1001):
        put(
            tmp_path / "run",
            *(
                f"checkpoint-{step * 10}/{name}"
                for name in ("trainer_state.json", "model.safetensors", "optimizer.pt",
                             "scheduler.pt", "rng_state.pth")
            ),
        )  # fmt: skip
    store = Counting(open_store(str(tmp_path / "run")))
    found = places(store)
    assert [one.name.step for one in found] == [step * 10 for step in range(1, 1001)]
    assert store.asked == {"entries": 1001}


FORMS = (
    "train_step_{}",
    "policy_ver_{}",
    "step{}-unsharded",
    "model_{}",
    "step_{}k",
    "update-{}",
    "{}_steps",
    "run7_step_{}",
    "checkpoint_step_{}",
    "iter-{}-ckpt",
    "step_{}",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["/.metadata", ".pt"])
def test_names_with_other_words_have_their_steps(form: str, kind: str, tmp_path: Path) -> None:
    put(tmp_path / "run", *(form.format(step) + kind for step in (900, 1000)))
    assert [step for _, step in rows(tmp_path / "run").values()] == [900, 1000]


@pytest.mark.parametrize("form", FORMS)
def test_one_that_is_named_has_the_step_that_its_root_tells(form: str, tmp_path: Path) -> None:
    put(tmp_path / "run", *(form.format(step) + "/.metadata" for step in (900, 1000)))
    _, (place,) = locate(str(tmp_path / "run" / form.format(900)), open_store)
    assert (place.path, place.name.step) == (form.format(900), 900)


def test_accelerate_counts_saves(tmp_path: Path) -> None:
    put(tmp_path / "run", *(f"checkpoint_{n}/{f}" for n in (9, 10) for f in ("optimizer.bin",
        "model.safetensors", "random_states_0.pkl")))  # fmt: skip
    found = places(tmp_path / "run")
    assert [(one.name.step, one.number) for one in found] == [(None, 9), (None, 10)]


def test_accelerate_counts_steps_in_its_optimizer(tmp_path: Path) -> None:
    for number in (1, 2):
        part = tmp_path / f"checkpoint_{number}" / "optimizer_0"
        shutil.copytree(FIXTURES / "fsdp2" / f"step-{number * 4 + 4}", part)
        put(tmp_path, f"checkpoint_{number}/pytorch_model_fsdp_0/.metadata")
        put(tmp_path, f"checkpoint_{number}/random_states_0.pkl")
    found = {one.number: one for one in places(tmp_path)}
    assert {number: one.name.step for number, one in found.items()} == {1: 8, 2: 12}
    assert {one.format for one in found.values()} == {"huggingface-fsdp"}
    for one in (tmp_path / "checkpoint_2" / "optimizer_0").glob("*.distcp"):
        one.write_bytes(b"")
    damaged = {one.number: one for one in places(tmp_path)}
    assert {number: one.name.step for number, one in damaged.items()} == {1: 8, 2: None}


def test_a_file_that_the_user_names_is_claimed_whatever_its_name(tmp_path: Path) -> None:
    put(tmp_path / "run", "weights_of_bob.bin", "x.safetensors", "other.safetensors")
    store = open_store(str(tmp_path / "run"))
    for name, expected in (("weights_of_bob.bin", "torch"), ("x.safetensors", "safetensors")):
        folder = Folder(store, "", steps_of(["run"])[0], tuple(store.entries()), asked=name)
        found = [c for one in LAYOUTS for c in one.claim(folder) if c.members == (name,)]
        assert [(c.layout, c.path) for c in found] == [(expected, name)]


def test_links_to_a_checkpoint_beside_are_other_names_of_it(tmp_path: Path) -> None:
    root = put(tmp_path / "run", "step=5.ckpt", "ep0-ba5-rank0.pt")
    (root / "last.ckpt").symlink_to("step=5.ckpt")
    (root / "latest-rank0.pt").symlink_to("./ep0-ba5-rank0.pt")
    assert set(rows(root)) == {"step=5.ckpt", "ep0-ba5-rank0.pt"}


POINTERS = {
    "latest": {"dcp", "deepspeed"},
    "latest_universal": {"deepspeed"},
    "latest_checkpointed_iteration.txt": {"megatron", "megatron-legacy", "verl"},
    "latest-rank0.pt": {"composer"},
    "last.ckpt": {"lightning", "lightning-dcp"},
    "last-v1.ckpt": {"lightning", "lightning-dcp"},
    "last_step.txt": set(),
}


@pytest.mark.parametrize("name", POINTERS)
def test_whose_pointer_a_name_is(name: str) -> None:
    found = {
        one.name
        for one in LAYOUTS
        if any(re.fullmatch(rule.pattern, name) and not rule.key for rule in one.pointers)
    }
    assert found == POINTERS[name]


NAMES_OF_ALL = sorted(
    {name for names, _ in (*BUILT.values(), *LACKS.values()) for name in names}
    | {name for names in (*STAGED.values(), *NO_CHECKPOINTS.values()) for name in names}
)


class InMemory:
    """A store of empty files."""

    url = "/run"

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def entries(self, path: str = "") -> list[Entry]:
        prefix, found = f"{path}/" if path else "", dict[str, Entry]()
        for name in sorted(name for name in self.names if name.startswith(prefix)):
            own, more, _ = name.removeprefix(prefix).partition("/")
            found[own] = Entry(prefix + own, "directory" if more else "file")
        return list(found.values())

    def open(self, path: str) -> Reader:
        raise NotFound(path)

    def stat(self, path: str = "") -> Entry:
        raise NotFound(path)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(NAMES_OF_ALL), max_size=24))
def test_frameworks_in_one_root_are_told_apart(names: list[str]) -> None:
    files = [name.rstrip("/") for name in names]
    clean = [one for one in files if not any(other.startswith(f"{one}/") for other in files)]
    paths = [one.path for one in places(InMemory(clean))]
    assert len(set(paths)) == len(paths)
    for one in paths:
        assert not any(path.startswith(f"{one}/") for path in paths)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(NAMES_OF_ALL), max_size=24), st.sampled_from(["run", "step-5"]))
def test_any_names_in_one_directory_can_be_claimed(names: list[str], own: str) -> None:
    store = InMemory([name.rstrip("/").rpartition("/")[2] for name in names])
    folder = Folder(store, "", steps_of([own])[0], tuple(store.entries()))
    for one in LAYOUTS:
        for claim in one.claim(folder):
            assert claim.layout == one.name
            assert claim.members is None or set(claim.members) <= folder.files
            assert claim.members is not None or claim.path == ""


def test_numbers_of_any_size_in_names_cost_little() -> None:
    huge = 10**8 - 1
    names = [
        f"a/zero_pp_rank_{huge}_mp_rank_{huge}_optim_states.pt",
        f"b/mp_rank_{huge}_{huge}/model_optim_rng.pt",
        f"global_step_5/actor/model_world_size_999999_rank_{999_998}.pt",
        f"step-7/model_{999_999}.pt",
        f"step-7/optimizer_{999_999}.pt",
        f"checkpoint-8/model-00001-of-{huge}.safetensors",
        "checkpoint-8/trainer_state.json",
        f"c/{huge}/iter_0000006_{huge}_local.pt",
    ]
    found = places(InMemory(names))
    assert len(found) == 6
    assert all(0 < len(one.lacks) <= 64 for one in found)


BEST = {
    "its path": '"/mnt/elsewhere/run/checkpoint-2"',
    "with a slash": '"out/checkpoint-2/"',
    "none": "null",
    "one that is gone": '"out/checkpoint-1"',
    "no text": "7",
    "text that ends early": '"out/checkpoint-2',
}


@pytest.mark.parametrize("case", BEST)
def test_the_best_checkpoint_that_a_trainer_records(case: str, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for step in (2, 4):
        put(root, f"checkpoint-{step}/model.safetensors", f"checkpoint-{step}/optimizer.pt")
        text = f'{{"best_metric": 0.5, "best_model_checkpoint": {BEST[case]}, "epoch": 1'
        put(root, f"checkpoint-{step}/trainer_state.json", data=text.encode())
    found = recorded(open_store(str(root)), places(root))
    named = [("best_model_checkpoint", "checkpoint-2")]
    expected = named if case in ("its path", "with a slash") else []
    assert [(one.name, one.target) for one in found] == expected
    assert not pointers(open_store(str(root)), places(root))


def test_layouts_that_are_read_say_how(tmp_path: Path) -> None:
    whole = {one.name for one in LAYOUTS if one.reads is Reads.WHOLE}
    assert whole == {
        *("dcp", "megatron", "nemo", "huggingface", "huggingface-fsdp", "olmo-core"),
        *("lightning", "lightning-dcp", "composer", "verl", "torch-checkpointing"),
        *("torch", "torchsnapshot", "nvrx-local", "safetensors"),
    }
    assert len({one.name for one in LAYOUTS}) == len(LAYOUTS)
