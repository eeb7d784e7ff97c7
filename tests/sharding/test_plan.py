"""Plans: what goes where, what is copied, what becomes of state that ranks have their own of."""

from __future__ import annotations

import itertools
import json
import pickle
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.completeness.classifier import Classifier
from ckptctl.errors import MalformedData, UsageError
from ckptctl.formats.dcp import reader as dcp
from ckptctl.formats.torch.zip_writer import item_length
from ckptctl.model.checkpoint import Checkpoint, Entry, Items, ObjectEntry, TensorEntry
from ckptctl.model.geometry import Box, Boxes, tile
from ckptctl.operations.reshard.plan import Planned, Request, plan_reshard
from ckptctl.sharding.cuts import DimRule, SourceLayout, cuts_of
from ckptctl.sharding.mesh import Mesh, parts
from ckptctl.sharding.plan import Copy, Plan, Write
from ckptctl.sharding.rank_policy import Policy
from ckptctl.sharding.rank_state import Family, families
from ckptctl.storage.posix import PosixStore
from conftest import FIXTURES
from support.effort import calls

KEEP = {"rng": Policy.KEEP, "data": Policy.KEEP}
Cut = tuple[str, tuple[int, ...], Sequence[Box]]


def made(
    tensors: Mapping[str, Cut],
    objects: Sequence[str] = (),
    *,
    paths: Mapping[str, tuple[str | int, ...]] | None = None,
    transforms: Mapping[int, tuple[str, ...]] | None = None,
) -> Checkpoint:
    """A checkpoint of tensors (dtype, shape, boxes) and objects, one file for each box number."""
    entries: dict[str, Entry] = {}
    items = Items(transforms=transforms or {})
    ends: dict[str, int] = {}

    def add(fqn: str, origin: tuple[int, ...] | None, rank: int, length: int) -> None:
        path = f"__{rank}_0.distcp"
        items.fqns.append(fqn)
        items.origins.append(origin)
        items.paths.append(path)
        items.offsets.append(ends.get(path, 0))
        items.lengths.append(length)
        ends[path] = ends.get(path, 0) + length

    for fqn, (dtype, shape, boxes) in tensors.items():
        entries[fqn] = TensorEntry(fqn, dtype, shape, Boxes.of(len(shape), boxes))
        for rank, box in enumerate(boxes):
            length = item_length(dtype, box.sizes) if dtype != "int4" else 77
            add(fqn, box.offsets, rank, length)
    for number, fqn in enumerate(objects):
        entries[fqn] = ObjectEntry(fqn)
        add(fqn, None, number % 2, 1261)
    return Checkpoint("dcp", {}, ("m",), entries, items, paths_in_state=paths or {})


def rows(shape: tuple[int, ...], count: int) -> list[Box]:
    return [part.box for part in parts(shape, Mesh(("dp",), (count,)), {"dp": 0})]


def grid(shape: tuple[int, ...], dp: int, tp: int, dim: int = 1) -> list[Box]:
    mesh = Mesh(("dp", "tp"), (dp, tp))
    return [part.box for part in parts(shape, mesh, {"dp": 0, "tp": dim})]


def fixture(name: str) -> Checkpoint:
    return dcp.read(PosixStore(FIXTURES / name), "")


def plan(checkpoint: Checkpoint, ranks: int, **options: Any) -> Plan:
    return planned(checkpoint, ranks, **options).plan


def planned(checkpoint: Checkpoint, ranks: int, **options: Any) -> Planned:
    contents = options.pop("contents", None)
    classifier = Classifier(checkpoint)
    request = Request(ranks, **{"policies": KEEP} | options)
    return plan_reshard(checkpoint, request, classifier, families_of(checkpoint), contents)


def families_of(checkpoint: Checkpoint) -> tuple[Family, ...]:
    return families(checkpoint, Classifier(checkpoint))


def steps_of(found: Plan) -> list[Copy | Write]:
    return [step for file in found.files for step in file.steps]


def check(found: Plan, source: Checkpoint) -> None:
    """What holds of every plan: each element once, metadata that fits, pieces that cover."""
    by_key: dict[str, list[Box | None]] = {}
    for step in steps_of(found):
        by_key.setdefault(step.fqn, []).append(step.box)
        if isinstance(step, Copy):
            item = source.items[step.item]
            assert item.length == step.length and item.transforms == step.transforms
            assert item.fqn == found.copied.get(step.fqn, step.fqn)
            if step.box is not None:
                entry = source.entries[item.fqn]
                assert isinstance(entry, TensorEntry) and step.box in list(entry.boxes)
        else:
            assert all(source.items.fqns[piece] == step.fqn for piece in step.pieces)
    assert set(by_key) == set(found.entries)
    for fqn, entry in found.entries.items():
        boxes = [box for box in by_key[fqn] if box is not None]
        if isinstance(entry, TensorEntry):
            assert sorted(boxes, key=str) == sorted(entry.boxes, key=str)
            assert len({box.offsets for box in boxes}) == len(boxes)
            assert tile(entry.shape, entry.boxes).exact
            origin = source.entries[found.copied.get(fqn, fqn)]
            assert isinstance(origin, TensorEntry)
            assert (entry.dtype, entry.shape) == (origin.dtype, origin.shape)
        else:
            assert by_key[fqn] == [None]
    assert [file.path for file in found.files] == [
        f"__{rank}_0.distcp" for rank in range(found.world_size)
    ]
    assert set(source.entries) - set(found.dropped) == set(found.entries) - set(found.copied)
    for file in found.files:  # objects first, as torch has it
        kinds = [step.box is None for step in file.steps]
        assert kinds == sorted(kinds, reverse=True)
    ends: dict[str, int] = {}
    for item in found.items():
        assert item.offset == ends.get(item.path, 0)
        ends[item.path] = item.end
    assert found.written == sum(ends.values())


CASES = ("fsdp2/step-12", "hsdp/step-12", "tp_fsdp/step-12", "ddp/step-12", "no_dist/step-12")
CASES += ("rank_local/step-12", "zstd/step-12", "dtype_zoo/step-1", "file_per_item/step-12")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 64])
def test_real_checkpoints_at_any_number_of_ranks(case: str, ranks: int) -> None:
    source = fixture(case)
    found = plan(source, ranks)
    check(found, source)
    assert found.digest == plan(source, ranks).digest
    json.dumps(list(found.documents()))
    assert pickle.loads(pickle.dumps(found)).digest == found.digest


@pytest.mark.parametrize("case", ["fsdp2/step-12", "tp_fsdp/step-12"])
def test_the_same_number_of_ranks_copies_everything(case: str) -> None:
    source = fixture(case)
    found = plan(source, 4)
    assert found.counts == (len(source.items), 0)
    for fqn, entry in found.entries.items():
        before = source.entries[fqn]
        if isinstance(entry, TensorEntry) and isinstance(before, TensorEntry):
            assert set(entry.boxes) == set(before.boxes)


BOXES = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(["float32", "bool", "int4"]), BOXES, st.integers(1, 4)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 3),
    st.integers(1, 9),
    st.sampled_from([None, "dp", "tp", "hsdp"]),
)
def test_every_element_is_written_once(
    drawn: list[tuple[str, tuple[int, ...], int]], tp: int, ranks: int, kind: str | None
) -> None:
    tensors: dict[str, Cut] = {"scalar": ("int64", (), [Box((), ())])}
    for number, (dtype, shape, dp) in enumerate(drawn):
        boxes = grid(shape, dp, tp) if len(shape) > 1 else rows(shape, dp)
        tensors[f"t{number}"] = (dtype, shape, boxes)
    source = made(tensors, ["step", "name"])
    mesh = {
        None: None,
        "dp": Mesh(("dp",), (ranks,)),
        "tp": Mesh(("dp", "tp"), (ranks, 2)),
        "hsdp": Mesh(("replicate", "dp"), (2, ranks)),
    }[kind]
    found = plan(source, ranks if mesh is None else mesh.world_size, mesh=mesh)
    check(found, source)


@settings(max_examples=60)
@given(BOXES, st.integers(1, 6), st.integers(1, 6))
def test_there_and_back_is_where_it_began(shape: tuple[int, ...], one: int, other: int) -> None:
    source = made({"t": ("float32", shape, rows(shape, one)), "u": ("int8", (7,), rows((7,), one))})
    rule = [DimRule.parse("*=0")]
    there = plan(source, other, rules=rule)
    between = Checkpoint("dcp", {}, ("m",), there.entries, there.items())
    back = plan(between, one, rules=rule)
    check(back, between)
    for fqn in source.entries:
        before, after = source.entries[fqn], back.entries[fqn]
        assert isinstance(before, TensorEntry) and isinstance(after, TensorEntry)
        assert list(before.boxes) == list(after.boxes)


def test_what_all_hold_is_spread_evenly() -> None:
    tensors: dict[str, Cut] = {
        f"t{i}": ("float32", (1 << i,), [Box((0,), (1 << i,))]) for i in range(4, 14)
    }
    tensors["cut"] = ("int8", (100,), rows((100,), 2))
    source = made(tensors, [f"o{i}" for i in range(50)])
    sizes = [file.size for file in plan(source, 3).files]
    assert max(sizes) < 1.1 * sum(sizes) / 3


def test_of_copies_that_ranks_saved_the_lowest_rank_s_is_taken() -> None:
    source = fixture("rank_local/step-12")
    for step in steps_of(plan(source, 3)):
        if isinstance(step, Copy):
            item = source.items[step.item]
            twins = [i for i in source.items if (i.fqn, i.offsets) == (item.fqn, item.offsets)]
            assert item.rank == min(twin.rank or 0 for twin in twins)


# --- how tensors are cut anew ------------------------------------------------------------------


def cut(found: Plan, fqn: str) -> tuple[int, ...]:
    entry = found.entries[fqn]
    assert isinstance(entry, TensorEntry)
    return tuple(
        len({(box.offsets[d], box.sizes[d]) for box in entry.boxes})
        for d in range(len(entry.shape))
    )


def test_tensor_parallel_cuts_are_kept_where_they_divide_the_ranks() -> None:
    source = made(
        {
            "rows": ("float32", (24, 8), grid((24, 8), 2, 2, 0)),
            "columns": ("float32", (24, 8), grid((24, 8), 2, 2, 1)),
            "norm": ("float32", (24,), rows((24,), 2)),
            "whole": ("float32", (24,), [Box((0,), (24,))]),
        }
    )
    found = plan(source, 8)
    assert found.mesh == "dp=4,tp=2"
    assert [cut(found, name) for name in source.entries] == [(8, 1), (4, 2), (4,), (1,)]
    dropped = plan(source, 3)
    assert dropped.mesh == "dp=3"
    assert [cut(dropped, name) for name in source.entries] == [(3, 1), (3, 1), (3,), (1,)]
    assert [cut(plan(source, 1), name) for name in source.entries] == [(1, 1), (1, 1), (1,), (1,)]
    asked = plan(source, 8, mesh=Mesh.parse("dp=2,tp=4"))
    assert [cut(asked, name) for name in source.entries] == [(8, 1), (2, 4), (2,), (1,)]


def test_tensor_parallelism_alone_stays_along_its_dimensions() -> None:
    tensors: dict[str, Cut] = {
        "up": ("float32", (8, 4), rows((8, 4), 4)),
        "down": ("float32", (4, 8), grid((4, 8), 1, 4)),
    }
    source = made(tensors)
    assert [cut(plan(source, 2), name) for name in tensors] == [(2, 1), (1, 2)]
    asked = plan(source, 4, mesh=Mesh.parse("dp=2,tp=2"))
    assert [cut(asked, name) for name in tensors] == [(4, 1), (2, 2)]


def test_a_checkpoint_of_one_rank_is_cut_along_the_first_dimension() -> None:
    source = made(
        {"w": ("float32", (8, 3), [Box((0, 0), (8, 3))]), "s": ("float32", (), [Box((), ())])}
    )
    assert cut(plan(source, 4), "w") == (4, 1)
    assert cut(plan(source, 4, rules=[DimRule.parse("*=replicate")]), "w") == (1, 1)


def test_boxes_that_are_no_grid_are_cut_along_the_first_dimension() -> None:
    boxes = [Box((0, 0), (3, 4)), Box((3, 0), (3, 2)), Box((3, 2), (3, 2))]
    source = made({"w": ("float32", (6, 4), boxes)})
    found = plan(source, 2)
    assert cut(found, "w") == (2, 1)
    assert found.counts == (1, 1)
    check(found, source)


def test_rules_outrank_the_reading_of_the_boxes() -> None:
    source = made(
        {"a.w": ("float32", (6, 4), rows((6, 4), 2)), "b.w": ("float32", (6, 4), rows((6, 4), 2))}
    )
    found = plan(source, 2, rules=[DimRule.parse("a.*=1"), DimRule.parse("*=replicate")])
    assert (cut(found, "a.w"), cut(found, "b.w")) == ((1, 2), (1, 1))
    mesh = Mesh.parse("dp=2,tp=2")
    both = plan(
        source, 4, mesh=mesh, rules=[DimRule.parse("a.w=1"), DimRule.parse("b.w=dp:1+tp:0")]
    )
    assert (cut(both, "a.w"), cut(both, "b.w")) == ((2, 2), (2, 2))


@pytest.mark.parametrize("text", ["", "x", "=1", "a=", "a=-1", "a=tp", "a=zz:1", "a=tp:1+"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        DimRule.parse(text)


@pytest.mark.parametrize("rule", ["*=2", "*=tp:0"])
def test_a_rule_that_does_not_fit_a_tensor_is_refused(rule: str) -> None:
    source = made({"w": ("float32", (6, 4), rows((6, 4), 2))})
    with pytest.raises(UsageError, match="the rule for"):
        plan(source, 2, rules=[DimRule.parse(rule)])


def test_a_request_that_contradicts_itself_is_refused() -> None:
    source = made({})
    with pytest.raises(UsageError, match="6 ranks, and 4 are asked for"):
        plan(source, 4, mesh=Mesh.parse("dp=3,tp=2"))
    with pytest.raises(UsageError, match="no number of ranks"):
        plan(source, 0)


def test_tensors_that_cannot_be_cut_are_copied_as_they_are() -> None:
    source = made(
        {
            "packed": ("int4", (8,), rows((8,), 2)),
            "class": ("float32", (8,), rows((8,), 2)),
            "plain": ("float32", (8,), rows((8,), 2)),
        }
    )
    found = plan(source, 4, as_they_are=frozenset({"class"}))
    assert [cut(found, name) for name in source.entries] == [(2,), (2,), (4,)]
    check(found, source)


def test_compressed_items_are_copied_with_their_transforms_or_read_whole() -> None:
    boxes = rows((8,), 2)
    source = made({"w": ("int8", (8,), boxes)}, transforms={0: ("stream.zstd/1",)})
    same = steps_of(plan(source, 2))
    assert [step.transforms for step in same] == [("stream.zstd/1",), ()]
    halves = steps_of(plan(source, 4))
    assert [step.read for step in halves] == [source.items.lengths[0]] * 2 + [2, 2]


def test_a_tensor_that_is_not_whole_is_refused() -> None:
    holed = made({"w": ("int8", (8,), [Box((0,), (3,)), Box((4,), (4,))])})
    with pytest.raises(MalformedData, match="3 of 4 elements"):
        plan(holed, 2)
    unstored = Checkpoint("dcp", {}, ("m",), made({"w": ("int8", (8,), rows((8,), 2))}).entries)
    with pytest.raises(MalformedData, match="not stored"):
        plan(unstored, 3)
    lost = Checkpoint("dcp", {}, ("m",), {"o": ObjectEntry("o")})
    with pytest.raises(MalformedData, match="where it is stored"):
        plan(lost, 3)


def test_another_source_or_request_is_another_plan() -> None:
    source = made({"w": ("int8", (8,), rows((8,), 2))}, ["o"])
    digests = {
        plan(source, 2).digest,
        plan(source, 3).digest,
        plan(source, 3, source="x").digest,
        plan(source, 3, policies=KEEP | {"rng": Policy.DROP}).digest,
        plan(source, 3, rules=[DimRule.parse("*=replicate")]).digest,
        plan(made({"w": ("uint8", (8,), rows((8,), 2))}, ["o"]), 3).digest,
    }
    assert len(digests) == 6


# --- state that each rank has its own of -------------------------------------------------------


def ranked(
    count: int, *, same: bool = True
) -> tuple[Checkpoint, dict[tuple[str, int | None], str]]:
    names = [f"dataloader.dp_rank_{r}.{k}" for r in range(count) for k in ("position", "seen")]
    paths = {n: tuple(n.split(".")) for n in names}
    contents = {(name, None): name.rpartition(".")[2] + ("" if same else name) for name in names}
    tensors: dict[str, Cut] = {"w": ("int8", (8,), rows((8,), count))}
    return made(tensors, names, paths=paths), contents


def test_ranks_that_do_not_change_need_no_decision() -> None:
    source, _ = ranked(2)
    found = planned(source, 2, policies={"rng": Policy.FAIL, "data": Policy.FAIL})
    assert not found.decision.refusals
    assert [o.verdict for o in found.decision.outcomes] == ["kept"]


@pytest.mark.parametrize(
    ("ranks", "gap"), [(4, "ranks 2-3 would find none"), (1, "rank 1 is no more")]
)
def test_ranks_that_change_do(ranks: int, gap: str) -> None:
    source, _ = ranked(2)
    found = planned(source, ranks, policies={"rng": Policy.FAIL, "data": Policy.FAIL})
    assert len(found.decision.refusals) == 1 and gap in found.decision.refusals[0]
    assert "`data` can be keep or drop or merge" in found.decision.refusals[0]


def test_keep_and_drop() -> None:
    source, _ = ranked(2)
    assert set(plan(source, 4).entries) == set(source.entries)
    dropped = plan(source, 4, policies=KEEP | {"data": Policy.DROP})
    assert set(dropped.entries) == {"w"} and len(dropped.dropped) == 4
    check(dropped, source)


@pytest.mark.parametrize("ranks", [1, 4, 12])
def test_merge_gives_every_rank_what_all_had(ranks: int) -> None:
    source, contents = ranked(2)
    found = planned(source, ranks, policies=KEEP | {"data": Policy.MERGE}, contents=contents)
    assert not found.decision.refusals
    names = {f"dataloader.dp_rank_{r}.{k}" for r in range(ranks) for k in ("position", "seen")}
    assert set(found.plan.entries) == {"w"} | names
    assert {name: ".".join(map(str, path)) for name, path in found.plan.paths.items()} == {
        name: name for name in names
    }
    check(found.plan, source)


@pytest.mark.parametrize("known", [True, False])
def test_what_differs_is_not_merged(known: bool) -> None:
    source, contents = ranked(2, same=False)
    found = planned(
        source, 4, policies=KEEP | {"data": Policy.MERGE}, contents=contents if known else {}
    )
    assert "dataloader.dp_rank_*.position" not in found.decision.refusals[0]
    assert "dataloader.*.position differs" in found.decision.refusals[0]


def test_names_of_ranks_are_found_wherever_they_stand() -> None:
    names = {
        "rng.rank_0.torch": ("rng", "rank_0", "torch"),
        "rng.rank_1.torch": ("rng", "rank_1", "torch"),
        "rng.1.torch": ("rng", 1, "torch"),
        "rng_state_11": ("rng_state_11",),
        "rng.python": ("rng", "python"),
        "model.rank_1": ("model", "rank_1"),
    }
    source = made({}, list(names), paths=names)
    keys = {key.fqn: key for family in families_of(source) for key in family.keys}
    assert set(keys) == set(names) - {"rng.python", "model.rank_1"}
    assert keys["rng.1.torch"].of(7) == "rng.7.torch"
    assert keys["rng.1.torch"].path_of(7, ("rng", 1, "torch")) == ("rng", 7, "torch")
    assert keys["rng_state_11"].of(2) == "rng_state_2"
    assert keys["rng.rank_1.torch"].path_of(3, ("rng.rank_1", "torch")) == ("rng.rank_3", "torch")
    assert {key.slot for key in keys.values()} == {"rng.*.torch", "*"}


def test_grids_of_megatron_hold_their_size_in_their_names() -> None:
    names = [f"rng_state/shard_0.{i}_1.2" for i in range(2)]
    source = made({"w": ("int8", (8,), rows((8,), 2))}, names)
    (family,) = families_of(source)
    assert (family.fixed, family.ranks, family.present) == (True, 2, frozenset({0, 1}))
    fail = {"rng": Policy.FAIL, "data": Policy.FAIL}
    assert not planned(source, 2, policies=fail).decision.refusals
    assert planned(source, 4, policies=fail).decision.refusals
    assert (
        families_of(made({}, ["rng_state/shard_0_1", "rng_state/shard_x", "rng/shard_5_2"])) == ()
    )


def shared(count: int) -> Checkpoint:
    items = Items(
        ["rng.python"] * count,
        [None] * count,
        [f"__{r}_0.distcp" for r in range(count)],
        array("q", [0] * count),
        array("q", [9] * count),
    )
    entries: dict[str, Entry] = {"rng.python": ObjectEntry("rng.python")}
    return Checkpoint("dcp", {}, ("__0.metadata",), entries, items, replicated=True)


@pytest.mark.parametrize(
    ("policy", "equal", "verdict"),
    [
        *itertools.product(Policy, [True], ["kept"]),
        (Policy.FAIL, False, "refused"),
        (Policy.DROP, False, "dropped"),
        (Policy.KEEP, False, "kept"),
    ],
)
def test_one_name_that_every_rank_saved(policy: Policy, equal: bool, verdict: str) -> None:
    contents: dict[tuple[str, int | None], str] = {
        ("rng.python", rank): "same" if equal else str(rank) for rank in range(3)
    }
    found = planned(shared(3), 3, policies=KEEP | {"rng": policy}, contents=contents)
    assert [o.verdict for o in found.decision.outcomes] == [verdict]
    assert bool(found.decision.refusals) == (verdict == "refused")
    assert ("rng.python" in found.plan.entries) == (verdict != "dropped")


def test_the_layout_of_a_source_is_read_off_its_boxes() -> None:
    boxes = Boxes.of(2, grid((6, 4), 2, 2))
    one = cuts_of(TensorEntry("t", "int8", (6, 4), boxes))
    assert (one.counts, one.dims, one.regular) == ((2, 2), (0, 1), True)
    layout = SourceLayout.of([one])
    assert (layout.ranks, layout.model, layout.cut) == (4, 2, True)
    assert str(layout.mesh(6)) == "dp=3,tp=2" and str(layout.mesh(5)) == "dp=5"


def test_a_plan_of_many_boxes_grows_with_them_and_not_faster() -> None:
    def source_of(count: int, boxes: int) -> Checkpoint:
        cut = ("bfloat16", (4096, 64), rows((4096, 64), boxes))
        return made({f"layers.{i}.w": cut for i in range(count)})

    few, _ = calls(lambda: plan(source_of(4, 128), 192))
    many, _ = calls(lambda: plan(source_of(4, 512), 768))
    assert many < 5 * few
    source = source_of(40, 512)
    found = plan(source, 768)
    assert sum(found.counts) == 40 * 684  # chunks of six rows, and one empty tail
    check(found, source)
