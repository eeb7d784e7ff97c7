"""How evidence of step and run is weighed: pure functions, each with what must and must not trip it."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.formats.items.crc_summary import says_something
from ckptctl.model.components import KeyName
from ckptctl.operations.provenance.collect import Catcher
from ckptctl.provenance.consensus import Dissent, Level, Support, consensus, dissents
from ckptctl.provenance.counters import (
    Counter,
    Kind,
    RunMark,
    Stamp,
    looked_up,
    moment_of,
    parameter_of,
    stamps_of,
    tells,
)
from ckptctl.provenance.evidence import Likeness, Neighbour, Probe
from ckptctl.provenance.peers import keeps_pace, odd_times, peer_views, supports
from ckptctl.provenance.similarity import Home, Proof, compare, home_of


def f(rank: int, number: int = 0) -> str:
    return f"__{rank}_{number}.distcp"


def adam(rank: int, parameter: str, step: int) -> Stamp:
    return Stamp(f(rank), f"optimizer.state.{parameter}.step", Kind.OPTIMIZER, step)


def progress(rank: int, step: int, key: str = "train_state.step") -> Stamp:
    return Stamp(f(rank), key, Kind.PROGRESS, step)


def scheduler(rank: int, step: int) -> Stamp:
    return Stamp(f(rank), "lr_scheduler.last_epoch", Kind.SCHEDULER, step)


def weigh(
    *stamps: Stamp,
    declared: int | None = 1000,
    confined: bool = False,
    support: Support | None = None,
) -> dict[str, tuple[int, Level]]:
    found: list[Dissent] = dissents(
        stamps,
        consensus(stamps, declared),
        confined=lambda _: confined,
        support=lambda *_: support or Support(),
    )
    return {one.file: (one.step, one.level) for one in found}


MANY = [adam(rank, f"p{rank}{n}", 1000) for rank in (1, 2, 3) for n in range(6)]


class TestVotes:
    def test_agreement(self) -> None:
        assert weigh(*MANY, progress(2, 1000), scheduler(3, 1000)) == {}

    def test_nothing_said(self) -> None:
        assert weigh() == {}

    def test_a_file_all_of_whose_parameters_lag(self) -> None:
        late = [adam(1, f"p1{n}", 900) for n in range(6)]
        assert weigh(*late, *MANY[6:]) == {f(1): (900, Level.CERTAIN)}

    def test_the_same_where_the_parameters_lie_in_that_file_alone(self) -> None:
        """A stage of a pipeline that is frozen."""
        late = [adam(1, f"p1{n}", 900) for n in range(6)]
        assert weigh(*late, *MANY[6:], confined=True) == {f(1): (900, Level.POSSIBLE)}

    def test_two_of_few_parameters_may_be_frozen_by_chance(self) -> None:
        few = [adam(1, "a", 900), adam(1, "b", 900), adam(2, "c", 1000), adam(3, "d", 1000)]
        assert weigh(*few) == {f(1): (900, Level.LIKELY)}

    def test_one_parameter_that_lags_is_no_accusation(self) -> None:
        assert weigh(adam(1, "a", 900), *MANY[6:]) == {f(1): (900, Level.POSSIBLE)}

    @pytest.mark.parametrize("firm", [True, False])
    def test_but_with_support_it_is(self, firm: bool) -> None:
        found = weigh(adam(1, "a", 900), *MANY[6:], support=Support("a time", firm=firm))
        assert found == {f(1): (900, Level.CERTAIN)}

    def test_frozen_parameters_spread_over_the_files(self) -> None:
        frozen = [adam(rank, f"q{rank}", 400) for rank in (1, 2, 3)]
        assert weigh(*MANY, *frozen) == {}

    def test_most_parameters_frozen_and_few_trained(self) -> None:
        body = [adam(rank, f"q{rank}{n}", 400) for rank in (1, 2, 3) for n in range(9)]
        head = [adam(2, "head.weight", 1000), adam(2, "head.bias", 1000)]
        assert weigh(*body, *head) == {}

    def test_experts_that_lag_each_by_its_own(self) -> None:
        experts = [adam(1, f"e{n}", 1000 - n) for n in range(1, 6)]
        assert weigh(*experts, *MANY[6:]) == {}

    def test_three_ways_of_counting_in_one_file(self) -> None:
        found = weigh(progress(1, 900), scheduler(1, 900), adam(1, "a", 900), *MANY[6:])
        assert found == {f(1): (900, Level.CERTAIN)}

    @pytest.mark.parametrize(
        "alone",
        [
            [scheduler(1, 3)],  # epochs
            [scheduler(1, 250)],  # a period of restarts
            [progress(1, 4000)],  # micro-batches
            [progress(1, 999)],  # counted before the step
            [progress(1, 1001)],
            [progress(1, 0)],
        ],
    )
    def test_what_no_other_file_counts_may_count_anything(self, alone: list[Stamp]) -> None:
        assert weigh(*alone, *MANY[6:]) == {}

    def test_a_step_inside_an_epoch(self) -> None:
        found = weigh(progress(1, 137), scheduler(1, 137), *MANY[6:])
        assert found == {f(1): (137, Level.POSSIBLE)}

    def test_time_alone_makes_it_likely_and_a_counter_certain(self) -> None:
        votes = [progress(1, 870), *MANY[6:]]
        assert weigh(*votes, support=Support("a time")) == {f(1): (870, Level.LIKELY)}
        assert weigh(*votes, support=Support("pos", firm=True)) == {f(1): (870, Level.CERTAIN)}

    def test_one_key_on_several_ranks_must_agree(self) -> None:
        votes = [progress(rank, 1000) for rank in (0, 1, 3)]
        assert weigh(*votes, progress(2, 900)) == {f(2): (900, Level.CERTAIN)}

    def test_of_two_ranks_the_declared_step_is_right(self) -> None:
        for declared, wrong in ((900, 1), (1000, 0)):
            found = weigh(progress(0, 900), progress(1, 1000), declared=declared)
            assert set(found) == {f(wrong)}

    def test_optimizers_may_count_one_more_than_the_name(self) -> None:
        assert weigh(*[Stamp(s.file, s.key, s.kind, 1001) for s in MANY], progress(0, 1000)) == {}

    def test_accumulated_gradients(self) -> None:
        assert weigh(*[Stamp(s.file, s.key, s.kind, 250) for s in MANY], progress(0, 1000)) == {}

    def test_a_lone_one_with_the_step_of_a_certain_one(self) -> None:
        late = [adam(1, f"p1{n}", 900) for n in range(6)]
        found = weigh(*late, adam(2, "x", 900), *MANY[12:])
        assert found == {f(1): (900, Level.CERTAIN), f(2): (900, Level.CERTAIN)}

    def test_the_files_of_one_rank_are_weighed_together(self) -> None:
        def own(number: int, stamp: Stamp) -> Stamp:
            return Stamp(f(1, number), stamp.key, stamp.kind, stamp.step)

        apart = [own(0, progress(1, 900)), own(1, scheduler(1, 900)), own(2, adam(1, "a", 900))]
        assert weigh(*apart, *MANY[6:]) == {f(1, n): (900, Level.CERTAIN) for n in range(3)}


class TestPeers:
    def views(self, *values: float, step: int = 1000, moves: bool = True) -> dict[str, object]:
        counters = [Counter(f(r), "d.dp_rank_*.pos", v, moves) for r, v in enumerate(values)]
        return {view.file: view for view in peer_views(counters, step)}

    def test_an_outlier_is_worth_its_own_step(self) -> None:
        views = self.views(32000, 28801, 32002, 32003)
        assert [v.outlier for v in views.values()] == [False, True, False, False]
        assert views[f(1)].estimate == pytest.approx(900, abs=0.5)
        assert supports(views[f(1)], 900, 1000)
        assert not supports(views[f(1)], 500, 1000)
        assert all(keeps_pace(views[f(r)], 1000) for r in (0, 2, 3))

    def test_a_position_that_began_anew_supports_no_step_between(self) -> None:
        views = self.views(32000, 7, 32002, 32003)
        assert views[f(1)].outlier
        assert not supports(views[f(1)], 900, 1000)

    @pytest.mark.parametrize("values", [(28, 8, 44, 4), (32000, 30000, 34000, 28801)])
    def test_wide_peers_say_nothing(self, values: tuple[float, ...]) -> None:
        for view in self.views(*values).values():
            assert not view.outlier
            assert view.estimate is None

    def test_what_does_not_move_says_nothing_of_the_step(self) -> None:
        views = self.views(1234, 1234, 1234, 1234, moves=False)
        assert [keeps_pace(view, 1000) for view in views.values()] == [False] * 4

    def test_what_moves_slower_than_the_step_says_nothing(self) -> None:
        assert all(v.estimate is None for v in self.views(3, 3, 3, 3).values())

    def test_two_are_too_few(self) -> None:
        assert self.views(32000, 28801) == {}

    def test_without_a_step_there_is_no_estimate(self) -> None:
        counters = [Counter(f(r), "k", 10.0 * r, moves=True) for r in range(4)]
        assert all(view.estimate is None for view in peer_views(counters, None))

    @given(st.lists(st.integers(0, 10**9), min_size=3, max_size=40))
    def test_equal_or_even_values_have_no_outlier(self, values: list[int]) -> None:
        assert not any(v.outlier for v in self.views(*([values[0]] * len(values))).values())
        assert not any(v.outlier for v in self.views(*range(len(values))).values())


class TestTimes:
    def test_one_save(self) -> None:
        assert odd_times({f(r): 100.0 + r for r in range(4)}, 105.0) == {}

    def test_an_older_one(self) -> None:
        times = {f(0): 1000.0, f(1): 400.0, f(2): 1001.0, f(3): 1002.0}
        assert odd_times(times, 1003.0) == {f(1): -600.0}

    def test_a_newer_one(self) -> None:
        times = {f(0): 1000.0, f(1): 1700.0, f(2): 1001.0}
        assert odd_times(times, 1003.0) == {f(1): 697.0}

    def test_two_from_different_saves(self) -> None:
        times = {f(0): 1000.0, f(1): 400.0, f(2): 10.0, f(3): 1002.0, f(4): 1001.0}
        assert set(odd_times(times, 1003.0)) == {f(1), f(2)}

    def test_a_slow_save(self) -> None:
        assert odd_times({f(r): 100.0 * r for r in range(8)}, 900.0) == {}

    def test_ranks_that_end_one_after_another(self) -> None:
        assert odd_times({f(r): 100.0 * r for r in range(8)}, 701.0) == {}
        assert odd_times({f(0): 0.0, f(1): 100.0}, 101.0) == {}

    def test_a_checkout_of_a_second(self) -> None:
        assert odd_times({f(0): 9.0, f(1): 0.0, f(2): 9.1, f(3): 9.2}, 9.3) == {}

    def test_metadata_written_much_later_accuses_no_shard(self) -> None:
        assert odd_times({f(r): 100.0 + r for r in range(4)}, 9000.0) == {}

    @pytest.mark.parametrize("times", [{}, {f(0): 1.0}, {f(0): 1.0, f(1): 9999.0}])
    def test_too_few(self, times: dict[str, float]) -> None:
        assert odd_times(times, None) == {}


FILES = tuple(f(rank) for rank in range(4))


def probes(kind: Likeness, fqn: str, equal: tuple[int, ...], ranks: int = 4) -> list[Probe]:
    return [Probe(f(r), fqn, kind, r in equal) for r in range(ranks)]


def tie(*found: list[Probe], **rest: object) -> list[tuple[tuple[str, ...], Proof]]:
    every = [probe for group in found for probe in group]
    unlike = {p.file for p in every if not p.equal}
    alike = {p.file for p in every if p.equal} - unlike
    neighbour = Neighbour("step-900", 900, tuple(every), frozenset(alike), frozenset(unlike))
    return [(one.files, one.proof) for one in compare(neighbour, FILES).alike]


M, W, C = Likeness.MOMENT, Likeness.WEIGHT, Likeness.COUNT


class TestLikeness:
    def test_a_moment_that_stands_still_in_one_file(self) -> None:
        assert tie(probes(M, "optimizer.state.up.exp_avg", (1,))) == [((f(1),), Proof.CERTAIN)]

    def test_rows_of_an_embedding_alone(self) -> None:
        moments = probes(M, "optimizer.state.embed.weight.exp_avg", (1,))
        weights = probes(W, "model.embed.weight", (1,))
        assert tie(moments) == [((f(1),), Proof.EXPLAINED)]
        assert tie(weights) == [((f(1),), Proof.EXPLAINED)]

    def test_a_whole_tensor_that_did_not_move_anywhere(self) -> None:
        moments = [Probe(f(1), "optimizer.state.up.exp_avg", M, True)]
        moved = [Probe(f(2), "optimizer.state.down.exp_avg", M, False)]
        assert tie(moments, moved) == [((f(1),), Proof.NONE)]

    def test_its_step_says_that_it_was_trained(self) -> None:
        moments = [Probe(f(1), "optimizer.state.up.exp_avg", M, True)]
        step = [Probe(f(2), "optimizer.state.up.step", C, False)]
        assert tie(moments, step) == [((f(1),), Proof.CERTAIN)]

    @pytest.mark.parametrize(
        ("count", "proof"), [(1, Proof.EXPLAINED), (2, Proof.LIKELY), (3, Proof.CERTAIN)]
    )
    def test_weights_need_company(self, count: int, proof: Proof) -> None:
        assert tie(*(probes(W, f"model.w{n}", (1,)) for n in range(count))) == [((f(1),), proof)]

    def test_a_frozen_weight_is_equal_everywhere(self) -> None:
        assert tie(probes(W, "model.w", (0, 1, 2, 3)), probes(M, "o.state.u.exp_avg", ())) == []

    def test_everything_equal(self) -> None:
        for kind, moving in ((W, False), (M, True), (C, True)):
            found = compare(
                Neighbour("n", 1, tuple(probes(kind, "x", (0, 1, 2, 3))), frozenset(FILES)), FILES
            )
            assert (found.everything, found.moving, found.alike) == (True, moving, ())


class TestHome:
    def home(self, **changes: object) -> Home:
        (alike,) = compare(
            Neighbour(
                "step-900",
                900,
                tuple(probes(M, "optimizer.state.up.exp_avg", (1,))),
                frozenset({f(1)}),
                frozenset({f(0), f(2), f(3)}),
            ),
            FILES,
        ).alike
        given: dict[str, object] = {
            "common": 1000,
            "stamps": (),
            "estimates": {},
            "strays": frozenset(),
            "dissenting": frozenset(),
            "odd_here": {},
            "odd_there": {},
        }
        return home_of(alike, **{**given, **changes})[0]  # type: ignore[arg-type]

    def test_nothing_tells(self) -> None:
        assert self.home() is Home.OPEN

    def test_by_what_it_says(self) -> None:
        assert self.home(stamps=[adam(1, "a", 900)]) is Home.THERE
        assert self.home(stamps=[adam(1, "a", 1000)]) is Home.HERE
        assert self.home(stamps=[adam(1, "a", 1000), adam(1, "b", 900)]) is Home.OPEN
        assert self.home(stamps=[adam(2, "a", 900)]) is Home.OPEN  # another file's word
        assert self.home(dissenting=frozenset({f(1)})) is Home.THERE

    def test_by_its_own_counters(self) -> None:
        assert self.home(estimates={f(1): [900.2]}) is Home.THERE
        assert self.home(estimates={f(1): [999.7]}) is Home.HERE
        assert self.home(strays=frozenset({f(1)})) is Home.THERE

    def test_by_its_time(self) -> None:
        assert self.home(odd_here={f(1): -600.0}) is Home.THERE
        assert self.home(odd_there={f(1): 600.0}) is Home.HERE
        assert self.home(odd_here={f(1): -600.0}, odd_there={f(1): 600.0}) is Home.OPEN


class TestNames:
    @pytest.mark.parametrize(
        ("path", "kind", "value", "step"),
        [
            (("train_state", "step"), Kind.PROGRESS, 7, 7),
            (("global_step",), Kind.PROGRESS, 7, 7),
            (("app", "step"), Kind.PROGRESS, 7, 7),
            (("app", "sched", "last_epoch"), Kind.SCHEDULER, 7, 7),
            (("lr_scheduler", "_step_count"), Kind.SCHEDULER, 8, 7),
            (("optimizer", "state", "a.weight", "step"), Kind.OPTIMIZER, 7.0, 7),
            (("optimizer", "state.a.weight.step"), Kind.OPTIMIZER, 7.0, 7),
            (("optim", "param_groups", 0, "step"), Kind.GROUP, 7, 7),
        ],
    )
    def test_what_counts(
        self, path: tuple[str | int, ...], kind: Kind, value: float, step: int
    ) -> None:
        assert tells(KeyName.of(path), scalar=True)
        (stamp,) = stamps_of("x", path, value, alone=False)
        assert isinstance(stamp, Stamp)
        assert (stamp.kind, stamp.step) == (kind, step)

    @pytest.mark.parametrize(
        "path",
        [
            ("model", "ema", "step"),
            ("model", "bn.num_batches_tracked"),
            ("optimizer", "param_groups", 0, "lr"),
            ("lr_scheduler", "base_lrs"),
            ("train_state", "tokens"),
        ],
    )
    def test_what_does_not(self, path: tuple[str | int, ...]) -> None:
        assert list(stamps_of("x", path, 7, alone=False)) == []

    @pytest.mark.parametrize("value", [True, -1, 2.5, float("nan"), float("inf"), 1 << 60, "7"])
    def test_no_step(self, value: object) -> None:
        assert list(stamps_of("x", ("global_step",), value, alone=False)) == []

    def test_megatron(self) -> None:
        common = [{"iteration": 6, "opt_param_scheduler": {"num_steps": 24}, "args": "..."}]
        (stamp,) = stamps_of("x", ("common_state/shard_0_1",), common, alone=False)
        assert isinstance(stamp, Stamp)
        assert (stamp.kind, stamp.step) == (Kind.PROGRESS, 6)
        groups = [{"param_groups": [{"lr": 0.1, "step": 6}, {"lr": 0.1, "step": 6}]}]
        path = ("optimizer", "distributed", "dp_group_idx_0", "optimizer/shard_0_1")
        assert tells(KeyName.of(path), scalar=False)
        found = [s for s in stamps_of("x", path, groups, alone=False) if isinstance(s, Stamp)]
        assert {(s.kind, s.step) for s in found} == {(Kind.GROUP, 6)}

    def test_ranks_are_peers(self) -> None:
        (one,) = stamps_of("x", ("dataloader", "dp_rank_3", "pos"), 9, alone=False)
        (other,) = stamps_of("y", ("dataloader", "dp_rank_12", "pos"), 9, alone=False)
        assert isinstance(one, Counter)
        assert isinstance(other, Counter)
        assert (one.key, one.moves) == (other.key, True)
        (seed,) = stamps_of("x", ("dataloader", "dp_rank_3", "seed"), 9, alone=False)
        assert isinstance(seed, Counter)
        assert not seed.moves

    def test_runs(self) -> None:
        assert list(stamps_of("x", ("train_state", "run_id"), "r1", alone=False)) == [
            RunMark("x", "train_state.run_id", "r1")
        ]

    def test_deep_and_wide_values_are_bounded(self) -> None:
        deep: object = 1
        for _ in range(10_000):
            deep = [deep]
        assert list(stamps_of("x", ("train_state",), deep, alone=True)) == []
        wide = {f"k{n}": {"step": n} for n in range(100_000)}
        assert len(list(stamps_of("x", ("train_state",), wide, alone=False))) < 1000

    def test_moments_and_their_parameters(self) -> None:
        assert moment_of("optimizer.state.a.b.weight.exp_avg") == ("a.b.weight", "exp_avg")
        assert moment_of("optimizer.state.exp_avg_sq.a.b") == ("a.b", "exp_avg_sq")
        assert moment_of("model.a.weight") is None
        assert parameter_of("optimizer.state.a.b.weight.step") == "a.b.weight"
        assert looked_up("model.embed_tokens.weight")
        assert not looked_up("model.layers.0.up.weight")


class TestPrints:
    def test_what_says_something(self) -> None:
        assert not says_something((("data.pkl", 5, 1), ("data/0", 64, zlib.crc32(bytes(64)))))
        assert not says_something((("data.pkl", 5, 1), ("data/0", 0, 0)))
        assert says_something((("data.pkl", 5, 1), ("data/0", 64, 1)))


@given(st.data())
def test_ranges_are_cut_out_of_blocks(data: st.DataObject) -> None:
    content = data.draw(st.binary(max_size=300))
    size = len(content)
    ends = st.integers(0, size)
    ranges = sorted({(min(a, b), max(a, b)) for a, b in data.draw(st.lists(st.tuples(ends, ends)))})
    ranges = [one for one in ranges if one[0] < one[1]]
    catcher = Catcher(ranges)
    width = data.draw(st.integers(1, 64))
    for start in range(0, size, width):
        catcher.feed(memoryview(content[start : start + width]))
    assert catcher.pieces == {(low, high): content[low:high] for low, high in ranges}
