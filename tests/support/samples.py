"""The checkpoints that real frameworks wrote, each named and judged here, so that none is left out."""

from __future__ import annotations


def steps(folder: str, *names: str) -> list[str]:
    return [f"{folder}/{name}" for name in names]


HEALTHY = [
    *steps(
        "dcp",
        "async_save",
        "dtype_zoo",
        "fsdp1_sharded",
        "fsdp2_step3",
        "fsdp2_step5",
        "fsspec_writer_threads2",
        "hsdp",
        "megatron_like_synthetic",
        "no_dist",
        "rank_local_no_collectives",
        "replicated_ddp",
        "resharded_offline_w3",
        "single_file_per_item",
        "torchtitan_flat_keys",
        "zstd_extension",
    ),
    *steps("torch/dcp_async_w2", "step-2", "step-4", "step-6"),
    *steps("torch/dcp_async_w2_rank1_died", "step-2", "step-4"),
    *steps("torch/dcp_ddp_w2", "step-2", "step-4", "step-6"),
    *steps("torch/dcp_fsdp1_flat_w2", "step-2", "step-4", "step-6"),
    *steps("torch/dcp_fsdp1_orig_w2", "step-2", "step-4", "step-6"),
    *steps("torch/dcp_fsdp2_w4", "step-2", "step-4", "step-6"),
    *steps("torch/dcp_hsdp_2x2", "step-2", "step-4", "step-6"),
    *steps("torchtitan/async_dp2/checkpoint", "step-2", "step-4", "step-6"),
    *steps("torchtitan/fsdp_dp2_model_only_last/checkpoint", "step-2", "step-4", "step-6"),
    *steps("torchtitan/fsdp_dp4/checkpoint", "step-2", "step-4", "step-6", "step-8"),
    *steps("torchtitan/hf_last_dp2/checkpoint", "step-2", "step-4"),
    *steps("torchtitan/tp2_dp2/checkpoint", "step-2", "step-4", "step-6"),
    *steps(
        "megatron/v0.16.1_torch_dist_dp2_distopt", "iter_0000002", "iter_0000004", "iter_0000006"
    ),
    *steps("megatron/v0.19_retain4_HALF_DELETED_iter6", "iter_0000004", "iter_0000008"),
    *steps("megatron/v0.19_torch_dist_dp2_distopt", "iter_0000002", "iter_0000004", "iter_0000006"),
    *steps("megatron/v0.19_torch_dist_dp2_fullyreshard_retain4", "iter_0000004", "iter_0000008"),
    *steps(
        "megatron/v0.19_torch_dist_dp2_verify_integrity",
        "iter_0000002",
        "iter_0000004",
        "iter_0000006",
    ),
    *steps(
        "megatron/v0.19_torch_dist_tp2dp2_distopt_bf16",
        "iter_0000002",
        "iter_0000004",
        "iter_0000006",
    ),
    "dcp/odd_values/step-3",
    *steps("dcp/python_3.11.2", "step-3", "step-6"),
    *steps("hf/trainer_fsdp1_sharded", "checkpoint-4", "checkpoint-6"),
    *steps("hf/trainer_fsdp2_sharded", "checkpoint-4", "checkpoint-6"),
    *steps(
        "lightning/fsdp1_sharded/checkpoints",
        "last.ckpt",
        "step=2.ckpt",
        "step=4.ckpt",
        "step=6.ckpt",
    ),
    *steps(
        "lightning/fsdp2_modelparallel/checkpoints",
        "last.ckpt",
        "step=2.ckpt",
        "step=4.ckpt",
        "step=6.ckpt",
    ),
    *steps(
        "olmo_core/fsdp2_w2",
        "step2",
        "step4",
        "step6",
    ),
]

OF_FILES = [
    *steps("accelerate/save_state_ddp2/checkpoints", "checkpoint_1", "checkpoint_2"),
    *steps("composer/single/checkpoints", "ep0-ba4-rank0.pt", "ep0-ba6-rank0.pt"),
    *steps("dcp", "hf_safetensors_consolidated", "hf_safetensors_sharded"),
    *steps("hf/trainer_ddp2", "checkpoint-4", "checkpoint-6"),
    *steps("hf/trainer_fsdp1_local", "checkpoint-4", "checkpoint-6"),
    *steps("hf/trainer_single", "checkpoint-4", "checkpoint-6"),
    *steps("lightning/ddp2/checkpoints", "last.ckpt", "step=2.ckpt", "step=4.ckpt", "step=6.ckpt"),
    *steps(
        "lightning/single/checkpoints", "last.ckpt", "step=2.ckpt", "step=4.ckpt", "step=6.ckpt"
    ),
    "nvrx/local_w2/run1/iter_0000006",
    *steps("torch/ddp_torchsave_w2", "step-2", "step-4", "step-6"),
    *(
        f"torch/torch_save_single/{stem}.pt"
        for step in (2, 4, 6)
        for stem in (
            f"ckpt_{step}",
            f"ckpt_{step}_legacy",
            f"compiled_prefix_{step}",
            f"whole_module_{step}",
        )
    ),
    *steps("torch_checkpointing/manager_sync_fsdp2_w2", "step-2", "step-4", "step-6"),
    "torchtitan/hf_last_dp2/checkpoint/step-6",
    *steps("torchsnapshot/ddp_w2", "step_2", "step_4", "step_6"),
    *steps("verl/fsdp2_w2", "global_step_4", "global_step_6"),
]
"""Checkpoints whose tensors lie in files of ``torch.save`` or safetensors."""

FOR_SOME_RANKS = {"dcp/replicated_ddp", "dcp/resharded_offline_w3"}
"""One random state for all ranks; more ranks than there is state per rank. Both get a note."""

INDISTINGUISHABLE = [
    # parameters of which each rank kept its own
    "dcp/fsdp1_local_lossy",
    # shards newer than the metadata, which the times tell only where they were kept
    "dcp/torn_overwrite",
]
"""Bad, and nothing that this release looks at tells: it must not claim to know their identity."""

MIXED = "dcp/fsdp2_mixed_rank1_from_step3"
"""One shard of another step, which is told by the checkpoint beside it that the shard is from."""

MIXED_FROM = ["dcp/fsdp2_step3", "dcp/fsdp2_step5", "dcp/async_save"]
"""What it was mixed from, and a checkpoint that is equal to one of these."""

BROKEN = {
    "dcp/safetensors_format_filesystemwriter": {
        "item-overlap",
        "item-structure",
        "unreferenced-bytes",
    },
    "torch/dcp_async_w2_rank1_died/step-6": {"missing-metadata"},
}

BROKEN_FILES = {
    "torch_checkpointing/failed_save_tmp_dir/tmp_step-2": {"malformed-companion"},
    "verl/fsdp2_w2/global_step_2": {"missing-file"},
}

HALF_DELETED = ["megatron/v0.19_retain4_HALF_DELETED_iter6/iter_0000006"]
"""Of these only what marks a checkpoint is left."""

FIXTURE_CASES = [
    "async_save/step-12",
    "ddp/step-12",
    "dedup_lowest_rank/step-12",
    "dtype_zoo/step-1",
    "file_per_item/step-12",
    "fsdp2/step-12",
    "fsdp2/step-8",
    "hsdp/step-12",
    "no_crc/step-1",
    "no_dist/step-12",
    *steps("pythons", "3.8/step-3", "3.9/step-3", "3.10/step-3", "3.11/step-3", "3.11.2/step-3"),
    *steps("pythons", "3.12/step-3", "3.13/step-3", "3.14/step-3"),
    "rank_local/step-12",
    "thread_count_3/step-12",
    "tp_fsdp/step-12",
    "zstd/step-12",
]
