"""Facts about a run: what frameworks record, what a user gives, and what a difference means."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ckptctl.comparison.consequences import (
    RULES,
    STANDARD,
    Consequence,
    consequence_of,
    standard_facts,
)
from ckptctl.errors import MalformedData, Refused, UsageError
from ckptctl.formats.dcp import reader as dcp
from ckptctl.model.manifest import Manifest
from ckptctl.model.run_facts import config_digest, flatten, same
from ckptctl.operations.diff.diff import diff
from ckptctl.operations.diff.structure import compare_facts
from ckptctl.operations.find import locate
from ckptctl.operations.place import read_checkpoint
from ckptctl.operations.provenance.facts import Facts, facts_of, with_given
from ckptctl.operations.provenance.facts_file import read_identity
from ckptctl.protocol import read_manifest
from ckptctl.storage import open_store
from conftest import FIXTURES
from support.cli import Ended, run, run_process

LOAD, ORDER = Consequence.BREAKS_LOAD, Consequence.DATA_ORDER
NUMERICS, HARMLESS, UNKNOWN = Consequence.NUMERICS, Consequence.HARMLESS, Consequence.UNKNOWN

EXPECTED = {
    LOAD: """hidden_size num_layers n_layers vocab_size config.model.num_hidden_layers d_model
        num_attention_heads config.ffn_hidden_size moe_ffn_hidden_size num_experts model.name
        config.model.model_type tensor_model_parallel_size pipeline_model_parallel_size optimizer
        config.optimizer.name lora.rank tie_word_embeddings format.distrib_optim_sharding_type
        Hidden-Size zero_stage use_distributed_optimizer config.hidden""",
    ORDER: """global_batch_size train_batch_size micro_batch_size gradient_accumulation_steps seed
        data.seed dataset dataset.snapshot dataset_name data_path config.train_data_path
        world_size mesh mesh.data mesh_shape data_parallel_size num_workers shuffle sampler.kind
        seq_length per_device_train_batch_size accumulate_grad_batches tokenizer_model rng.policy
        batch_size config.data_loader.dataset_fingerprint drop_last config.training.batch_size""",
    NUMERICS: """lr learning_rate config.optimizer.lr min_lr lr_warmup_iters weight_decay adam_beta1
        adam_eps clip_grad max_grad_norm dtype params_dtype bf16 fp16 precision torch torch_version
        cuda cuda_version nccl nccl_version packages.torch git_commit code_revision commit
        container image_digest attention_dropout hidden_dropout rope_theta
        tensor_parallel_degree context_parallel_size fsdp.reshard max_steps lr_scheduler.type
        layernorm_epsilon attention_backend gradient_checkpointing python""",
    HARMLESS: """output_dir run_name log_interval config.save_interval wandb_project tensorboard_dir
        eval_iters logging_steps hub_model_id save load_path inference_max_seq_length
        per_device_eval_batch_size distributed_timeout_minutes local_rank report_to hostname""",
    UNKNOWN: "flux_capacitor config.x my_own_switch",
}


@pytest.mark.parametrize(
    ("name", "consequence"), [(n, c) for c, names in EXPECTED.items() for n in names.split()]
)
def test_what_a_difference_means(name: str, consequence: Consequence) -> None:
    assert consequence_of(name) is consequence


def test_every_row_of_the_table_can_be_reached() -> None:
    """No pattern is wholly hidden behind an earlier one: its own text decides for its own row."""
    hidden = []
    for rule in RULES:
        for pattern in rule.names.split():
            example = pattern.replace("*", "")
            if consequence_of(example) is not rule.consequence:
                hidden.append((rule.about, pattern))
    assert hidden == []


def test_standard_names_are_alike_in_all_spellings() -> None:
    for standard, spellings in STANDARD.items():
        for spelling in spellings.split():
            found = standard_facts({f"config.{spelling}": 7})
            assert found[standard] == (7, f"config.{spelling}")


# ---------------------------------------------------------------------------------- flattening


def test_nested_facts_get_dotted_names() -> None:
    document = {"a": {"b": {"c": 1}, "d": [1, 2]}, "e": [{"f": 1}, {"f": 2}], 3: None, "g": {}}
    assert flatten(document) == {"a.b.c": 1, "a.d": [1, 2], "e.0.f": 1, "e.1.f": 2, "3": None}


def deep(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"x": 1}
    for _ in range(levels):
        document = {"x": document}
    return document


def endless() -> dict[str, Any]:
    document: dict[str, Any] = {}
    document["x"] = document
    return document


def bomb() -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(20):
        document = {str(i): document for i in range(10)}
    return document


@pytest.mark.parametrize(
    "document",
    [
        {"x": float("nan")},
        {"x": [float("inf")]},
        {"x": object()},
        {"x": b"bytes"},
        {(1, 2): 3},
        {"a.b": 1, "a": {"b": 2}},
        deep(40),
        endless(),
        bomb(),
        {str(i): i for i in range(30_000)},
        {"x": "y" * 100_000},
        {"x": 1 << 5000},
    ],
    ids=range(12),
)
def test_what_cannot_be_recorded(document: dict[Any, Any]) -> None:
    with pytest.raises(MalformedData):
        flatten(document)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [(1, 1.0, True), ("1e-4", 0.0001, True), ([1, 2], [1.0, 2], True), ("a", "b", False),
     ("1", "1.0", False), (None, 0, False), ([1], [1, 2], False), ("x", 3, False),
     (None, None, True)],
)  # fmt: skip
def test_equality(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal


# ---------------------------------------------------------------------------------- the file

JSON = '{"git": "abc", "started": "2026-01-02", "config": {"lr": 0.0001, "layers": [1, 2]}}'
YAML = "git: abc\nstarted: 2026-01-02\nconfig:\n  lr: 1.0e-4\n  layers: [1, 2]\n"
TOML = 'git = "abc"\nstarted = 2026-01-02\n[config]\nlr = 1e-4\nlayers = [1, 2]\n'
FACTS = {"git": "abc", "started": "2026-01-02", "config.lr": 0.0001, "config.layers": [1, 2]}


@pytest.mark.parametrize(
    ("name", "text"),
    [("f.json", JSON), ("f", JSON), ("f.yaml", YAML), ("f.YML", YAML), ("f.toml", TOML)],
)
def test_one_set_of_facts_in_three_forms(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_identity(tmp_path / name) == FACTS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.json", '{"x": NaN}'),
        ("f.json", "[" * 100_000),
        ("f.json", "[1]"),
        ("f.json", "\xff\xfe"),
        ("f.json", json.dumps({"x": "y" * (2 << 20)})),
        ("f.yaml", "x: .nan"),
        ("f.yaml", "a: &a [*a]"),
        ("f.yaml", "x: !!python/object/apply:os.system ['echo run']"),
        ("f.yaml", "just text"),
        ("f.yaml", "x: [1"),
        ("f.toml", "x = nan"),
        ("f.toml", "x"),
        ("f.ini", "x=1"),
    ],
)
def test_what_is_no_file_of_facts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError):
        read_identity(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_identity(tmp_path / "none.json")


def test_without_the_package_the_remedy_is_named(copy: Callable[..., Path], tmp_path: Path) -> None:
    facts = tmp_path / "f.yaml"
    facts.write_text(YAML)
    path = copy("fsdp2/step-12")
    ended = run_process(
        "commit", path, "--identity", facts, before="import sys; sys.modules['yaml'] = None"
    )
    assert ended.code == 2
    assert "pip install 'ckptctl[identity]'" in ended.stderr
    assert not (path / "ckptctl.manifest.json").exists()


# ---------------------------------------------------------------------------------- frameworks


def gather(path: Path) -> Facts:
    """Gather the facts of a checkpoint opened through the directory it lies in."""
    store, (place,) = locate(str(path), open_store)
    found = facts_of(store, place.path, read_checkpoint(store, place))
    assert found.problems == ()
    return found


SAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "megatron/v0.16.1_torch_dist_dp2_distopt/iter_0000006": (
        {
            "world_size": 2, "mesh.data": 2, "mesh.tensor": 1, "mesh.pipeline": 1,
            "micro_batch": 1, "global_batch": 4, "dtype": "float32", "seed": 1234,
            "config.hidden_size": 8, "config.num_layers": 2, "config.vocab_size": 63,
            "config.lr": 0.01, "config.seq_length": 8, "config.optimizer": "adam",
            "config.train_iters": 20, "config.attention_backend": 5, "config.exit_signal": 15,
            "format.sharded_backend": "torch_dist",
            "format.distrib_optim_sharding_type": "dp_reshardable",
        },
        {"step": 6, "samples": 24},
    ),
    "megatron/v0.19_torch_dist_tp2dp2_distopt_bf16/iter_0000004": (
        {
            "world_size": 4, "mesh.data": 2, "mesh.tensor": 2, "dtype": "bfloat16", "seed": 1234,
            "config.tensor_model_parallel_size": 2, "config.bf16": True, "global_batch": 4,
        },
        {"step": 4, "samples": 16},
    ),
    "torchtitan/fsdp_dp4/checkpoint/step-8": (
        {"mesh.data": 4},
        {"step": 8, "tokens": 512, "scheduler_step": 8, "optimizer_step": 8},
    ),
    "hf/trainer_fsdp2_sharded/checkpoint-6": (
        {"world_size": 2, "config.max_steps": 6, "config.train_batch_size": 2},
        {"step": 6, "epoch": 0.375, "optimizer_step": 6},
    ),
    "hf/trainer_fsdp1_sharded/checkpoint-4": (
        {"world_size": 2, "config.num_train_epochs": 1},
        {"step": 4, "epoch": 0.25, "optimizer_step": 4},
    ),
    "lightning/fsdp2_modelparallel/checkpoints/step=4.ckpt": (
        {"config.lr": 0.01, "config.hidden": 16, "packages.lightning": "2.6.6"},
        {"step": 4, "epoch": 0, "batches": 4, "batches_in_epoch": 4, "optimizer_step": 4},
    ),
    "olmo_core/fsdp2_w2/step6": (
        {
            "world_size": 2, "seed": 0, "dataset": "abc", "config.model.d": 16,
            "format.version": "3.0.0", "data_loader.dataset_type": "fsl", "config.max_steps": 6,
        },
        {"step": 6, "tokens": 768, "epoch": 1, "batches": 6, "optimizer_step": 6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAMPLES)
def test_what_frameworks_record(samples: Path, case: str) -> None:
    identity, progress = SAMPLES[case]
    found = gather(samples / case)
    assert {name: found.identity.get(name) for name in identity} == identity
    assert dict(found.progress) == progress
    assert all(found.sources[name] for name in {*found.identity, *found.progress})


def test_counters_and_ranks_are_no_configuration(samples: Path) -> None:
    """The configuration of two saves of one run, by one digest."""
    run_ = samples / "megatron/v0.16.1_torch_dist_dp2_distopt"
    digests = set()
    for name in ("iter_0000002", "iter_0000004", "iter_0000006"):
        found = with_given(gather(run_ / name), {}, step=None, world_size=None)
        assert "config.iteration" not in found.identity
        assert "config.rank" not in found.identity
        digests.add(found.identity["config_digest"])
    assert len(digests) == 1


def test_single_files_of_other_frameworks(samples: Path, copy: Callable[..., Path]) -> None:
    """What lies beside a checkpoint counts, also where its tensors are in another format."""
    path = copy("fsdp2/step-12")
    for name in ("training_args.bin", "config.json", "trainer_state.json", "rng_state_0.pth",
                 "rng_state_1.pth"):  # fmt: skip
        shutil.copy(samples / "hf/trainer_ddp2/checkpoint-6" / name, path / name)
    found = gather(path)
    expected = {
        "config.model.hidden_size": 16,
        "config.model.vocab_size": 64,
        "config.learning_rate": 0.01,
        "config.lr_scheduler_type": "linear",
        "config.accelerator_config.split_batches": False,
        "seed": 0,
        "micro_batch": 2,
        "accumulation": 1,
        "world_size": 2,
        "dtype": "float32",
    }
    assert {name: found.identity.get(name) for name in expected} == expected
    assert "config.hub_token" not in found.identity


# ---------------------------------------------------------------------------------- our own


def megatron(path: Path, **arguments: Any) -> None:
    args = argparse.Namespace(
        lr=0.1, hidden_size=64, world_size=4, seed=7, iteration=12, consumed_train_samples=48,
        rank=0, wandb_api_key="s3cr3t", hub_token="s3cr3t", betas=(0.9, 0.95), load=None,
        eod_token="</s>", schedule=[1] * 2000, **arguments,
    )  # fmt: skip
    torch.save({"args": args, "iteration": 12}, path / "common.pt")


def test_a_namespace_is_read_without_being_built(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    megatron(path, sub=argparse.Namespace(deep=argparse.Namespace(x=1)))
    found = gather(path)
    assert found.identity["config.sub.deep.x"] == 1
    assert found.identity["config.betas"] == [0.9, 0.95]
    assert found.identity["config.schedule"] == "2000 values"
    assert found.identity["config.eod_token"] == "</s>"
    assert "s3cr3t" not in str(found)
    assert (found.identity["world_size"], found.identity["seed"]) == (4, 7)
    assert found.sources["world_size"] == "common.pt"
    assert found.progress["samples"] == 192  # the state dict's own counter is nearer


class Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch executed",))


def test_nothing_is_run(copy: Callable[..., Path], tmp_path: Path, monkeypatch: Any) -> None:
    path = copy("fsdp2/step-12")
    monkeypatch.chdir(tmp_path)
    torch.save({"global_step": 12, "hyper_parameters": {"x": Boom(), "lr": 0.5}}, path / "meta.pt")
    store, (place,) = locate(str(path), open_store)
    (problem,) = facts_of(store, place.path, read_checkpoint(store, place)).problems
    assert problem.startswith("meta.pt: it asks its reader to run posix.system")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("common.pt", b"no zip"),
        ("meta.pt", pickle.dumps({"global_step": 3})),
        ("config.json", b"[1, 2"),
        ("config.json", b"[" * 100_000),
        ("trainer_state.json", b"null"),
        ("config.json", b'{"x": "' + b"y" * (5 << 20) + b'"}'),
    ],
)
def test_a_companion_that_cannot_be_read_is_named(
    copy: Callable[..., Path], name: str, data: bytes
) -> None:
    path = copy("fsdp2/step-12")
    (path / name).write_bytes(data)
    store = open_store(path.parent)
    found = facts_of(store, path.name, dcp.read(store, path.name))
    (problem,) = found.problems
    assert problem.startswith(f"{name}: ")
    assert found.progress["step"] == 12
    # beside shards only Lightning has a file of this name, so that it is known what must be in it
    assert run("commit", path).code == (10 if name == "meta.pt" else 0)


def test_odd_values_of_a_configuration_become_text(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    (path / "config.json").write_text(
        '{"a": NaN, "b": [Infinity], "c": {"d": null}, "e": [[1, 2]]}'
    )
    found = with_given(gather(path), {}, step=12, world_size=None)
    assert found.identity["config.a"] == "nan"
    assert found.identity["config.b"] == ["inf"]
    assert found.identity["config.e.0"] == [1, 2]
    assert run("commit", path).code == 0
    assert manifest_of(path).identity["config.a"] == "nan"


def test_a_configuration_above_an_ordinary_checkpoint_is_not_its_own(
    copy: Callable[..., Path],
) -> None:
    path = copy("fsdp2/step-12")
    (path.parent / "config.json").write_text('{"lr": 1}')
    assert "config.lr" not in gather(path).identity


@pytest.mark.parametrize("form", ["namespace", "mapping"])
def test_one_file_that_holds_everything(tmp_path: Path, form: str) -> None:
    files = []
    for lr in (0.1, 0.2):
        settings = {"lr": lr, "hidden_size": 8, "api_key": "s3cr3t"}
        path = tmp_path / f"{lr}.pt"
        args = argparse.Namespace(**settings) if form == "namespace" else settings
        torch.save({"model": {"w": torch.ones(2)}, "args": args, "global_step": 5}, path)
        files.append(str(path))
    found = diff(*files)
    assert [(f.name, f.a, f.b) for f in found.identity] == [("config.lr", 0.1, 0.2)]
    assert [(c.name, c.apart) for c in found.progress] == [("step", 0)]
    assert (found.a.problems, "s3cr3t" in str(found.identity)) == ((), False)


# ---------------------------------------------------------------------------------- commit


def manifest_of(path: Path) -> Manifest:
    found = read_manifest(open_store(path), "")
    assert found is not None
    return found


def commit(path: Path, facts: dict[str, Any] | None = None, *args: str) -> Ended:
    given: list[str | Path] = []
    if facts is not None:
        (path.parent.parent / "facts.json").write_text(json.dumps(facts))
        given = ["--identity", path.parent.parent / "facts.json"]
    return run("commit", path, *given, *args)


def test_a_commit_records_what_frameworks_say(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    megatron(path)
    assert commit(path).code == 0
    manifest = manifest_of(path)
    assert manifest.identity["config.lr"] == 0.1
    assert manifest.identity["world_size"] == 4
    assert manifest.identity["config_digest"] == config_digest(manifest.identity)
    assert manifest.progress == {
        "step": 12, "samples": 192, "epoch": 2, "scheduler_step": 12, "optimizer_step": 12
    }  # fmt: skip
    store = open_store(path.parent)
    again = facts_of(store, path.name, dcp.read(store, path.name), manifest)
    assert again.progress == manifest.progress
    assert {n: again.identity[n] for n in manifest.identity} == dict(manifest.identity)


def test_what_is_given_outranks_what_is_found(copy: Callable[..., Path]) -> None:
    path = copy("fsdp2/step-12")
    megatron(path)
    given = {"seed": 8, "config": {"lr": 0.2}, "dataset": {"name": "c4", "snapshot": "2026-01"},
             "progress": {"tokens": 99}, "world_size": 4, "step": 12}  # fmt: skip
    ended = commit(path, given)
    assert ended.code == 0, ended.stderr
    manifest = manifest_of(path)
    expected = {"seed": 8, "config.lr": 0.2, "dataset.name": "c4", "dataset.snapshot": "2026-01",
                "config.hidden_size": 64, "world_size": 4}  # fmt: skip
    assert {name: manifest.identity.get(name) for name in expected} == expected
    assert (manifest.progress["tokens"], manifest.progress["step"]) == (99, 12)
    assert "step" not in manifest.identity


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"step": 11}, "step 11"),
        ({"progress": {"step": 11}}, "step 11"),
        ({"world_size": 8}, "world size 8"),
        ({"num_processes": 8}, "world size 8"),
    ],
)
def test_a_contradiction_is_refused(
    copy: Callable[..., Path], given: dict[str, Any], word: str
) -> None:
    path = copy("fsdp2/step-12")
    megatron(path)
    ended = commit(path, given)
    assert ended.code == 5
    assert word in ended.stderr
    assert not (path / "ckptctl.manifest.json").exists()


def test_a_number_of_ranks_that_was_only_counted_contradicts_nobody(
    copy: Callable[..., Path],
) -> None:
    """Each node keeps the random states of its own ranks."""
    path = copy("fsdp2/step-12")
    for rank in range(4):
        (path / f"rng_state_{rank}.pth").write_bytes(b"")
    assert gather(path).identity["world_size"] == 4
    assert commit(path, {"world_size": 8}).code == 0
    assert manifest_of(path).identity["world_size"] == 8


def test_a_contradiction_with_the_commit_itself_is_refused() -> None:
    found = Facts()
    with pytest.raises(Refused, match="step 3"):
        with_given(found, {"step": 3}, step=4, world_size=None)
    with pytest.raises(Refused, match="world size 3"):
        with_given(found, {"world_size": 3}, step=None, world_size=4)
    assert with_given(found, {"step": 4.0}, step=4, world_size=2).progress == {"step": 4.0}


# ---------------------------------------------------------------------------------- comparing


def rows(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Consequence, str]]:
    found, _ = compare_facts(Facts(a), Facts(b), lambda name: True)
    return {row.name: (row.consequence, row.only) for row in found}


def test_facts_are_compared_over_spellings() -> None:
    assert rows({"config.seed": 1}, {"seed": 2}) == {"seed": (ORDER, "")}
    assert rows({"config.seed": 1}, {"config.seed": 2}) == {"config.seed": (ORDER, "")}
    assert rows({"seed": 1, "config.seed": 1}, {"seed": 2, "config.seed": 2}) == {
        "config.seed": (ORDER, "")
    }


def test_what_one_side_lacks_is_a_difference_only_inside_the_configuration() -> None:
    assert rows({"git": "a", "seed": 1}, {"seed": 1}) == {"git": (NUMERICS, "a")}
    a = {"config.lr": 1, "config.lora.rank": 8, "config_digest": "x"}
    b = {"config.lr": 1, "config_digest": "y"}
    assert rows(a, b) == {"config.lora.rank": (LOAD, "")}
    assert rows({"config_digest": "x"}, {"config_digest": "y"}) == {"config_digest": (UNKNOWN, "")}


def test_configurations_of_two_frameworks_are_compared_where_they_meet() -> None:
    a = {"config.lr": 1, "config.hidden_size": 8, "config.seed": 3}
    b = {"config.learning_rate": 1, "config.model.hidden_size": 8, "config.seed": 4}
    found = rows(a, b)
    assert found.pop("config.seed") == (ORDER, "")
    assert {only for _, only in found.values()} == {"a", "b"}


def test_diff_shows_facts_with_what_follows(copy: Callable[..., Path]) -> None:
    a, b = copy("fsdp2/step-12", "a"), copy("fsdp2/step-12", "b")
    megatron(a)
    megatron(b, extra=1)
    args = torch.load(b / "common.pt", weights_only=False)
    args["args"].hidden_size, args["args"].lr = 128, 0.2
    torch.save(args, b / "common.pt")
    ended = run("diff", a, b, "--fail-on", "breaks-load")
    assert ended.code == 10
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert "breaks load config.hidden_size 64 -> 128" in lines
    assert "changes numerics config.lr 0.1 -> 0.2" in lines
    assert "unknown config.extra null -> 1" in lines
    assert "22 of 22 tensors equal" in ended.stdout
    only = run("diff", a, b, "--only", "config.lr", "--fail-on", "breaks-load")
    assert only.code == 0
    assert (FIXTURES / "fsdp2/step-12/common.pt").exists() is False
