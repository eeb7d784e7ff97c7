"""Completeness: which components there are, of which parameters and ranks, and what a profile says."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.checks import Context, by_id
from ckptctl.checks.registry import AUDIT_CHECKS
from ckptctl.completeness.audit import Audit, Lack, Presence, Wanted
from ckptctl.completeness.auditor import Auditor, audit
from ckptctl.completeness.classifier import NAMES, Classifier
from ckptctl.model.checkpoint import Checkpoint, File, ObjectEntry, TensorEntry
from ckptctl.model.finding import Finding, Severity
from ckptctl.model.geometry import Box, Boxes
from ckptctl.operations.find import find
from ckptctl.operations.located import Located
from ckptctl.operations.verify.audit import audit_of, coverage_of
from ckptctl.storage import open_store
from conftest import FIXTURES
from support import damage as damage
from support.publish import ckptctl, done, refused
from support.samples import FIXTURE_CASES, HEALTHY, INDISTINGUISHABLE

Copy = Callable[..., Path]

# ---------------------------------------------------------------------------------- made-up keys


def checkpoint_of(
    keys: Mapping[str, tuple[int, ...] | str | None] | Iterable[str],
    *,
    files: Iterable[str] = (),
    paths: Mapping[str, tuple[str | int, ...]] | None = None,
) -> Checkpoint:
    """Make a checkpoint of keys alone: a shape for a tensor, None for an object."""
    shapes = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, (4, 2))
    entries: dict[str, TensorEntry | ObjectEntry] = {}
    for fqn, shape in shapes.items():
        if shape is None:
            entries[fqn] = ObjectEntry(fqn)
        else:
            size = shape if isinstance(shape, tuple) else (4, 2)
            dtype = shape if isinstance(shape, str) else "float32"
            boxes = Boxes.of(len(size), [Box((0,) * len(size), size)])
            entries[fqn] = TensorEntry(fqn, dtype, size, boxes)
    listed = {name: File(name, 10) for name in files}
    return Checkpoint("dcp", listed, (".metadata",), entries, paths_in_state=paths or {})


def adam(names: Iterable[str], *, prefix: str = "optimizer.state") -> dict[str, tuple[int, ...]]:
    """Return the keys of Adam's state of some parameters."""
    keys: dict[str, tuple[int, ...]] = {}
    for name in names:
        keys[f"{prefix}.{name}.exp_avg"] = (4, 2)
        keys[f"{prefix}.{name}.exp_avg_sq"] = (4, 2)
        keys[f"{prefix}.{name}.step"] = ()
    return keys


def model(names: Iterable[str], prefix: str = "model.") -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{name}": (4, 2) for name in names}


def lacks(found: Audit, name: str) -> dict[Lack, tuple[str, ...]]:
    return {gap.lack: gap.names for gap in found[name].gaps}


def findings_of(
    checkpoint: Checkpoint, wanted: Wanted | None = None, **options: Any
) -> list[Finding]:
    wanted = wanted or Wanted()
    found = audit(checkpoint, mapping=wanted.mapping, **options)
    context = Context.of(checkpoint, wanted=wanted, audit=found)
    return [finding for check in AUDIT_CHECKS for finding in check.ask(context, None)]


def worst(findings: Iterable[Finding]) -> Severity | None:
    return max((finding.severity for finding in findings), default=None)


# ---------------------------------------------------------------------------------- classification

KEYS: dict[str, tuple[str, str]] = {
    # key: (of a tensor, of an object)
    "model.layers.0.weight": ("model", "model"),
    "layers.0.weight": ("model", "other"),
    "tok_embeddings.weight": ("model", "other"),
    "decoder.layers.mlp._extra_state/shard_0_2": ("model", "model"),
    "app.model.0.weight": ("model", "model"),
    "app.optim.state.0.weight.exp_avg": ("optimizer", "optimizer"),
    "app.sched.T_max": ("scheduler", "scheduler"),
    "app.samples_seen": ("progress", "progress"),
    "state.model.w": ("model", "model"),
    "state.optimizers.0.state.w.exp_avg": ("optimizer", "optimizer"),
    "state.w.exp_avg": ("optimizer", "optimizer"),
    "param_groups.0.lr": ("optimizer", "optimizer"),
    "optim.param_groups.0.params": ("optimizer", "optimizer"),
    "chained_1.optimizer.state.exp_avg.w": ("optimizer", "optimizer"),
    "optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1": ("optimizer", "optimizer"),
    "lr_scheduler.last_epoch": ("scheduler", "scheduler"),
    "scaler.scale": ("scaler", "scaler"),
    "train_state.step": ("progress", "progress"),
    "train_state.rng.torch": ("rng", "rng"),
    "trainer.dataloader.position": ("data", "data"),
    "train_state.lr_scheduler.last_epoch": ("scheduler", "scheduler"),
    "rank_3.rng.torch": ("rng", "rng"),
    "rng_state/shard_0.0_1.1": ("rng", "rng"),
    "rng_2.python": ("rng", "rng"),
    "dataloader.dp_rank_0": ("data", "data"),
    "common_state/shard_0_1": ("progress", "progress"),
    "run_id": ("other", "other"),
    "args": ("other", "other"),
    "config.model.dim": ("other", "other"),
    "something": ("model", "other"),
    # a submodule may be called like a component
    "sampler.weight": ("model", "data"),
    "data.norm.bias": ("model", "data"),
}


@pytest.mark.parametrize("fqn", KEYS)
def test_components_of_keys(fqn: str) -> None:
    for shape, component in zip(((4, 2), None), KEYS[fqn], strict=True):
        classes = Classifier(checkpoint_of({fqn: shape, "z.w.v": (1,)}))
        assert classes[fqn].component == component, shape


def test_a_generator_is_known_by_its_form() -> None:
    found = checkpoint_of({"model.w": (2,), "shuffle": (2,)})
    state = TensorEntry("mystery", "uint8", (5056,), Boxes.of(1, [Box((0,), (5056,))]))
    classes = Classifier(Checkpoint("dcp", {}, (".metadata",), {**found.entries, "mystery": state}))
    assert [key.component for key in classes] == ["model", "model", "rng"]


def test_an_unknown_element_around_everything_says_nothing() -> None:
    names = {"job.model.w": (2,), "job.optim.state.w.exp_avg": (2,), "job.rng.0": None}
    classes = Classifier(checkpoint_of(names))
    assert [key.component for key in classes] == ["model", "optimizer", "rng"]
    alone = Classifier(checkpoint_of({"encoder.sampler.x": (2,), "encoder.step.y": (2,)}))
    assert {key.component for key in alone} == {"model"}


def test_a_recorded_path_outranks_the_dots() -> None:
    fqn = "optimizer.w"
    path: tuple[str | int, ...] = ("model", "optimizer.w")
    assert Classifier(checkpoint_of({fqn: (2,)}))[fqn].component == "optimizer"
    assert Classifier(checkpoint_of({fqn: (2,)}, paths={fqn: path}))[fqn].component == "model"


def test_objects_beside_tensors_are_the_models_and_others_are_not_known() -> None:
    classes = Classifier(
        checkpoint_of({"net.w": (2,), "net.settings": None, "shoe_size": None, "run_id": None})
    )
    assert classes["net.settings"].component == "model"
    assert (classes["shoe_size"].component, classes["shoe_size"].known) == ("other", False)
    assert (classes["run_id"].component, classes["run_id"].known) == ("other", True)


def test_a_mapping_outranks_everything_and_the_first_counts() -> None:
    mapping = (("*.exp_avg", "data"), ("model.*", "rng"), ("*", "scaler"))
    classes = Classifier(checkpoint_of(["model.w", "optim.state.w.exp_avg", "x"]), mapping)
    assert [key.component for key in classes] == ["rng", "data", "scaler"]


_words = st.sampled_from(
    ["model", "optim", "state", "rng", "rank_1", "step", "w", "0", "exp_avg", "app", "data", "x.y"]
)


@given(st.lists(st.lists(_words, min_size=1, max_size=5), min_size=1, max_size=8), st.booleans())
def test_every_key_is_in_exactly_one_component(paths: list[list[str]], tensors: bool) -> None:
    keys = dict.fromkeys((".".join(path) for path in paths), (2,) if tensors else None)
    found = audit(checkpoint_of(keys))
    assert [part.name for part in found.parts] == list(NAMES)
    assert sum(part.keys for part in found.parts) == len(keys) == found.keys
    assert 0 <= found.unknown <= found["other"].keys


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_a_key(one: str, two: str) -> None:
    assert sum(part.keys for part in audit(checkpoint_of([one, two])).parts) == len({one, two})


# ---------------------------------------------------------------------------------- ranks


@given(
    st.sets(st.integers(0, 11), min_size=1, max_size=8),
    st.sampled_from(
        ["rng.rank_{}.torch", "rng.rank{}", "dataloader.dp_rank_{}.pos", "rank_{}.rng"]
    ),
)
def test_holes_among_ranks_are_found_and_nothing_else(ranks: set[int], form: str) -> None:
    found = audit(checkpoint_of(dict.fromkeys((form.format(r) for r in ranks), None)))
    component = "data" if "dataloader" in form else "rng"
    holes = set(range(max(ranks))) - ranks
    gaps = found[component].gaps
    assert {rank for gap in gaps for rank in gap.ranks} == holes
    assert {gap.lack for gap in gaps} == ({Lack.RANKS} if holes else set())
    assert found[component].presence is (Presence.PARTIAL if holes else Presence.PRESENT)
    assert found[component].ranks == tuple(sorted(ranks))
    assert found.world.size == max(ranks) + 1


@given(st.integers(1, 40), st.integers(1, 40))
def test_ranks_of_data_may_divide_the_world_and_others_may_not(world: int, ranks: int) -> None:
    keys: dict[str, None] = {f"dataloader.dp_rank_{r}": None for r in range(ranks)}
    keys |= {f"rng.rank_{r}": None for r in range(ranks)}
    found = audit(checkpoint_of(keys), world_size=world)
    assert found.world.size == world
    data = {gap.lack for gap in found["data"].gaps}
    rng = {gap.lack for gap in found["rng"].gaps}
    assert data == (set() if ranks >= world or world % ranks == 0 else {Lack.LATER_RANKS})
    assert rng == (set() if ranks >= world else {Lack.LATER_RANKS})
    assert worst(findings_of(checkpoint_of(keys), world_size=world)) in (None, Severity.NOTE)


@pytest.mark.parametrize("form", ["rng.{}.torch", "rng_{}.python", "rng_state_{}", "rngs.{}.numpy"])
def test_numbers_in_generators_are_ranks(form: str) -> None:
    keys = dict.fromkeys((form.format(rank) for rank in (0, 1, 3)), None)
    found = audit(checkpoint_of(keys))
    assert found["rng"].ranks == (0, 1, 3)
    assert found["rng"].gaps[0].ranks == (2,)


def test_numbers_of_devices_are_no_ranks() -> None:
    found = audit(checkpoint_of({"rng.cuda.1": (16,), "rng.torch": (8,)}))
    assert (found["rng"].ranks, found["rng"].gaps) == ((), ())


def test_a_generator_that_one_rank_lacks() -> None:
    keys = {f"rng.rank_{r}.{n}": None for r in range(3) for n in ("python", "torch")}
    del keys["rng.rank_1.python"]
    (gap,) = audit(checkpoint_of(keys))["rng"].gaps
    assert (gap.lack, gap.ranks, gap.names) == (Lack.PARTS, (1,), ("python",))
    assert worst(findings_of(checkpoint_of(keys))) is Severity.WARNING


def test_one_generator_for_all_ranks_is_a_note_until_a_resume_needs_it() -> None:
    found = checkpoint_of({"model.w": (2,), "rng.torch": (8,)})
    assert audit(found, world_size=1)["rng"].presence is Presence.PRESENT
    assert lacks(audit(found, world_size=4), "rng") == {Lack.SHARED: ("rng.torch",)}
    assert worst(findings_of(found, world_size=4)) is Severity.NOTE
    errors = findings_of(found, Wanted("resume"), world_size=4)
    assert any("one generator state" in f.message for f in errors if f.severity is Severity.ERROR)


def test_one_position_for_all_ranks_is_a_warning_where_a_resume_needs_it() -> None:
    found = checkpoint_of({"dataloader.offset": None})
    assert worst(findings_of(found, world_size=4)) is Severity.NOTE
    allowed = frozenset(NAMES) - {"data"}
    assert worst(findings_of(found, Wanted("resume", allowed), world_size=4)) is Severity.WARNING


@pytest.mark.parametrize(
    ("taken", "whole"),
    [(["0.0", "0.1", "1.0", "1.1"], True), (["0.0", "0.1", "1.1"], False), (["0.0"], False)],
)
def test_shards_of_megatron_fill_their_grid(taken: list[str], whole: bool) -> None:
    found = checkpoint_of({f"rng_state/shard_{place}_2.2": None for place in taken})
    assert (audit(found)["rng"].gaps == ()) == whole
    assert worst(findings_of(found)) == (None if whole else Severity.WARNING)


def test_places_of_megatron_in_brackets_fill_their_grid() -> None:
    whole = checkpoint_of({f"rng_state.({p}, {t}).0.np": None for p in (0, 1) for t in (0, 1)})
    assert audit(whole)["rng"].gaps == ()
    holed = checkpoint_of({f"rng_state.({p}, {t}).0.np": None for p, t in ((0, 0), (1, 1))})
    assert [gap.lack for gap in audit(holed)["rng"].gaps] == [Lack.RANKS]


def test_layers_of_the_model_are_no_ranks() -> None:
    keys = {f"decoder.layers.mlp._extra_state/shard_{layer}_4": None for layer in (1, 3)}
    assert findings_of(checkpoint_of({"decoder.w": (2,), **keys})) == []


@pytest.mark.parametrize(
    ("values", "gaps"),
    [
        ({}, set()),
        ({"dataloader.world_size": 2}, set()),
        ({"dataloader.world_size": 4}, {Lack.RANKS}),
        ({"dataloader.world_size": "4"}, set()),
        ({"dataloader.world_size": True}, set()),
        ({"dataloader.world_size": 10**30}, set()),
        ({"dataloader.world_size": -1}, set()),
    ],
)
def test_how_many_ranks_share_the_data_is_what_the_loader_says(
    values: dict[str, object], gaps: set[Lack]
) -> None:
    keys = ["dataloader.dp_rank_0", "dataloader.dp_rank_1", "dataloader.world_size"]
    found = checkpoint_of(dict.fromkeys(keys, None))
    assert Auditor.of(found).questions() == ["dataloader.world_size"]
    result = audit(found, world_size=4, values=values)
    assert {gap.lack for gap in result["data"].gaps} == gaps


def test_a_number_of_ranks_without_a_position_is_empty() -> None:
    found = checkpoint_of({"dataloader.world_size": None, "dataloader.version": None})
    assert audit(found)["data"].presence is Presence.EMPTY
    assert worst(findings_of(found)) is Severity.NOTE


WORLDS: dict[str, tuple[dict[str, Any], int | None, str]] = {
    "nothing": ({"keys": {"model.w": (2,)}}, None, ""),
    "ranks in keys": ({"keys": {"rng.rank_0": None, "rng.rank_4": None}}, 5, "rng.rank_0 to 4"),
    "receipts": (
        {
            "keys": {"model.w": (2,)},
            "files": [f"ckptctl.receipts/rank-{rank:05d}.json" for rank in range(3)],
        },
        3,
        "receipts of rank 0 to 2",
    ),
    "random states beside": (
        {"keys": {"model.w": (2,)}, "files": ["rng_state_0.pth", "rng_state_1.pth"]},
        2,
        "rng_state_0 to 1",
    ),
    "megatron's state machine": (
        {"keys": {f"rerun_state_machine_state/shard_{rank}_8": None for rank in range(8)}},
        8,
        "rerun_state_machine_state/shard_*_8",
    ),
    "an absurd rank": ({"keys": {"rng.rank_9999999": None}}, None, ""),
}


@pytest.mark.parametrize("case", WORLDS)
def test_world_size(case: str) -> None:
    made, size, said = WORLDS[case]
    found = audit(checkpoint_of(made["keys"], files=made.get("files", ()))).world
    assert (found.size, " ".join(found.evidence)) == (size, said)


def test_the_manifest_has_the_last_word_on_the_world_size() -> None:
    found = audit(checkpoint_of({"rng.rank_0": None, "rng.rank_1": None}), world_size=2).world
    assert (found.size, found.evidence) == (2, ("the manifest", "rng.rank_0 to 1"))


# ---------------------------------------------------------------------------------- optimizers

LAYERS = [f"layers.{i}.{name}" for i in range(4) for name in ("attn.weight", "mlp.weight")]


@pytest.mark.parametrize("prefix", ["model.", "", "app.model.", "model._orig_mod.", "module."])
@pytest.mark.parametrize("outer", ["", "module.module."])
def test_state_of_all_parameters(prefix: str, outer: str) -> None:
    keys = {**model(LAYERS, prefix), **adam(outer + name for name in LAYERS)}
    found = audit(checkpoint_of(keys))["optimizer"]
    assert (found.presence, found.gaps) == (Presence.PRESENT, ())
    assert found.evidence == ("state of 8 of 8 parameters, by their names",)


def test_state_whose_name_stands_before_the_parameter() -> None:
    keys = model(LAYERS, "")
    for name in LAYERS:
        for state in ("fp32_param", "exp_avg", "exp_avg_sq"):
            keys[f"optimizer.state.{state}.{name}"] = (4, 2)
    found = audit(checkpoint_of(keys))["optimizer"]
    assert (found.gaps, found.evidence) == ((), ("state of 8 of 8 parameters, by their names",))
    del keys[f"optimizer.state.exp_avg_sq.{LAYERS[3]}"]
    assert lacks(audit(checkpoint_of(keys)), "optimizer") == {Lack.MOMENTS: (LAYERS[3],)}


@pytest.mark.parametrize("lost", ["exp_avg", "exp_avg_sq", "step"])
def test_a_moment_that_one_parameter_lacks(lost: str) -> None:
    keys = {**model(LAYERS), **adam(LAYERS)}
    del keys[f"optimizer.state.{LAYERS[2]}.{lost}"]
    found = checkpoint_of(keys)
    assert lacks(audit(found), "optimizer") == {Lack.MOMENTS: (LAYERS[2],)}
    assert audit(found)["optimizer"].presence is Presence.PARTIAL
    assert worst(findings_of(found)) is Severity.WARNING
    errors = [f for f in findings_of(found, Wanted("resume")) if LAYERS[2] in f.message]
    assert [finding.severity for finding in errors] == [Severity.ERROR]
    assert findings_of(found, Wanted("weights"))[0].severity is Severity.NOTE


def _frozen_layers() -> dict[str, tuple[int, ...]]:
    return {**model(LAYERS), **adam(LAYERS[4:])}


def _adapters() -> dict[str, tuple[int, ...]]:
    added = [f"layers.{i}.lora.weight" for i in range(4)]
    return {**model([*LAYERS, *added]), **adam(added)}


def _lion_and_adam() -> dict[str, tuple[int, ...]]:
    lion = {f"optimizer.state.{name}.exp_avg": (4, 2) for name in LAYERS[:2]}
    return {**model(LAYERS), **adam(LAYERS[2:]), **lion}


def _muon_and_adam() -> dict[str, tuple[int, ...]]:
    muon = {f"optimizer.state.{name}.momentum_buffer": (4, 2) for name in LAYERS[:4]}
    return {**model(LAYERS), **adam(LAYERS[4:]), **muon}


def _adafactor() -> dict[str, tuple[int, ...]]:
    keys = model([*LAYERS, "norm.weight"])
    for name in LAYERS:
        for state in ("exp_avg", "exp_avg_sq_row", "exp_avg_sq_col", "step"):
            keys[f"optimizer.state.{name}.{state}"] = (4, 2)
    return {**keys, **adam(["norm.weight"])}


def _buffers() -> dict[str, Any]:
    odd = {f"model.bn.{name}": (4,) for name in ("running_mean", "running_var")}
    return {
        **model(LAYERS),
        **adam(LAYERS),
        **odd,
        "model.bn.num_batches_tracked": "int64",
        "model.freqs": "complex64",
        "model.mask": "bool",
        "model.te._extra_state": None,
        "ema.layers.0.attn.weight": (4, 2),
    }


def _tied() -> dict[str, tuple[int, ...]]:
    return {**model([*LAYERS, "embed.weight", "lm_head.weight"]), **adam([*LAYERS, "embed.weight"])}


def _fused() -> dict[str, tuple[int, ...]]:
    keys = {**model(LAYERS), **adam(LAYERS)}
    keys |= model(f"layers.0.qkv.{part}.weight" for part in ("wq", "wk", "wv"))
    keys["optimizer.state.layers.0.qkv.wqkv.weight.exp_avg"] = (12, 2)
    keys["optimizer.state.layers.0.qkv.wqkv.weight.exp_avg_sq"] = (12, 2)
    keys["optimizer.state.layers.0.qkv.wqkv.weight.step"] = ()
    return keys


def _numbered() -> dict[str, tuple[int, ...]]:
    return {**model(LAYERS), **adam(map(str, range(8)))}


def _buckets() -> dict[str, tuple[int, ...]]:
    stem = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32).bucket_idx_0"
    states = {f"{stem}.{name}": (80,) for name in ("param", "exp_avg", "exp_avg_sq")}
    return {**model(LAYERS, ""), **states}


LEGAL: dict[str, Callable[[], dict[str, Any]]] = {
    "frozen layers": _frozen_layers,
    "frozen but for adapters": _adapters,
    "lion for some": _lion_and_adam,
    "muon for some": _muon_and_adam,
    "adafactor": _adafactor,
    "buffers": _buffers,
    "tied weights": _tied,
    "fused weights": _fused,
    "numbered parameters": _numbered,
    "flat buckets": _buckets,
    "weights alone": lambda: model(LAYERS),
    "an optimizer alone": lambda: adam(LAYERS),
    "amsgrad for some": lambda: {
        **model(LAYERS),
        **adam(LAYERS),
        f"optimizer.state.{LAYERS[0]}.max_exp_avg_sq": (4, 2),
    },
}


@pytest.mark.parametrize("case", LEGAL)
def test_a_legal_optimizer_raises_no_alarm(case: str) -> None:
    found = checkpoint_of(LEGAL[case]())
    assert findings_of(found) == []
    others = Wanted("resume", frozenset({"scheduler", "progress", "data", "rng"}))
    expected = {"an optimizer alone": ["there is no model"]}
    expected["weights alone"] = ["there is no optimizer state"]
    errors = [f for f in findings_of(found, others) if f.severity >= Severity.WARNING]
    assert [f.message.partition(",")[0] for f in errors] == expected.get(case, [])


def test_frozen_parameters_are_named_where_a_resume_is_asked_for() -> None:
    found = checkpoint_of(_frozen_layers())
    names = lacks(audit(found), "optimizer")[Lack.STATELESS]
    assert names == tuple(LAYERS[:4])
    (note,) = [f for f in findings_of(found, Wanted("resume")) if "optimizer: " in f.message]
    assert (note.check, note.severity) == ("stateless-parameters", Severity.NOTE)
    assert "4 of 8 parameters" in note.message


def test_a_single_parameter_without_state_looks_lost() -> None:
    keys = {**model(LAYERS), **adam(name for name in LAYERS if name != LAYERS[4])}
    found = checkpoint_of(keys)
    assert lacks(audit(found), "optimizer") == {Lack.GONE: (LAYERS[4],)}
    (note,) = findings_of(found)
    assert (note.severity, LAYERS[4] in note.message) == (Severity.NOTE, True)
    marks = [f for f in findings_of(found, Wanted("resume")) if LAYERS[4] in f.message]
    assert [finding.severity for finding in marks] == [Severity.WARNING]


def test_state_of_a_parameter_that_the_model_lacks() -> None:
    keys = {**model(LAYERS[1:]), **adam(LAYERS)}
    found = checkpoint_of(keys)
    assert lacks(audit(found), "model") == {Lack.ORPHANS: (LAYERS[0],)}
    assert worst(findings_of(found)) is Severity.WARNING
    for profile in ("weights", "serve"):
        assert worst(findings_of(found, Wanted(profile))) is Severity.ERROR
    # with as much state missing as is left over, the parameter may have another name
    keys["model.renamed"] = (5, 2)
    assert list(lacks(audit(checkpoint_of(keys)), "model")) == [Lack.UNCERTAIN_ORPHANS]
    assert findings_of(checkpoint_of(keys)) == []


@pytest.mark.parametrize(
    ("settings", "values", "presence"),
    [
        (("lr", "betas"), {}, Presence.EMPTY),
        (("lr", "momentum"), {}, Presence.EMPTY),
        (("lr", "momentum"), {"optimizer.param_groups.0.momentum": 0.9}, Presence.EMPTY),
        (("lr", "momentum"), {"optimizer.param_groups.0.momentum": 0}, Presence.PRESENT),
        (("lr", "momentum"), {"optimizer.param_groups.0.momentum": 0.0}, Presence.PRESENT),
    ],
)
def test_an_optimizer_without_state(
    settings: tuple[str, ...], values: dict[str, object], presence: Presence
) -> None:
    keys: dict[str, tuple[int, ...] | str | None] = {**model(LAYERS)}
    keys |= {f"optimizer.param_groups.0.{name}": None for name in settings}
    found = checkpoint_of(keys)
    expected = ["optimizer.param_groups.0.momentum"] if "momentum" in settings else []
    assert Auditor.of(found).questions() == expected
    assert audit(found, values=values)["optimizer"].presence is presence
    without, strict = (
        [f for f in findings_of(found, wanted, values=values) if f.check == "empty-component"]
        for wanted in (None, Wanted("resume"))
    )
    empty = presence is Presence.EMPTY
    assert [f.severity for f in without] == ([Severity.NOTE] if empty else [])
    assert [f.severity for f in strict] == ([Severity.ERROR] if empty else [])
    lifted = findings_of(found, Wanted("resume", frozenset({"optimizer"})), values=values)
    assert all(f.severity is Severity.NOTE for f in lifted if f.check == "empty-component")


def test_fewer_elements_of_state_than_of_weights_are_told() -> None:
    keys = _numbered()
    for state in ("exp_avg", "exp_avg_sq", "step"):
        del keys[f"optimizer.state.7.{state}"]
    (gap,) = audit(checkpoint_of(keys))["optimizer"].gaps
    assert (gap.lack, "56 of the model's 64" in gap.message) == (Lack.STATELESS, True)
    keys = _buckets()
    keys[next(key for key in keys if key.endswith("exp_avg_sq"))] = (40,)
    assert Lack.MOMENTS in lacks(audit(checkpoint_of(keys)), "optimizer")


# ---------------------------------------------------------------------------------- real files

ALL = {"model": "present", "optimizer": "present", "scheduler": "present", "progress": "present"}
ONE_FILE = {"scheduler": "present", "progress": "present", "data": "present"}
SAMPLES: dict[str, tuple[int, dict[str, str]]] = {
    # sample: (world size, component: state); what is not named is absent
    "dcp/async_save": (4, {**ALL, "data": "present", "rng": "present"}),
    "dcp/fsdp2_step3": (4, {**ALL, "data": "present", "rng": "present"}),
    "dcp/hsdp": (4, {**ALL, "data": "present", "rng": "present"}),
    "dcp/replicated_ddp": (4, {**ALL, "data": "present", "rng": "partial"}),
    "dcp/resharded_offline_w3": (3, {**ALL, "data": "present", "rng": "partial"}),
    "dcp/rank_local_no_collectives": (
        2,
        {**ALL, "scheduler": "duplicated", "progress": "duplicated"}
        | {"data": "present", "rng": "present"},
    ),
    "dcp/torchtitan_flat_keys": (2, {**ALL, "data": "present"}),
    "dcp/fsdp1_sharded": (3, {"model": "present", "optimizer": "present"}),
    "dcp/single_file_per_item": (4, {"model": "present"}),
    "dcp/zstd_extension": (1, {"model": "present", "progress": "present"}),
    "dcp/megatron_like_synthetic": (
        1,
        {"model": "present", "optimizer": "present", "rng": "present", **ONE_FILE},
    ),
    "torch/dcp_ddp_w2/step-4": (2, ALL),
    "torch/dcp_fsdp1_flat_w2/step-4": (2, ALL),
    "torch/dcp_fsdp1_orig_w2/step-4": (2, ALL),
    "torch/dcp_fsdp2_w4/step-4": (4, ALL),
    "torch/dcp_hsdp_2x2/step-4": (4, ALL),
    "torchtitan/fsdp_dp4/checkpoint/step-4": (4, {**ALL, "data": "present"}),
    "torchtitan/tp2_dp2/checkpoint/step-4": (4, {**ALL, "data": "present"}),
    "torchtitan/async_dp2/checkpoint/step-4": (2, {**ALL, "data": "present"}),
    "torchtitan/fsdp_dp2_model_only_last/checkpoint/step-4": (2, {**ALL, "data": "present"}),
    "torchtitan/fsdp_dp2_model_only_last/checkpoint/step-6": (2, {"model": "present"}),
    "megatron/v0.16.1_torch_dist_dp2_distopt/iter_0000002": (
        2,
        {"model": "present", "optimizer": "present", "rng": "present", **ONE_FILE},
    ),
    "megatron/v0.19_torch_dist_dp2_distopt/iter_0000002": (
        2,
        {"model": "present", "optimizer": "present", "rng": "present", **ONE_FILE},
    ),
    "megatron/v0.19_torch_dist_dp2_fullyreshard_retain4/iter_0000004": (
        2,
        {"model": "present", "optimizer": "present", "rng": "present", **ONE_FILE},
    ),
    "megatron/v0.19_torch_dist_tp2dp2_distopt_bf16/iter_0000002": (
        4,
        {"model": "present", "optimizer": "present", "rng": "present", **ONE_FILE},
    ),
    "lightning/fsdp1_sharded/checkpoints/step=4.ckpt": (2, ALL),
    "lightning/fsdp2_modelparallel/checkpoints/step=4.ckpt": (2, ALL),
    "olmo_core/fsdp2_w2/step4/model_and_optim": (2, {"model": "present", "optimizer": "present"}),
    "hf/trainer_fsdp1_local/checkpoint-4/optimizer_0": (2, {"optimizer": "present"}),
    "hf/trainer_fsdp2_sharded/checkpoint-4/optimizer_0": (2, {"optimizer": "present"}),
    "hf/trainer_fsdp2_sharded/checkpoint-4/pytorch_model_fsdp_0": (2, {"model": "present"}),
}


def audit_at(root: Path, wanted: Wanted | None = None) -> tuple[Audit, list[Finding]]:
    """Audit a checkpoint on disk as ``verify`` does."""
    store = open_store(root)
    (place,) = find(store)
    located = Located(store, place)
    context = Context.of(located.read(), wanted=wanted or Wanted())
    found = audit_of(located, context)
    assert found is not None
    row = coverage_of(found)
    assert (row.unit, row.total) == ("keys", found.keys)
    context = replace(context, audit=found)
    return found, [f for check in AUDIT_CHECKS for f in check.ask(context, None)]


def states(found: Audit) -> dict[str, str]:
    return {p.name: p.presence.value for p in found.parts if p.presence is not Presence.ABSENT}


@pytest.mark.parametrize("case", SAMPLES)
def test_samples(samples: Path, case: str) -> None:
    size, expected = SAMPLES[case]
    found, _ = audit_at(samples / case)
    assert states(found) == expected
    assert found.world.size == size
    assert found.unknown == 0
    assert sum(part.keys for part in found.parts) == found.keys


def test_what_files_beside_hold_is_said_to_be_unopened(samples: Path) -> None:
    found, _ = audit_at(samples / "megatron/v0.16.1_torch_dist_dp2_distopt/iter_0000002")
    assert {part.name: part.sources for part in found.parts if part.sources} == dict.fromkeys(
        ("scheduler", "data", "progress"), ("common.pt",)
    )
    found, _ = audit_at(samples / "megatron/v0.19_torch_dist_dp2_distopt/iter_0000002")
    assert found["scheduler"].sources == ("common_state/shard_0_1",)
    assert found["optimizer"].evidence == ("state of all parameters, by their sizes",)


@pytest.mark.parametrize("case", [*HEALTHY, *INDISTINGUISHABLE])
def test_nothing_healthy_is_accused(samples: Path, case: str) -> None:
    _, findings = audit_at(samples / case)
    assert worst(findings) in (None, Severity.NOTE)


@pytest.mark.parametrize("case", FIXTURE_CASES)
def test_no_fixture_is_accused(case: str) -> None:
    found, findings = audit_at(FIXTURES / case)
    assert findings == []
    assert found.unknown == 0


@pytest.mark.parametrize(
    "case", ["fsdp2/step-8", "fsdp2/step-12", "ddp/step-12", "no_dist/step-12"]
)
def test_a_whole_fixture_can_be_resumed_from(case: str) -> None:
    found, findings = audit_at(FIXTURES / case, Wanted("resume"))
    assert set(states(found)) == {*ALL, "data", "rng"}
    assert [(f.check, f.severity) for f in findings] == [("stateless-parameters", Severity.NOTE)]
    assert "scale" in findings[0].message


# ---------------------------------------------------------------------------------- S17


def forget(checkpoint: Path, *prefixes: str) -> None:
    """Leave keys out as if they had not been saved: of the metadata, and their bytes too."""
    with damage.edited(checkpoint) as metadata:
        for name in [n for n in metadata.state_dict_metadata if n.startswith(prefixes)]:
            del metadata.state_dict_metadata[name]
            metadata.planner_data.pop(name, None)
        for key in [k for k in metadata.storage_data if k.fqn.startswith(prefixes)]:
            damage.cut_out(checkpoint, metadata, metadata.storage_data.pop(key))


S17: dict[str, tuple[tuple[str, ...], str, str, dict[str, str]]] = {
    # case: (keys left out, the line of verify, what allows it, findings: severity without profile)
    "weights only": (
        ("optimizer", "lr_scheduler", "rng", "dataloader", "train_state"),
        "weights only; no optimizer, scheduler, scaler, rng, data, progress",
        "optimizer scheduler rng data progress",
        {},
    ),
    "no optimizer": (("optimizer",), "; no optimizer, scaler;", "optimizer", {}),
    "no scheduler": (("lr_scheduler",), "; no scheduler, scaler;", "scheduler", {}),
    "rank 2 without data": (
        ("dataloader.dp_rank_2",),
        "data of ranks 0-1, 3;",
        "data",
        {"partial-component": "warning"},
    ),
    "rank 1 without random state": (
        ("rng.rank_1",),
        "rng of ranks 0, 2-3;",
        "rng",
        {"partial-component": "warning"},
    ),
    "rank 1 without numpy": (("rng.rank_1.numpy",), "", "rng", {"partial-component": "warning"}),
    "settings alone": (
        ("optimizer.state",),
        "optimizer (empty)",
        "optimizer",
        {"empty-component": "note"},
    ),
    "second moment of one": (
        ("optimizer.state.up.weight.exp_avg_sq",),
        "optimizer (partial)",
        "optimizer",
        {"partial-component": "warning"},
    ),
}


def audited(path: Path, *options: str) -> tuple[int, dict[str, str], dict[str, str]]:
    """Verify; return the exit code, severities and messages by check of the audit's findings."""
    ended = ckptctl("verify", path, "--quick", "--json", *options)
    (result,) = ended.json()["checkpoints"]
    own = {check.id for check in AUDIT_CHECKS}
    found = [f for f in result["report"]["findings"] if f["check"] in own]
    return (
        ended.code,
        {f["check"]: f["severity"] for f in reversed(found)},
        {f["check"]: f["message"] + " / " + f["loss"] for f in reversed(found)},
    )


@pytest.mark.parametrize("case", S17)
def test_s17(copy: Copy, case: str) -> None:
    pytest.importorskip("torch")
    prefixes, line, allowed, expected = S17[case]
    path = copy("fsdp2/step-12")
    forget(path, *prefixes)
    ended = done("verify", path, "--quick")
    (shown,) = [text for text in ended.stdout.splitlines() if text.strip().startswith("audit")]
    assert line in shown
    code, severities, _ = audited(path)
    assert (code, severities) == (0, expected)
    code, severities, messages = audited(path, "--require", "resume")
    assert code == 10
    assert "error" in severities.values()
    for component in allowed.split():
        assert any(f"allow_missing={component}" in text for text in _texts(path)), messages
    options = [word for name in allowed.split() for word in ("--allow-missing", name)]
    code, severities, _ = audited(path, "--require", "resume", *options)
    assert (code, set(severities.values())) == (0, {"note"})
    # the optimizer and the ranks do not matter to who wants the weights
    for profile in ("weights", "serve"):
        code, severities, _ = audited(path, "--require", profile)
        assert (code, set(severities.values()) <= {"note"}) == (0, True)


def _texts(path: Path) -> list[str]:
    ended = ckptctl("verify", path, "--quick", "--json", "--require", "resume")
    return [f["message"] for f in ended.json()["checkpoints"][0]["report"]["findings"]]


def test_s17_a_rank_is_named_with_what_it_costs(copy: Copy) -> None:
    pytest.importorskip("torch")
    path = copy("fsdp2/step-12")
    forget(path, "dataloader.dp_rank_2")
    _, _, messages = audited(path)
    said = messages["partial-component"]
    assert "dp rank 2 of 4 has no data position: dataloader.dp_rank_2 is not there" in said
    assert "for rank 2: the position in the data: samples repeat or are skipped" in said
    assert ckptctl("verify", path, "--quick", "--fail-on", "warning").code == 10


def test_no_model_at_all(copy: Copy) -> None:
    pytest.importorskip("torch")
    path = copy("fsdp2/step-12")
    forget(path, "model.")
    for profile in ("resume", "weights", "serve"):
        code, severities, _ = audited(path, "--require", profile)
        assert (code, severities["missing-component"]) == (10, "error")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_as_torch_saves_it(tmp_path: Path, momentum: float) -> None:
    """Its momentum is read where there is no state, and only there."""
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {
        "model": get_model_state_dict(net),
        "optimizer": get_optimizer_state_dict(net, optimizer),
        "lr_scheduler": {"last_epoch": 1},
        "step": 1,
        "dataloader": {"position": 2},
        "rng": {"torch": torch.get_rng_state()},
    }
    path = tmp_path / "run" / "step-1"
    damage.save_with_torch(path, state)
    code, severities, _ = audited(path, "--require", "resume")
    assert (code, severities) == (0, {})
    for entry in list(state["optimizer"]["state"]):
        state["optimizer"]["state"][entry] = {}
    lost = tmp_path / "run" / "step-2"
    damage.save_with_torch(lost, state)
    code, severities, _ = audited(lost, "--require", "resume")
    assert (code, severities) == ((10, {"empty-component": "error"}) if momentum else (0, {}))


def test_a_loader_that_says_how_many_ranks_it_has(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    loader: dict[str, Any] = {"dp_rank_0": {"at": 1}, "dp_rank_1": {"at": 2}, "world_size": 2}
    for step, size in ((1, 2), (2, 4)):
        loader["world_size"] = size
        damage.save_with_torch(tmp_path / f"run/step-{step}", {"step": step, "dataloader": loader})
    assert audited(tmp_path / "run/step-1")[:2] == (0, {})
    _, severities, messages = audited(tmp_path / "run/step-2")
    assert severities == {"partial-component": "warning"}
    assert "dp ranks 2-3 of 4 have no data position" in messages["partial-component"]


# ---------------------------------------------------------------------------------- command line


def test_the_audit_is_in_the_json_in_full() -> None:
    (result,) = done("verify", FIXTURES / "fsdp2/step-12", "--quick", "--json").json()[
        "checkpoints"
    ]
    parts = {part["name"]: part for part in result["audit"]["parts"]}
    assert list(parts) == list(NAMES)
    assert parts["rng"]["ranks"] == [0, 1, 2, 3]
    assert parts["scaler"]["presence"] == "absent"
    assert result["audit"]["world"]["size"] == 4
    assert "rng.rank_0 to 3" in result["audit"]["world"]["evidence"]
    assert Counter(part["presence"] for part in parts.values()) == {"present": 6, "absent": 2}
    rows = [row for row in result["report"]["coverage"] if row["stage"] == "audit"]
    assert [(row["examined"], row["total"], row["gaps"]) for row in rows] == [(61, 61, [])]


def test_a_mapping_moves_keys(copy: Copy) -> None:
    path = FIXTURES / "fsdp2/step-12"
    done("verify", path, "--quick", "--require", "resume")
    options = ("--require", "resume", "--map", "train_state.*=other", "--map", "rng.*=scaler")
    code, _, _ = audited(path, *options)
    assert code == 10
    missing = [text for text in _texts_of(path, *options) if text.startswith("there is no")]
    assert [text.split(",")[0] for text in missing] == [
        "there is no random generator state",
        "there is no training progress (steps",
    ]


def _texts_of(path: Path, *options: str) -> list[str]:
    ended = ckptctl("verify", path, "--quick", "--json", *options)
    return sorted(f["message"] for f in ended.json()["checkpoints"][0]["report"]["findings"])


@pytest.mark.parametrize(
    "options",
    [
        ("--require", "everything"),
        ("--require", "resume", "--require", "weights"),
        ("--allow-missing", "luck"),
        ("--map", "model"),
        ("--map", "model.*=luck"),
        ("--map", "=model"),
    ],
)
def test_usage(options: tuple[str, ...]) -> None:
    assert ckptctl("verify", FIXTURES / "fsdp2/step-12", *options).code == 2


def test_profiles_and_the_manifest_can_be_required_together(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    both = ("--require", "manifest", "--require", "resume")
    assert ckptctl("verify", path, "--quick", *both).code == 10
    done("commit", path)
    done("verify", path, "--quick", *both)
    done("verify", path, "--quick", env={"CKPTCTL_VERIFY_REQUIRE": "manifest resume"})


def test_serving_needs_nothing_else(copy: Copy) -> None:
    code, severities, messages = audited(FIXTURES / "fsdp2/step-12", "--require", "serve")
    assert (code, severities["unneeded-component"]) == (0, "note")
    assert "optimizer, scheduler, rng, data, progress" in messages["unneeded-component"]


@pytest.mark.parametrize("check", [check.id for check in AUDIT_CHECKS])
def test_a_check_can_be_left_out(check: str) -> None:
    assert check in by_id()
    path = FIXTURES / "dedup_lowest_rank/step-12"
    ended = ckptctl("verify", path, "--quick", "--require", "resume", "--ignore", check)
    assert ended.code == (0 if check == "missing-component" else 10)


# ---------------------------------------------------------------------------------- promoting


def test_promotion_needs_all_that_a_resume_needs(copy: Copy) -> None:
    path = copy("hsdp/step-12")
    done("commit", path)
    said = refused("promote", path, code=10)
    assert "--require resume" in said
    assert "no random generator state" in said
    assert "--allow-missing rng" in said
    assert "scheduler" not in said
    assert not (path.parent / "ckptctl.pointers").exists()
    assert "would move" in done("promote", path, "--dry-run", "--allow-missing", "rng").stdout
    assert "moved" in done("promote", path, "--allow-missing", "rng").stdout


def test_a_refusal_names_all_that_is_missing_and_what_allows_it(copy: Copy) -> None:
    path = copy("zstd/step-12")
    done("commit", path)
    said = refused("promote", path, code=10)
    for name in ("optimizer", "scheduler", "progress", "data", "rng"):
        assert f"--allow-missing {name}" in said
    assert "--allow-missing model" not in said
    assert ckptctl("promote", path, "--require", "everything").code == 2
    done("promote", path, "--require", "weights")


@pytest.mark.parametrize("options", [("--require", "none"), ("--require", "serve")])
def test_promotion_may_ask_for_less(copy: Copy, options: tuple[str, ...]) -> None:
    path = copy("dedup_lowest_rank/step-12")
    done("commit", path, "--promote", *options)
    assert done("resolve", path.parent).stdout == f"{path}\n"


def test_commit_passes_on_what_promotion_needs(copy: Copy) -> None:
    path = copy("hsdp/step-12")
    assert ckptctl("commit", path, "--allow-missing", "rng").code == 2
    assert ckptctl("commit", path, "--require", "weights").code == 2
    ended = ckptctl("commit", path, "--promote")
    assert (ended.code, "--allow-missing rng" in ended.stderr) == (10, True)
    assert (path / "ckptctl.manifest.json").is_file()
    shutil.rmtree(path)
    path = copy("hsdp/step-12")
    done("commit", path, "--promote", "--allow-missing", "rng", "--map", "train_state.*=progress")


def test_a_mapping_is_kept_in_the_manifest(copy: Copy) -> None:
    path = copy("fsdp2/step-12")
    done("commit", path, "--map", "rng.*=other")
    components = json.loads((path / "ckptctl.manifest.json").read_text())["components"]
    assert ("rng" in components, components["other"]) == (False, [0, 1, 2, 3])


def test_damage_is_told_before_what_is_missing(copy: Copy) -> None:
    path = copy("hsdp/step-12")
    done("commit", path)
    damage.flip_byte(path, file="__1_0.distcp", at=5000)
    assert "altered-file" in refused("promote", path, code=10)


# ---------------------------------------------------------------------------------- hostile names


def test_hostile_numbers_cost_nothing() -> None:
    huge = "9" * 4000
    keys = [
        f"rng.rank_{huge}",
        f"rng_state/shard_{huge}_{huge}",
        f"rng_state/shard_{'9.' * 900}9_{'9.' * 900}9",
        f"rng_state.({huge}, 1)",
        "rng_state.(9999999, 9999999, 9999999)",
        "rng_state/shard_0.0_9999999.9999999",
        f"dataloader.dp_rank_{huge}.x",
        f"rng.{huge}.torch",
        "rng.rank_-1",
        "rng.rank_\u0663",
    ]
    found = audit(checkpoint_of(dict.fromkeys(keys, None)))
    assert sum(part.keys for part in found.parts) == len(keys)
    assert found.world.size is None or found.world.size < 1 << 20
    assert all(len(gap.message) < 400 + 2 * len(huge) for part in found.parts for gap in part.gaps)


def test_many_keys_are_classified_quickly() -> None:
    names = [f"layers.{i}.mlp.{j}.weight" for i in range(200) for j in range(20)]
    found = audit(checkpoint_of({**model(names, ""), **adam(names)}))
    assert found["optimizer"].gaps == ()
    assert math.isclose(found.keys, 4 * len(names))


def test_keys_that_nothing_identifies_are_said_and_can_be_mapped(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "run" / "step-1"
    damage.save_with_torch(path, {"step": 1, "shoe_size": 42, "run_id": "a"})
    said = done("verify", path, "--quick").stdout
    assert "2 other keys" in said
    assert "1 not examined: not recognised, `--map" in said
    options = ("--map", "shoe_*=progress")
    (result,) = done("verify", path, "--quick", "--json", *options).json()["checkpoints"]
    assert (result["audit"]["unknown"], result["audit"]["unknown_names"]) == (0, [])
    (result,) = done("verify", path, "--quick", "--json").json()["checkpoints"]
    assert (result["audit"]["unknown"], result["audit"]["unknown_names"]) == (1, ["shoe_size"])
