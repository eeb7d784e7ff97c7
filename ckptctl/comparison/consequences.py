"""What a difference in a fact of the run brings about: one table of names, as they are spelled.

And the few facts that every run has, with one name each, whatever a framework calls them.
"""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Iterable, Mapping

from ckptctl.dataclass import dataclass
from ckptctl.model.run_facts import Plain


class Consequence(enum.Enum):
    """What a difference brings about, the worst first; each includes those below it."""

    BREAKS_LOAD = "breaks load"
    DATA_ORDER = "changes data order"
    NUMERICS = "changes numerics"
    UNKNOWN = "unknown"
    HARMLESS = "harmless"

    @property
    def rank(self) -> int:
        """Zero for the worst."""
        return _ORDER.index(self)


_ORDER = tuple(Consequence)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: what the facts are about, what follows, and how they are spelled.

    A pattern without a dot is matched with the last part of a name, one with dots with as many
    parts at its end. The first row that matches decides.
    """

    about: str
    consequence: Consequence
    names: str

    def matches(self, name: str) -> bool:
        """Tell whether a fact's name, normalised, is one of the row's."""
        return any(_ends_with(name, pattern) for pattern in self.names.split())


_LOAD, _DATA = Consequence.BREAKS_LOAD, Consequence.DATA_ORDER
_NUMERIC, _HARMLESS = Consequence.NUMERICS, Consequence.HARMLESS

RULES: tuple[Rule, ...] = (
    # ---- what looks like something below and is not
    Rule("bookkeeping", _HARMLESS, "run_name run_id run.id run.name save save_* load load_path "
         "load_dir tags *checkpoint_name *_timeout* timeout log_* *.log_interval *_log_interval "
         "*save_interval *save_steps *eval_batch_size eval_* *eval_interval *eval_steps "
         "eval_iters do_eval valid_* *valid_data_path *test_data_path *eval_dataset* hub_* "
         "*cache_dir *cache_path ckpt_step local_rank process_index app_tag_run_version "
         "dataloader_pin_memory pin_memory"),
    Rule("evaluation and inference", _HARMLESS, "inference_* generation_* rl_*inference*"),
    # ---- breaks load
    Rule("model shape", _LOAD, "hidden_size hidden_dim hidden d_model dim n_embd embed_dim "
         "embedding_dim embedding_size width d_ff num_layers n_layers n_layer num_hidden_layers "
         "encoder_num_layers decoder_num_layers layers depth num_attention_heads num_heads "
         "n_heads n_head num_key_value_heads n_kv_heads num_query_groups kv_channels head_dim "
         "ffn_hidden_size intermediate_size ffn_dim* multiple_of mlp_ratio vocab_size "
         "n_vocab padded_vocab_size make_vocab_size_divisible_by max_position_embeddings "
         "num_experts n_experts num_local_experts n_routed_experts n_shared_experts "
         "moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_layer_freq num_classes "
         "num_labels mtp_num_layers q_lora_rank kv_lora_rank *_head_dim mamba_* is_hybrid_model"),
    Rule("model architecture", _LOAD, "architecture architectures model model_type model_name "
         "model.name model_class model_name_or_path flavor "
         "untie_embeddings_and_output_weights tie_word_embeddings weight_tying add_bias_linear "
         "add_qkv_bias attention_bias mlp_bias swiglu gated_linear_unit position_embedding_type "
         "normalization norm_type group_query_attention multi_latent_attention use_mla "
         "transformer_impl qk_layernorm lora lora.* *lora_r *lora_rank *lora_alpha peft* "
         "adapter*"),
    Rule("optimizer kind", _LOAD, "optimizer optimizer_type optimizer_name optimizer.name "
         "optimizer.type optim optim.name use_distributed_optimizer *distrib_optim* "
         "use_precision_aware_optimizer chained_optim_avoid_prefix"),
    Rule("layout of Megatron and ZeRO", _LOAD, "tensor_model_parallel_size "
         "pipeline_model_parallel_size *virtual_pipeline_model_parallel_size "
         "num_layers_per_virtual_pipeline_stage pipeline_model_parallel_layout "
         "expert_model_parallel_size expert_tensor_parallel_size zero_stage "
         "zero_optimization.stage"),
    Rule("checkpoint format", _LOAD, "format format.* checkpoint_version ckpt_format "
         "sharded_backend* common_backend* use_legacy_models"),
    # ---- changes data order
    Rule("data set", _DATA, "dataset dataset.* dataset_* *_dataset *dataset_name *dataset_path "
         "*dataset_fingerprint data data.* data_path *data_path data_prefix data_files data_dir "
         "data_root data_version data_hash train_data* train_file* train_split split blend "
         "*data_args_path mock_data"),
    Rule("tokens and sequences", _DATA, "tokenizer tokenizer.* tokenizer_* *tokenizer_model "
         "vocab_file merge_file seq_length sequence_length seq_len max_seq_len max_seq_length "
         "encoder_seq_length decoder_seq_length context_length block_size reset_position_ids "
         "reset_attention_mask eod_mask_loss"),
    Rule("batch geometry", _DATA, "batch_size *batch_size batch_size.* global_batch* micro_batch "
         "micro_batch* *microbatch* local_batch* train_batch* accumulation *accumulation_steps "
         "accumulate_grad_batches grad_accum* *accumulation_step split_batches dispatch_batches "
         "*drop_last even_batches"),
    Rule("ranks", _DATA, "world_size *world_size num_nodes nnodes num_processes num_gpus n_gpu "
         "_n_gpu num_devices devices data_parallel_size data_parallel_degree dp_size dp_degree "
         "data_parallel_shard_degree data_parallel_replicate_degree mesh mesh.* mesh_shape "
         "device_mesh"),
    Rule("random numbers", _DATA, "seed *seed seed.* rng rng.* *rng_* random_state "
         "data_parallel_random_init"),
    Rule("loader", _DATA, "shuffle* *shuffle sampler* sampler.* *sampling* dataloader dataloader.* "
         "dataloader_* data_loader.* *num_workers curriculum* data_sharding ignore_data_skip"),
    # ---- changes numerics
    Rule("learning rate", _NUMERIC, "lr *_lr lr_* learning_rate *learning_rate scheduler "
         "scheduler.* lr_scheduler.* *warmup* *decay* min_lr max_lr base_lrs train_iters "
         "train_samples train_steps max_steps num_steps total_steps training_steps "
         "num_train_epochs max_epochs num_epochs max_iters steps"),
    Rule("optimizer settings", _NUMERIC, "optimizer.* optim.* *beta1 *beta2 beta* eps *_eps *epsilon "
         "weight_decay *_wd *momentum nesterov clip_grad *clip* max_grad_norm grad_norm* "
         "foreach fused amsgrad muon_*"),
    Rule("dtypes", _NUMERIC, "dtype *_dtype dtype.* *precision* bf16* fp16* fp32* fp8* fp4* tf32 "
         "*loss_scale* loss_scale* amp autocast* *_in_fp32 *_in_bf16 quantization* hysteresis"),
    Rule("code", _NUMERIC, "code code.* code_* git git.* git_* commit commit_* revision "
         "*_revision sha version *_version"),
    Rule("container", _NUMERIC, "container container.* container_* image image.* docker* "
         "image_digest"),
    Rule("packages and hardware", _NUMERIC, "packages packages.* torch torch.* torch_* pytorch* "
         "written_by_torch python* numpy cuda cuda.* cuda_* cudnn* nccl nccl.* nccl_* driver* "
         "transformers* transformer_engine* megatron* deepspeed* accelerate* lightning* "
         "flash_attn* triton* apex* xformers* gpu gpu.* gpu_* device_name hardware*"),
    Rule("regularisation and start", _NUMERIC, "*dropout* label_smoothing* *init_method* "
         "init_std initializer_* mask_prob mixup*"),
    Rule("forward pass", _NUMERIC, "*attention* rope* *_rope* rotary_* activation *activation* "
         "hidden_act layernorm_* rms_norm* *softmax* moe_* *aux_loss* loss loss.* "
         "*fusion *_fusion_* *compile* *deterministic* cross_entropy* use_flash* "
         "gradient_checkpointing* recompute_* window_size"),
    Rule("layouts that DCP reshards", _NUMERIC, "*parallel* tp tp_* pp pp_* cp cp_* ep ep_* "
         "fsdp* fsdp.* zero_* ddp_* *overlap* *sharding_strategy"),
    # ---- harmless
    Rule("bookkeeping", _HARMLESS, "*_dir output_* logging_* *logger* *_logger.* wandb* "
         "tensorboard* comet* mlflow* report_to project* experiment* exp_name description notes "
         "user hostname host hosts profile* *profil* disable_tqdm *verbos* timing_* "
         "push_to_hub ckpt_* async_save checkpoint.* checkpointing.* resume* exit_* inprocess_* "
         "*_interval *_port keep_* save.* num_dataset_builder_threads debug adlr_*"),
)  # fmt: skip


def normalise(name: str) -> str:
    """Return a name in lower case, with underscores for dashes and spaces."""
    return re.sub(r"[- /]", "_", name.lower())


def _ends_with(name: str, pattern: str) -> bool:
    end = name
    for _ in range(name.count(".") - pattern.count(".")):
        end = end.partition(".")[2]
    return fnmatch.fnmatchcase(end, pattern)


def rule_of(name: str) -> Rule | None:
    """Return the row that decides on a fact, or None where the table says nothing of it."""
    wanted = normalise(name)
    return next((rule for rule in RULES if rule.matches(wanted)), None)


def consequence_of(name: str) -> Consequence:
    """Say what a difference in a fact brings about."""
    rule = rule_of(name)
    return Consequence.UNKNOWN if rule is None else rule.consequence


STANDARD: Mapping[str, str] = {
    "dataset": "dataset dataset.name dataset.path dataset_name dataset_path data_path "
    "train_data_path dataset_fingerprint",
    "code": "code code.revision code_revision git git.commit git.sha git_commit git_sha commit",
    "container": "container container.image container_image image image_digest docker_image",
    "world_size": "world_size num_processes",
    "mesh.data": "data_parallel_size dp_world_size data_parallel_degree dp_size",
    "mesh.tensor": "tensor_model_parallel_size tensor_parallel_degree tensor_parallel_size tp_size",
    "mesh.pipeline": "pipeline_model_parallel_size pipeline_parallel_degree pp_size",
    "mesh.context": "context_parallel_size context_parallel_degree cp_size",
    "mesh.expert": "expert_model_parallel_size expert_parallel_degree ep_size",
    "micro_batch": "micro_batch micro_batch_size per_device_train_batch_size local_batch_size "
    "train_micro_batch_size_per_gpu device_train_microbatch_size",
    "global_batch": "global_batch global_batch_size global_train_batch_size",
    "accumulation": "accumulation gradient_accumulation_steps accumulate_grad_batches",
    "dtype": "params_dtype torch_dtype dtype precision mixed_precision",
    "seed": "seed",
}
"""The facts that most runs have, and the names that they are taken from, the best first."""


def aliases(standard: str) -> list[str]:
    """Return the spellings of a standard fact."""
    return STANDARD[standard].split()


def standard_facts(facts: Mapping[str, Plain]) -> dict[str, tuple[Plain, str]]:
    """Find the standard facts among others: value and the name it was found under.

    Of several that fit, the first spelling wins, and the least nested of it.
    """
    by_name = {normalise(name): name for name in facts}
    ordered = sorted(by_name, key=lambda name: (name.count("."), name))
    found: dict[str, tuple[Plain, str]] = {}
    for standard in STANDARD:
        for alias in [standard, *aliases(standard)]:
            names = [by_name[n] for n in ordered if n == alias or n.endswith(f".{alias}")]
            name = next((one for one in names if facts[one] is not None), None)
            if name is not None:
                found[standard] = (facts[name], name)
                break
    return found


def without_doubles(names: Iterable[str]) -> list[str]:
    """Leave out standard names whose own spelling is among the names."""
    found = list(names)
    normal = {normalise(name) for name in found}
    kept = []
    for name in found:
        spelled = aliases(name) if name in STANDARD else []
        if any(n != name and _ends_with(n, alias) for alias in spelled for n in normal):
            continue
        kept.append(name)
    return kept
