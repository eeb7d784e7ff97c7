"""What names say: steps of directories, components and optimizer states of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.components import component_of, elements, optimizer_state_of
from ckptctl.model.names import parse_name, steps_of

NAMES = {
    # name: (step, epoch, staging)
    "step-12": (12, None, False),
    "step_12": (12, None, False),
    "step12": (12, None, False),
    "Step-12": (12, None, False),
    "step-0": (0, None, False),
    "checkpoint-9": (9, None, False),
    "checkpoint-10": (10, None, False),
    "checkpoint_0": (0, None, False),
    "ckpt-5": (5, None, False),
    "iter_0000010": (10, None, False),
    "iteration_7": (7, None, False),
    "global_step40": (40, None, False),
    "global_step_40": (40, None, False),
    "100": (100, None, False),
    "0000100": (100, None, False),
    "step=6.ckpt": (6, None, False),
    "epoch=1-step=200.ckpt": (200, 1, False),
    "epoch=1-step=200": (200, 1, False),
    "ep0-ba4-rank0.pt": (4, 0, False),
    "epoch_3": (None, 3, False),
    # marked as unfinished by whoever writes them
    "step-100.tmp": (100, None, True),
    "step-100-tmp": (100, None, True),
    "step4-tmp": (4, None, True),
    "step-100.tmp.8f3a": (100, None, True),
    "step-100.partial": (100, None, True),
    "iter_0000012.incomplete": (12, None, True),
    "tmp_step-2": (2, None, True),
    "tmp-step-2": (2, None, True),
    "last.ckpt-unfinished": (None, None, True),
    "epoch=0-step=10.ckpt-unfinished": (10, 0, True),
    "7.orbax-checkpoint-tmp-123": (7, None, True),
    # no checkpoint's name, or somebody's backup of one
    "step-88.bak": (None, None, False),
    "step-88-old": (None, None, False),
    "step-88 copy": (None, None, False),
    "step-": (None, None, False),
    "step--3": (None, None, False),
    "mystep-3": (None, None, False),
    "footstep3": (None, None, False),
    "last.ckpt": (None, None, False),
    "latest": (None, None, False),
    "tb_logs": (None, None, False),
    "model": (None, None, False),
    "v1.2": (None, None, False),
    "": (None, None, False),
    ".": (None, None, False),
    "\x1b[31mstep-5\x1b[0m": (None, None, False),
    "step-5\x1b[2K": (None, None, False),
    "step-5\n": (None, None, False),
    "step-5\nstep-6": (None, None, False),
}


@pytest.mark.parametrize("text", NAMES)
def test_names(text: str) -> None:
    name = parse_name(text)
    assert (name.step, name.epoch, name.staging) == NAMES[text]
    assert name.text == text
    assert name.recognised == (name.step is not None or name.epoch is not None)


def test_steps_are_numbers_and_not_text() -> None:
    names = ["checkpoint-10", "checkpoint-9", "checkpoint-100"]
    assert sorted(names, key=lambda text: parse_name(text).step or 0) == [
        "checkpoint-9",
        "checkpoint-10",
        "checkpoint-100",
    ]


@pytest.mark.parametrize("prefix", ["", "step-", "epoch=1-step=", "ep"])
def test_a_name_as_long_as_a_store_allows_is_read_or_refused(prefix: str) -> None:
    parse_name(prefix + "9" * 1024)


@given(st.text(max_size=40))
def test_any_text_is_a_name(text: str) -> None:
    name = parse_name(text)
    assert name.text == text
    assert name.step is None or name.step >= 0


@given(st.integers(0, 10**15), st.sampled_from(["step-{}", "iter_{:07d}", "checkpoint-{}", "{}"]))
def test_a_step_is_read_back(step: int, form: str) -> None:
    assert parse_name(form.format(step)).step == step
    assert parse_name(form.format(step) + ".tmp").step == step


FORMS = {
    # form of siblings' names: whether one of them alone tells its step
    "train_step_{}": True,
    "policy_ver_{}": False,
    "step{}-unsharded": True,
    "model_{}": False,
    "step_{}k": True,
    "update-{}": True,
    "{}_steps": True,
    "{}-step": True,
    "run7_step_{}": True,
    "run7_{}": False,
    "checkpoint_step_{}": True,
    "iter-{}-ckpt": True,
    "iter-{}-ckpt.pth": True,
    "step_{}": True,
    "Step_{}": True,
    "model_{:06d}.pt": False,
    "model{:06d}.pt": False,
    "ckpt_{}_legacy.pt": False,
    "checkpoint_1_{}.pt": False,
    "ba{}": True,
    "ep3-ba{}": True,
    "global_step{}_universal": True,
    "model-7b-step{}": True,
    "model-7b-{}": False,
    "model-step={}-consumed_samples=64.0-last": True,
    "epoch=1-step={}-v1.ckpt": True,
    "lora-{:08d}.safetensors": False,
    "acc_0.93_{}.pt": False,
    "iter_{:07d}_0_local.pt": True,
    "{}": True,
    "checkpoint-{}": True,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_step_is_the_number_in_which_siblings_differ(form: str) -> None:
    steps = [1000, 900, 99]
    found = steps_of([form.format(step) for step in steps])
    assert [one.step for one in found] == steps
    assert [one.text for one in found] == [form.format(step) for step in steps]
    (alone,) = steps_of([form.format(900)])
    assert alone.step == (900 if FORMS[form] else None)


NO_STEPS = {
    "ranks": ("state_rank_0.pt", "state_rank_1.pt"),
    "parts": ("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"),
    "backups": ("step-88.bak", "step-99.bak"),
    "old ones": ("step-88-old", "step-99-old"),
    "copies": ("step-88 copy", "step-99 copy"),
    "sizes": ("model-7b", "model-13b"),
    "versions": ("exp_v1", "exp_v2"),
    "dates": ("run-20261129", "run-20261130"),
    "seeds": ("seed_1", "seed_2"),
    "where it came from": ("tuned_from_step100", "tuned_from_step200"),
    "losses": ("best-0.25.pt", "best-0.31.pt"),
    "a grid": ("x_1_1", "x_1_2", "x_2_1", "x_2_2"),
    "words": ("release", "last", "logs"),
    "text of terminals": ("\x1b[31mrun_5", "\x1b[31mrun_6"),
    "more digits than a number has": ("x_" + "9" * 40, "x_" + "8" * 40),
}


@pytest.mark.parametrize("case", NO_STEPS)
def test_numbers_that_are_no_steps(case: str) -> None:
    assert [one.step for one in steps_of(NO_STEPS[case])] == [None] * len(NO_STEPS[case])


def test_epochs_are_told_from_steps() -> None:
    names = ["checkpoint_1_500.pt", "checkpoint_1_1000.pt", "checkpoint_2_1500.pt"]
    assert [one.step for one in steps_of(names)] == [500, 1000, 1500]
    found = steps_of(["model-epoch3-iter900", "model-epoch4-iter1000", "model-epoch5"])
    assert [(one.step, one.epoch) for one in found] == [(900, 3), (1000, 4), (None, 5)]


def test_a_name_marked_as_unfinished_has_the_step_of_its_kind() -> None:
    found = steps_of(["policy_900", "policy_1000", "policy_1000.tmp", "tmp_policy_1100"])
    assert [(one.step, one.staging) for one in found] == [
        (900, False),
        (1000, False),
        (1000, True),
        (1100, True),
    ]


def test_siblings_of_another_kind_do_not_matter() -> None:
    found = steps_of(["policy_900", "value_900", "policy_1000", "logs_1"])
    assert [one.step for one in found] == [900, None, 1000, None]


@given(st.lists(st.text(max_size=20), max_size=6))
def test_siblings_may_have_any_names(names: list[str]) -> None:
    found = steps_of(names)
    assert [one.text for one in found] == names
    assert all(one.step is None or one.step >= 0 for one in found)


@given(
    st.lists(st.integers(0, 10**15), min_size=2, max_size=8, unique=True),
    st.sampled_from(sorted(set(FORMS) - {"model-7b-{}", "acc_0.93_{}.pt", "run7_{}"})),
)
def test_steps_of_siblings_are_read_back(steps: list[int], form: str) -> None:
    if form == "checkpoint_1_{}.pt" and max(steps) < 1:
        return
    found = steps_of([form.format(step) for step in steps])
    dated = any(19_000_000 <= step < 21 * 10**12 for step in steps)
    assert dated or [one.step for one in found] == steps


@given(st.lists(st.sampled_from(sorted(NAMES)), unique=True))
def test_what_a_name_says_by_itself_stays(names: list[str]) -> None:
    for one in steps_of(names):
        alone = parse_name(one.text)
        assert alone.step in (None, one.step)
        assert (alone.epoch, alone.staging) == (one.epoch, one.staging)


COMPONENTS = {
    # plain DCP, nested as the trainer likes it
    "model.layers.0.weight": "model",
    "optimizer.state.layers.0.weight.exp_avg": "optimizer",
    "optim.param_groups.0.lr": "optimizer",
    "lr_scheduler.last_epoch": "scheduler",
    "schedulers.0._step_count": "scheduler",
    "scaler.scale": "scaler",
    "rng.torch": "rng",
    "rng_0.python": "rng",
    "dataloader.dp_rank_0": "data",
    "train_state.step": "progress",
    "progress.tokens": "progress",
    "global_step": "progress",
    "step": "progress",
    # torchtitan: the model's keys stand at top level
    "tok_embeddings.weight": "model",
    "layers.0.attention.wq.weight": "model",
    "output.weight": "model",
    "optimizer.state.layers.0.attention.wq.weight.exp_avg_sq": "optimizer",
    "optimizer.param_groups.layers.0.attention.wq.weight.lr": "optimizer",
    "dataloader.world_size": "data",
    # Megatron
    "decoder.layers.self_attention.linear_qkv.weight": "model",
    "embedding.word_embeddings.weight": "model",
    "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight": "optimizer",
    "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_0.bucket_idx_0.exp_avg": "optimizer",
    "chained_0.optimizer.state.exp_avg.output_layer.weight": "optimizer",
    "rng_state/shard_0.0_1.1": "rng",
    "rerun_state_machine_state/shard_0_1": "progress",
    "common_state/shard_0_1": "progress",
    "decoder.layers.self_attention.core_attention._extra_state/shard_0_2": "model",
    # Lightning, composer, HF
    "state_dict.layers.0.weight": "model",
    "optimizer_0.state.0.exp_avg": "optimizer",
    "module.layers.0.weight": "model",
    "": "model",
}


@pytest.mark.parametrize("fqn", COMPONENTS)
def test_components(fqn: str) -> None:
    assert component_of(elements(fqn)) == COMPONENTS[fqn]


def test_a_recorded_path_outranks_the_dots_of_the_key() -> None:
    assert component_of(elements("a.b", ("optim", "a.b"))) == "optimizer"
    assert component_of(elements("optim.b", ("module", "optim.b"))) == "model"
    assert component_of(elements("lr_scheduler.0", ("lr_scheduler", 0))) == "scheduler"
    assert elements("x.y", ("optimizer.state", "x.y", 3)) == ("optimizer", "state", "x.y", 3)
    assert elements("x.y", ()) == ("x", "y")
    assert component_of(()) == "model"


OPTIMIZER_STATES = {
    # DCP and torchtitan: the parameter first
    "optimizer.state.layers.0.weight.exp_avg": ("layers.0.weight", "exp_avg"),
    "optimizer.state.layers.0.weight.exp_avg_sq": ("layers.0.weight", "exp_avg_sq"),
    "optimizer.state.layers.0.weight.max_exp_avg_sq": ("layers.0.weight", "max_exp_avg_sq"),
    "optimizer.state.layers.0.weight.step": ("layers.0.weight", "step"),
    "optim.state.w.momentum_buffer": ("w", "momentum_buffer"),
    "optimizer_0.state.0.exp_avg": ("0", "exp_avg"),
    "optimizer.state.state.norm.weight.exp_avg": ("state.norm.weight", "exp_avg"),
    # Megatron: the state's name first
    "optimizer.state.exp_avg.decoder.layers.mlp.weight": ("decoder.layers.mlp.weight", "exp_avg"),
    "optimizer.state.fp32_param.output_layer.weight": ("output_layer.weight", "fp32_param"),
    "chained_1.optimizer.state.exp_avg_sq.output_layer.weight": (
        "output_layer.weight",
        "exp_avg_sq",
    ),
    # neither parameter nor state
    "optimizer.param_groups.0.lr": None,
    "optimizer.state.w.unheard_of": None,
    "model.state.w.exp_avg": None,
    "train_state.step": None,
    "train_state.w.step": None,
    "layers.0.weight": None,
    "": None,
}


@pytest.mark.parametrize("fqn", OPTIMIZER_STATES)
def test_optimizer_states(fqn: str) -> None:
    assert optimizer_state_of(fqn) == OPTIMIZER_STATES[fqn]


@pytest.mark.parametrize("name", ["step-{}", "epoch={}-step={}", "step_{}.pt", "{}"])
def test_a_number_of_very_many_digits_counts_nothing(name: str) -> None:
    """Metadata may say that it was saved under any name, and the text of a number has a limit."""
    for digits in (19, 5000):
        found = parse_name(name.replace("{}", "9" * digits))
        assert (found.step, found.epoch) == (None, None)
    assert parse_name(name.replace("{}", "9" * 18)).step == 10**18 - 1
