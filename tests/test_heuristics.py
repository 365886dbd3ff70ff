import logging
from collections.abc import Callable

import numpy as np
import pytest
import scotchpy
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InfeasibleError, InvalidValueError
from placer.graph import Op
from placer.group_ops import GroupingConfig, group_ops
from placer.grouping import Grouping
from placer.heuristics import (
    expert,
    heft,
    heuristic_placements,
    m_etf,
    m_sct,
    m_topo,
    metis_min_cut,
    random_placement,
    round_robin,
    scotch_mapping,
    single_device,
)
from placer.placement import Placement
from placer.policy import Actions
from placer.profile import Profile
from placer.simulator import simulate
from tests.grouped_profiles import chain_of, msr_profile, profile_of, profiles, topology_of

FOUR_GPUS = topology_of("GPU", "GPU", "GPU", "GPU")
TWO_GPUS = topology_of("GPU", "GPU")

Rule = Callable[[Profile, Grouping, int], Actions]
RULES: dict[str, Rule] = {
    "single": lambda profile, grouping, seed: single_device(
        profile, grouping, seed % profile.topology.num_devices
    ),
    "expert": lambda profile, grouping, _: expert(profile, grouping),
    "metis": lambda profile, grouping, seed: metis_min_cut(profile, grouping, seed=seed),
    "scotch": lambda profile, grouping, seed: scotch_mapping(profile, grouping, seed=seed),
    "m-topo": lambda profile, grouping, _: m_topo(profile, grouping),
    "m-etf": lambda profile, grouping, _: m_etf(profile, grouping),
    "m-sct": lambda profile, grouping, _: m_sct(profile, grouping),
    "heft": lambda profile, grouping, _: heft(profile, grouping),
    "round-robin": lambda profile, grouping, _: round_robin(profile, grouping),
    "random": lambda profile, grouping, seed: random_placement(profile, grouping, seed=seed),
}


def each_op_alone(profile: Profile) -> Grouping:
    return Grouping(range(profile.graph.num_ops))


def with_a_cpu_op() -> Profile:
    """Four ops on a CPU and two GPUs; op 1 needs the CPU."""
    kinds = [("CPU", "GPU"), ("CPU",), ("CPU", "GPU"), ("CPU", "GPU")]
    ops = [Op(f"op{i}", "Op", device_kinds=kind) for i, kind in enumerate(kinds)]
    return profile_of(ops, [(0, (1,), 8), (1, (2,), 8), (2, (3,), 8)])


def two_cliques() -> Profile:
    """Ops 0-3 and 4-7 send megabytes among themselves; op 3 sends four bytes to op 4."""
    tensors = [
        (a + half, tuple(b + half for b in range(a + 1, 4)), 10**6)
        for half in (0, 4)
        for a in range(3)
    ]
    return profile_of([Op(f"op{i}", "Op") for i in range(8)], [*tensors, (3, (4,), 4)], TWO_GPUS)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
class TestEveryHeuristic:
    """The contract: an action for each group, permitted, and always the same."""

    @given(profile=profiles(), max_groups=st.integers(1, 12), seed=st.integers(0, 2**40))
    def test_it_chooses_a_permitted_device_for_every_group_and_repeats_itself(
        self, rule: Rule, profile: Profile, max_groups: int, seed: int
    ) -> None:
        config = GroupingConfig(method="colocation", max_groups=max_groups)
        grouping = group_ops(profile, config).grouping
        try:
            actions = rule(profile, grouping, seed)
        except InfeasibleError:
            assert not any(op.module for op in profile.graph.ops)
            return

        assert actions.dtype == np.int32
        assert actions.shape == (grouping.num_groups,)
        assert grouping.allowed(profile)[np.arange(grouping.num_groups), actions].all()
        assert np.array_equal(actions, rule(profile, grouping, seed))

    def test_one_device_takes_everything(self, rule: Rule) -> None:
        profile = chain_of(["a/1", "b/1", "b/2"], topology_of("GPU"))

        assert rule(profile, each_op_alone(profile), 3).tolist() == [0, 0, 0]

    def test_one_group_is_placed(self, rule: Rule) -> None:
        profile = chain_of(["a/1", "b/1"], TWO_GPUS)

        assert rule(profile, Grouping([0, 0]), 3).shape == (1,)

    def test_a_graph_that_needs_the_cpu_goes_there(self, rule: Rule) -> None:
        ops = [Op(f"op{i}", "Op", module="a/1", device_kinds=("CPU",)) for i in range(3)]
        profile = profile_of(ops, [], topology_of("GPU", "CPU"))

        assert rule(profile, each_op_alone(profile), 3).tolist() == [1, 1, 1]

    def test_a_group_goes_to_a_permitted_gpu_where_the_rule_wants_the_cpu(self, rule: Rule) -> None:
        ops = [Op(f"op{i}", "Op", module="a/1", device_kinds=("GPU",)) for i in range(4)]
        profile = profile_of(ops, [], cpu_factor=1)

        assert rule(profile, each_op_alone(profile), 0).min() >= 1


class TestSingleDevice:
    def test_only_what_needs_the_cpu_stays_there(self) -> None:
        profile = with_a_cpu_op()

        assert single_device(profile, each_op_alone(profile), 2).tolist() == [2, 0, 2, 2]
        assert single_device(profile, each_op_alone(profile), 0).tolist() == [0, 0, 0, 0]

    @pytest.mark.parametrize("device", [-1, 3])
    def test_a_device_that_is_not_there_is_refused(self, device: int) -> None:
        profile = with_a_cpu_op()

        with pytest.raises(InvalidValueError, match=f"from 0 to 2, got {device}"):
            single_device(profile, each_op_alone(profile), device)


class TestExpert:
    def test_four_layers_in_a_chain_go_to_two_devices_in_halves(self) -> None:
        profile = chain_of(["first/1", "second/1", "third/1", "fourth/1"], TWO_GPUS)

        assert expert(profile, each_op_alone(profile)).tolist() == [0, 0, 1, 1]

    def test_three_layers_on_two_devices_leave_one_to_the_second(self) -> None:
        # floor(i 2 / 3) of 0, 1, 2.
        profile = chain_of(["a/1", "b/1", "c/1"], TWO_GPUS)

        assert expert(profile, each_op_alone(profile)).tolist() == [0, 0, 1]

    def test_gradients_follow_their_layer(self) -> None:
        # Forward through a, b, c, d and backward again.
        profile = chain_of([f"{unit}/1" for unit in "abcddcba"], FOUR_GPUS)

        assert expert(profile, each_op_alone(profile)).tolist() == [0, 1, 2, 3, 3, 2, 1, 0]

    def test_layers_count_in_forward_order_although_variables_stand_first(self) -> None:
        # Variables of the last layer come first in the graph; the data flow a -> b -> c.
        modules = ["c/w", "b/w", "a/w", "a/1", "b/1", "c/1"]
        ops = [Op(f"op{i}", "Op", module=module) for i, module in enumerate(modules)]
        tensors = [(0, (5,), 8), (1, (4,), 8), (2, (3,), 8), (3, (4,), 8), (4, (5,), 8)]
        profile = profile_of(ops, tensors, topology_of("GPU", "GPU", "GPU"))

        assert expert(profile, each_op_alone(profile)).tolist() == [2, 1, 0, 0, 1, 2]

    def test_a_constant_shared_between_layers_does_not_make_its_layer_the_first(self) -> None:
        # Op 0 is a constant named after the last layer, which the first layer reads too;
        # op 5 is the gradient that the last layer hands back.
        modules = ["c/shape", "a/in", "a/1", "b/1", "c/1", "b/1"]
        ops = [Op(f"op{i}", "Op", module=module) for i, module in enumerate(modules)]
        tensors = [(0, (2, 4), 4), (1, (2,), 8), (2, (3,), 8), (3, (4,), 8), (4, (5,), 8)]
        profile = profile_of(ops, tensors, topology_of("GPU", "GPU", "GPU"))

        assert expert(profile, each_op_alone(profile)).tolist() == [2, 0, 0, 1, 2, 1]

    def test_the_cpu_is_left_out_where_there_are_gpus(self) -> None:
        profile = chain_of(["a/1", "b/1"], topology_of("CPU", "GPU", "GPU"))

        assert expert(profile, each_op_alone(profile)).tolist() == [1, 2]

    def test_without_gpus_layers_are_spread_over_cpus(self) -> None:
        profile = chain_of(["a/1", "b/1"], topology_of("CPU", "CPU"))

        assert expert(profile, each_op_alone(profile)).tolist() == [0, 1]

    def test_a_group_belongs_to_the_unit_of_most_of_its_time(self) -> None:
        ops = [Op(f"op{i}", "Op", module=f"{unit}/1") for i, unit in enumerate("aabbb")]
        tensors = [(0, (1,), 8), (1, (2,), 8), (2, (3,), 8), (3, (4,), 8)]
        profile = profile_of(ops, tensors, TWO_GPUS, time_s=[1, 9, 1, 1, 1])

        # {1, 2, 3}: nine seconds of a against two of b.
        assert expert(profile, Grouping([0, 1, 1, 1, 2])).tolist() == [0, 0, 1]

    def test_without_times_a_group_belongs_to_the_unit_of_most_of_its_ops(self) -> None:
        ops = [Op(f"op{i}", "Op", module=f"{unit}/1") for i, unit in enumerate("aabbb")]
        tensors = [(0, (1,), 8), (1, (2,), 8), (2, (3,), 8), (3, (4,), 8)]
        profile = profile_of(ops, tensors, TWO_GPUS, time_s=[0] * 5)

        assert expert(profile, Grouping([0, 1, 1, 1, 2])).tolist() == [0, 1, 1]

    def test_a_group_without_a_unit_goes_where_most_of_its_bytes_go(self) -> None:
        # Op 2 gets 10 bytes from a and sends 50 to b; op 3 touches nothing.
        ops = [Op(f"op{i}", "Op", module=module) for i, module in enumerate(["a/1", "b/1", "", ""])]
        profile = profile_of(ops, [(0, (2,), 10), (2, (1,), 50), (0, (1,), 1)], TWO_GPUS)

        assert expert(profile, each_op_alone(profile)).tolist() == [0, 1, 1, 0]

    def test_a_graph_without_modules_has_no_expert(self) -> None:
        profile = chain_of(["", ""])

        with pytest.raises(InfeasibleError, match="this has none"):
            expert(profile, each_op_alone(profile))


class TestMetisMinCut:
    @pytest.mark.parametrize("seed", range(3))
    def test_two_cliques_go_to_two_gpus(self, seed: int) -> None:
        profile = two_cliques()

        actions = metis_min_cut(profile, each_op_alone(profile), seed=seed).tolist()

        assert actions in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)

    def test_the_cpu_gets_only_what_needs_it(self) -> None:
        profile = with_a_cpu_op()

        actions = metis_min_cut(profile, each_op_alone(profile)).tolist()

        assert actions[1] == 0
        assert 0 not in [actions[0], *actions[2:]]


class TestScotchMapping:
    @pytest.mark.parametrize("seed", range(3))
    def test_two_cliques_go_to_two_gpus(self, seed: int) -> None:
        profile = two_cliques()

        actions = scotch_mapping(profile, each_op_alone(profile), seed=seed).tolist()

        assert actions in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)

    def test_a_device_is_loaded_by_its_speed(self) -> None:
        # The CPU takes three times as long: of 40 equal ops it is due a quarter.
        profile = profile_of(
            [Op(f"op{i}", "Op") for i in range(40)], [], topology_of("GPU", "CPU"), cpu_factor=3
        )

        actions = scotch_mapping(profile, each_op_alone(profile))

        assert 8 <= (actions == 1).sum() <= 12

    def test_what_must_run_on_a_device_counts_as_its_load(self) -> None:
        # Equal devices; ten of twenty equal ops need the CPU: the others are the GPU's.
        kinds = [("CPU",)] * 10 + [("CPU", "GPU")] * 10
        ops = [Op(f"op{i}", "Op", device_kinds=kind) for i, kind in enumerate(kinds)]
        profile = profile_of(ops, [], topology_of("CPU", "GPU"), cpu_factor=1)

        actions = scotch_mapping(profile, each_op_alone(profile))

        assert actions[:10].tolist() == [0] * 10
        assert (actions[10:] == 1).sum() >= 9

    def test_neither_threads_nor_its_generators_state_change_the_result(self) -> None:
        # Large enough for Scotch to share work among threads, if it were let to.
        rng = np.random.default_rng(0)
        tensors = [
            (op, tuple(sorted(set(rng.integers(op + 1, op + 20, 3).tolist()))), int(size_bytes))
            for op, size_bytes in enumerate(rng.integers(1, 10**6, 1500))
        ]
        ops = [Op(f"op{i}", "Op") for i in range(1520)]
        profile = profile_of(ops, tensors, FOUR_GPUS)
        grouping = each_op_alone(profile)
        expected = scotch_mapping(profile, grouping, seed=1)

        for other_seed in range(5):
            scotchpy.common.random_seed(other_seed)

            assert np.array_equal(scotch_mapping(profile, grouping, seed=1), expected)


class TestRoundRobinAndRandom:
    def test_groups_are_dealt_to_the_gpus_in_turn(self) -> None:
        profile = with_a_cpu_op()

        # GPUs are devices 1 and 2; op 1 needs the CPU.
        assert round_robin(profile, each_op_alone(profile)).tolist() == [1, 0, 1, 2]

    def test_random_uses_every_permitted_device_about_equally(self) -> None:
        profile = profile_of([Op(f"op{i}", "Op") for i in range(3000)], [])

        counts = np.bincount(random_placement(profile, each_op_alone(profile), seed=7))

        # 1000 expected on each of three devices, with a standard deviation of 26.
        assert counts.tolist() == pytest.approx([1000] * 3, abs=130)

    def test_another_seed_gives_another_random_placement(self) -> None:
        profile = profile_of([Op(f"op{i}", "Op") for i in range(50)], [])
        grouping = each_op_alone(profile)

        first, second = (random_placement(profile, grouping, seed=seed) for seed in (1, 2))

        assert not np.array_equal(first, second)


class TestHeuristicPlacements:
    def test_all_heuristics_are_there_by_name(self) -> None:
        profile = chain_of(["a/1", "b/1", "c/1"])

        placements = heuristic_placements(profile, each_op_alone(profile), seed=5)

        singles = ["single cpu:0", "single gpu:0", "single gpu:1"]
        schedulers = ["m-topo", "m-etf", "m-sct", "heft"]
        others = ["expert", "metis", "scotch", *schedulers, "round-robin", "random"]
        assert list(placements) == [*singles, *others]
        assert placements["single gpu:1"].tolist() == [2, 2, 2]
        random = random_placement(profile, each_op_alone(profile), seed=5)
        assert np.array_equal(placements["random"], random)

    def test_what_does_not_apply_is_left_out_and_the_reason_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        profile = chain_of(["", ""])

        with caplog.at_level(logging.INFO, logger="placer.heuristics"):
            placements = heuristic_placements(profile, each_op_alone(profile))

        assert "expert" not in placements
        assert (
            "'expert' is left out: the expert needs a graph whose ops name modules" in caplog.text
        )

    @pytest.mark.parametrize(
        ("name", "one_device_s"),
        [
            ("gnmt_training", 0.520453),
            ("bert_l-3_training", 0.122974),
            ("bert_l-12_training", 1.891786),
        ],
    )
    def test_on_published_graphs_partitioners_beat_chance_and_one_device_takes_what_it_should(
        self, name: str, one_device_s: float
    ) -> None:
        profile = msr_profile(name)
        grouping = group_ops(profile, GroupingConfig(method="colocation")).grouping

        makespans_s = {
            method: simulate(profile, Placement.from_groups(grouping, actions)).makespan_s
            for method, actions in heuristic_placements(profile, grouping).items()
        }

        assert makespans_s["single device:3"] == pytest.approx(one_device_s, abs=1e-9)
        assert makespans_s["metis"] < makespans_s["round-robin"]
        assert makespans_s["scotch"] < makespans_s["round-robin"]
